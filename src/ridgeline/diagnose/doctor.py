"""Measure a command and on_progress where its time goes, what bounds it, and what to do about it.

examination = doctor(["train.py", "--epochs", "1"])
print(examination.verdict, [finding.cause for finding in examination.findings])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from ridgeline.diagnose.diagnosis import diagnose
from ridgeline.errors import MissingExtra
from ridgeline.hardware.ceilings import Ceilings
from ridgeline.hardware.storage import cached_storage
from ridgeline.measure.live.profile import measure
from ridgeline.measure.live.windows import MeasurementPlan
from ridgeline.measure.probe import ceilings as probed_ceilings
from ridgeline.records import Finding, StepProfile, Verdict

Progress = Callable[[str], None]
USUAL_PLAN = MeasurementPlan(timed_seconds=5.0, cycle_seconds=3.0)
"""How `ridgeline doctor` measures a script when nothing else is asked for.

So many seconds give a median that is good to a few percent; the first verdict should not wait
longer.
"""


class Examination(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="record",
    tag="doctor",
):
    """What the doctor found: the document of `ridgeline doctor --json`."""

    profile: StepProfile
    """The profile of rank 0."""
    findings: list[Finding]
    """Most worthwhile first; empty: nothing is worth doing."""
    verdict: Verdict
    limit_fraction: float
    """Least time the hardware needs for a step, over the median step: 1 is its limit."""
    profiles: list[StepProfile] = []
    """One per rank, when there are several."""


def doctor(
    command: Sequence[str],
    plan: MeasurementPlan = USUAL_PLAN,
    *,
    on_progress: Progress | None = None,
) -> Examination:
    """Measure `command` (a script and its arguments, or a launcher) and diagnose it.

    Raises:
        InputError: the script does not exist, fails, or never steps.
        ChildDied: it was killed.
    """
    if find_spec("torch") is None:
        raise MissingExtra("torch", "train")
    on_progress = on_progress or _silent
    limits: list[Ceilings] = []

    def ceilings_of(device: str) -> Ceilings:
        on_progress("what this machine can do")
        limits.append(probed_ceilings(device, quick=True))
        return limits[0]

    profiles = measure(list(command), plan, ceilings=ceilings_of, on_progress=on_progress)
    diagnosis = diagnose(profiles, limits[0], cached_storage(Path()))
    return Examination(
        profile=profiles[0],
        findings=list(diagnosis.findings),
        verdict=diagnosis.verdict,
        limit_fraction=diagnosis.limit_fraction,
        profiles=profiles if len(profiles) > 1 else [],
    )


def _silent(text: str) -> None:
    """Progress that nobody watches."""
