"""The door for every file that a user names: bytes, text, JSON, lines of JSON, TOML, CSV.

What cannot be read is an `InputError` of one line: the option and the file, what is wrong and
where in it, what to do. That holds for whatever a file may be: missing, a folder, locked away,
empty, binary, UTF-16, cut short, nested without end. What was read is not written to by the same
command (`overwriting.py`), unless it is `ours`: a file that the product itself keeps and goes on
with.
"""

from __future__ import annotations

import codecs
import csv
import gc
import json
import re
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TypeVar, get_origin

import msgspec

from ridgeline import quantity
from ridgeline.errors import InputError, in_words
from ridgeline.records.overwriting import note_input

LARGEST_BYTES = 2**32
"""Files that are read whole; traces, tensors and token streams are not."""
T = TypeVar("T")

_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # begins as UTF-16 does, so it is looked for first
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def read_bytes(path: Path, *, option: str = "", cure: str = "", ours: bool = False) -> bytes:
    """A file as it is.

    Args:
        path: Of the file.
        option: That named it.
        cure: What to give instead, as a clause.
        ours: The command keeps this file itself and may write it again.

    Raises:
        InputError: It is missing, a folder or a device, too large, or may not be read.
    """
    where = _where(path, option)
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise InputError(f"{where}: is a folder; {cure or 'name a file in it'}")
        if stat.S_ISBLK(found.st_mode) or path.samefile("/dev/zero"):
            raise InputError(f"{where}: is a device; {cure or 'name a file'}")
        if found.st_size > LARGEST_BYTES:
            size = quantity.memory(found.st_size)
            raise InputError(f"{where}: has {size}, too much to be meant; {cure or 'check it'}")
        if not ours:
            note_input(path)
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{where}: no such file; {cure or 'check the path'}") from None
    except (OSError, ValueError) as error:  # a NUL byte in the path is a ValueError
        what = in_words(error)
        raise InputError(f"{where}: {what}; {cure or 'check the path'}") from None
    return content


def read_text(path: Path, *, option: str = "", cure: str = "", ours: bool = False) -> str:
    """A text in UTF-8, with or without its mark.

    Raises:
        InputError: See `read_bytes`; or it is binary, or in another encoding.
    """
    return _text(read_bytes(path, option=option, cure=cure, ours=ours), _where(path, option), cure)


def read_json(path: Path, kind: type[T], *, option: str = "", cure: str = "") -> T:
    """One JSON document; of the kind `object`, whatever it holds.

    Raises:
        InputError: See `read_text`; or it is no JSON, nested too deep, or no `kind`.
    """
    content = read_bytes(path, option=option, cure=cure)
    return parse_json(content, kind, where=_where(path, option), cure=cure)


