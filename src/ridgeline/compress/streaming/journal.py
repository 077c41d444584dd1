"""The folder in which finished blocks wait, so that a kill costs one block at most."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import msgspec
from torch import Tensor

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.compress.streaming import finished
from ridgeline.compress.streaming.finished import Finished
from ridgeline.errors import InputError
from ridgeline.records.scheme import Scheme
from ridgeline.records.store import write_atomically


class Journal:
    """Blocks 0 … n, each a file; beside them a fingerprint of what is compressed how.

    Raises:
        InputError: The folder belongs to another compression.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder = folder
        claim = folder / "fingerprint"
        if claim.exists() and claim.read_bytes() != fingerprint.encode("ascii"):
            raise InputError(
                f"{folder}: it holds the blocks of another compression (model, schemes or "
                "calibration differ); remove it"
            )
        write_atomically(claim, fingerprint.encode("ascii"))

    def num_done(self) -> int:
        """Blocks that need not be done again."""
        count = 0
        while self._path(count).exists():
            count += 1
        return count

    def write(self, block: int, result: Finished) -> None:
        """Keep a block; it is on the disk when this returns."""
        finished.write(self._path(block), result)

    def read(self, block: int) -> Finished:
        """A block that was kept."""
        return finished.read(self._path(block))

    def remove(self) -> None:
        """The folder and all in it."""
        shutil.rmtree(self.folder)

    def _path(self, block: int) -> Path:
        return self.folder / f"block-{block:05d}.safetensors"


def fingerprint_of(
    checkpoint: CheckpointFiles,
    schemes: tuple[Scheme, ...],
    of_layer: dict[str, tuple[Scheme, ...]],
    tokens: Tensor | None,
    seed: int,
) -> str:
    """Equal for the same model files, schemes and calibration."""
    digest = hashlib.sha256(msgspec.json.encode((schemes, sorted(of_layer.items()), seed)))
    for path in sorted(checkpoint.directory.glob("*.safetensors")):
        about = path.stat()
        digest.update(f"{path.name} {about.st_size} {about.st_mtime_ns}".encode())
    digest.update(msgspec.json.encode(checkpoint.config, order="sorted"))
    if tokens is not None:
        digest.update(tokens.contiguous().numpy().tobytes())
    return digest.hexdigest()
