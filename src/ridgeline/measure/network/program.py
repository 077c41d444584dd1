"""An exported program (`.pt2`), read from its file."""

from __future__ import annotations

from pathlib import Path

import torch

from ridgeline.errors import InputError, in_words
from ridgeline.records.overwriting import note_input
from ridgeline.runtimes.capture.quiet import silence
from ridgeline.runtimes.capture.torchvision_schemas import let_torchvision_import


def load_program(path: Path, option: str = "") -> torch.export.ExportedProgram:
    """Read what `torch.export.save` wrote.

    Args:
        path: The file.
        option: What named it, for messages.

    Raises:
        InputError: There is no such file, or it is something else.
    """
    what = f"{option} {path}".strip()
    if not path.is_file():
        raise InputError(f"{what}: no such file; check the path")
    note_input(path)
    try:
        let_torchvision_import()  # programs of detectors call its operators
        with silence():
            return torch.export.load(path)
    except Exception as error:  # whatever unzipping and deserialising raise
        raise InputError(
            f"{what}: is no exported program ({in_words(error)}); give what torch.export.save wrote"
        ) from error
