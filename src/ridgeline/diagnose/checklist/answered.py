"""A checklist with its boxes answered: each by the record that knows it best.

What ran says more than what was declared, so the order is ledger, profile, trace, recipe. The first
record that answers a box is believed; one that says nothing leaves it to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ridgeline.diagnose.checklist.boxes import GROUPS, Box, boxes
from ridgeline.diagnose.checklist.evidence import (
    Answer,
    Evidence,
    OfProfile,
    ProfileEvidence,
    done,
    not_applicable,
    not_done,
)
from ridgeline.diagnose.checklist.of_launch import OF_LAUNCH
from ridgeline.diagnose.checklist.of_loop import OF_LOOP
from ridgeline.diagnose.checklist.of_ranks import OF_RANKS
from ridgeline.diagnose.checklist.of_recipe import OF_RECIPE
from ridgeline.diagnose.checklist.of_settings import OF_SETTINGS
from ridgeline.diagnose.checklist.of_trace import OF_TRACE
from ridgeline.diagnose.rules import all_rules
from ridgeline.records import Ledger
from ridgeline.records.checklist import Checklist, ChecklistBox, Standing

PROFILE_QUESTIONS: dict[str, OfProfile] = {**OF_SETTINGS, **OF_LOOP, **OF_RANKS}
RECIPE_QUESTIONS = {**OF_RECIPE, **OF_LAUNCH}
TRACE_QUESTIONS = OF_TRACE


def checklist(groups: Sequence[str] = (), evidence: Evidence | None = None) -> Checklist:
    """The boxes of these groups (none: of all), answered; without evidence every one is unknown.

    >>> checklist(["launch"]).counts["done"]
    0

    Raises:
        InputError: There is no such group.
    """
    asked = list(groups) or list(GROUPS)
    evidence = evidence or Evidence()
    found = [_answered(box, group, evidence) for group in asked for box in boxes(group)]
    found.sort(key=lambda box: (asked.index(box.group), box.priority))
    counts = Counter(box.standing for box in found)
    standings: tuple[Standing, ...] = ("done", "not done", "not applicable", "unknown")
    return Checklist(
        groups=asked,
        sources=list(evidence.sources),
        counts={standing: counts[standing] for standing in standings},
        boxes=found,
    )


def _answered(box: Box, group: str, evidence: Evidence) -> ChecklistBox:
    source, answer = _asked(box, evidence)
    standing = "unknown" if answer is None else answer.standing
    commands = {"unknown": box.finds, "not done": box.closes}
    return ChecklistBox(
        name=box.name,
        group=group,
        box=box.box,
        priority=box.priority,
        why=box.why,
        standing=standing,
        evidence=f"would be seen in: {box.evidence}" if answer is None else answer.evidence,
        source=source,
        command=commands.get(standing, ""),
    )


def _asked(box: Box, evidence: Evidence) -> tuple[str, Answer | None]:
    """The first record that answers, and what it says."""
    if evidence.ledger is not None and (answer := _by_ledger(box, evidence.ledger)):
        return "ledger", answer
    if evidence.profile is not None and (answer := _by_profile(box, evidence.profile)):
        return "profile", answer
    if evidence.facts and (answer := _by_trace(box, evidence)):
        return "trace", answer
    question = RECIPE_QUESTIONS.get(box.name)
    if evidence.recipe is not None and question and (answer := question(evidence.recipe)):
        return "recipe", answer
    return "", None


def _by_ledger(box: Box, ledger: Ledger) -> Answer | None:
    """A technique of the stack does it; one that was tried and gave nothing need not be done."""
    if box.name == "proved-by-measurement":
        return done(
            f"{len(ledger.rows)} cures measured side by side, {ledger.cumulative:.3g} times"
        )
    tried = [row for row in ledger.rows if set(row.members) & set(box.techniques)]
    for row in ledger.final_rows:
        if row in tried:
            return done(f"{row.technique} is in the stack, {row.multiplier:.3g} times")
    if tried and all(row.stage == "add" and not row.kept for row in tried):
        last = tried[-1]
        return not_applicable(
            f"{last.technique} was tried, {last.multiplier:.3g} times, and left out: {last.reason}"
        )
    return None


def _by_profile(box: Box, found: ProfileEvidence) -> Answer | None:
    """A finding says no; then the question of the box; then the absence of findings."""
    if box.kind and box.kind != found.profile.kind:
        return None
    for cause in box.causes:
        if cause in found.findings:
            return not_done(found.findings[cause].summary)
    question = PROFILE_QUESTIONS.get(box.name)
    if question is not None:
        return question(found)
    if box.clean:
        known = {cause for rule in all_rules().values() for cause in rule.CAUSES}
        looked = " or ".join(cause.replace("-", " ") for cause in box.causes if cause in known)
        return done(f"doctor looked for {looked}, and found nothing worth doing")
    return None


def _by_trace(box: Box, evidence: Evidence) -> Answer | None:
    for cause in box.causes:
        if cause in evidence.verdict:
            return not_done(evidence.verdict[cause].summary)
    question = TRACE_QUESTIONS.get(box.name)
    return None if question is None else question(evidence)
