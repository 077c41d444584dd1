"""Products of a sparse matrix that stays the same, by its compressed rows.

torch walks a matrix of coordinates (COO) element after element on one core, and transposes and
sorts it anew in every backward. Here a matrix that is multiplied a second time is kept once by its
compressed rows (CSR) and once by those of its transpose: forward reads the one, backward the other.
A matrix that is changed in place is compressed anew, and one that is made for each product is left
as it is.

It is plain PyTorch, so that it can stand in a user's script as it stands here.
"""

import functools
import warnings
import weakref
from typing import Any

import torch


class RowProduct(torch.autograd.Function):
    """A constant sparse matrix times a dense one; both are given with the matrix's transpose."""

    @staticmethod
    def forward(ctx: Any, rows: Any, columns: Any, dense: Any) -> Any:  # noqa: D102 - autograd's
        ctx.matrices = rows, columns
        return torch.mm(rows, dense)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: D102 - autograd's
        rows, columns = ctx.matrices
        return None, None, RowProduct.apply(columns, rows, gradients[0])


class CompressedRows:
    """What has been multiplied, as compressed rows from the second time on."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int, Any]] = {}

    def of(self, matrix: Any) -> Any:
        """The matrix and its transpose, both by rows; None where it was not seen before."""
        key = id(matrix)
        known, version, pair = self._known.get(key, (None, 0, None))
        if known is None or known() is not matrix or version != matrix._version:
            forget = functools.partial(self._forget, key)
            self._known[key] = weakref.ref(matrix, forget), matrix._version, None
            return None
        if pair is None:
            pair = rows_of(matrix)
            self._known[key] = known, version, pair
        return pair

    def _forget(self, key: int, gone: Any) -> None:
        if self._known[key][0] is gone:
            del self._known[key]


def rows_of(matrix: Any) -> tuple[Any, Any]:
    """A matrix of coordinates and its transpose, by compressed rows."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        whole = matrix.coalesce()
        return whole.to_sparse_csr(), whole.t().coalesce().to_sparse_csr()


def is_constant_times_dense(matrix: Any, dense: Any) -> bool:
    """A sparse matrix without gradients, and a dense one of its format, on one device?"""
    return (
        not torch.compiler.is_compiling()
        and type(matrix) is torch.Tensor
        and matrix.layout is torch.sparse_coo
        and isinstance(dense, torch.Tensor)
        and dense.layout is torch.strided
        and matrix.dim() == dense.dim() == 2
        and matrix.sparse_dim() == 2
        and matrix.dtype in (torch.float32, torch.float64)
        and matrix.device == dense.device
        and not matrix.requires_grad
    )


def by_compressed_rows(original: Any, known: CompressedRows, compressed: Any = None) -> Any:
    """A product of two matrices that goes by compressed rows where one is sparse and constant."""

    @functools.wraps(original)
    def product(matrix: Any, dense: Any, *rest: Any, **others: Any) -> Any:
        if rest or others or not is_constant_times_dense(matrix, dense):
            return original(matrix, dense, *rest, **others)
        kind = matrix.device.type
        under_autocast = torch.is_autocast_enabled(kind)
        if dense.dtype is not matrix.dtype and not under_autocast:
            return original(matrix, dense)
        pair = known.of(matrix)
        if pair is None:
            return original(matrix, dense)
        if compressed is not None:
            compressed()
        if not under_autocast:
            return RowProduct.apply(*pair, dense)
        with torch.autocast(kind, enabled=False):
            found = RowProduct.apply(*pair, dense.to(matrix.dtype))
        return found.to(torch.get_autocast_dtype(kind))

    return product
