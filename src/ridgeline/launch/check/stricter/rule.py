"""What a stricter rule is: a name, a severity, a reason with its source, and a check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ridgeline.launch.check.stricter.workload import Workload
from ridgeline.launch.check.verdict import Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where a rule is broken."""

    field: str
    message: str
    cure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule that the API server does not have."""

    name: str
    severity: Severity
    """error: the job cannot start; warning: it starts, and is likely to waste GPUs."""
    reason: str
    """Why it matters, in one sentence."""
    cure: str
    """What to do, in general."""
    check: Callable[[Workload], Iterable[Finding]]
