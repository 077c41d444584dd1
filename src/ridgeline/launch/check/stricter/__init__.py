"""Rules that the API server does not have: jobs it accepts that never start, or waste GPUs.

One table row per rule, in the files beside this one; `RULES` is all of them. What may not enter:
the server's own rules, which stand one floor up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.launch.check.stricter import created_pods, gangs, references, survival
from ridgeline.launch.check.stricter.workload import StricterRule, read_workload
from ridgeline.launch.check.verdict import ManifestProblem

RULES: Mapping[str, StricterRule] = {
    rule.name: rule
    for module in (created_pods, gangs, references, survival)
    for rule in module.RULES
}


def stricter_problems(
    manifest: Mapping[str, Any],
    *,
    custom: bool,
    among: Sequence[Mapping[str, Any]] = (),
) -> tuple[ManifestProblem, ...]:
    """Where an object that is checked among others breaks a rule of ours; errors first."""
    workload = read_workload(manifest, custom=custom, among=among)
    found = {
        ManifestProblem(
            field=finding.field,
            reason="Stricter",
            message=finding.message,
            cure=finding.cure,
            severity=rule.severity,
            rule=rule.name,
        ): None
        for rule in RULES.values()
        for finding in rule.check(workload)
    }
    return tuple(sorted(found, key=lambda problem: problem.severity != "error"))
