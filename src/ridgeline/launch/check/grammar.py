"""How the API server reads short texts: names and keys, quantities, cron schedules.

Names: RFC 1123 labels and subdomains, qualified names of labels and resources (apimachinery
`util/validation`). Quantities (`500m`, `2Gi`, `1e3`): apimachinery `resource`. Schedules: the
standard parser of robfig/cron. A function that judges returns what is wrong, or the empty text.
"""

from __future__ import annotations

import re

LABEL_LENGTH = 63
SUBDOMAIN_LENGTH = 253

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_ENV_NAME = re.compile(r"[ -<>-~]+")
_PORT_NAME = re.compile(r"[-a-z0-9]+")


def _matches(value: str, pattern: re.Pattern[str], limit: int, what: str) -> str:
    if len(value.encode()) > limit:
        return f"must be no more than {limit} characters"
    return "" if pattern.fullmatch(value) else what


def dns_label(value: str) -> str:
    """An RFC 1123 label names containers, volumes, Services, StatefulSets."""
    return _matches(
        value,
        _LABEL,
        LABEL_LENGTH,
        "must be a lowercase RFC 1123 label: letters, digits and '-', ending in neither",
    )


def dns_subdomain(value: str) -> str:
    """An RFC 1123 subdomain is the name of most objects."""
    return _matches(
        value,
        _SUBDOMAIN,
        SUBDOMAIN_LENGTH,
        "must be a lowercase RFC 1123 subdomain: letters, digits, '-' and '.', "
        "beginning and ending with a letter or digit",
    )


def qualified_name(value: str) -> str:
    """A label key, an annotation key or a resource name: `name` or `domain/name`."""
    prefix, slash, name = value.rpartition("/")
    if "/" in prefix:
        return "must have at most one '/'"
    if slash and (not prefix or dns_subdomain(prefix)):
        return "the part before '/' must be a lowercase RFC 1123 subdomain"
    if not name:
        return "the name must not be empty"
    what = "must consist of letters, digits, '-', '_' or '.', beginning and ending with the former"
    return _matches(name, _QUALIFIED, LABEL_LENGTH, what)


def label_value(value: str) -> str:
    """The value of a label; may be empty."""
    what = "must consist of letters, digits, '-', '_' or '.', beginning and ending with the former"
    return _matches(value, _LABEL_VALUE, LABEL_LENGTH, what)


def config_key(value: str) -> str:
    """A key of a ConfigMap or a Secret."""
    if value in (".", "..") or value.startswith(".."):
        return "must not be '.' or begin with '..'"
    return _matches(value, _CONFIG_KEY, SUBDOMAIN_LENGTH, "must consist of letters, digits, -._")


def env_name(value: str) -> str:
    """The name of an environment variable: printable ASCII without '='."""
    return "" if _ENV_NAME.fullmatch(value) else "must be printable ASCII without '='"


def port_name(value: str) -> str:
    """An IANA service name: at most 15 of a-z, 0-9 and '-', one letter, no '--', no '-' outside."""
    if not _PORT_NAME.fullmatch(value):
        return "must contain only a-z, 0-9 and '-'"
    if len(value) > 15:
        return "must be no more than 15 characters"
    if not re.search("[a-z]", value):
        return "must contain at least one letter"
    if "--" in value or value[0] == "-" or value[-1] == "-":
        return "must not contain '--', nor begin or end with '-'"
    return ""


def path_segment(value: str) -> str:
    """What RBAC objects may be called: anything that fits into one part of a URL."""
    if value in (".", ".."):
        return f"may not be '{value}'"
    return "may not contain '/' or '%'" if "/" in value or "%" in value else ""


# Schedules

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 6, _DAYS),
)
_NAMED = frozenset(
    {"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}
)
_EVERY = re.compile(r"@every (\d+(\.\d*)?(ns|us|ms|s|m|h))+")


def schedule_problem(schedule: str) -> str:
    """What is wrong with a schedule, or the empty text.

    >>> schedule_problem("*/5 2-4 * * MON")
    ''
    >>> schedule_problem("61 * * * *")
    'minute: 61 is outside 0-59'
    """
    if schedule.startswith("@"):
        known = schedule in _NAMED or _EVERY.fullmatch(schedule)
        return "" if known else f"unrecognized descriptor: {schedule}"
    parts = schedule.split()
    if len(parts) != len(_FIELDS):
        return f"expected exactly 5 fields, found {len(parts)}"
    for part, (what, low, high, words) in zip(parts, _FIELDS, strict=True):
        for piece in part.split(","):
            wrong = _piece_problem(piece, low, high, words)
            if wrong:
                return f"{what}: {wrong}"
    return ""


def _piece_problem(piece: str, low: int, high: int, words: tuple[str, ...]) -> str:
    span, slash, step = piece.partition("/")
    if slash and (not step.isdigit() or int(step) == 0):
        return f"{step!r} is not a step"
    if span in ("*", "?"):
        return ""
    numbers = []
    for text in span.split("-"):
        if text.lower() in words:
            numbers.append(words.index(text.lower()) + low)
        elif text.isdigit():
            numbers.append(int(text))
        else:
            return f"{text!r} is not a number"
    if len(numbers) > 2 or numbers[0] > numbers[-1]:
        return f"{span} is not a range"
    for number in numbers:
        if not low <= number <= high:
            return f"{number} is outside {low}-{high}"
    return ""
