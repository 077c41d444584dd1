"""A directory is written aside and appears under its name at once, whole.

What an interrupted writer left aside is thrown away by the next one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ridgeline.errors import InputError

COPIED = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "*.model",
    "*.py",
)
"""Files of the source that the result needs too (code: of models that bring their own)."""


def check_free(out_dir: Path) -> None:
    """Refuse to write over anything.

    Raises:
        InputError: There is something at `out_dir`.
    """
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise InputError(f"{out_dir}: there is something already; give another place or remove it")


def copy_companions(source: Path, to: Path) -> None:
    """Tokenizer, generation config and code of a model directory."""
    for pattern in COPIED:
        for path in sorted(source.glob(pattern)):
            if path.is_file():
                shutil.copyfile(path, to / path.name)


def move_into_place(aside: Path, out_dir: Path) -> None:
    """Everything on disk, then one rename."""
    for path in aside.iterdir():
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    os.replace(aside, out_dir)
