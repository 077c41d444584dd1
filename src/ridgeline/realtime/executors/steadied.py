"""What the measures against jitter came to, where each stage's process has taken its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ridgeline.realtime.steady import Steadiness
from ridgeline.records.realtime_run import Collection, SteadyMeasure


@dataclass(slots=True)
class Steadied:
    """Measures and collections of all processes of a run."""

    measures: list[tuple[str, SteadyMeasure]] = field(default_factory=list)
    """With the worker that told of it; empty: the run's own process."""
    collections: list[Collection] = field(default_factory=list)

    def add(
        self, worker: str, measures: Sequence[SteadyMeasure], collections: Sequence[Collection]
    ) -> None:
        """Take what one process tells at its end."""
        self.measures += [(worker, measure) for measure in measures]
        self.collections += collections

    def beside(self, steady: Steadiness) -> Steadied:
        """These and the run's own process, which comes first."""
        own = [("", measure) for measure in steady.measures]
        return Steadied([*own, *self.measures], [*steady.collections, *self.collections])

    def merged_measures(self) -> list[SteadyMeasure]:
        """One row per measure: granted where every process was; details that differ stand apart."""
        rows: dict[str, dict[str, list[str]]] = {}
        refused: set[str] = set()
        for worker, measure in self.measures:
            rows.setdefault(measure.name, {}).setdefault(measure.detail, []).append(worker)
            if not measure.granted:
                refused.add(measure.name)
        return [
            SteadyMeasure(name=name, granted=name not in refused, detail=_joined(details))
            for name, details in rows.items()
        ]


def _joined(details: dict[str, list[str]]) -> str:
    if len(details) == 1:
        return next(iter(details))
    return "; ".join(
        f"{', '.join(filter(None, workers)) or 'sensors'}: {detail}"
        for detail, workers in details.items()
    )
