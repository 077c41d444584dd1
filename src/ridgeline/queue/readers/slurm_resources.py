"""Resources as Slurm writes them: trackable ones (TRES), generic ones (gres), features of nodes.

    billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1
    gpu:a100:4(S:0-1)

Source: manual pages of sacct, squeue, slurm.conf and gres.conf.
"""

from __future__ import annotations

import re

from ridgeline.errors import InputError
from ridgeline.queue.gpu_kinds import is_kind
from ridgeline.queue.wants import any_of

SACCT_CURE = (
    "print it with sacct -aX --parsable2 -o JobID,Submit,ElapsedRaw,State,Partition,AllocTRES"
)
_GPUS = re.compile(r"gres/gpu=(\d+)")
_TYPED = re.compile(r"gres/gpu:[^=,]+=(\d+)")
_GRES = re.compile(r"\bgpu(?::(?!\d+(?:[,()]|$))([^:,()=]+))?(?::(\d+))?(?=[,()]|$)")
"""A generic resource with its type and its count, of which each may be lacking."""
_NAMED = re.compile(r"\bgres/gpu:([^=,]+)=")
_COUNTED = re.compile(r"gres/gpu:([^=,]+)=(\d+)")
_MIG = re.compile(r"\d+g\.\d+gb(?:[.+]me)?")
_CORES = re.compile(r"(?:^|,)cpu=(\d+)")
_MEMORY = re.compile(r"(?:^|,)mem=([^,]+)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)([nc]?)")
_MEBIBYTES = {"K": 2.0**-10, "": 1.0, "M": 1.0, "G": 2.0**10, "T": 2.0**20, "P": 2.0**30}
"""How many MiB each unit of memory is; a number alone counts MiB."""


def num_gpus(tres: str, cells: dict[str, str] | None = None) -> int:
    """GPUs of a list of trackable resources; typed ones are counted where no total is given.

    Of a list of generic resources, which is per node, by the nodes of the line.

    >>> num_gpus("billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1")
    2
    >>> num_gpus("cpu=4,gres/gpu:a100=2,gres/gpu:h100=1"), num_gpus("cpu=4")
    (3, 0)
    >>> num_gpus("gpu:a100:4", {"NNodes": "2"}), num_gpus("gres/gpu:8"), num_gpus("gres/gpu")
    (8, 8, 1)
    >>> num_gpus("gpu:a100:4(S:0),gpu:h100:2(S:1)"), num_gpus("gpu:a100")
    (6, 1)
    """
    total = _GPUS.search(tres)
    if total:
        return int(total[1])
    typed = _TYPED.findall(tres)
    if typed or "=" in tres:
        return sum(int(one) for one in typed)
    line = cells or {}
    nodes = line.get("NNodes") or line.get("AllocNodes") or "1"
    counted = sum(int(one[2] or 1) for one in _GRES.finditer(tres))
    return counted * int(nodes if nodes.isdigit() else 1)


def gpu_types(tres: str) -> set[str]:
    """The kinds of GPU that a list of resources names.

    >>> sorted(gpu_types("gpu:a100:4(S:0),gpu:h100:4(S:1)")), gpu_types("gres/gpu:8")
    (['a100', 'h100'], set())
    >>> gpu_types("cpu=8,gres/gpu:l40s=2,gres/gpu=2")
    {'l40s'}
    """
    found = _NAMED.findall(tres) if "=" in tres else [one[1] for one in _GRES.finditer(tres)]
    return {one for one in found if one}


