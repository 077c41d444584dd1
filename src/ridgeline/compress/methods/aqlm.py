"""Groups of eight weights become sums of entries of codebooks, and what follows makes up for it.

The form is that of AQLM (Egiazarian et al., arXiv 2401.06118): a row's scale times a sum of one
entry of each book. How it is found is GPTVQ's (van Baalen et al., arXiv 2402.15319): GPTQ's walk,
a group of columns at a time. With U of `inverse_factor` and V = U_bb⁻¹ of a group's own block, an
entry c in place of w leaves the error e = (w − c) V, whose square is what the outputs lose, and
W[:, b:] −= e U[b, b:]. So entries are chosen by ‖w V − c V‖², several books by a beam search
(AQLM, section 3.2), and books begin as weighted k-means, each of what those before it left.

After a walk, books are those that lose least for the codes that were chosen: ‖(W − Ŵ) X‖² is
quadratic in them and is solved by conjugate gradients (AQLM's phase 2, section 3.3, without Adam).
The walk is then done anew with them; the best of all rounds is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress import rounding
from ridgeline.compress.methods.rtn import Rounded, judged
from ridgeline.compress.watching.statistics import CalibrationStatistics, inverse_factor
from ridgeline.errors import InputError
from ridgeline.kernels.number_formats.codebooks import ENTRIES, num_books, sums
from ridgeline.records.scheme import Scheme

NEEDS = frozenset({"hessian"})
"""The fields of `CalibrationStatistics` that are looked at."""

ROUNDS = 3
"""Walks, each followed by a fit of the books."""
BEAM = 8
"""Sums that are followed from book to book."""
MEANS = 12
"""Steps that k-means takes."""
STEPS = 12
"""Steps of conjugate gradients."""
SAMPLE = 2**16
"""Vectors that k-means looks at."""
_NUMBERS = 2**21
"""Distances that are held at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A weight in rows of unit size, and how much its errors count."""

    rows: Tensor
    """The weight over its rows' scales, [out, in] float32."""
    scales: Tensor
    """[out, 1], in the dtype that is saved."""
    hessian: Tensor
    factor: Tensor
    """[in, in], U of `inverse_factor`."""
    group: int


@torch.no_grad()
def quantise(
    weight: Tensor,
    scheme: Scheme,
    seen: CalibrationStatistics,
    mask: Tensor | None = None,
    name: str = "a weight",
) -> Rounded:
    """Find codes and books; where calibration tells nothing, all errors count the same.

    Args:
        weight: [out, in], in the dtype of the scales and books that are saved.
        scheme: With `weights` of kind "codebook".
        seen: With `hessian`.
        mask: Must be None: sums of entries cannot be kept at zero.
        name: Of the layer, for messages.

    Raises:
        InputError: See `rounding.check`; or a pruned weight.
    """
    form = scheme.weights
    assert form is not None
    assert form.group is not None
    rounding.check(weight, form, name)
    if mask is not None:
        raise InputError(
            f"{name}: {scheme.name} cannot keep pruned weights at zero; quantise to integers"
        )
    layer, notices = _layer(weight, seen, form.group)
    books = _first_books(layer, num_books(form.bits, form.group))
    best: Rounded | None = None
    for _ in range(ROUNDS):
        codes = _walked(layer, books)
        books = _fitted(layer, codes, books).to(weight.dtype).float()
        found = Quantised(
            format=form, levels=codes, scales=layer.scales, books=books.to(weight.dtype)
        )
        now = judged(weight, found, seen, notices)
        best = now if best is None or now.error < best.error else best
    assert best is not None
    return best


def _layer(
    weight: Tensor, seen: CalibrationStatistics, group: int
) -> tuple[_Layer, tuple[str, ...]]:
    size = weight.float().square().mean(1, keepdim=True).sqrt()
    scales = torch.where(size > 0, size, 1.0).to(weight.dtype)
    identity = torch.eye(weight.shape[1])
    hessian, notices = seen.hessian, tuple[str, ...]()
    factor: Tensor | None = None
    if hessian is None or not seen.num_tokens:
        notices = ("calibration never reached it: all its errors count the same",)
    else:
        factor, notices = inverse_factor(hessian)
        if factor is None:
            notices = (*notices, "all its errors count the same")
    if factor is None or hessian is None:
        hessian = factor = identity
    rows = weight.float() / scales.float()
    found = _Layer(rows=rows, scales=scales, hessian=hessian, factor=factor, group=group)
    return found, notices


