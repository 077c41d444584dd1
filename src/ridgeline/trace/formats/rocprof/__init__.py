"""What rocprofv3 (ROCprofiler-SDK) and rocprof before it record: one `Trace` per GPU.

`rocprofv3 --sys-trace --output-format json -- python train.py` writes `PID_results.json`; rocpd, an
SQLite database (`PID_results.db`), is the default since ROCm 7. Both hold kernel dispatches,
copies, calls of HIP, HSA and RCCL and roctx ranges, in nanoseconds; torch's operators are not in
them unless it ran under `emit_nvtx`. `rocprof --hip-trace` leaves a database of its own kind. All
readers fill `FileRows`; `ridgeline/trace/per_gpu.py` divides them among GPUs.

Sources: github.com/ROCm/rocprofiler-sdk, source/lib/rocprofiler-sdk-tool/generateJSON.cpp and
source/include/rocprofiler-sdk/cxx/serialization.hpp; schema version 3 of rocpd.
"""

from __future__ import annotations

import re
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.trace.columns import Trace
from ridgeline.trace.file_text import first_text
from ridgeline.trace.formats import FileFormat
from ridgeline.trace.sqlite_file import SQLITE_MAGIC, is_of_rocm, is_of_rocprof, table_names

KEY = b'"rocprofiler-sdk-tool"'
_KEY_WITHIN = 4096
_FIRST_DOCUMENT = re.compile(
    rb'"traceEvents"\s*:\s*\[\s*\{\s*\}\s*,\s*\{\s*"args"\s*:\s*\{\s*"name"\s*:\s*'
    rb'"(Markers and Ranges|CPU H|COPY|GPU)'
)
"""How the JSON of rocprof before rocprofv3 begins."""
_TABLE = re.compile(rb"[^{\n]*(BeginNs|Start_Timestamp)")
_TABLES = ("kernel_trace.csv", "results.csv", "timestamps.csv")
"""How the names of tables of kernels end."""
_RANKS = "ranks are GPU numbers: rocprof does not record torch's"
_HOW = "record with: rocprofv3 --sys-trace --output-format json -- python train.py"


def read_rocprof(path: Path) -> list[Trace]:
    """One trace per GPU of a rocprofv3 file, lowest number first.

    Raises:
        InputError: it is damaged, or holds no GPU work and no calls.
    """
    # Every reader of traces looks at formats, and few read this one.
    from ridgeline.trace.formats.rocprof.database import read_database
    from ridgeline.trace.formats.rocprof.document import read_document
    from ridgeline.trace.formats.rocprof.first_database import read_first_database
    from ridgeline.trace.formats.rocprof.first_document import read_first_document
    from ridgeline.trace.formats.rocprof.kernel_table import read_kernel_table
    from ridgeline.trace.per_gpu import traces_per_gpu

    with path.open("rb") as file:
        is_database = file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    start = b"" if is_database else first_text(path)[:_KEY_WITHIN]
    if is_database:
        old = is_of_rocprof(table_names(path))
        found = read_first_database(path) if old else read_database(path)
    elif _is_table(start):
        found = read_kernel_table(path)
    elif _FIRST_DOCUMENT.search(start):
        found = read_first_document(path)
    else:
        found = read_document(path)
    try:
        traces = traces_per_gpu(path, found, ranks=_RANKS, record_gpu=_HOW)
    except (ValueError, OverflowError, TypeError) as error:
        raise InputError(f"{path}: a column of it holds no numbers of 64 bits ({error})") from None
    if not traces:
        raise InputError(f"{path}: no kernel, copy, call or range in it; {_HOW}")
    return traces


def _looks_like_rocprof(path: Path, start: bytes) -> bool:
    if start == SQLITE_MAGIC:
        return is_of_rocm(table_names(path))
    text = first_text(path)[:_KEY_WITHIN]
    return KEY in text or _FIRST_DOCUMENT.search(text) is not None or _is_table(text)


def _is_table(text: bytes) -> bool:
    if not _TABLE.match(text):
        return False
    from ridgeline.trace.formats.rocprof.kernel_table import is_kernel_table  # for a table alone

    return is_kernel_table(text)


FORMAT = FileFormat(
    name="rocprofv3",
    suffixes=(".db", *_TABLES),
    forms=("results.db", "results.json", *_TABLES),
    sniff=_looks_like_rocprof,
    read=lambda path, details: read_rocprof(path),  # noqa: ARG005 - it has neither shapes nor stacks
)
