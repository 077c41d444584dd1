"""Shards of the WebDataset form are .tar files whose neighbouring members share a key.

Only headers are read at first; images are read by their offset, so that any image is reached at
once. The form is that of github.com/webdataset/webdataset: the key is the path up to the first dot
of the file name.
"""

from __future__ import annotations

import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, in_words
from ridgeline.image_files.decoding import SUFFIXES, decode
from ridgeline.image_files.labels import numbered
from ridgeline.records.input_file import parse_json
from ridgeline.records.overwriting import note_input

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_LABELS = (".cls", ".txt", ".json")
_CUT = "unexpected end of data"
"""What tarfile says of a member that is shorter than its header has it."""


@dataclass(frozen=True, slots=True)
class ShardImages:
    """Images of shards, in the order of the shards and of their members."""

    name: str
    shards: tuple[Path, ...]
    shard_of: NDArray[np.int32]
    offsets: NDArray[np.int64]
    """The first byte of each image in its shard."""
    sizes: NDArray[np.int64]
    keys: tuple[str, ...]
    labels: NDArray[np.int64] | None
    classes: tuple[str, ...]
    ready: bool = False

    def __len__(self) -> int:
        return len(self.keys)

    def title(self, place: int) -> str:
        """The shard and the key of one image."""
        return f"{self.shards[self.shard_of[place]]}:{self.keys[place]}"

    def read(self, place: int) -> NDArray[np.uint8]:
        """Pixels [height, width, 3] of one image."""
        shard = self.shards[self.shard_of[place]]
        try:
            with shard.open("rb") as file:
                content = os.pread(file.fileno(), int(self.sizes[place]), int(self.offsets[place]))
        except OSError as error:
            raise InputError(f"{self.title(place)}: {in_words(error)}; copy it again") from None
        return decode(content, self.title(place))


def range_of(text: str) -> tuple[str, ...]:
    """The names that a text with a range means; of one without, itself.

    >>> range_of("shard-{08..10}.tar")
    ('shard-08.tar', 'shard-09.tar', 'shard-10.tar')
    """
    span = _RANGE.search(text)
    if span is None:
        return (text,)
    first, last, width = int(span[1]), int(span[2]), len(span[1])
    before, behind = text[: span.start()], text[span.end() :]
    return tuple(f"{before}{number:0{width}d}{behind}" for number in range(first, last + 1))


def shards_of(path: Path) -> tuple[Path, ...]:
    """The shards that a path names: itself, those of a folder, or those of a range; empty: none.

    Raises:
        InputError: A shard of the range is missing.
    """
    if _RANGE.search(str(path)) is not None and not path.exists():
        found = tuple(Path(one) for one in range_of(str(path)))
        missing = next((one for one in found if not one.is_file()), None)
        if missing is not None:
            raise InputError(f"{path}: {missing} is missing; correct the range")
        return found
    if path.is_dir():
        return tuple(sorted(path.glob("*.tar")))
    return (path,) if path.name.endswith((".tar", ".tar.gz", ".tgz")) and path.is_file() else ()


def open_shards(where: str, path: Path, shards: tuple[Path, ...]) -> ShardImages:
    """Index shards by their headers.

    Raises:
        InputError: A shard cannot be read, is compressed, or holds no images, or only some have
            labels, or one has it in another shard.
    """
    entries: list[tuple[int, int, int, str]] = []
    said: list[str | None] = []
    alone: dict[str, Path] = {}
    for place, shard in enumerate(shards):
        note_input(shard)
        samples, without_image = _samples(where, shard)
        alone |= dict.fromkeys(without_image, shard)
        for key, offset, size, label in samples:
            entries.append((place, offset, size, key))
            said.append(label)
    if not entries:
        raise InputError(f"{where}: no shard holds images; members are named key.jpg and key.cls")
    for label, (at, _, _, key) in zip(said, entries, strict=True):
        if label is None and key in alone:
            raise InputError(
                f"{shards[at]}: {key} has its image there and its label in {alone[key]}; write a"
                " sample's members side by side into one shard"
            )
    without = next((place for place, label in enumerate(said) if label is None), None)
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()
    if without is None:
        labels, classes = numbered([label for label in said if label is not None])
    elif any(label is not None for label in said):
        at, _, _, key = entries[without]
        raise InputError(
            f"{shards[at]}: {key} has an image and no label, others have; write {key}.cls"
        )
    columns = tuple(zip(*entries, strict=True))
    return ShardImages(
        name=str(path),
        shards=shards,
        shard_of=np.array(columns[0], dtype=np.int32),
        offsets=np.array(columns[1], dtype=np.int64),
        sizes=np.array(columns[2], dtype=np.int64),
        keys=columns[3],
        labels=labels,
        classes=classes,
    )


def _samples(
    where: str, shard: Path
) -> tuple[list[tuple[str, int, int, str | None]], frozenset[str]]:
    """(key, offset, size, label) of each image of a shard, and the keys of labels without one."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, str] = {}
    try:
        with tarfile.open(shard, "r:") as opened:
            for member in opened:
                if not member.isfile():
                    continue
                folder, _, file = member.name.rpartition("/")
                stem, dot, rest = file.partition(".")
                key, suffix = f"{folder}/{stem}" if folder else stem, f"{dot}{rest}".lower()
                if suffix in SUFFIXES:
                    images[key] = (member.offset_data, member.size)
                elif suffix in _LABELS and (suffix == ".cls" or key not in labels):
                    content = opened.extractfile(member)
                    assert content is not None
                    label = _label(suffix, content.read(), f"{shard}:{member.name}")
                    if label is not None:
                        labels[key] = label
            cut = _is_cut(shard, opened.offset)
    except tarfile.ReadError as error:
        if str(error) != _CUT:
            raise InputError(
                f"{where}: {shard} is no plain .tar ({in_words(error)}); unpack compressed ones"
                " with gunzip first"
            ) from None
        cut = True
    except OSError as error:
        raise InputError(f"{where}: {shard}: {in_words(error)}; check it") from None
    if cut:
        raise InputError(
            f"{where}: {shard} is cut off or damaged behind {len(images)} images; copy it again"
        )
    samples = [(key, *place, labels.get(key)) for key, place in images.items()]
    return samples, frozenset(labels.keys() - images.keys())


def _is_cut(shard: Path, end: int) -> bool:
    """Whether something stands where the last header was read that is no end of an archive.

    tarfile takes a header that is cut off or damaged for the end.
    """
    with shard.open("rb") as content:
        content.seek(end)
        return any(content.read(tarfile.BLOCKSIZE))


def _label(suffix: str, content: bytes, where: str) -> str | None:
    """The label that a member says; .json under `label` or `cls`."""
    if suffix == ".json":
        found = parse_json(content, dict[str, object], where=where)
        said = next((found[name] for name in ("label", "cls") if name in found), None)
        return None if said is None else str(said)
    text = content.decode("utf-8", "replace").strip()
    if not text:
        raise InputError(f"{where}: is empty; write the label")
    return text if suffix == ".cls" or text.isdigit() else None
