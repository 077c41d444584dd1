"""What a check says: verdicts on objects, problems with a field path, a reason and a cure."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

Severity = Literal["error", "warning"]

SERVER = "server"
"""The rule of every problem that the API server itself would name."""

WHOLE_OBJECT = "<nil>"
"""How the server writes the path of the object itself."""


class ManifestProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing wrong with one field."""

    field: str
    """Path as the API server writes it."""
    reason: str
    """The server's word for it (Invalid, Required, …), or "Stricter" for a rule of ours."""
    message: str
    """What is wrong, as a sentence."""
    cure: str
    """What to do about it."""
    severity: Severity = "error"
    rule: str = SERVER
    """Which rule speaks here: `server`, or the name of one of our stricter rules."""


class ManifestVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen to one object at submission, and after it."""

    source: str
    """File and line where the object starts."""
    kind: str
    """The kind as `apiVersion/kind`."""
    name: str
    known: bool
    """Whether this version knows the kind's schema; of others only the pods inside are judged."""
    pods: int = 0
    """Pod templates that were judged inside an object of an unknown kind."""
    accepted: bool
    """Whether the API server would take the object."""
    runs: bool
    """Whether it would be taken and nothing is known that keeps its pods from running."""
    problems: tuple[ManifestProblem, ...]


class ManifestReport(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts on everything in a set of files."""

    passed: bool
    """Whether every object of a known kind would be accepted and could start."""
    verdicts: tuple[ManifestVerdict, ...]


class Problems:
    """Collects problems in the words that the API server uses (apimachinery's `field.Error`)."""

    def __init__(self) -> None:
        self.found: list[ManifestProblem] = []

    def add(self, field: str, reason: str, message: str, cure: str) -> None:
        """Any problem of the server's."""
        self.found.append(ManifestProblem(field=field, reason=reason, message=message, cure=cure))

    def invalid(self, field: str, value: Any, detail: str, cure: str = "") -> None:
        """Add a value of the right type that breaks a rule; an empty `detail` says it does not."""
        if detail:
            cure = filled_in(value) or cure or "choose one that fits"
            self.add(field, "Invalid", f"{shown(value)}: {detail}", cure)

    def required(self, field: str, detail: str = "") -> None:
        """A field that must be given."""
        self.add(field, "Required", detail or "must be given", f"set {field}")

    def unsupported(self, field: str, value: Any, allowed: tuple[str, ...]) -> None:
        """A value outside a closed list."""
        listed = ", ".join(allowed)
        self.add(field, "NotSupported", f"{shown(value)} is not supported", f"use one of: {listed}")

    def duplicate(self, field: str, value: Any) -> None:
        """A value that must be unique in its list."""
        self.add(field, "Duplicate", f"{shown(value)} stands here twice", "rename or remove one")

    def not_found(self, field: str, value: Any, where: str) -> None:
        """A reference inside the object that leads nowhere."""
        self.add(field, "NotFound", f"{shown(value)} is not in {where}", f"add it to {where}")

    def forbidden(self, field: str, detail: str) -> None:
        """A field that may not be set here."""
        self.add(field, "Forbidden", detail, f"remove {field}")

    def too_long(self, field: str, value: Any, limit: int) -> None:
        """A text, list or map past its limit."""
        self.add(
            field, "TooLong", f"{shown(value)} is longer than {limit}", f"shorten it to {limit}"
        )

    def not_judged(self, field: str, what: str) -> None:
        """A condition of a given definition that is not understood here."""
        self.found.append(
            ManifestProblem(
                field=field or WHOLE_OBJECT,
                reason="NotJudged",
                message=f"was not held against {what}",
                cure="look at that one yourself",
                severity="warning",
                rule="not-judged",
            )
        )


_VARIABLE = re.compile(r"\$\{?[A-Za-z_]")
_PLACEHOLDER = re.compile(
    rf"{_VARIABLE.pattern}|<[A-Za-z][\w .-]*>|\{{\{{|PLACEHOLDER|__[A-Z][A-Z_]*__"
)


def filled_in(value: Any) -> str:
    """The cure for a value that is a placeholder; empty for others.

    >>> filled_in("${GPU_TYPE}")
    'fill in the placeholder: envsubst < FILE | ridgeline launch --check -'
    >>> filled_in("<your-queue>"), filled_in("H100")
    ('fill in the placeholder', '')
    """
    if not isinstance(value, str) or not _PLACEHOLDER.search(value):
        return ""
    if _VARIABLE.search(value):
        return "fill in the placeholder: envsubst < FILE | ridgeline launch --check -"
    return "fill in the placeholder"


def shown(value: Any) -> str:
    """A value as a message quotes it: short, on one line."""
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:76]} …"
