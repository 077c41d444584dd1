"""Losses of the script as it stands under other seeds, disturbed, and once more as it was.

These runs are not timed, so they run side by side.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from ridgeline.measure.conductor import Conductor
from ridgeline.measure.guard.kept import put_back
from ridgeline.measure.wire import Applied, Session
from ridgeline.tune.install import ENTRY

OFFSETS = (1009, 2003)
"""Added to every seed that the script sets."""


def seed_losses(command: list[str], steps: int) -> list[list[float]]:
    """Trajectories of `steps` losses under other seeds."""
    return _trajectories(command, steps, [Session(fix_seed=True, seed_offset=o) for o in OFFSETS])


def repeat_losses(command: list[str], steps: int) -> list[float]:
    """One more trajectory under the same seed: how well does the script repeat itself?"""
    return _trajectories(command, steps, [Session(fix_seed=True)])[0]


def shaken_losses(
    command: list[str], steps: int, size: float, stack: Sequence[Applied] = ()
) -> list[float]:
    """The trajectory with parameters and gradients disturbed by a relative `size`."""
    session = Session(fix_seed=True, shake=size, stack=list(stack))
    return _trajectories(command, steps, [session])[0]


def _trajectories(command: list[str], steps: int, sessions: list[Session]) -> list[list[float]]:
    saved = Path(tempfile.mkdtemp(prefix="ridgeline-saved-"))
    try:
        kept = str(saved / "files")
        return [
            _trajectory(command, steps, replace(session, saved_folder=kept)) for session in sessions
        ]
    finally:
        put_back(saved / "files")
        shutil.rmtree(saved, ignore_errors=True)


def _trajectory(command: list[str], steps: int, session: Session) -> list[float]:
    losses: list[float] = []
    with ExitStack() as running:
        conductor = running.enter_context(Conductor(command, session, entry=ENTRY))
        while len(losses) < steps and not conductor.ended:
            reports = conductor.steps(max(1, steps - len(losses)))
            losses += reports[0].losses
            if not reports[0].losses:
                break
    return losses[:steps]
