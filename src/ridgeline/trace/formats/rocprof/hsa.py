"""HSA's words and counts in those of the other profilers."""

from __future__ import annotations

from ridgeline.trace.columns import ABSENT

_COPIES = {
    "HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH", "DEVICE_TO_DEVICE": "DtoD",
    "HOST_TO_HOST": "HtoH",
}  # fmt: skip


def copy_name(direction: str) -> str:
    """The name of a copy that rocprofv3 calls by its direction.

    >>> copy_name("MEMORY_COPY_HOST_TO_DEVICE")
    'Memcpy HtoD'
    """
    short = next((text for key, text in _COPIES.items() if key in direction), direction)
    return f"Memcpy {short}"


def block_counts(grid: tuple[int, ...], workgroup: tuple[int, ...]) -> tuple[int, int]:
    """Blocks of a grid, and threads of a block: HSA counts a grid in work items.

    >>> block_counts((1000, 2, 1), (256, 1, 1))
    (8, 256)
    """
    blocks, threads = 1, 1
    for items, size in zip(grid, workgroup, strict=True):
        if size <= 0:
            return ABSENT, ABSENT
        blocks, threads = blocks * -(-items // size), threads * size
    return blocks, threads
