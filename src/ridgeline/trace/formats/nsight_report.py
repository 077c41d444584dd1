"""Reports of Nsight Systems (`.nsys-rep`, `.qdrep`), read through `nsys export` where it is there.

The report itself is a format that only nsys reads. Its export to sqlite is made in a temporary
folder and read from there (`nsight/`); nothing is written beside the report.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.trace.columns import Trace
from ridgeline.trace.formats import FileFormat
from ridgeline.trace.formats.nsight import read_nsight

SUFFIXES = (".nsys-rep", ".qdrep")
_LONGEST_EXPORT_SECONDS = 3600


def read_report(path: Path) -> list[Trace]:
    """One trace per GPU of a report, lowest number first.

    Raises:
        InputError: nsys is not installed or cannot export it, or there is nothing in it.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        raise InputError(
            f"{path}: nsys is not installed here; where it is, run: "
            f"nsys export --type sqlite {path.name}"
        )
    with tempfile.TemporaryDirectory(prefix="ridgeline-nsys-") as folder:
        exported = Path(folder) / "export.sqlite"
        _export(nsys, path, exported)
        try:
            return [replace(trace, file=str(path)) for trace in read_nsight(exported)]
        except InputError as error:
            raise InputError(str(error).replace(str(exported), str(path))) from None


def _export(nsys: str, path: Path, exported: Path) -> None:
    command = [
        nsys, "export", "--type", "sqlite", "--force-overwrite", "true",
        "--output", str(exported), str(path.resolve()),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, timeout=_LONGEST_EXPORT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{path}: nsys export did not end: {error}") from None
    if done.returncode or not exported.is_file():
        said = (done.stderr or done.stdout).strip().splitlines()
        raise InputError(
            f"{path}: nsys export failed ({said[-1] if said else f'exit {done.returncode}'}); "
            "is the report whole, and this nsys as new as the one that recorded it?"
        )


FORMAT = FileFormat(
    name="Nsight Systems report",
    sniff=lambda path, start: path.name.endswith(SUFFIXES),  # noqa: ARG005 - a format's signature
    read=lambda path, details: read_report(path),  # noqa: ARG005 - it has neither shapes nor stacks
)
