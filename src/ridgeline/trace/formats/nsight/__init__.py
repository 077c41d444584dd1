"""Nsight Systems exports (`nsys export --type sqlite`) as traces: one `Trace` per GPU.

What is in the file is read in `tables.py`; `ridgeline/trace/per_gpu.py` divides it among GPUs.
The file is opened read-only and immutable: nothing is written beside it.
"""

from __future__ import annotations

from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.trace.columns import Trace
from ridgeline.trace.formats import FileFormat
from ridgeline.trace.sqlite_file import SQLITE_MAGIC, is_of_rocm, opened, table_names

_RANKS = "ranks are GPU numbers: nsys does not record torch's"
_TABLES = {"StringIds", "TARGET_INFO_GPU", "ANALYSIS_DETAILS", "CUPTI_ACTIVITY_KIND_KERNEL"}
"""Every export of nsys has one of them."""
_HOW = "profile with: nsys profile --trace cuda,nvtx"


def read_nsight(path: Path) -> list[Trace]:
    """One trace per GPU of the export, lowest number first.

    Raises:
        InputError: not an export, or one without GPU work and without API calls.
    """
    # Every reader of traces looks at formats, and few read this one.
    from ridgeline.trace.formats.nsight.tables import NsightTables
    from ridgeline.trace.per_gpu import traces_per_gpu

    with opened(path, "a whole sqlite export of nsys") as connection:
        traces = traces_per_gpu(path, NsightTables(connection), ranks=_RANKS, record_gpu=_HOW)
    if not traces and not table_names(path) & _TABLES:
        raise InputError(f"{path}: a database, but none that nsys exported; {_HOW}")
    if not traces:
        raise InputError(f"{path}: no CUDA work, API call or NVTX range in it; {_HOW}")
    return traces


def _looks_like_nsight(path: Path, start: bytes) -> bool:
    if start != SQLITE_MAGIC:
        return path.suffix == ".sqlite"
    return not is_of_rocm(table_names(path))


FORMAT = FileFormat(
    name="Nsight Systems",
    suffixes=(".sqlite",),
    sniff=_looks_like_nsight,
    read=lambda path, details: read_nsight(path),  # noqa: ARG005 - it has neither shapes nor stacks
)
