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

from ridgeline.measure.guard.kept import put_back
from ridgeline.measure.live.conductor import Conductor
from ridgeline.measure.wire import Applied, Session
from ridgeline.tune.entry import ENTRY

OFFSETS = (1009, 2003)
"""Added to every seed that the script sets."""


def seed_sessions() -> list[Session]:
    """Runs under other seeds."""
    return [Session(fix_seed=True, seed_offset=offset) for offset in OFFSETS]


def repeat_session() -> Session:
    """One more run under the same seed: how well does the script repeat itself?"""
    return Session(fix_seed=True)


def shaken_session(size: float, stack: Sequence[Applied] = ()) -> Session:
    """A run with parameters and gradients disturbed by a relative `size`."""
    return Session(fix_seed=True, shake=size, stack=list(stack))


def trajectories(
    command: list[str],
    steps: int,
    sessions: list[Session],
    *,
    patience_seconds: float | None = None,
) -> list[list[float]]:
    """The first `steps` losses of each run.

    All start at once and wait at their first boundary: loading need not be waited for in turn.
    """
    saved = Path(tempfile.mkdtemp(prefix="ridgeline-saved-"))
    kept = str(saved / "files")
    try:
        with ExitStack() as running:
            started = [
                running.enter_context(
                    Conductor(
                        command,
                        replace(session, saved_folder=kept),
                        entry=ENTRY,
                        patience_seconds=patience_seconds,
                    )
                )
                for session in sessions
            ]
            return [_trajectory(conductor, steps) for conductor in started]
    finally:
        put_back(saved / "files")
        shutil.rmtree(saved, ignore_errors=True)


def _trajectory(conductor: Conductor, steps: int) -> list[float]:
    losses: list[float] = []
    while len(losses) < steps and not conductor.ended:
        reports = conductor.steps(max(1, steps - len(losses)))
        losses += reports[0].losses
        if not reports[0].losses:
            break
    return losses[:steps]
