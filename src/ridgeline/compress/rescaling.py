"""Scales moved from the inputs of a block's matrices into what makes those inputs.

The search is AWQ's or SmoothQuant's (`methods/`), what can take a scale over is found by
`sharing.py`. The block's output stays as it was.
"""

from __future__ import annotations

from typing import Any

from ridgeline.compress.methods import awq, smoothquant
from ridgeline.compress.streaming.loaded_block import LoadedBlock
from ridgeline.compress.watching.capture import gather
from ridgeline.compress.watching.products import Product
from ridgeline.compress.watching.seen import Seen
from ridgeline.compress.watching.sharing import Group, with_absorbers
from ridgeline.records.scheme import Scheme

METHODS: dict[str, Any] = {"awq": awq, "smoothquant": smoothquant}
"""That rescale: `scale(weights, seen, scheme, channels)`."""

NOTICE = "nothing before it can take scales over: rounded without"


def rescale(block: LoadedBlock) -> dict[str, str]:
    """Search and move scales in every group that a scheme wants it for.

    Returns:
        By matrix, a notice where it was not possible.
    """
    if all(_scheme(block, (matrix,)) is None for matrix in block.matrices):
        return {}
    groups = with_absorbers(block.module, block.matrices, block.runs[0], block.head_dim)
    notices: dict[str, str] = {}
    wanted: dict[Product, tuple[int, frozenset[str]]] = {}
    for group in groups:
        for product, number in zip(group.products, group.statistics, strict=True):
            scheme = _scheme(block, product)
            if scheme is None:
                continue
            if group.absorber is None:
                notices |= {matrix.name: NOTICE for matrix in product}
            else:
                wanted[product] = (number, METHODS[scheme.method].NEEDS)
    seen = gather(block.runs, block.matrices, wanted) if wanted else {}
    for group in groups:
        _rescale(block, group, {product: seen[number] for product, (number, _) in wanted.items()})
    return notices


def _scheme(block: LoadedBlock, product: Product) -> Scheme | None:
    """The first one that rescales, of the matrices of a product."""
    for matrix in product:
        for scheme in block.schemes[matrix.name]:
            if scheme.weights and scheme.method in METHODS:
                return scheme
    return None


def _rescale(block: LoadedBlock, group: Group, seen: dict[Product, Seen]) -> None:
    """Divide what is before a group, multiply its weights."""
    pairs = [
        (matrix, seen[product])
        for product in group.products
        if product in seen and seen[product].num_tokens
        for matrix in product
        if not matrix.kept and block.schemes[matrix.name]
    ]
    scheme = _scheme(block, tuple(matrix for matrix, _ in pairs))
    if group.absorber is None or scheme is None:
        return
    weights = [matrix.weight.to(block.dtypes[matrix.name]) for matrix, _ in pairs]
    scale = METHODS[scheme.method].scale(
        weights, [one for _, one in pairs], scheme, group.absorber.channels
    )
    group.absorber.divide(scale)
    for matrix in group.matrices:
        matrix.weight.mul_(scale)
