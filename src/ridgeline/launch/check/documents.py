"""Manifests as files hold them: YAML with several documents, or JSON; lists are opened."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, in_words
from ridgeline.records import input_file
from ridgeline.records.yaml_documents import parse_yaml

STDIN = Path("-")


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
    try:
        return list(_objects(parse_yaml(text, name), name))
    except InputError as error:
        if "{{" in text:
            raise InputError(
                f"{error}; a template is no manifest yet: "
                "helm template CHART | ridgeline launch --check -"
            ) from None
        raise


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
