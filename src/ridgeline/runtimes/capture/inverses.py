"""Inverses of small matrices as products and sums, for runtimes that have no inverse.

Networks that look through several cameras invert their intrinsics and poses, 3 x 3 or 4 x 4. Those
have a closed form: the matrix of cofactors, transposed, over the determinant (Cramer's rule; Golub
and Van Loan, "Matrix Computations", section 1.1). Larger ones would need pivots, which depend on
the data, and are left as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_LARGEST = 4


def without_small_inverses(program: Any) -> Any:
    """The exported program with each inverse of a small matrix written out."""
    aten = torch.ops.aten
    plain, both = (aten.inverse.default, aten.linalg_inv.default), aten.linalg_inv_ex.default
    targets = {node.target for part in _graphs(program) for node in part.nodes}
    if not targets & {*plain, both}:
        return program
    table = {**dict.fromkeys(plain, _inverse), both: _inverse_and_info}
    return program.run_decompositions(table)


def _graphs(program: Any) -> list[Any]:
    return [part.graph for part in program.graph_module.modules() if hasattr(part, "graph")]


def _inverse(matrix: Tensor) -> Tensor:
    size = matrix.shape[-1]
    if not isinstance(size, int) or size > _LARGEST:
        return NotImplemented  # as decompositions say that the operator shall stay
    every = list(range(size))
    if size == 1:
        return 1.0 / matrix
    cofactors = [
        [_signed(matrix, [r for r in every if r != i], [c for c in every if c != j], i + j)
         for j in every]
        for i in every
    ]  # fmt: skip
    determinant = sum(matrix[..., 0, j] * cofactors[0][j] for j in every)
    rows = [torch.stack([cofactors[j][i] for j in every], -1) for i in every]
    return torch.stack(rows, -2) / torch.as_tensor(determinant)[..., None, None]


def _inverse_and_info(matrix: Tensor, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    found = _inverse(matrix)
    if found is NotImplemented:
        return NotImplemented
    del check_errors
    return found, torch.zeros(matrix.shape[:-2], dtype=torch.int32)


def _signed(matrix: Tensor, rows: list[int], columns: list[int], sign: int) -> Tensor:
    found = _minor(matrix, rows, columns)
    return -found if sign % 2 else found


def _minor(matrix: Tensor, rows: list[int], columns: list[int]) -> Tensor:
    """The determinant of these rows and columns."""
    first, rest = rows[0], rows[1:]
    if not rest:
        return matrix[..., first, columns[0]]
    parts = [
        matrix[..., first, column]
        * _signed(matrix, rest, [one for one in columns if one != column], place)
        for place, column in enumerate(columns)
    ]
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    return found
