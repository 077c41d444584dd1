"""Digests by which two copies of a checkpoint, on one machine or two, are known to be the same."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ridgeline.checkpoints.tokenizer import tokenizer_files

_SAMPLES, _SAMPLE_BYTES = 256, 4096


def sampled_digest(path: Path, size: int) -> str:
    """A digest of a file's first bytes, which list its tensors, and of pieces all over it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(2**20))
        for at in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * at // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def weights_digest(folder: Path) -> str:
    """A digest of the sizes, heads and samples of a folder's safetensors, whatever their names."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{size} {sampled_digest(path, size)}\n".encode())
    return digest.hexdigest()


def config_digest(folder: Path) -> str:
    """A digest of config.json."""
    return hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()


def tokenizer_digest(folder: Path) -> str:
    """A digest of the files that a tokenizer is made of."""
    digest = hashlib.sha256()
    for path in tokenizer_files(folder):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
