"""Runs a script many times under the real interception, with one stack each, in one process.

That process comes from the cradle, which has imported torch; each case runs in a fork of it, so a
case costs what its steps cost.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import runpy
import socket
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cradle import Child, cradle

from ridgeline import techniques

AHEAD = (
    "torch._dynamo",
    "torch._inductor.config",
    "torch.nn.parallel",
    "ridgeline.measure.child.attach",
    *(f"ridgeline.techniques.{p.stem}" for p in Path(techniques.__file__).parent.glob("[a-z]*.py")),
)
"""Imported before the first fork, so that no case pays for it; importing them changes nothing."""
PATIENCE_SECONDS = 60.0
NOTHING: dict[str, Any] = {"losses": [], "weight": 0.0, "applied": {}, "facts": {}}
SCRIPT = Path(__file__).parent / "habits.py"


@dataclass(frozen=True, slots=True)
class Case:
    """One run: the script's arguments and the stack to apply."""

    words: tuple[str, ...] = ()
    stack: dict[str, dict[str, Any]] = field(default_factory=dict)
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run, on rank 0."""

    error: str
    losses: list[float]
    weight: float
    """Sum of the absolute values of all parameters at the end."""
    applied: dict[str, str]
    facts: dict[str, Any]


def rehearse(cases: dict[str, Case], folder: Path) -> dict[str, Outcome]:
    """Run all cases in a process that has computed nothing yet."""
    asked, answered = folder / "cases.json", folder / "results.json"
    asked.write_text(json.dumps({n: [list(c.words), c.stack, c.ranks] for n, c in cases.items()}))
    # One thread: the cases are small, and threads that wait for each other burn the machine.
    pid = cradle().bear(
        "tests.techniques.rehearsal:run_cases",
        [str(asked), str(answered)],
        log=folder / "log",
        environment={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert Child(pid).wait(timeout=280) == 0, (folder / "log").read_text()
    return {n: Outcome(**outcome) for n, outcome in json.loads(answered.read_text()).items()}


def _run_case(words: list[str], stack: dict[str, Any], ranks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return _run_ranks(words, stack, ranks, Path(folder))


def _run_ranks(words: list[str], stack: dict[str, Any], ranks: int, folder: Path) -> dict[str, Any]:
    children = []
    with socket.socket() as held:  # as tests/ports.py does, which is not to be imported here
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                os.environ.update(
                    MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                    WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank),
                )  # fmt: skip
                result = _in_child(words, stack, folder)
                (folder / f"{rank}.json").write_text(json.dumps(result))
                sys.stdout.flush()
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
    files = [folder / f"{rank}.json" for rank in range(ranks)]
    missing = {"error": "it ended without a result, or took too long", **NOTHING}
    results = [json.loads(file.read_text()) if file.exists() else missing for file in files]
    broken = next((result for result in results if result["error"]), None)
    return broken or results[0]


def _in_child(words: list[str], stack: dict[str, Any], folder: Path) -> dict[str, Any]:
    import msgspec
    import torch

    from ridgeline.measure.child.attach import attach
    from ridgeline.measure.guard.view import SESSION_NAME
    from ridgeline.measure.wire import Session
    from ridgeline.techniques import technique

    # One rank only writes this; all of them write the same.
    (folder / f"{os.getpid()}").mkdir()
    (folder / f"{os.getpid()}" / SESSION_NAME).write_bytes(msgspec.json.encode(Session()))
    outcome: dict[str, Any] = {"error": "", **NOTHING}
    faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
    try:
        agent, _ = attach(str(folder / f"{os.getpid()}"))
        agent.on_boundary = None  # there is no conductor to report to
        for name in sorted(stack, key=lambda name: technique(name).CARD.stage):
            technique(name).apply(agent.points, stack[name])
        sys.argv = [str(SCRIPT), *words]
        module = runpy.run_path(str(SCRIPT), run_name="__main__")
        outcome["losses"] = module["LOSSES"]
        outcome["weight"] = module["WEIGHT"]
        outcome["applied"] = dict(agent.points.effects)
        habits = agent.watched.habits
        outcome["facts"] = {
            "gc_forced": habits["gc_collect"].calls if "gc_collect" in habits else 0,
            "recomputed": "recompute" in habits and habits["recompute"].seconds > 0,
            "anomaly": torch.is_anomaly_enabled(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "threads": torch.get_num_threads(),
            "steps": len(agent.losses.by_step),
        }
    except BaseException:  # the parent shows it
        outcome["error"] = traceback.format_exc()
    return outcome


def run_cases(asked: str, answered: str) -> None:
    """In the cradle's child: read cases from one file and write to another what happened."""
    for name in AHEAD:
        importlib.import_module(name)
    cases = json.loads(Path(asked).read_text())
    warnings.simplefilter("ignore")
    results = {name: _run_case(*case) for name, case in cases.items()}
    Path(answered).write_text(json.dumps(results))
