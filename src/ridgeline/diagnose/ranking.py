"""What is worth a person's time, and in which order.

A finding is worth reporting when the gain to expect of it (the geometric mean of its range),
weighed by how sure it is, is above a few percent: fewer for a setting that only has to be dropped
than for an afternoon of editing.
The order is that of expected gain per effort: confidence × ln(gain), over a weight for effort.

Some findings are not about speed: the loss is not finite, memory grows with every step. They
claim no gain (1.0), and are always reported; one of them, if sure, ranks like a change of one
line that makes the run three times as fast; a tail of latencies ranks like one that makes it as
much faster as p99 is above p50, if that is less. A run that is going to fail comes before a faster
one, but a script's tenfold speed-up is not buried under a suspicion.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ridgeline.records import Finding

LEAST_GAIN = {"flag": 1.025, "line": 1.035, "code": 1.045, "design": 1.06}
"""Speed-up, weighed by confidence, below which a finding of that effort is not reported."""
LEAST_CONFIDENCE = 0.3
WARNING_GAIN = 3.0
"""A warning ranks as if its cure gained this much."""
EFFORT = {"flag": 1.0, "line": 1.1, "code": 1.6, "design": 3.0}
"""What a change costs a person, in changes of a setting."""


def is_warning(finding: Finding) -> bool:
    """Is it about something else than speed?"""
    return finding.gain_high <= 1.0


def expected_gain(finding: Finding) -> float:
    """The geometric mean of its range."""
    return math.sqrt(finding.gain_low * finding.gain_high)


def is_worthwhile(finding: Finding) -> bool:
    """Should a person hear of it?"""
    if finding.confidence < LEAST_CONFIDENCE:
        return False
    if is_warning(finding):
        return True
    return finding.confidence * math.log(expected_gain(finding)) >= math.log(
        LEAST_GAIN[finding.effort]
    )


def worth(finding: Finding) -> float:
    """Expected gain per effort; higher comes first."""
    gain = _gain_of_a_warning(finding) if is_warning(finding) else expected_gain(finding)
    return finding.confidence * math.log(gain) / EFFORT[finding.effort]


def _gain_of_a_warning(finding: Finding) -> float:
    ratio = finding.evidence.get("p99_over_p50_ratio", WARNING_GAIN)
    return min(WARNING_GAIN, float(ratio))


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Findings that are worthwhile, most worthwhile first."""
    return sorted(filter(is_worthwhile, findings), key=lambda f: (-worth(f), f.cause))
