"""Rules that the API server does not have: jobs it accepts that never start, or waste GPUs.

What a rule says stands in `rules.toml`, how it is checked under its name in `CHECKS` of the files
beside this one. What may not enter: the server's own rules, which stand one floor up.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from ridgeline.launch.check.stricter import created_pods, gangs, references, survival
from ridgeline.launch.check.stricter.workload import StricterRule, read_workload
from ridgeline.launch.check.verdict import ManifestProblem


@cache
def stricter_rules() -> Mapping[str, StricterRule]:
    """Every rule by its name.

    >>> stricter_rules()["priority-class"].severity
    'warning'
    """
    told = tomllib.loads((files(__package__) / "rules.toml").read_text(encoding="utf-8"))
    checks = {
        name: check
        for module in (created_pods, gangs, references, survival)
        for name, check in module.CHECKS.items()
    }
    return {name: StricterRule(name=name, check=checks[name], **told[name]) for name in told}


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
        for rule in stricter_rules().values()
        for finding in rule.check(workload)
    }
    return tuple(sorted(found, key=lambda problem: problem.severity != "error"))
