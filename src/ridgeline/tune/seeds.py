"""Losses of the script as it stands under other seeds, and once more under the same one.

These runs are not timed, so they run side by side.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from ridgeline.measure.child.saved_files import put_back
from ridgeline.measure.conductor import Conductor
from ridgeline.measure.wire import Session
from ridgeline.tune.install import ENTRY

OFFSETS = (1009, 2003)
"""Added to every seed that the script sets."""


def seed_losses(command: list[str], steps: int) -> list[list[float]]:
    """Trajectories of `steps` losses under other seeds."""
    return _trajectories(command, steps, OFFSETS)


def repeat_losses(command: list[str], steps: int) -> list[float]:
    """One more trajectory under the same seed: how well does the script repeat itself?"""
    return _trajectories(command, steps, (0,))[0]


def _trajectories(command: list[str], steps: int, offsets: tuple[int, ...]) -> list[list[float]]:
    saved = Path(tempfile.mkdtemp(prefix="ridgeline-saved-"))
    try:
        return [_trajectory(command, steps, offset, saved) for offset in offsets]
    finally:
        put_back(saved / "files")
        shutil.rmtree(saved, ignore_errors=True)


def _trajectory(command: list[str], steps: int, offset: int, saved: Path) -> list[float]:
    session = Session(fix_seed=True, seed_offset=offset, saved_folder=str(saved / "files"))
    losses: list[float] = []
    with ExitStack() as running:
        conductor = running.enter_context(Conductor(command, session, entry=ENTRY))
        while len(losses) < steps and not conductor.ended:
            reports = conductor.steps(max(1, steps - len(losses)))
            losses += reports[0].losses
            if not reports[0].losses:
                break
    return losses[:steps]
