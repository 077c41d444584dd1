"""Utilisation of GPUs by pod: samples of DCGM's exporter as CSV, one row per sample and GPU."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.records.input_file import csv_rows, read_text

DCGM_CURE = (
    "give samples as CSV with the columns namespace, pod and DCGM_FI_DEV_GPU_UTIL (or"
    " DCGM_FI_PROF_GR_ENGINE_ACTIVE, or utilisation, from 0 to 100)"
)
SHARES = {"DCGM_FI_DEV_GPU_UTIL": 0.01, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1.0, "utilisation": 0.01}
"""Columns that tell it, with what makes a share of them."""
_FEWEST = 2


def used_by_pod(path: Path, known: set[str]) -> dict[str, float]:
    """Mean utilisation of a pod's GPUs, from 0 to 1, by its name with its namespace.

    Raises:
        InputError: A column is missing, a sample is no share, or no pod of it is in the state.
    """
    where = f"--dcgm {path}"
    rows = csv_rows(read_text(path, option="--dcgm", cure=DCGM_CURE), where=where, cure=DCGM_CURE)
    head = [one.strip() for one in next(rows, (0, []))[1]]
    column = next((one for one in SHARES if one in head), None)
    if column is None or not {"namespace", "pod"} <= set(head):
        raise InputError(f"{where}: lacks columns; {DCGM_CURE}")
    samples: dict[str, list[float]] = defaultdict(list)
    for line, cells in rows:
        row = dict(zip(head, (one.strip() for one in cells), strict=False))
        if not row.get("pod") or not row.get(column):
            continue  # a GPU that nobody has
        try:
            share = float(row[column]) * SHARES[column]
        except ValueError:
            share = -1.0
        if not 0.0 <= share <= 1.0:
            raise InputError(f"{where}, line {line}: {column} is {row[column]!r}; {DCGM_CURE}")
        samples[f"{row['namespace']}/{row['pod']}"].append(share)
    if samples and not samples.keys() & known:
        raise InputError(f"{where}: none of its pods is in the state; {next(iter(samples))} is not")
    return {pod: sum(seen) / len(seen) for pod, seen in samples.items() if len(seen) >= _FEWEST}
