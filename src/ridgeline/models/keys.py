"""Typed access to the keys of one `config.json`; every complaint names the file, the key, the cure.

Hugging Face writes null for "not set", so null counts as absent. Several names of one key are
tried in order: GPT-2 says `n_embd` where Llama says `hidden_size`, and files carry either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ridgeline.errors import InputError

LARGEST = 10**9
"""No size of a model is above this; a larger one is a mistyped file."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one model, and where they were read."""

    values: Mapping[str, Any]
    place: str

    def has(self, *names: str) -> bool:
        """Whether one of these is set."""
        return self._find(names) is not None

    def size(self, *names: str, default: int | None = None) -> int:
        """A whole number of 1 or more."""
        return self._number(names, default, least=1)

    def count(self, *names: str, default: int | None = None) -> int:
        """A whole number of 0 or more."""
        return self._number(names, default, least=0)

    def flag(self, *names: str, default: bool) -> bool:
        """A key that is true or false."""
        name = self._find(names)
        if name is None:
            return default
        value = self.values[name]
        if not isinstance(value, bool):
            self.refuse(name, f"is {value!r}; it must be true or false")
        return value

    def text(self, *names: str, default: str) -> str:
        """A key that is a string."""
        name = self._find(names)
        if name is None:
            return default
        value = self.values[name]
        if not isinstance(value, str):
            self.refuse(name, f"is {value!r}; it must be a string")
        return value

    def numbers(self, *names: str) -> list[int] | None:
        """A list of whole numbers of 0 or more; None when absent."""
        name = self._find(names)
        if name is None:
            return None
        value = self.values[name]
        if not isinstance(value, list) or not all(
            isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= LARGEST
            for one in value
        ):
            self.refuse(name, f"is {value!r}; it must be a list of whole numbers of 0 or more")
        return list(value)

    def texts(self, *names: str) -> list[str] | None:
        """A list of strings; None when absent."""
        name = self._find(names)
        if name is None:
            return None
        value = self.values[name]
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self.refuse(name, f"is {value!r}; it must be a list of strings")
        return list(value)

    def table(self, name: str) -> Keys:
        """The keys inside an object; none when it is absent."""
        value = self.values.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self.refuse(name, f"is {value!r}; it must be an object")
        return Keys(value, f"{self.place}: {name}")

    def refuse(self, name: str, fault: str) -> NoReturn:
        """End with one line about this key."""
        raise InputError(f"{self.place}: {name} {fault}")

    def _find(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if self.values.get(name) is not None), None)

    def _number(self, names: tuple[str, ...], default: int | None, *, least: int) -> int:
        name = self._find(names)
        if name is None:
            if default is None:
                self.refuse(names[0], f"is missing; add it as a whole number of {least} or more")
            return default
        value = self.values[name]
        if isinstance(value, list) and value and all(one == value[0] for one in value):
            value = value[0]  # the same in every layer
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            self.refuse(
                name, f"is {value!r}; it must be a whole number from {least} to {LARGEST:,}"
            )
        return value
