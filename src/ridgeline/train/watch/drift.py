"""Which phase of the step has become slower than it was at first, judged while the run goes.

Step times creep: a loader falls behind its cache, a GPU throttles, a neighbour comes onto the
network, a list grows. Each line of the log has the mean seconds of every phase; here the last three
are held against the first five after the warm-up. A phase has drifted when each of the three
exceeds the median of the five by a twentieth of a step, a tenth of the phase, and 3.5 scaled median
absolute deviations of the five (the measure by which stragglers are judged, `stragglers.py`). What
has drifted is said once, and again when it has grown by half of that.

Beside it: a step is measured the same whether ranks share its loss or not, so the mean over ranks
is judged; which rank it is, `stragglers.py` says. A run that goes on from a checkpoint begins anew,
since it may stand on another machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ridgeline.train.part import FilledModel, Part

_FIRST = 5
_LAST = 3
_STEP_SHARE = 0.05
_PHASE_SHARE = 0.10
_DEVIATIONS = 3.5
_SIGMA_OF_MAD = 1.4826
_GROWN = 1.5


class PhaseDrift(Part):
    """A memory of the first intervals, and of the last."""

    name = "drift"

    def __init__(self) -> None:
        """Begin before the first interval, which is warm-up."""
        self._warm = False
        self._first: list[Mapping[str, float]] = []
        self._last: deque[Mapping[str, float]] = deque(maxlen=_LAST)
        self._said: dict[str, float] = {}

    @classmethod
    def make(cls, filled: FilledModel) -> PhaseDrift:
        """Every run is watched."""
        del filled
        return cls()

    def figures(self, steps: int, phases_by_rank: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        """What has become slower since the line before."""
        count = len(phases_by_rank) * steps
        names = phases_by_rank[0]
        means = {name: sum(rank[name] for rank in phases_by_rank) / count for name in names}
        return {"drift": self.judge(means)}

    def judge(self, phases: Mapping[str, float]) -> str:
        """What has drifted, in words; empty where nothing has, or it was said already.

        Args:
            phases: Mean seconds of each phase of a step, over the steps since the last call.
        """
        if not self._warm:
            self._warm = True
            return ""
        if len(self._first) < _FIRST:
            self._first.append(phases)
            return ""
        self._last.append(phases)
        if len(self._last) < _LAST:
            return ""
        step = median(sum(one.values()) for one in self._first)
        excess = {name: self._excess(name, step) for name in phases}
        worst = max(excess, key=lambda name: excess[name])
        for name in list(self._said):
            if not excess[name]:
                del self._said[name]  # as it was: worth a word when it comes again
        if not excess[worst] or excess[worst] < _GROWN * self._said.get(worst, 0.0):
            return ""
        self._said[worst] = excess[worst]
        before = median(one[worst] for one in self._first)
        now = before + excess[worst]
        ratio = now / before if before else float("inf")
        times = f"{ratio:.1f} times what it" if ratio < 100 else "far more than it"
        share = excess[worst] / step
        return f"{worst} takes {times} took at first: the step is {share:.0%} longer by it"

    def _excess(self, name: str, step: float) -> float:
        """Seconds by which the phase is longer now; 0 where that may be noise."""
        before = [one[name] for one in self._first]
        middle = median(before)
        spread = _SIGMA_OF_MAD * median(abs(value - middle) for value in before)
        least = max(_STEP_SHARE * step, _PHASE_SHARE * middle, _DEVIATIONS * spread)
        now = [one[name] - middle for one in self._last]
        return median(now) if min(now) > least else 0.0
