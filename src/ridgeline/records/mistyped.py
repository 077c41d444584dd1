"""A key or a word that a file has and its record does not: which one was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

MOST_NAMED = 12
"""Keys that are listed where none is near."""
_UNKNOWN = re.compile(r"unknown field `(?P<key>[^`]*)`(?: - at `\$(?P<path>[^`]*)`)?")
_WORD = re.compile(r"Invalid enum value .* - at `\$(?P<path>[^`]*)`")
_STEP = re.compile(r"\.(?P<key>\w+)|\[[^\]]*\]")


def meant(error: Exception, kind: Any) -> str:
    """What to add to msgspec's complaint about an unknown key, or a word that is none of a list.

    Of any other complaint it is empty.

    >>> import msgspec
    >>> class Run(msgspec.Struct, forbid_unknown_fields=True):
    ...     steps: int = 0
    >>> try:
    ...     msgspec.json.decode(b'{"stepz": 1}', type=Run)
    ... except msgspec.ValidationError as error:
    ...     meant(error, Run)
    '; did you mean `steps`?'

    Args:
        error: As msgspec raised it, or what was made of it.
        kind: The type that was read.
    """
    word = _WORD.search(str(error))
    if word is not None:
        return _words_at([inspect.type_info(kind)], word["path"])
    found = _UNKNOWN.search(str(error))
    if found is None:
        return ""
    known = sorted(_keys_at([inspect.type_info(kind)], found["path"] or ""))
    near = difflib.get_close_matches(found["key"], known, n=1)
    if near:
        return f"; did you mean `{near[0]}`?"
    if not known or len(known) > MOST_NAMED:
        return ""
    return f"; known here: {', '.join(known)}"


def _keys_at(kinds: list[inspect.Type], path: str) -> set[str]:
    """The keys of whatever objects may stand at a path such as `.layout` or `.rows[...]`."""
    kinds = _kinds_at(kinds, path)
    return {
        field.encode_name for one in kinds for struct in _structs(one) for field in struct.fields
    }


def _words_at(kinds: list[inspect.Type], path: str) -> str:
    """The words that may stand at such a path, as a clause."""
    listed = [one for kind in _kinds_at(kinds, path) for one in _alternatives(kind)]
    words = [
        str(word) for one in listed if isinstance(one, inspect.LiteralType) for word in one.values
    ]
    return f"; use {', '.join(words)}" if words else ""


def _kinds_at(kinds: list[inspect.Type], path: str) -> list[inspect.Type]:
    for step in _STEP.finditer(path):
        key = step["key"]
        kinds = [below for one in kinds for below in _below(one, key)]
    return kinds


def _below(kind: inspect.Type, key: str | None) -> Iterator[inspect.Type]:
    """What stands under a key, or in a list."""
    for one in _alternatives(kind):
        if isinstance(one, inspect.StructType) and key is not None:
            yield from (field.type for field in one.fields if field.encode_name == key)
        elif isinstance(one, inspect.DictType):
            yield one.value_type
        elif isinstance(one, inspect.TupleType):
            yield from one.item_types
        elif isinstance(one, inspect.CollectionType):
            yield one.item_type


def _structs(kind: inspect.Type) -> Iterator[inspect.StructType]:
    return (one for one in _alternatives(kind) if isinstance(one, inspect.StructType))


def _alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        yield from kind.types
    else:
        yield kind
