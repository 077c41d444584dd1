"""How much room a saved model takes."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = ("*.safetensors", "*.bin")


def disk_bytes(directory: Path) -> int:
    """Of the files that hold weights; each format once, safetensors first.

    transformers reads safetensors where there are some, so a second copy in another format is
    nothing that the model needs.
    """
    for pattern in WEIGHTS:
        files = [path for path in directory.glob(pattern) if path.is_file()]
        if files:
            return sum(path.stat().st_size for path in files)
    return 0
