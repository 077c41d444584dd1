"""Measures against jitter, each asked of the system and reported with its answer.

`Steadiness` is what executors call; `SteadyProcess` takes the measures, and `NOTHING` (an instance
that does nothing) is what executors get without `--steady`. Nothing here changes a setting of the
machine: `surroundings.py` only looks. Start reading at `process.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ridgeline.realtime.steady.buffers import Upload
from ridgeline.realtime.steady.process import SteadyProcess
from ridgeline.records.realtime_run import Collection, SteadyMeasure

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline

__all__ = ["NOTHING", "Steadiness", "SteadyProcess", "Upload"]


class Steadiness(Protocol):
    """What an executor tells, so that a process runs evenly."""

    @property
    def measures(self) -> list[SteadyMeasure]:
        """What was asked of this process and its system, with their answers so far."""

    @property
    def collections(self) -> list[Collection]:
        """Garbage collections of this process so far, in seconds of `time.monotonic`."""

    def prepare(self, pipeline: Pipeline) -> Pipeline:
        """The pipeline as it shall run: static stages on a GPU are recorded as they warm up."""

    def start(self, workers: list[str]) -> None:
        """Before the first frame, in the process that runs the sensors: names of all workers."""

    def enter_worker(self, worker: str) -> None:
        """In each worker's own thread or process, before its first frame: affinity, priority."""

    def warmed_up(self) -> None:
        """After the warm-up frames: what is alive now lives on (gc.freeze)."""

    def idle(self, slack_seconds: float) -> None:
        """Nothing is due for so long: room for a collection."""

    def stop(self) -> None:
        """After the last frame: what was changed in the process is put back."""


class _Nothing:
    """A process left as it is."""

    measures: list[SteadyMeasure] = []  # noqa: RUF012  # never added to
    collections: list[Collection] = []  # noqa: RUF012

    def prepare(self, pipeline: Pipeline) -> Pipeline:
        return pipeline

    def start(self, workers: list[str]) -> None:
        pass

    def enter_worker(self, worker: str) -> None:
        pass

    def warmed_up(self) -> None:
        pass

    def idle(self, slack_seconds: float) -> None:
        pass

    def stop(self) -> None:
        pass


NOTHING: Steadiness = _Nothing()
"""What executors get where nobody asked for steadiness."""
