"""YAML as Kubernetes reads it: documents of plain values, as JSON knows them.

PyYAML reads it; duplicate keys, which it lets pass, are errors as they are for kubectl.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ridgeline.errors import InputError, MissingExtra, in_words
from ridgeline.records.input_file import DEEPEST

if TYPE_CHECKING:
    import yaml

LARGEST_VALUES = 10**6
"""The most values that one object may have, aliases written out."""
_INTEGER_BITS = 63
_ENDS = ("SequenceEndEvent", "MappingEndEvent")


def parse_yaml(text: str, name: str, *, most_values: int = LARGEST_VALUES) -> list[tuple[int, Any]]:
    """The documents of a text and the lines on which they begin; JSON is YAML too.

    Args:
        text: One document or several.
        name: What it is from: stands first in every complaint.
        most_values: So many may one document have, aliases written out.

    Raises:
        InputError: It is no YAML, nested too deep, too large, or has a key twice in one mapping.
        MissingExtra: PyYAML is not installed.
    """
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
            _refuse_large(node, name, most_values)
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


def _refuse_large(node: yaml.Node, name: str, most: int) -> None:
    """Aliases of aliases grow to any size and depth, or hold themselves."""
    known: dict[int, tuple[int, int]] = {}

    def extent(one: yaml.Node) -> tuple[int, int]:
        """Count the values and the levels below one."""
        if id(one) not in known:
            known[id(one)] = (most, 0)  # until it is known: it may hold itself
            parts = one.value if isinstance(one.value, list) else []
            found = [extent(each) for part in parts for each in _nodes(part)]
            values = 1 + sum(size for size, _ in found)
            known[id(one)] = (values, 1 + max((levels for _, levels in found), default=0))
        return known[id(one)]

    values, levels = extent(node)
    if values > most or levels > DEEPEST:
        where = f"{name}:{node.start_mark.line + 1}"
        raise InputError(
            f"{where}: its aliases come to over {most:,} values or {DEEPEST} levels; write them out"
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
