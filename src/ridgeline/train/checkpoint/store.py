"""A run's checkpoints as they lie on disk. A checkpoint exists wholly or not at all.

    checkpoints/step-00000120/          a checkpoint: its files and `manifest.json`
    checkpoints/.writing-00000240/      being written; after a crash, rubbish
    checkpoints/.old-00000060/          being deleted; after a crash, rubbish

Files are written and fsynced under the second name, the manifest with size and BLAKE2b of each of
them last, then the folder is renamed, which is atomic, and its parent fsynced. A manifest carries
a checksum of itself. Imports no torch.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.errors import InputError, RidgelineError
from ridgeline.records.input_file import read_json
from ridgeline.records.store import write_atomically

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
_READ_BYTES = 2**22
_DIGEST_BYTES = 16


class FileSum(msgspec.Struct, frozen=True, kw_only=True):
    """What a file must be."""

    bytes: int
    blake2b: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint is of, and what it consists of."""

    step: int
    """Optimizer steps that were done."""
    tokens: int
    """Target tokens trained on."""
    number: int
    """Checkpoints that the run made before this one."""
    world: int
    """Ranks that wrote it."""
    time: float
    """When it was sealed, in seconds since 1970."""
    recipe: dict[str, Any]
    """The run's recipe; not a `Recipe`, which may have other keys when it is read."""
    files: dict[str, FileSum]
    seal: str = ""
    """BLAKE2b of all the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that is whole, as far as its manifest and the sizes of its files tell."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Optimizer steps that were done."""
        return self.manifest.step

    @property
    def bytes(self) -> int:
        """The size of all its files."""
        return sum(file.bytes for file in self.manifest.files.values())


class Damaged(RidgelineError):
    """A checkpoint is not what its manifest says; names the file."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(what)
        self.path = path
        """The checkpoint."""


class Store:
    """The checkpoints of the run in a folder."""

    def __init__(self, folder: Path) -> None:
        """Look at the run that lives in `folder`; makes nothing."""
        self.folder = folder / FOLDER

    def found(self) -> Iterator[Checkpoint | Damaged]:
        """All checkpoints, newest first; in place of a damaged one what is wrong with it."""
        for path in sorted(self.folder.glob("step-*"), reverse=True):
            try:
                yield _open(path)
            except Damaged as damage:
                yield damage

    def whole(self) -> list[Checkpoint]:
        """All checkpoints but the damaged, newest first."""
        return [one for one in self.found() if isinstance(one, Checkpoint)]

    def sweep(self) -> list[str]:
        """Remove what crashes left behind, and return its names. No one may be writing."""
        rubbish = sorted([*self.folder.glob(".writing-*"), *self.folder.glob(".old-*")])
        for path in rubbish:
            shutil.rmtree(path)
        return [path.name for path in rubbish]

    def place(self, step: int) -> Path:
        """The folder to write into."""
        return self.folder / f".writing-{step:08}"

    def begin(self, step: int) -> None:
        """Make that folder, empty; other ranks may do the same."""
        path = self.place(step)
        if path.exists():
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)

    def seal(self, path: Path, manifest: Manifest) -> Checkpoint:
        """Make what was written at `path` a checkpoint.

        Raises:
            Damaged: A file is not there, or not of the size that was written.
        """
        _check_sizes(path, manifest)
        sealed = msgspec.structs.replace(manifest, seal=_seal(manifest))
        write_atomically(path / MANIFEST, msgspec.json.format(msgspec.json.encode(sealed)))
        _sync(path)
        final = self.folder / f"step-{manifest.step:08}"
        if final.exists():
            self._delete(final)
        os.replace(path, final)
        _sync(self.folder)
        return Checkpoint(path=final, manifest=sealed)

    def set_aside(self, path: Path) -> None:
        """Rename one that is damaged, so that it is neither found nor counted again."""
        aside = path.with_name(path.name.replace("step-", "damaged-"))
        if aside.exists():
            shutil.rmtree(aside)
        os.replace(path, aside)

    def discard(self, path: Path) -> None:
        """Give up what was being written."""
        shutil.rmtree(path, ignore_errors=True)

    def retain(self, keep: int, keep_every: int) -> None:
        """Delete all but the newest `keep` and every `keep_every`-th."""
        for old in self.whole()[keep:]:
            if not keep_every or old.manifest.number % keep_every:
                self._delete(old.path)

    def clear(self) -> None:
        """Delete all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _delete(self, path: Path) -> None:
        # Under its old name half a checkpoint would be found.
        doomed = path.with_name(f".old-{path.name.partition('-')[2]}")
        if doomed.exists():
            shutil.rmtree(doomed)
        os.replace(path, doomed)
        shutil.rmtree(doomed)


def verify(checkpoint: Checkpoint, share: slice = slice(None)) -> None:
    """Compare checksums of the files, or of a share of them by place in their order.

    Raises:
        Damaged: One is wrong; the message names it.
    """
    for name in sorted(checkpoint.manifest.files)[share]:
        try:
            found = sum_of(checkpoint.path / name)
        except OSError as error:
            raise Damaged(
                checkpoint.path, f"{checkpoint.path / name}: {error.strerror or error}"
            ) from None
        if found != checkpoint.manifest.files[name]:
            raise Damaged(
                checkpoint.path, f"{checkpoint.path / name}: its checksum is not the one written"
            )


def sum_of(path: Path) -> FileSum:
    """Size and checksum of a file."""
    digest, size = new_digest(), 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
            size += len(block)
    return FileSum(bytes=size, blake2b=digest.hexdigest())


def new_digest() -> hashlib.blake2b:
    """Make a digest to be updated with a file's content."""
    return hashlib.blake2b(digest_size=_DIGEST_BYTES)


def _open(path: Path) -> Checkpoint:
    try:
        manifest = read_json(path / MANIFEST, Manifest)
    except InputError as error:
        raise Damaged(path, str(error)) from None
    if manifest.seal != _seal(manifest):
        raise Damaged(path, f"{path / MANIFEST}: its checksum is not the one written")
    _check_sizes(path, manifest)
    return Checkpoint(path=path, manifest=manifest)


def _check_sizes(path: Path, manifest: Manifest) -> None:
    for name, wanted in manifest.files.items():
        try:
            size = (path / name).stat().st_size
        except FileNotFoundError:
            raise Damaged(
                path,
                f"{path / name} is not there; if another machine wrote it, the run's folder must"
                " lie on a disk that all machines share",
            ) from None
        if size != wanted.bytes:
            raise Damaged(
                path, f"{path / name} has {size:,} bytes and {wanted.bytes:,} were written"
            )


def _seal(manifest: Manifest) -> str:
    bare = msgspec.structs.replace(manifest, seal="")
    digest = new_digest()
    digest.update(msgspec.json.encode(bare))
    return digest.hexdigest()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
