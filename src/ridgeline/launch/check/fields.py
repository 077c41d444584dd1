"""A map of a manifest with its path, so that a rule names its field and no more.

Rules that many fields have stand here: a closed list of values, a least number, a name, a port.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ridgeline.launch.check import grammar
from ridgeline.launch.check.verdict import Problems

Object = Mapping[str, Any]
NameRule = Callable[[str], str]
"""Tells what is wrong with a name; empty: nothing."""

_OWN: Any = object()


def section(value: Object, key: str) -> Object:
    """A map below a field; empty where absent or null."""
    found: Object = value.get(key) or {}
    return found


def entries(value: Object, key: str) -> list[Any]:
    """A list of maps below a field; empty where absent; a null entry is an empty one."""
    return [{} if item is None else item for item in value.get(key) or []]


class Fields:
    """A map in a manifest.

    Args:
        value: The map.
        path: Where it stands, as the API server writes it; empty: the object itself.
        problems: Take what is wrong with its fields.
    """

    __slots__ = ("path", "problems", "value")

    def __init__(self, value: Object, path: str, problems: Problems) -> None:
        self.value = value
        self.path = path
        self.problems = problems

    def get(self, key: str) -> Any:
        """What a field says; None: nothing."""
        return self.value.get(key)

    def at(self, key: str) -> str:
        """The path of a field."""
        return f"{self.path}.{key}" if self.path else key

    def section(self, *keys: str) -> Fields:
        """A map below a field, or below several that lie in each other."""
        found = self
        for key in keys:
            found = Fields(section(found.value, key), found.at(key), self.problems)
        return found

    def entries(self, key: str) -> list[Fields]:
        """The maps of a list below a field."""
        listed = enumerate(entries(self.value, key))
        return [Fields(one, f"{self.at(key)}[{index}]", self.problems) for index, one in listed]

    # -- what is wrong

    def wrong(self, detail: str, value: Any = "") -> None:
        """Add that the map itself, or a value that its path stands for, breaks a rule."""
        self.problems.invalid(self.path, value, detail)

    def invalid(self, key: str, detail: str, cure: str = "", *, value: Any = _OWN) -> None:
        """Add that a field's value breaks a rule; an empty `detail` says it does not."""
        shown = self.get(key) if value is _OWN else value
        self.problems.invalid(self.at(key), shown, detail, cure)

    def required(self, key: str, detail: str = "") -> None:
        """Add that a field must be given."""
        self.problems.required(self.at(key), detail)

    def forbidden(self, key: str, detail: str) -> None:
        """Add that a field may not be set here."""
        self.problems.forbidden(self.at(key), detail)

    def unsupported(self, key: str, allowed: tuple[str, ...]) -> None:
        """Add that a field's value is outside a closed list."""
        self.problems.unsupported(self.at(key), self.get(key), allowed)

    # -- rules

    def need(self, *keys: str) -> None:
        """Fields that must be given."""
        for key in keys:
            if not self.get(key):
                self.required(key)

    def choice(self, key: str, allowed: tuple[str, ...]) -> None:
        """A field with a closed list of values, where given."""
        if self.get(key) not in (None, "", *allowed):
            self.unsupported(key, allowed)

    def minimum(self, minimum: int, *keys: str) -> None:
        """Numbers that must not be smaller, where given."""
        for key in keys:
            value = self.get(key)
            if isinstance(value, int) and value < minimum:
                self.invalid(key, f"must be greater than or equal to {minimum}")

    def named(self, key: str, rule: NameRule) -> None:
        """A name that must be given."""
        if self.get(key):
            self.fits(key, rule)
        else:
            self.required(key)

    def fits(self, key: str, rule: NameRule) -> None:
        """A name, where given."""
        if self.get(key):
            self.invalid(key, rule(self.get(key)))

    def unique(self, key: str, seen: set[str]) -> None:
        """A value that no entry before this one has."""
        value = self.get(key) or ""
        if value and value in seen:
            self.problems.duplicate(self.at(key), value)
        seen.add(value)

    def port(self, key: str, value: Any = _OWN) -> None:
        """A port by number, or by the name of a container's port."""
        port = self.get(key) if value is _OWN else value
        if isinstance(port, int | float):
            if not 1 <= port <= 65535:
                self.invalid(key, "must be between 1 and 65535, inclusive", value=port)
        elif port is None:
            self.required(key)
        else:
            self.invalid(key, grammar.port_name(port), value=port)

    def given(self, keys: Iterable[str]) -> list[str]:
        """The fields of some that are set."""
        return [key for key in keys if self.get(key) is not None]
