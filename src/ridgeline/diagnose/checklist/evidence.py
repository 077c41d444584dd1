"""The records that may answer a box, read from their files, with what the doctor finds in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ridgeline.diagnose.diagnosis import diagnose
from ridgeline.diagnose.doctor import Examination
from ridgeline.diagnose.trace_facts import RankFacts, trace_facts
from ridgeline.diagnose.trace_verdict import verdict_of
from ridgeline.records import Finding, Ledger, StepProfile
from ridgeline.records.checklist import Standing
from ridgeline.records.finding import TraceFinding
from ridgeline.records.recipe import Recipe
from ridgeline.records.recipe_file import read_recipe
from ridgeline.records.store import read_record
from ridgeline.trace.load import load_traces


@dataclass(frozen=True, slots=True)
class Answer:
    """How a box stands by one record, and what the record shows."""

    standing: Standing
    evidence: str


def done(evidence: str) -> Answer:
    """The record shows that it is so."""
    return Answer("done", evidence)


def not_done(evidence: str) -> Answer:
    """The record shows that it is not so."""
    return Answer("not done", evidence)


def not_applicable(evidence: str) -> Answer:
    """The record shows that the box is about something else."""
    return Answer("not applicable", evidence)


def done_if(so: bool, evidence: str) -> Answer:
    """Done or not, by what the record shows."""
    return done(evidence) if so else not_done(evidence)


@dataclass(frozen=True, kw_only=True)
class ProfileEvidence:
    """What `doctor` measured of one script, and found in it."""

    profiles: Sequence[StepProfile]
    """One per rank, rank 0 first."""
    findings: Mapping[str, Finding]
    """The findings that are worth doing, by cause."""

    @property
    def profile(self) -> StepProfile:
        """The profile of rank 0."""
        return self.profiles[0]

    @property
    def on_gpu(self) -> bool:
        """Whether any model of the script is on a GPU."""
        return any(model.device.startswith("cuda") for model in self.profile.models)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that was given; what is missing answers nothing."""

    profile: ProfileEvidence | None = None
    facts: Sequence[RankFacts] = ()
    """The facts of every GPU of every trace."""
    recipe: Recipe | None = None
    ledger: Ledger | None = None
    sources: tuple[str, ...] = ()

    @cached_property
    def verdict(self) -> Mapping[str, TraceFinding]:
        """What the traces show to be wrong, by cause."""
        return {finding.cause: finding for finding in verdict_of(self.facts)} if self.facts else {}


OfProfile = Callable[[ProfileEvidence], Answer | None]
OfRecipe = Callable[[Recipe], Answer | None]
OfTrace = Callable[[Evidence], Answer | None]


def read_evidence(
    *,
    profile: Path | None = None,
    traces: Sequence[str] = (),
    recipe: Path | None = None,
    ledger: Path | None = None,
) -> Evidence:
    """Read the files that are given.

    A ledger's tuned profile answers where no other profile is given; without one, its baseline.

    Raises:
        InputError: A file is missing, or no record of its kind.
    """
    tuned = None if ledger is None else read_record(ledger, Ledger)
    given = None if profile is None else _examined(profile)
    if given is None and tuned is not None:
        given = _diagnosed([tuned.tuned or tuned.baseline])
    facts = [fact for trace in load_traces(traces) for fact in trace_facts(trace)] if traces else []
    named = [profile, *traces, recipe, ledger]
    return Evidence(
        profile=given,
        facts=facts,
        recipe=None if recipe is None else read_recipe(recipe),
        ledger=tuned,
        sources=tuple(str(one) for one in named if one is not None),
    )


def _examined(path: Path) -> ProfileEvidence:
    """The document of `doctor`, with the findings that stand in it."""
    examination = read_record(path, Examination)
    return ProfileEvidence(
        profiles=examination.profiles or [examination.profile],
        findings={finding.cause: finding for finding in examination.findings},
    )


def _diagnosed(profiles: Sequence[StepProfile]) -> ProfileEvidence:
    findings = diagnose(profiles).findings
    return ProfileEvidence(
        profiles=profiles, findings={finding.cause: finding for finding in findings}
    )