@contextmanager
def without_collection() -> Iterator[None]:
    """Switch garbage collection off: millions of small objects come and go, none in a cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def parse_json(content: bytes, kind: type[T], *, where: str, cure: str = "") -> T:
    """What a JSON text says.

    Args:
        content: UTF-8, with or without its mark.
        kind: As msgspec takes it.
        where: The text is from: stands first in every complaint.
        cure: What to give instead, as a clause.

    Raises:
        InputError: It is no text, no JSON, nested too deep, or no `kind`.
    """
    plain = _plain(content, where, cure)
    if not plain:
        raise InputError(f"{where}: is empty; {cure or 'write it again'}")
    after = f"; {cure}" if cure else ""
    if too_deep(plain):
        raise _too_deep(where, cure)
    try:
        return _decoded(plain, kind)
    except RecursionError:  # brackets that nobody closes
        raise _too_deep(where, cure) from None
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}{_meant(error, kind)}{after}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _text(plain, where, cure)  # which of the two tells of bytes that are no text is msgspec's
        raise InputError(f"{where}: not JSON ({error}){after or '; write it again'}") from None


def _decoded(plain: bytes, kind: type[T]) -> T:
    """The document; of one without fields of its own, what is no number is null.

    JSON has no word for infinity, Python's writer has: published configurations of models with
    states say `"time_step_limit": [0.0, Infinity]`.
    """
    try:
        return msgspec.json.decode(plain, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if get_origin(kind) is not dict or not re.search(rb"[:,\[\s](-?Infinity|NaN)\b", plain):
            raise
        try:
            found = json.loads(plain, parse_constant=lambda _: None)
        except ValueError:
            found = None
        if found is None:
            raise
        return msgspec.convert(found, type=kind)


def read_toml(
    path: Path, kind: type[T], *, option: str = "", cure: str = "", ours: bool = False
) -> T:
    """Read one TOML document.

    Raises:
        InputError: See `read_text`; or it is no TOML, nested too deep, or no `kind`.
    """
    where = _where(path, option)
    text = read_text(path, option=option, cure=cure, ours=ours)
    after = f"; {cure}" if cure else ""
    try:
        return msgspec.convert(tomllib.loads(text), type=kind)
    except RecursionError:
        raise _too_deep(where, cure) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: not TOML ({error}){after}") from None
    except (msgspec.ValidationError, InputError, ValueError) as error:
        raise InputError(f"{where}: {in_words(error)}{_meant(error, kind)}{after}") from None


def csv_rows(text: str, *, where: str, cure: str = "") -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV table with the numbers of their last lines, blank ones left out.

    Raises:
        InputError: A cell is longer than any cell of a table is.
    """
    reader = csv.reader(text.splitlines(keepends=True))
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            line = reader.line_num
            raise InputError(
                f"{where}, line {line}: not CSV ({error}); {cure or 'write it again'}"
            ) from None
        if cells:
            yield reader.line_num, cells


def _meant(error: Exception, kind: object) -> str:
    from ridgeline.records.mistyped import meant  # commands whose files are right start sooner

    return meant(error, kind)


def _where(path: Path, option: str) -> str:
    return f"{option} {path}".strip()


def _plain(content: bytes, where: str, cure: str) -> bytes:
    """Without the mark of UTF-8; refuses what is no text for a reason that can be told."""
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            raise InputError(f"{where}: is {encoding} text; save it as UTF-8")
    nul = content.find(b"\0")
    if nul >= 0:
        raise InputError(
            f"{where}: byte {nul} is NUL, so it is binary, or UTF-16 and not UTF-8 text;"
            f" {cure or 'name a text file'}"
        )
    return content.removeprefix(codecs.BOM_UTF8)


def _text(content: bytes, where: str, cure: str) -> str:
    try:
        return _plain(content, where, cure).decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(error, where, cure) from None


def _not_utf8(error: UnicodeDecodeError, where: str, cure: str) -> InputError:
    return InputError(
        f"{where}: byte {error.start} is not UTF-8 text; {cure or 'save it as UTF-8'}"
    )


def _too_deep(where: str, cure: str) -> InputError:
    return InputError(
        f"{where}: nested deeper than {DEEPEST} levels; {cure or 'give the file as it was written'}"
    )


DEEPEST = 100
"""Levels of nesting; nothing that is written by hand or by us has a quarter of them, and what
walks over a value calls itself for each."""
FEW_BRACKETS = 2**20
"""So many are walked over in less time than numpy takes to import; tokenizers have as many."""
_STEPS = tuple(1 if one in b"[{" else -1 if one in b"]}" else 0 for one in range(256))
_NO_BRACKETS = bytes(one for one in range(256) if not _STEPS[one])
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def too_deep(text: bytes, most: int = DEEPEST) -> bool:
    r"""Whether objects and lists stand in each other more than `most` deep; strings do not count.

    >>> too_deep(b"[[[1]]]", most=2), too_deep(b'["[[[", {}]', most=2), too_deep(b'["\\"[[["]', 1)
    (True, False, False)
    """
    if text.count(b"[") + text.count(b"{") <= most:
        return False
    brackets = _STRING.sub(b"", text).translate(None, delete=_NO_BRACKETS)
    if len(brackets) <= FEW_BRACKETS:
        return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > most
    import numpy as np  # few texts have so many brackets, and commands must start at once

    ways = np.array(_STEPS, np.int8)[np.frombuffer(brackets, np.uint8)]
    return int(np.cumsum(ways, dtype=np.int32).max()) > most
