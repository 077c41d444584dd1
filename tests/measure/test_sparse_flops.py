"""What a sparse product takes: the elements that are stored, however it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.measure.child.flop_formulas import flops_of

ROWS, DEPTH, COLUMNS, STORED = 40, 30, 8, 70
ASKED: dict[str, Callable[[Any, Any], Any]] = {
    "spmm": torch.spmm,
    "sparse.mm": torch.sparse.mm,
    "@": lambda matrix, dense: matrix @ dense,
    "by rows": lambda matrix, dense: matrix.to_sparse_csr() @ dense,
    "reduced": lambda matrix, dense: torch.sparse.mm(matrix.to_sparse_csr(), dense, "amax"),
}


class Counting(TorchDispatchMode):
    """Adds up the FLOPs of every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.flops += flops_of(func._overloadpacket, args, kwargs or {}, out)
        return out


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("asked", ASKED)
def test_a_sparse_product_takes_two_flops_for_each_stored_element_and_column(asked):
    torch.manual_seed(0)
    places = torch.randperm(ROWS * DEPTH)[:STORED]
    where = torch.stack([places // DEPTH, places % DEPTH])
    matrix = torch.sparse_coo_tensor(
        where, torch.randn(STORED), (ROWS, DEPTH), check_invariants=True
    ).coalesce()
    with Counting() as counted:
        ASKED[asked](matrix, torch.randn(DEPTH, COLUMNS))
    assert counted.flops == pytest.approx(2 * STORED * COLUMNS)