def gpus_by_kind(tres: str, num_nodes: int = 1) -> dict[str, int]:
    """GPUs of a list of resources by their type, as it is written; empty: those of no type.

    >>> gpus_by_kind("gpu:a100:6,gpu:a100_1g.10gb:14"), gpus_by_kind("gres/gpu:8", 2)
    ({'a100': 6, 'a100_1g.10gb': 14}, {'': 16})
    >>> gpus_by_kind("cpu=8,gres/gpu:l40s=2,gres/gpu=3,mem=4G")
    {'l40s': 2, '': 1}
    """
    found: dict[str, int] = {}
    if "=" in tres:
        for one in tres.split(","):
            if kind := _COUNTED.fullmatch(one.strip()):
                found[kind[1]] = found.get(kind[1], 0) + int(kind[2])
        rest = num_gpus(tres) - sum(found.values())
    else:
        for listed in _GRES.finditer(tres):
            kind_name, count = listed[1] or "", int(listed[2] or 1) * num_nodes
            found[kind_name] = found.get(kind_name, 0) + count
        rest = 0
    return {**found, "": rest} if rest > 0 else found


def profile_in(kind: str) -> str:
    """The MIG profile that a type of GPU is; empty: it is none.

    >>> profile_in("nvidia_a100_1g.10gb"), profile_in("a100")
    ('1g.10gb', '')
    """
    found = _MIG.search(kind)
    return found[0] if found else ""


def kind_of(cells: dict[str, str]) -> str:
    """The kinds of GPU of which any will do for a job; empty: any, or several kinds at once."""
    asked = [one for one in ("ReqTRES", "ReqGRES", "Constraints") if one in cells]
    named = [gpu_types(cells[one]) for one in asked if one != "Constraints"]
    for one in named or ([] if asked else [gpu_types(cells.get("AllocTRES", ""))]):
        if one:
            return _without_profile(next(iter(one))) if len(one) == 1 else ""
    return constrained_kinds(cells.get("Constraints", ""))


def _without_profile(kind: str) -> str:
    """The GPU that a type names which may be a MIG profile, as `a100_1g.5gb`; empty: none."""
    profile = _MIG.search(kind)
    if profile is None:
        return kind
    split = kind[: profile.start()].strip("_-.")
    return split if is_kind(split.removeprefix("nvidia_")) else ""


def slices_of(cells: dict[str, str]) -> list[str]:
    """The MIG profiles of a job; of a job that has other GPUs as well, these count as one."""
    for one in ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES"):
        if kinds := gpu_types(cells.get(one, "")):
            profiles = [_MIG.search(kind) for kind in kinds]
            return [found[0] if found else "" for found in profiles] if any(profiles) else []
    return []


def cores_of(cells: dict[str, str]) -> float:
    """Cores of a job; 0 where nothing tells them."""
    for one in ("AllocTRES", "ReqTRES"):
        if found := _CORES.search(cells.get(one, "")):
            return float(found[1])
    counts = [cells.get(one, "") for one in ("AllocCPUS", "NCPUS", "ReqCPUS")]
    return next((float(one) for one in counts if one.isdigit() and int(one)), 0.0)


def memory_bytes_of(cells: dict[str, str], what: str) -> float:
    """Memory of a job; 0 where nothing tells it. ReqMem may be of a node (n) or of a core (c)."""
    listed = [_MEMORY.search(cells.get(one, "")) for one in ("AllocTRES", "ReqTRES")]
    text = next((found[1] for found in listed if found), cells.get("ReqMem", ""))
    if not text or text.strip("?0") == "":
        return 0.0
    found = _SIZE.fullmatch(text)
    if found is None:
        raise InputError(f"{what} is {text!r}, no memory; {SACCT_CURE}")
    nodes = cells.get("NNodes") or cells.get("AllocNodes") or "1"
    times = {"n": float(nodes if nodes.isdigit() else 1), "c": cores_of(cells), "": 1.0}[found[3]]
    return float(found[1]) * _MEBIBYTES[found[2]] * 2**20 * times


def constrained_kinds(constraints: str) -> str:
    """The kinds of GPU that features of nodes tell, of which any will do.

    >>> constrained_kinds("[a100*2|h100*2]&ib"), constrained_kinds("intel,l40s")
    ('a100|h100', 'l40s')
    """
    for part in re.split(r"[&,]", re.sub(r"[\[\]()]|[*:]\d+", "", constraints)):
        features = [one.strip() for one in part.split("|")]
        if all(is_kind(one) for one in features):
            return any_of(features)
    return ""
