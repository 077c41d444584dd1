"""Differential equations whose gradients go through the solver instead of a second solve."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.techniques.profiles import ceilings, context, faulty, replaced
from tests.techniques.solver_library import PACKAGE

from ridgeline.diagnose.diagnosis import diagnose
from ridgeline.kernels.plain_solve import solve_plainly
from ridgeline.measure.child.points import Points
from ridgeline.measure.live.profile import measure
from ridgeline.measure.live.windows import MeasurementPlan
from ridgeline.records.script_facts import Habit
from ridgeline.techniques import Context, technique
from ridgeline.techniques.no_adjoint import reaches_others
from ridgeline.tune.patch import write_patch

SCRIPT = """
import argparse

import torch
from torch import nn
IMPORT

class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, t, y):
        return self.layers(y)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.field, self.out = Field(), nn.Linear(4, 1)

    def forward(self, x):
        times = torch.linspace(0.0, 1.0, 12)
        solved = SOLVE(self.field, x, times, method="euler", adjoint_rtol=1e-3)
        return self.out(solved[-1])


torch.manual_seed(0)
torch.set_num_threads(1)
model = Flow()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    x = 0.5 * torch.randn(64, 4)
    loss = (model(x) - x.square().sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 29:
        print(f"{loss.item():.9f}")
"""
SPELLINGS = {
    "imported as another": (
        "from torchdiffeq import odeint_adjoint as solve", "solve",
        'torchdiffeq.odeint(self.field, x, times, method="euler")',
    ),
    "of the library": (
        "import torchdiffeq", "torchdiffeq.odeint_adjoint",
        'torchdiffeq.odeint(self.field, x, times, method="euler")',
    ),
    "chosen elsewhere": (
        "from torchdiffeq import odeint, odeint_adjoint\nSOLVERS = [odeint, odeint_adjoint]",
        "SOLVERS[-1]",
        "torchdiffeq.odeint_adjoint = solve_plainly(",
    ),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's, and the library among the packages that scripts see."""
    for name, text in PACKAGE.items():
        file = tmp_path / "environment" / "site-packages" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "environment" / "site-packages"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def printed(command: list[str]) -> list[float]:
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    return [float(line) for line in re.findall(r"^\d\.\d{9}$", done.stdout, re.MULTILINE)]


@pytest.mark.slow
@pytest.mark.parametrize(("imports", "called", "written"), SPELLINGS.values(), ids=SPELLINGS)
def test_a_second_solve_is_found_left_out_and_written_out(folder, imports, called, written):
    script = SCRIPT.replace("SOLVE", called).replace("IMPORT", imports)
    (folder / "train.py").write_text(script)
    plain = printed([sys.executable, "train.py"])
    (profile,) = measure(
        ["train.py"], MeasurementPlan(steps=8, warmup=2, window=2), ceilings=ceilings()
    )
    habit = profile.habit("ode_adjoint")
    line = next(i for i, text in enumerate(script.splitlines(), 1) if "solved =" in text)
    assert str(habit.site) == f"train.py:{line}"
    assert habit.calls == 1
    causes = {one.cause: one for one in diagnose([profile], ceilings()).findings}
    assert "in backward" in causes["adjoint-solve"].summary

    seen, module = Context(profile=profile, ceilings=ceilings()), technique("no-adjoint")
    assert module.applies(seen).ok
    (folder / "stack.toml").write_text('[[technique]]\nname = "no-adjoint"\n')
    run = [sys.executable, "-m", "ridgeline.cli.main", "run", "--stack", "stack.toml", "--"]
    stacked = printed([*run, "train.py"])
    assert stacked != plain
    assert stacked == pytest.approx(plain, rel=0.2)

    patch = write_patch([("no-adjoint", edit) for edit in module.edits(seen, {})], folder)
    assert not patch.unplaced
    (text,) = patch.files.values()
    assert written in text
    (folder / "patched.py").write_text(text)
    assert printed([sys.executable, "patched.py"]) == stacked


def adjoint(
    func: Any, y0: Any, t: Any, *, method: Any = None, event_fn: Any = None,
    adjoint_params: Any = None, **unused_kwargs: Any,
) -> str:  # fmt: skip
    """A solver with a second solve."""
    return "again"


def plain(
    func: Any, y0: Any, t: Any, *, method: Any = None, event_fn: Any = None, **unused_kwargs: Any
) -> Any:
    """The one beside it says what it was given."""
    return {"method": method, **unused_kwargs}


def test_what_only_the_second_solve_takes_is_dropped_and_the_rest_is_passed() -> None:
    solve = solve_plainly(adjoint, plain)
    given = {"method": "rk4", "rtol": 1e-3, "adjoint_params": ()}
    assert solve(len, 1.0, [0.0, 1.0], **given) == {"method": "rk4", "rtol": 1e-3}


class Told:
    """A function that wants to hear of the second solve's steps."""

    def callback_step_adjoint(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "given"),
    [(len, {"event_fn": len}), (len, {"method": "implicit_adams"}), (Told(), {}),
     (len, {"method": "scipy_solver"})],
)  # fmt: skip
def test_a_call_that_has_no_plain_form_is_left_alone(function: Any, given: dict[str, Any]) -> None:
    assert solve_plainly(adjoint, plain)(function, 1.0, [0.0, 1.0], **given) == "again"


@pytest.mark.parametrize("told", [False, True])
def test_tensors_that_the_second_solve_trains_not_are_seen(told: bool) -> None:
    """A function may hold what an encoder made; only `adjoint_params` gives that a gradient."""
    import torch

    field, encoder, start = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.ones(2)
    held, y0 = encoder(start), encoder(start)
    given: dict[str, Any] = {"func": field, "y0": y0}
    assert not reaches_others(field(y0) + y0, given)
    assert not reaches_others(field(y0 + held.detach()), given)
    if told:
        given["adjoint_params"] = (*field.parameters(), held)
    assert reaches_others(field(y0) * held, given) is not told
    assert reaches_others(y0 * encoder.weight.sum(), given)


def test_a_solve_that_memory_has_no_room_for_is_left_to_the_second() -> None:
    given, module = faulty()["no-adjoint"], technique("no-adjoint")
    kept = given.profile.kept_at_most_bytes("forward", "other")
    full = replaced(given, device_memory_bytes=int(2 * given.profile.peak_memory_bytes + 2 * kept))
    assert re.match(r"keeping a solve could take \d+% of the device", module.applies(full).reason)
    unseen = replaced(given, operators=[])
    assert "was not seen" in module.applies(unseen).reason
    rare = context(habits={"ode_adjoint": Habit(calls=0.1, seconds=1e-4)})
    assert module.applies(rare).reason == "solving again in backward takes 0.1% of a step"


def test_nothing_of_the_library_is_touched_before_the_script_imports_it() -> None:
    points = Points()
    undo = technique("no-adjoint").apply(points, {})
    assert "torchdiffeq" not in sys.modules
    assert points.effects == {}
    undo()
