"""The rarer columns of a trace: cores, memory, kinds of GPU, places, elastic sizes, sharing."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

from ridgeline.errors import InputError
from ridgeline.queue.wants import LEVELS, JobWants, Level, any_of, kinds_in

HEEDED = {
    "cpus", "cpu_milli", "memory_gib", "memory_mib", "gpu_type", "gpu_slice", "spot", "topology",
    "pods", "min_gpus", "max_gpus", "parallel_share", "comm_share", "gpu_use",
}  # fmt: skip
TOPOLOGY_CURE = f"give required:LEVEL or preferred:LEVEL, of {', '.join(LEVELS)}, or nothing"


def wants_of(row: dict[str, str], where: str) -> JobWants:
    """What a job wants besides GPUs; jobs that want the same share one.

    Raises:
        InputError: A cell makes no sense; which column.
    """
    try:
        return _wants(tuple((name, row[name]) for name in sorted(HEEDED & row.keys())))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


@functools.lru_cache(maxsize=4096)
def _wants(cells: Sequence[tuple[str, str]]) -> JobWants:
    row = {name: text for name, text in cells if text}
    level, required = _topology(row.get("topology", ""))
    cpus = _amount(row, "cpus") or _amount(row, "cpu_milli") / 1000.0
    memory = 2**30 * _amount(row, "memory_gib") or 2**20 * _amount(row, "memory_mib")
    return JobWants(
        cpus=cpus,
        memory_bytes=memory,
        gpu_type=any_of(kinds_in(row.get("gpu_type", ""))),
        gpu_slice=row.get("gpu_slice", ""),
        on_demand=_on_demand(row.get("spot", "")),
        level=level,
        required=required,
        parallel_share=_share(row, "parallel_share"),
        comm_share=_share(row, "comm_share", absent=0.0),
        gpu_use=_share(row, "gpu_use"),
        pods=_count(row, "pods"),
        min_gpus=_count(row, "min_gpus"),
        max_gpus=_count(row, "max_gpus"),
    )


def of_workers(one: JobWants, workers: int, *, gpus_each: float) -> JobWants:
    """What a job wants of which so many workers want this each.

    Workers of one GPU may lie on any nodes, where nothing says that they may not.
    """
    plain = one.level == "node" and one.required and gpus_each == 1.0
    return replace(
        one, cpus=one.cpus * workers, memory_bytes=one.memory_bytes * workers,
        pods=one.pods or workers, required=one.required and not plain,
    )  # fmt: skip


def _topology(text: str) -> tuple[Level, bool]:
    if not text:
        return "node", True
    how, _, name = text.casefold().partition(":")
    found = next((one for one in LEVELS if one == name), None)
    if found is None or how not in ("required", "preferred"):
        raise InputError(f"topology is {text!r}; {TOPOLOGY_CURE}")
    return found, how == "required"


def _on_demand(text: str) -> bool:
    answers = {"": False, "yes": False, "true": False, "1": False, "no": True, "false": True,
               "0": True}  # fmt: skip
    if text.casefold() not in answers:
        raise InputError(f"spot is {text!r}; give yes, where the job may run on it, or no")
    return answers[text.casefold()]


def _number(row: dict[str, str], column: str) -> float:
    try:
        return float(row[column])
    except ValueError:
        return math.nan


def _amount(row: dict[str, str], column: str) -> float:
    if column not in row:
        return 0.0
    value = _number(row, column)
    if not 0.0 <= value < 2**40:
        raise InputError(f"{column} is {row[column]!r}; give 0 or more")
    return value


def _share(row: dict[str, str], column: str, absent: float = 1.0) -> float:
    if column not in row:
        return absent
    value = _number(row, column)
    if not 0.0 <= value <= 1.0 or (column == "gpu_use" and value == 0.0):
        raise InputError(f"{column} is {row[column]!r}; give a share of at most 1")
    return value


def _count(row: dict[str, str], column: str) -> int:
    if column not in row:
        return 0
    value = _number(row, column)
    if not (0 <= value < 2**31 and value == int(value)):
        raise InputError(f"{column} is {row[column]!r}; give a whole number, 0 or more")
    return int(value)
