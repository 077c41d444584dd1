"""Records to and from JSON files, facts from TOML. A file is either whole or not there at all.

JSON has no NaN and no infinity: both are written as `null`. In a list of numbers `null` is read
back as NaN (a loss that was not finite).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ridgeline.errors import InputError, in_words

T = TypeVar("T")


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` through a temporary file, fsync and rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Write one record as indented JSON."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def read_record(path: Path, kind: type[T]) -> T:
    """Read one record; a bad file is an `InputError` that names the file and the key."""
    try:
        content = _with_nan(msgspec.json.decode(path.read_bytes()))
        return msgspec.convert(content, type=kind, str_keys=True)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path}: {in_words(error)}") from None


def read_toml(path: Path, kind: type[T]) -> T:
    """Read one TOML file; a bad one is an `InputError` that names the file and the key."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, msgspec.MsgspecError, ValueError, InputError) as error:
        raise InputError(f"{path}: {in_words(error)}") from None


def _with_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_nan(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if None in value and all(item is None or isinstance(item, (int, float)) for item in value):
        return [float("nan") if item is None else item for item in value]
    return [_with_nan(item) for item in value]
