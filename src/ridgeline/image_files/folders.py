"""Images may lie in folders: one for each class, or one flat folder and a table of labels."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.image_files.decoding import SUFFIXES, decode
from ridgeline.image_files.labels import numbered
from ridgeline.records.input_file import read_bytes, read_text

LABELS = "labels.csv"
"""The table of a flat folder."""
_PARTS = frozenset(
    {"train", "training", "val", "valid", "validation", "dev", "eval", "test", "testing"}
)
"""Names of folders that are parts of a data set, not classes, in small letters."""


@dataclass(frozen=True, slots=True)
class FolderImages:
    """Image files below one folder, sorted by path."""

    name: str
    files: tuple[Path, ...]
    labels: NDArray[np.int64] | None
    classes: tuple[str, ...]
    ready: bool = False

    def __len__(self) -> int:
        return len(self.files)

    def title(self, place: int) -> str:
        """The path of one image."""
        return str(self.files[place])

    def read(self, place: int) -> NDArray[np.uint8]:
        """Pixels [height, width, 3] of one image."""
        path = self.files[place]
        return decode(read_bytes(path, ours=True), str(path))


def open_folder(
    where: str, path: Path, labels: Path | None, known: Sequence[Path] | None = None
) -> FolderImages:
    """A folder of class folders, or of images.

    Args:
        where: The option and the folder.
        path: The folder.
        labels: A table; None: `labels.csv` in the folder, if it is there.
        known: Its images, which need not be there yet; None: whatever is there.

    Raises:
        InputError: No images, images both beside and in folders, or labels that do not fit.
    """
    flat, within = _found(path) if known is None else _sorted_out(path, known)
    if flat and within:
        raise InputError(
            f"{where}: has images both beside and in folders ({flat[0].name},"
            f" {next(iter(within))}/); keep a folder for each class, or one folder of images"
        )
    table = labels or (path / LABELS if (path / LABELS).is_file() else None)
    if flat:
        return _flat(path, flat, table)
    if not within:
        raise InputError(
            f"{where}: holds no images; give a folder for each class, a folder of images, .tar,"
            " .npz or .safetensors"
        )
    if labels is not None:
        raise InputError(
            f"--labels {labels}: the folders of {path} are the classes; leave --labels out"
        )
    _refuse_parts(where, path, within)
    files = [one for found in within.values() for one in found]
    numbers = np.repeat(np.arange(len(within)), [len(found) for found in within.values()])
    return FolderImages(str(path), tuple(files), numbers.astype(np.int64), tuple(within))


def _refuse_parts(where: str, path: Path, within: dict[str, list[Path]]) -> None:
    """Refuse a folder above those of a data set's parts, each with folders of classes.

    Raises:
        InputError: A model would learn to tell training images from validation images.
    """
    direct = any(one.parent == path / name for name, found in within.items() for one in found)
    if direct or not all(name.lower() in _PARTS for name in within):
        return
    first = next((name for name in within if name.lower().startswith("train")), next(iter(within)))
    raise InputError(
        f"{where}: its folders ({', '.join(within)}) are parts of a data set, not classes; give one"
        f" of them, such as {path / first}"
    )


def _found(path: Path) -> tuple[list[Path], dict[str, list[Path]]]:
    """Images in a folder, and those below each of its folders."""
    flat = _images(path.iterdir())
    folders = sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
    return flat, {one.name: found for one in folders if (found := _images(_below(one)))}


def _below(folder: Path) -> Iterator[Path]:
    """The files below a folder, past hidden folders, and through links that lead to no circle."""
    seen: set[Path] = set()
    pending = [folder]
    while pending:
        here = pending.pop()
        real = here.resolve()
        if real in seen:
            continue
        seen.add(real)
        for one in here.iterdir():
            if one.is_dir():
                pending += [] if one.name.startswith(".") else [one]
            else:
                yield one


def _sorted_out(path: Path, known: Sequence[Path]) -> tuple[list[Path], dict[str, list[Path]]]:
    """Flat images and folders of classes among images that are known by their paths."""
    flat: list[Path] = []
    within: dict[str, list[Path]] = {}
    for one in sorted(known):
        folder, *below = one.relative_to(path).parts
        if below:
            within.setdefault(folder, []).append(one)
        else:
            flat.append(one)
    return flat, dict(sorted(within.items()))


def _flat(path: Path, files: list[Path], table: Path | None) -> FolderImages:
    if table is None:
        return FolderImages(str(path), tuple(files), None, ())
    said = _read_table(table)
    missing = [one.name for one in files if one.name not in said]
    if missing:
        raise InputError(
            f"{table}: says no label of {len(missing)} images of {path}, such as {missing[0]};"
            " write file,label for each"
        )
    labels, classes = numbered([said[one.name] for one in files])
    return FolderImages(str(path), tuple(files), labels, classes)


def _read_table(table: Path) -> dict[str, str]:
    """File name → label; a first line that names no image is a heading."""
    said: dict[str, str] = {}
    text = read_text(table, option="--labels", cure="write file,label lines")
    separator = "\t" if "\t" in text.partition("\n")[0] else ","
    for number, row in enumerate(csv.reader(io.StringIO(text), delimiter=separator), start=1):
        if not row or not "".join(row).strip():
            continue
        if len(row) != 2:
            raise InputError(f"{table}, line {number}: {len(row)} columns; write file,label")
        name, label = Path(row[0].strip()).name, row[1].strip()
        if number == 1 and Path(name).suffix.lower() not in SUFFIXES:
            continue
        if said.setdefault(name, label) != label:
            raise InputError(f"{table}, line {number}: {name} has two labels; keep one")
    return said


def _images(paths: Iterable[Path]) -> list[Path]:
    found = (one for one in paths if one.suffix.lower() in SUFFIXES)
    return sorted(one for one in found if one.is_file() and not one.name.startswith("."))
