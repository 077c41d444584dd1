"""What a drill asks, how an answer was graded, and what is remembered of it.

A question is made again from its `id` (its name and the seed of its numbers), so that whoever
holds one can be graded later; its answer is not in it.
"""

from __future__ import annotations

import msgspec

IN_TIME_SECONDS = 120.0
"""An answer within two minutes counts in full."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a question wants to know."""

    prompt: str
    unit: str
    """The unit of the answer, as `bytes` or `seconds`; `choice` where options are given."""
    options: list[str] = []
    """One of these is right; empty: a quantity is typed."""


class DrillQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question without its answer."""

    id: str
    """The question's name and the seed of its numbers: `zero-states:7`."""
    topic: str
    text: str
    evidence: list[str] = []
    """Lines of a real record, for a scenario of failure."""
    asks: list[Ask]
    answers: list[str] = []
    """Left empty for whoever answers: a text for each of `asks`."""


class DrillSheet(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="drill-questions"
):
    """The document of `ridgeline drill --json`, and with answers that of `--answers`."""

    questions: list[DrillQuestion]


class WorkedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a worked solution."""

    says: str
    """The rule, in words."""
    command: str = ""
    """What computes it again; empty where nothing is computed."""
    result: str


class AnsweredAsk(msgspec.Struct, frozen=True, kw_only=True):
    """One answer beside the right one."""

    given: str
    right: str
    correct: bool
    error: float | None = None
    """Relative difference of a quantity; None: no quantity, or none that could be read."""
    remark: str = ""
    """Why an answer could not be read."""


class DrillGrade(msgspec.Struct, frozen=True, kw_only=True):
    """One question, answered and graded."""

    id: str
    topic: str
    score: float
    """One point where all is right within two minutes, half of it later; parts count alike."""
    seconds: float | None = None
    """How long the answer took; None: nobody timed it."""
    answered: list[AnsweredAsk]
    solution: list[WorkedStep]


class DrillResult(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="drill-grades"
):
    """The document of `ridgeline drill --answers FILE --json`."""

    score: float
    """Mean over the questions."""
    grades: list[DrillGrade]


class DrillAttempt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is remembered of one answered question."""

    when: str
    """Date and time in UTC, as ISO 8601 has it."""
    session: str
    """When the session of this question began; its questions share it."""
    id: str
    topic: str
    score: float
    seconds: float


class DrillProgress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every answered question of one user, the oldest first."""

    attempts: list[DrillAttempt] = []


class TopicScore(msgspec.Struct, frozen=True, kw_only=True):
    """One topic and how its questions went."""

    topic: str
    questions: list[str]
    """Names of its questions."""
    answered: int
    score: float | None
    """Mean of what was answered; None: nothing yet."""


class SessionScore(msgspec.Struct, frozen=True, kw_only=True):
    """One session of the past."""

    began: str
    answered: int
    score: float
    seconds: float
    """Mean time of an answer."""


class DrillStanding(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="drill-standing"
):
    """The document of `ridgeline drill --list --json`: topics, and the score over time."""

    topics: list[TopicScore]
    sessions: list[SessionScore]
    """Sessions of the past, the oldest first."""
