"""Products of a sparse matrix that stays the same, by compressed rows instead of coordinates.

Graph networks multiply one adjacency matrix in every layer of every step. torch keeps it as
coordinates unless told otherwise, walks them on one core of a CPU, and sorts those of the transpose
in every backward.
"""

from __future__ import annotations

from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, in_reverse, patch
from ridgeline.records.edits import AtStart, Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl, source_of_kernel

CARD = Card(
    name="compressed-rows",
    title="Sparse matrices by compressed rows",
    cures=("coordinate-matrix",),
    costs="The memory of the matrix twice more: its rows, and those of its transpose.",
    source="Saad, Iterative Methods for Sparse Linear Systems, 2003, section 3.4; PyTorch "
    "documentation, torch.sparse, CSR",
    equivalence="rounding",
    stage=Stage.SETTINGS,
)

_PRODUCTS = ("torch:mm", "torch:spmm", "torch:matmul", "torch.sparse:mm", "torch:Tensor.mm",
             "torch:Tensor.matmul", "torch:Tensor.__matmul__")  # fmt: skip


def applies(context: Context) -> Applicability:
    """Products of coordinates are felt."""
    products = context.profile.habit("coordinate_product")
    if products.calls == 0:
        return Applicability(False, "no product of a sparse matrix of coordinates was seen")
    share = _share(context)
    if share < 0.02:
        return Applicability(False, f"products of sparse matrices take {share:.1%} of a step")
    return Applicability(True, "")


def _share(context: Context) -> float:
    seconds = context.profile.habit("coordinate_product").seconds
    return min(1.0, seconds / context.profile.step_seconds.mean)


def predict(context: Context, options: Options) -> Gain:
    """A product takes a half to a twelfth: all cores walk it, and nothing is sorted."""
    return amdahl(_share(context), 2.0, 12.0)


def apply(points: Points, options: Options) -> Undo:
    """Put a product that knows such matrices in the place of torch's."""
    from ridgeline.kernels.compressed_rows import CompressedRows, by_compressed_rows

    known = CompressedRows()

    def compressed() -> None:
        points.changed(CARD.name, "sparse matrices are multiplied by their compressed rows")

    def by_rows(original: Any) -> Any:
        return by_compressed_rows(original, known, compressed)

    return in_reverse([patch(name, by_rows) for name in _PRODUCTS])


def edits(context: Context, options: Options) -> list[Edit]:
    """The products themselves, in the place of torch's."""
    lines = [
        f"{name} = by_compressed_rows({name}, compressed)"
        for name in (product.replace(":", ".") for product in _PRODUCTS)
    ]
    code = "\n".join(
        [source_of_kernel("compressed_rows"), "", "", "compressed = CompressedRows()", *lines]
    )
    return [AtStart(files=context.files, code=code)]
