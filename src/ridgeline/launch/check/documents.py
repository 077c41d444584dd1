"""Manifests in files: YAML with several documents, or JSON; lists of objects are opened.

PyYAML reads the YAML; duplicate keys, which it lets pass, are errors as they are for kubectl.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.errors import InputError, MissingExtra, in_words
from ridgeline.records import input_file
from ridgeline.records.input_file import DEEPEST

if TYPE_CHECKING:
    import yaml


STDIN = Path("-")
LARGEST_VALUES = 10**6
"""Of one object, aliases written out."""
_INTEGER_BITS = 63
_ENDS = ("SequenceEndEvent", "MappingEndEvent")


@dataclass(frozen=True, slots=True)
class Document:
    """One object and where it stands."""

    source: str
    """`file:line`, or a name of the caller's."""
    manifest: Any


def read_files(paths: list[Path]) -> list[Document]:
    """All objects of some files, each of which holds one at least; `-` is standard input."""
    found: list[Document] = []
    for path in paths:
        text = _stdin() if path == STDIN else input_file.read_text(path)
        objects = read_text(text, str(path))
        if not objects:
            raise InputError(f"{path}: holds no object; give manifests, with apiVersion and kind")
        found += objects
    return found


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"-: {in_words(error)}") from None


def read_text(text: str, name: str) -> list[Document]:
    """All objects of a text. JSON is YAML too."""
    return list(_objects(_parse(text, name), name))


def _parse(text: str, name: str) -> list[tuple[int, Any]]:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("pyyaml", "kubernetes") from error
    found = []
    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader = kind(text)
    try:
        _refuse_deep(yaml.parse(text, Loader=kind), name)
        while loader.check_node():
            node = loader.get_node()
            _refuse_duplicates(node, name)
            _refuse_large(node, name)
            line = node.start_mark.line + 1
            try:
                found.append((line, _plain(loader.construct_document(node))))
            except (ValueError, TypeError, AttributeError, OverflowError) as error:
                raise InputError(f"{name}:{line}: not YAML: {in_words(error)}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        raise InputError(f"{where}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    finally:
        loader.dispose()
    return found


def _refuse_deep(events: Iterator[yaml.Event], name: str) -> None:
    """Before anything is built: the builder calls itself for each level, in C."""
    depth = 0
    for event in events:
        depth += hasattr(event, "flow_style") - type(event).__name__.endswith(_ENDS)
        if depth > DEEPEST:
            where = f"{name}:{event.start_mark.line + 1}"
            raise InputError(f"{where}: nested deeper than {DEEPEST} levels; no manifest is")


def _refuse_large(node: yaml.Node, name: str) -> None:
    """Aliases of aliases grow to any size and depth, or hold themselves."""
    known: dict[int, tuple[int, int]] = {}

    def extent(one: yaml.Node) -> tuple[int, int]:
        """Values and levels."""
        if id(one) not in known:
            known[id(one)] = (LARGEST_VALUES, 0)  # until it is known: it may hold itself
            parts = one.value if isinstance(one.value, list) else []
            found = [extent(each) for part in parts for each in _nodes(part)]
            values = 1 + sum(size for size, _ in found)
            known[id(one)] = (values, 1 + max((levels for _, levels in found), default=0))
        return known[id(one)]

    values, levels = extent(node)
    if values > LARGEST_VALUES or levels > DEEPEST:
        where = f"{name}:{node.start_mark.line + 1}"
        raise InputError(
            f"{where}: its aliases come to over {LARGEST_VALUES:,} values or {DEEPEST} levels;"
            " write them out"
        )


def _nodes(part: Any) -> tuple[Any, ...]:
    return part if isinstance(part, tuple) else (part,)


def _refuse_duplicates(node: yaml.Node, name: str) -> None:
    pending = [node]
    visited: set[int] = set()
    while pending:
        current = pending.pop()
        if id(current) in visited or not isinstance(current.value, list):
            continue
        visited.add(id(current))
        keys: set[Hashable] = set()
        for entry in current.value:
            if not isinstance(entry, tuple):
                pending.append(entry)
                continue
            key, value = entry
            if isinstance(key.value, str):
                if key.value in keys and key.value != "<<":
                    line = key.start_mark.line + 1
                    raise InputError(f"{name}:{line}: {key.value!r} is given twice; remove one")
                keys.add(key.value)
            pending.append(value)


def _plain(value: Any) -> Any:
    """Only what JSON knows: YAML's dates become text and keys that are no strings, strings."""
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
        raise OverflowError("a whole number beyond 64 bits")
    if isinstance(value, float) and value.is_integer():
        return int(value)  # As kubectl writes it into JSON.
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)


def _key(key: object) -> str:
    return {True: "true", False: "false", None: "null"}.get(key, str(key))  # type: ignore[call-overload,no-any-return]


def _objects(parsed: list[tuple[int, Any]], name: str) -> Iterator[Document]:
    for line, value in parsed:
        source = f"{name}:{line}"
        if value is None:
            continue
        items = value.get("items") if isinstance(value, Mapping) else None
        if isinstance(items, list) and value.get("kind") == "List":
            for index, item in enumerate(items):
                yield _object(f"{source} items[{index}]", item)
        else:
            yield _object(source, value)


def _object(source: str, value: Any) -> Document:
    if not isinstance(value, Mapping) or not {"apiVersion", "kind"} <= set(value):
        raise InputError(f"{source}: not an object with apiVersion and kind")
    return Document(source, value)
