"""Two commits held against each other, run by run in turn, until the noise is decided.

Round by round one run of each, in changing order, so that drift hits both alike. What is compared
are the runs' own figures: two runs of the same code differ by more than their steps tell. A
question of the search (nearer to the good commit or to the bad one?) is asked of Student's
interval after 3, 4, 6, 8, 12, 18, … rounds, at 99 % each time, because the signed-rank interval of
`tune` cannot exist below 8 rounds at that confidence; what is reported in the end
comes from that one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from ridgeline.measure.statistics.intervals import RatioInterval, ratio_interval

STUDENT_995 = {3: 9.925, 4: 5.841, 6: 4.032, 8: 3.499, 12: 3.106, 18: 2.898, 27: 2.779, 40: 2.708}
"""Rounds → the 99.5 % point of Student's t with one degree of freedom less."""
PROOF_LOOKS = (8, 12, 18, 27, 40)
"""Rounds after which the reported interval is looked at."""
PROOF_CONFIDENCE = 0.99
"""Confidence of each look; five at this level are 95 % together (Bonferroni)."""
UNKNOWN = RatioInterval(ratio=1.0, low=0.0, high=math.inf, rounds=0)

Figure = Callable[[], float]
"""Runs a commit once and returns its figure."""


@dataclass(slots=True)
class Rounds:
    """Figures of two commits, side by side; ratios are new over reference: above 1 is slower."""

    reference: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)

    def quick(self) -> RatioInterval:
        """Student's interval of the mean log ratio; unbounded between the looks."""
        count = len(self.new)
        if count not in STUDENT_995:
            return UNKNOWN
        logs = [math.log(b / a) for a, b in zip(self.reference, self.new, strict=True)]
        centre = statistics.fmean(logs)
        reach = STUDENT_995[count] * statistics.stdev(logs) / math.sqrt(count)
        return RatioInterval(
            ratio=math.exp(centre),
            low=math.exp(centre - reach),
            high=math.exp(centre + reach),
            rounds=count,
        )

    def proof(self) -> RatioInterval:
        """The signed-rank interval, as `tune` has it."""
        return ratio_interval(self.new, self.reference, PROOF_CONFIDENCE)


def against(reference: Figure, new: Figure, level: float, *, most_rounds: int) -> RatioInterval:
    """Is `new` over `reference` above or below `level`? Runs until that is decided.

    The interval holds the level only where the rounds ran out first.
    """
    rounds = Rounds()
    looks = [look for look in STUDENT_995 if look <= most_rounds]
    interval = UNKNOWN
    for look in looks:
        _fill(rounds, reference, new, look)
        interval = rounds.quick()
        if interval.low > level or interval.high < level:
            break
    return interval


def prove(reference: Figure, new: Figure, *, most_rounds: int) -> RatioInterval:
    """How much slower `new` is: rounds until the interval excludes 1, or all of them."""
    rounds = Rounds()
    interval = UNKNOWN
    for look in [look for look in PROOF_LOOKS if look <= max(most_rounds, PROOF_LOOKS[0])]:
        _fill(rounds, reference, new, look)
        interval = rounds.proof()
        if interval.low > 1 or interval.high < 1:
            break
    return interval


def _fill(rounds: Rounds, reference: Figure, new: Figure, count: int) -> None:
    while len(rounds.new) < count:
        if len(rounds.new) % 2:
            later = new()
            rounds.reference.append(reference())
            rounds.new.append(later)
        else:
            earlier = reference()
            rounds.new.append(new())
            rounds.reference.append(earlier)
