"""Records to and from JSON files. A file is either whole or not there at all.

JSON has no NaN and no infinity: both are written as `null`. In a list of numbers `null` is read
back as NaN (a loss that was not finite).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from ridgeline.errors import InputError, in_words, no_room
from ridgeline.records.input_file import parse_json, read_bytes
from ridgeline.records.overwriting import note_written, refuse_overwriting

T = TypeVar("T")


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write: what was there stays until all is written and on the disk.

    It goes through a temporary file beside it, fsync and rename. A terminal, a pipe or `/dev/null`
    is written as it is.

    Raises:
        InputError: The command that runs reads this file.
    """
    refuse_overwriting(path)
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    path = path.resolve() if path.is_symlink() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        note_written(path)
    except BaseException as error:
        if isinstance(error, OSError) and no_room(error):
            error.filename = str(path)  # a write that fails does not know which file it was
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path`, whole or not at all."""
    with whole_file(path) as file:
        file.write(content)


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Write one record as indented JSON."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def read_record(path: Path, kind: type[T], *, ours: bool = False) -> T:
    """Read one record; a bad file is an `InputError` that names the file and the key.

    Args:
        path: Of the file.
        kind: Of the record.
        ours: The command keeps this file itself and may write it again.
    """
    content = _with_nan(parse_json(read_bytes(path, ours=ours), object, where=str(path)))
    _refuse_another_record(content, kind, path)
    try:
        return msgspec.convert(content, type=kind, str_keys=True)
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(f"{path}: {in_words(error)}") from None


def _refuse_another_record(content: object, kind: Any, path: Path) -> None:
    """Say it where a file is one of ours, but another than was asked for."""
    config = getattr(kind, "__struct_config__", None)
    if config is None or config.tag is None or not isinstance(content, dict):
        return
    held = content.get(config.tag_field, config.tag)
    if isinstance(held, str) and held != config.tag:
        raise InputError(f"{path}: its record is {held!r}, and {config.tag!r} is asked for here")


def _with_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_nan(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if None in value and all(item is None or isinstance(item, (int, float)) for item in value):
        return [float("nan") if item is None else item for item in value]
    return [_with_nan(item) for item in value]
