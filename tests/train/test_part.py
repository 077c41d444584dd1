"""A technique of training is one file: who asks it knows none by name."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.train.checkpoint.recipes import small_run
from tests.train.checkpoint.resume_worker import start
from tests.train.processes import run_ranks
from torch import Tensor

import ridgeline.train
from ridgeline.train import build as building
from ridgeline.train.part import FilledModel, Part, PartState
from ridgeline.train.ranks import join, leave

ROOM = Path(ridgeline.train.__file__).parent
ASKING = ("loop.py", "check.py", "checkpoint/state.py", "watch/interval.py")


def test_states_of_parts_have_names_of_their_own() -> None:
    names = [kind.name for kind in building.PARTS if kind.name]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("file", ASKING)
def test_loop_checkpoint_and_check_know_no_technique_by_name(file: str) -> None:
    tree = ast.parse((ROOM / file).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {kind.__module__ for kind in building.PARTS}


class _Diary(Part):
    """A technique as somebody else would write it: it notes when it was asked."""

    name = "diary"
    made: ClassVar[list[_Diary]] = []

    def __init__(self, weight: Tensor) -> None:
        self.asked: list[str] = []
        self.sum = weight.detach().clone().zero_()
        self._weight = weight

    @classmethod
    def make(cls, filled: FilledModel) -> _Diary:
        cls.made.append(cls(next(filled.modules[0].parameters())))
        return cls.made[-1]

    def before_step(self, step: int) -> str:
        self.asked.append(f"before {step}")
        return ""

    def before_update(self, step: int) -> None:
        assert self._weight.grad is not None
        self.asked.append(f"gradients {step}")

    def after_update(self, step: int, *, moved: bool) -> None:
        assert moved
        assert self._weight.grad is not None
        self.sum += self._weight.detach()
        self.asked.append(f"weights {step}")

    def finish(self) -> None:
        self.asked.append("end")

    def state_dict(self) -> PartState:
        return PartState(placed={"sum": self.sum}, own={"asked": self.asked})

    def load_state_dict(self, state: PartState, *, same_ranks: bool = True) -> None:
        assert same_ranks
        self.asked = state.own["asked"]


def keep_diaries(argument: dict[str, Any]) -> tuple[list[list[str]], bool]:
    """As a rank: a run straight through, and one that is taken up again after two steps."""
    building.PARTS = (*building.PARTS, _Diary)
    recipe, folder = argument["recipe"], Path(argument["folder"])
    ranks = join(recipe.layout)
    start(recipe, folder / "straight", ranks)
    start(recipe, folder / "halved", ranks, stop_at=2)
    start(recipe, folder / "halved", ranks)
    leave()
    straight, _, resumed = _Diary.made
    return [straight.asked, resumed.asked], torch.equal(straight.sum, resumed.sum)


@pytest.mark.multiprocess
def test_a_new_part_is_asked_in_order_and_its_state_outlives_a_restart(tmp_path: Path) -> None:
    recipe = small_run(tmp_path, run={"steps": 3, "log_every": 1})
    argument = {"recipe": recipe, "folder": str(tmp_path)}
    ((asked, same),) = run_ranks(1, "tests.train.test_part:keep_diaries", argument)
    steps = [f"{when} {n}" for n in range(3) for when in ("before", "gradients", "weights")]
    assert asked == [[*steps, "end"]] * 2
    assert same
