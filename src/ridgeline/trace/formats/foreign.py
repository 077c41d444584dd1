"""Files of programs that are known and not read: each is refused by name, with what to do.

What is known stands in `ridgeline/trace/foreign.toml`; Chrome traces of other programs are told by
their events, so `kineto/` refuses those.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from ridgeline.trace.foreign import foreign_file, foreign_programs
from ridgeline.trace.formats import FileFormat, first_bytes


def _refuse(path: Path, details: bool) -> NoReturn:  # noqa: ARG001 - a format's signature
    raise foreign_file(path, first_bytes(path)) or AssertionError(path)


FORMAT = FileFormat(
    name="another program's",
    refused={suffix: one.refusal for one in foreign_programs() for suffix in one.suffixes},
    sniff=lambda path, start: foreign_file(path, start) is not None,
    read=_refuse,
)
