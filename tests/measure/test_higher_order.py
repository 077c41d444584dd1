"""Operators that are given functions, under a dispatch mode of ours."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.measure.higher_order import is_higher_order, run_inside


class Names(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_higher_order(func):
            return run_inside(self, func, args, kwargs or {})
        self.seen.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_the_branch_that_is_taken_is_seen_and_the_other_is_not() -> None:
    x = torch.randn(3, 3)
    with torch.no_grad(), Names() as names:
        out = torch.ops.higher_order.cond(
            torch.tensor(True), lambda t: t * t, lambda t: t.exp(), (x,)
        )
    assert torch.equal(out, x * x)
    assert "aten::mul" in names.seen
    assert "aten::exp" not in names.seen


def test_a_loop_is_seen_turn_by_turn() -> None:
    with torch.no_grad(), Names() as names:
        (out,) = torch.ops.higher_order.while_loop(
            lambda t: t.sum() < 5, lambda t: (t + 1,), (torch.zeros(1),), ()
        )
    assert out.item() == 5
    assert names.seen.count("aten::add") == 5
