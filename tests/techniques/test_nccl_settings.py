"""NCCL's settings: what is tried, what is left alone, and that every rank would get it."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from tests.techniques.profiles import CUDA, DDP, context, faulty

from ridgeline.measure.child.points import Points
from ridgeline.measure.wire import Applied
from ridgeline.techniques import environment_of, options_of, technique

NCCL: Any = technique("nccl-settings")
FAULTY = faulty()["nccl-settings"]


def test_every_setting_is_one_variable_of_the_environment() -> None:
    settings = options_of(NCCL, FAULTY)
    applied = [Applied(technique="nccl-settings", options=one) for one in settings]
    variables = [environment_of([one]) for one in applied]
    assert variables[0] == {"NCCL_ALGO": "Tree"}
    assert all(len(one) == 1 for one in variables)
    assert "LL128" not in str(variables)


def test_what_somebody_has_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    assert "NCCL_ALGO" not in {one["variable"] for one in options_of(NCCL, FAULTY)}
    for options in options_of(NCCL, FAULTY):
        monkeypatch.setenv(str(options["variable"]), "1")
    assert NCCL.applies(FAULTY).reason == "all of NCCL's settings are made already"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (context(model=DDP, phases={"communication": 0.2}, world_size=2), "on cpu"),
        (context(model={**DDP, **CUDA}, phases={"communication": 0.2}), "one process"),
        (context(model={**DDP, **CUDA}, world_size=2), "communication that nothing hides"),
    ],
)
def test_it_is_for_several_gpus_that_wait_for_each_other(given: Any, reason: str) -> None:
    assert reason in NCCL.applies(given).reason


def test_a_job_without_nccl_refuses_it() -> None:
    points = Points()
    undo = NCCL.apply(points, {"variable": "NCCL_ALGO", "value": "Tree"})
    points.on_model[0](torch.nn.Linear(1, 1))
    undo()
    assert points.refused == {"nccl-settings": "the job has no process group"}
    assert points.on_model == []


def test_a_patch_sets_it_before_the_first_import() -> None:
    (edit,) = NCCL.edits(FAULTY, {"variable": "NCCL_ALGO", "value": "Tree"})
    assert edit.before_imports
    assert 'os.environ.setdefault("NCCL_ALGO", "Tree")' in edit.code
    assert os.environ.get("NCCL_ALGO") is None
