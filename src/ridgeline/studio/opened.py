"""What a file holds, and how it is drawn: any JSON that a command of Ridgeline writes, and traces.

`opened.toml` says which type reads a kind of record and which view draws it; both are imported when
a page asks for them.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from ridgeline import quantity
from ridgeline.errors import InputError, RidgelineError, in_words
from ridgeline.records.input_file import read_json
from ridgeline.report.document import ReportDocument
from ridgeline.studio.opened_views import trace_view

_NONSENSE = (ValueError, TypeError, KeyError, IndexError, ArithmeticError, AttributeError)
"""What a view raises of numbers that no command would have written: the file is at fault."""
CURE = "name what a command of Ridgeline wrote with --json or --out, or a trace"
TRACE = "trace"
LARGEST_BYTES = 256 * 2**20
"""The size of the largest record; what is larger is none."""


class Opener(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one kind of record is read and drawn."""

    type: str
    """`module:name` of the record."""
    view: str
    """`module:name` of the function that makes a document of it."""
    fields: list[str] = []
    """What the view takes in place of the record: these fields of it."""
    drop: list[str] = []
    """Keys of the document that the type does not have."""
    keys: list[str] = []
    """Keys that only this kind has, where a record states no kind."""
    many: bool = False
    """Whether the document is a list of such records, and the view takes the list."""


@cache
def openers() -> Mapping[str, Opener]:
    """Kind of record → how it is opened."""
    text = files("ridgeline.studio").joinpath("opened.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Opener])


def kind_of(path: Path) -> str:
    """The kind of record in a file, or `trace`.

    Raises:
        InputError: It is neither, or cannot be read.
    """
    if _named_as_trace(path):
        if not path.is_file():
            raise InputError(f"{path.name}: no such file; check the path")
        return TRACE
    return _kind(_content(path), path)


def opened_document(path: Path) -> ReportDocument:
    """What a file holds, as the command that wrote it shows it.

    Raises:
        InputError: It is no record, or not what it says.
    """
    if _named_as_trace(path):
        return trace_view(path)
    content = _content(path)
    kind = _kind(content, path)
    if kind == TRACE:
        return trace_view(path)
    opener = openers()[kind]
    one = _named(opener.type)
    try:
        if opener.many:
            record = msgspec.convert(content, type=list[one], str_keys=True)  # type: ignore[valid-type]
        else:
            kept = {key: value for key, value in content.items() if key not in opener.drop}
            record = msgspec.convert(kept, type=one, str_keys=True)
        given = [getattr(record, field) for field in opener.fields] or [record]
        document: ReportDocument = _named(opener.view)(*given)
    except RidgelineError as error:
        raise InputError(f"{path.name}: {in_words(error)}; {CURE}") from None
    except (msgspec.ValidationError, *_NONSENSE) as error:
        raise InputError(
            f"{path.name}: no {kind} that makes sense ({in_words(error)}); {CURE}"
        ) from None
    return document


def _named_as_trace(path: Path) -> bool:
    return path.name.endswith((".json.gz", ".sqlite", ".nsys-rep"))


def _content(path: Path) -> Any:
    try:
        size = path.stat().st_size
    except (OSError, ValueError):
        size = 0  # whoever opens it says why it cannot
    if size > LARGEST_BYTES:
        raise InputError(f"{path.name}: {quantity.memory(size)} are no record; {CURE}")
    return read_json(path, object, cure=CURE)


def _kind(content: Any, path: Path) -> str:
    many = isinstance(content, list)
    first = content[0] if many and content else content
    if not isinstance(first, dict):
        raise InputError(f"{path.name}: no record of Ridgeline's; {CURE}")
    if "traceEvents" in first:
        return TRACE
    stated = first.get("record")
    if isinstance(stated, str) and stated in openers() and not many:
        return stated
    for kind, opener in openers().items():
        if opener.keys and opener.many == many and all(key in first for key in opener.keys):
            return kind
    raise InputError(f"{path.name}: no record that the studio can draw; {CURE}")


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
