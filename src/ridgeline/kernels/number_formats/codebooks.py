"""Vectors of neighbouring weights, each a sum of codebook entries times the scale of its row.

The form of AQLM (Egiazarian et al., arXiv 2401.06118, equation 2): weight [out, in] is cut along
the depth into groups of g, and a group is scale · Σₘ book[m, code[m]]. A book has 256 entries, so a
code is a byte; M books for groups of g are 8 M / g bits a weight, beside the books themselves.

Shapes: codes [out, in / g, M] uint8, books [M, 256, g], scales [out, 1].
"""

from __future__ import annotations

from torch import Tensor

ENTRIES = 256
"""Entries of a book."""


def num_books(bits: int, group: int) -> int:
    """Books of a format of so many bits a weight.

    >>> num_books(2, 8)
    2
    """
    return bits * group // 8


def sums(codes: Tensor, books: Tensor) -> Tensor:
    """The sums of entries, [out, in] in the dtype of the books."""
    found = books[0][codes[..., 0].long()]
    for number in range(1, len(books)):
        found = found + books[number][codes[..., number].long()]
    return found.flatten(1)


def decode(codes: Tensor, books: Tensor, scales: Tensor) -> Tensor:
    """The weights [out, in] that codes stand for, float32."""
    return sums(codes, books.float()) * scales.float()
