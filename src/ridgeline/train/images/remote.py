"""Images behind an address: fetched when they are first read, checked, and kept.

    https://data.example.org/train-{000..031}.tar   shards, or one file: .tar, .npz, .safetensors
    https://data.example.org/images                 a folder that SHA256SUMS lists
    s3://bucket/images, gs://…, az://…              likewise, with the library that fsspec names

No web server says in one way what a folder holds, so the folder says it itself: `SHA256SUMS`, as
`find . -name '*.jpg' | xargs sha256sum > SHA256SUMS` writes it, names every file and its sum. Class
folders are classes; a flat folder has `labels.csv` beside its images. Shards need no list; where
there is one they are checked by it. What a shard holds stands in its headers, so shards come before
the first step; images of folders come when they are first seen.

Names and labels are those of the local folder, so a run goes on with an empty cache, and from one
that read the folder locally.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, RidgelineError
from ridgeline.hardware.ceilings import cache_folder
from ridgeline.image_files.decoding import SUFFIXES
from ridgeline.image_files.folders import LABELS, FolderImages, open_folder
from ridgeline.image_files.source import ImageSource, open_images
from ridgeline.image_files.tar_shards import range_of
from ridgeline.train.data.remote import KnownFile, fetch_file

SUMS = "SHA256SUMS"
_FILES = (".tar", ".npz", ".safetensors")
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")


@dataclass(frozen=True, slots=True)
class _Place:
    """An address, and the folder that keeps what comes from it."""

    key: str
    """What of the recipe names it."""
    base: str
    query: str
    folder: Path

    def fetch(self, name: str, sums: dict[str, str]) -> bool:
        """See to it that a file is here; False: there is none. Processes wait for the first."""
        target = self.folder / name
        if target.is_file():
            return True
        target.parent.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if target.is_file():
                return True
            cure = f"upload it again with its {SUMS}, and delete {self.folder}"
            address = f"{self.base}/{name}{self.query}"
            written = KnownFile(hashlib.sha256, sums.get(name), SUMS, cure)
            return fetch_file(self.key, address, target, written)

    def needed(self, name: str, sums: dict[str, str], cure: str) -> None:
        """Fetch a file that must be there."""
        if not self.fetch(name, sums):
            raise InputError(f"{self.key}: {self.base} has no {name}; {cure}")

    def sums(self) -> dict[str, str]:
        """The sum of every file that the list names; empty: there is no list."""
        if not self.fetch(SUMS, {}):
            return {}
        listed = self.folder / SUMS
        found: dict[str, str] = {}
        for number, line in enumerate(listed.read_text(errors="replace").splitlines(), start=1):
            match = _LINE.fullmatch(line.rstrip())
            if match is None or ".." in Path(match[2]).parts or match[2].startswith("/"):
                raise InputError(
                    f"{self.key}: {self.base}/{SUMS}, line {number} is none of sha256sum's with a"
                    f" path below it; write it again, and delete {self.folder}"
                )
            found[match[2]] = match[1].lower()
        return found


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """Images of a folder behind an address."""

    place: _Place
    sums: dict[str, str]
    local: FolderImages
    ready: bool = False

    @property
    def name(self) -> str:
        """The folder that keeps them."""
        return self.local.name

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """The class of each image."""
        return self.local.labels

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.local.classes

    def __len__(self) -> int:
        return len(self.local)

    def title(self, place: int) -> str:
        """The path that one image has here."""
        return self.local.title(place)

    def read(self, place: int) -> NDArray[Any]:
        """Pixels of one image, which is fetched where it is not here yet."""
        name = self.local.files[place].relative_to(self.place.folder).as_posix()
        try:
            self.place.needed(name, self.sums, f"{SUMS} lists it: upload the folder again")
        except InputError as error:
            # Not to be passed over as an image that cannot be decoded: it can be, elsewhere.
            raise RidgelineError(str(error)) from None
        return self.local.read(place)


def open_remote_images(key: str, url: str, cache: str) -> ImageSource:
    """The source behind an address.

    Args:
        key: Of the recipe, that has the address.
        url: Of shards, of one file, or of a folder.
        cache: The folder that keeps what was fetched; empty: below the user's cache folder.

    Raises:
        InputError: Nothing answers there, something is missing, or a file is not what its sum says.
    """
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    whole = url.removesuffix(query).rstrip("/")
    base, _, last = whole.rpartition("/")
    one_file = last.endswith(_FILES)
    base = base if one_file else whole
    kept = Path(cache).expanduser() if cache else cache_folder() / "images"
    name = hashlib.blake2b(base.encode(), digest_size=8).hexdigest()
    place = _Place(key, base, query, kept / f"{unquote(base.rpartition('/')[2])}-{name}")
    place.folder.mkdir(parents=True, exist_ok=True)
    sums = {} if one_file and query else place.sums()
    if one_file:
        for file in range_of(last):
            place.needed(file, sums, "correct the address")
        return open_images(key, place.folder / last)
    shards = sorted(file for file in sums if file.endswith(".tar"))
    if shards:
        for file in shards:
            place.needed(file, sums, f"{SUMS} lists it: upload the folder again")
        return open_images(key, place.folder)
    if not sums:
        raise InputError(
            f"{key}: {base} has no {SUMS}, which says what the folder holds; write one with"
            " `sha256sum` below it, or give shards as train-{000..031}.tar"
        )
    return _folder(place, sums)


def _folder(place: _Place, sums: dict[str, str]) -> RemoteFolder:
    files = [Path(name) for name in sums if Path(name).suffix.lower() in SUFFIXES]
    table = None
    if any(len(file.parts) == 1 for file in files):
        place.needed(LABELS, sums, "write file,label of each image into it")
        table = place.folder / LABELS
    local = open_folder(
        f"{place.key} {place.base}", place.folder, table, [place.folder / one for one in files]
    )
    return RemoteFolder(place, sums, local)
