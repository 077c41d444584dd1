"""The keys that clients of a server may show, from the file that `--api-key-file` names."""

from __future__ import annotations

from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_text


def read_api_keys(path: Path) -> tuple[str, ...]:
    """The keys of a file, one a line; blank lines and those that begin with # are left out.

    Raises:
        InputError: It cannot be read, has no key, or one that a header cannot carry.
    """
    option, cure = "--api-key-file", "write one key a line"
    lines = read_text(path, option=option, cure=cure).splitlines()
    keys = []
    for number, line in enumerate(lines, start=1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise InputError(
                f"{option} {path}, line {number}: a key is of letters, digits and signs that a"
                f" header can carry; {cure}"
            )
        keys.append(key)
    if not keys:
        raise InputError(f"{option} {path}: no key in it; {cure}")
    return tuple(keys)
