"""A technique of training is one file: who asks it knows none by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ridgeline.train
from ridgeline.train.build import PARTS

ROOM = Path(ridgeline.train.__file__).parent
ASKING = ("loop.py", "check.py", "checkpoint/state.py", "watch/interval.py")


def test_states_of_parts_have_names_of_their_own() -> None:
    names = [kind.name for kind in PARTS if kind.name]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("file", ASKING)
def test_loop_checkpoint_and_check_know_no_technique_by_name(file: str) -> None:
    tree = ast.parse((ROOM / file).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {kind.__module__ for kind in PARTS}