def _first_books(layer: _Layer, count: int) -> Tensor:
    """Books [M, 256, g] by k-means of the vectors, and of what the books before leave of them."""
    generator = torch.Generator().manual_seed(0)
    vectors = layer.rows.reshape(-1, layer.group)
    costs = layer.factor.diagonal().pow(-2) * layer.scales.float().square()
    weights = costs.reshape(-1, layer.group)
    order = torch.randperm(len(vectors), generator=generator)[:SAMPLE]
    left, weights = vectors[order].clone(), weights[order]
    books = []
    for _ in range(count):
        book, nearest = _means(left, weights)
        left -= book[nearest]
        books.append(book)
    return torch.stack(books)


def _means(vectors: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """256 means [256, g] of shuffled vectors [n, g], and the nearest of each vector."""
    book = vectors.new_zeros(ENTRIES, vectors.shape[1])
    book[: len(vectors)] = vectors[:ENTRIES]
    weighted = weights * vectors
    nearest = _nearest(weighted, weights, book)
    for _ in range(MEANS):
        places = nearest[:, None].expand_as(vectors)
        whole = torch.zeros_like(book).scatter_add_(0, places, weights)
        total = torch.zeros_like(book).scatter_add_(0, places, weighted)
        book = torch.where(whole > 0, total / whole.clamp_min(1e-30), book)
        nearest = _nearest(weighted, weights, book)
    return book, nearest


def _nearest(weighted: Tensor, weights: Tensor, book: Tensor) -> Tensor:
    """The entry of each vector with the least Σ w (x − c)²."""
    found = [
        (w @ book.square().T).sub_(2 * x @ book.T).argmin(1)
        for x, w in zip(weighted.split(2**12), weights.split(2**12), strict=True)
    ]
    return torch.cat(found)


def _walked(layer: _Layer, books: Tensor) -> Tensor:
    """Codes [out, in / g, M], what each group loses taken over by those after it."""
    rest, size = layer.rows.clone(), layer.group
    codes = torch.empty(len(rest), rest.shape[1] // size, len(books), dtype=torch.uint8)
    identity = torch.eye(size)
    for number in range(codes.shape[1]):
        here = slice(number * size, (number + 1) * size)
        own = layer.factor[here, here]
        inverse = torch.linalg.solve_triangular(own, identity, upper=True)
        codes[:, number] = _chosen(rest[:, here] @ inverse, books @ inverse)
        error = (rest[:, here] - sums(codes[:, number : number + 1], books)) @ inverse
        rest[:, here.stop :].addmm_(error, layer.factor[here, here.stop :], alpha=-1)
    return codes


def _chosen(vectors: Tensor, books: Tensor) -> Tensor:
    """Codes [n, M] whose sums lie near the vectors [n, g], by a beam search."""
    rows = max(1, _NUMBERS // (BEAM * ENTRIES))
    return torch.cat([_beam(part, books) for part in vectors.split(rows)])


def _beam(vectors: Tensor, books: Tensor) -> Tensor:
    left = vectors[:, None]
    codes = torch.empty(len(vectors), 1, 0, dtype=torch.uint8)
    for number, book in enumerate(books):
        width = 1 if number == len(books) - 1 else BEAM
        costs = book.square().sum(1) - 2 * left @ book.T + left.square().sum(-1, keepdim=True)
        best = costs.flatten(1).topk(width, largest=False).indices
        before, entry = best // ENTRIES, best % ENTRIES
        kept = codes.gather(1, before[..., None].expand(-1, -1, number))
        codes = torch.cat([kept, entry[..., None].to(torch.uint8)], -1)
        left = left.gather(1, before[..., None].expand(-1, -1, left.shape[-1])) - book[entry]
    return codes[:, 0]


def _fitted(layer: _Layer, codes: Tensor, books: Tensor) -> Tensor:
    """The books with which these codes lose least, by conjugate gradients from `books`."""
    weights = layer.scales.float().square()
    places = [codes[..., number].long().flatten() for number in range(len(books))]

    def gathered(outputs: Tensor) -> Tensor:
        """What each entry takes part in, [M, 256, g], of [out, in]."""
        vectors = outputs.reshape(-1, layer.group)
        found = [torch.zeros_like(book) for book in books]
        return torch.stack(
            [one.index_add_(0, place, vectors) for one, place in zip(found, places, strict=True)]
        )

    def pulled(offset: Tensor) -> Tensor:
        return gathered((offset * weights) @ layer.hessian)

    found = books.clone()
    left = pulled(layer.rows - sums(codes, found))
    direction, square = left.clone(), left.square().sum()
    for _ in range(STEPS):
        if float(square) <= 0.0:
            break
        product = pulled(sums(codes, direction))
        step = square / (direction * product).sum().clamp_min(1e-30)
        found += step * direction
        left -= step * product
        after = left.square().sum()
        direction = left + after / square * direction
        square = after
    return found
