"""What Slurm's commands print with `--json`, as rows under the names of their tables' columns.

Of `sacct --json` the fields of `sacct --parsable2`, of `squeue --json` and `sinfo --json` (also
`scontrol show nodes --json`) the columns that their `-o` prints. What a number is has changed from
one release to the next: it stands alone, or as `{"set": true, "infinite": false, "number": 5}`.
Source: OpenAPI schemas v0.0.37 to v0.0.43 of slurmrestd.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.errors import InputError
from ridgeline.records.input_file import parse_json

BEGINS = re.compile(r'\s*\{\s*"(meta|sinfo|nodes|jobs|last_update|last_backfill|errors|warnings)"')
"""How such a text begins."""
Cells = dict[str, str]
Rows = list[tuple[str, Cells]]
"""Where each row stands, and its cells by the names of the columns."""
SACCT_FIELDS = ("JobID", "Submit", "ElapsedRaw", "State", "Partition", "AllocTRES", "ReqTRES",
                "Constraints", "NNodes")  # fmt: skip


def json_rows(text: str, where: str, *, cure: str) -> tuple[str, Rows]:
    """Which command has printed a text (sacct, squeue or sinfo), and its rows.

    Raises:
        InputError: It is no JSON, or nothing that they print.
    """
    content = parse_json(text.encode(), object, where=where, cure=cure)
    found = content if isinstance(content, dict) else {}
    for key, kind, cells in (("sinfo", "sinfo", _node_cells), ("nodes", "sinfo", _node_cells),
                             ("jobs", "", None)):  # fmt: skip
        listed = found.get(key)
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            continue
        if cells is not None:
            rows = [(place, each) for place, one in enumerate(listed) for each in cells(one)]
            return kind, [(f"{where}: {key} {place}", each) for place, each in rows]
        if listed and all("job_state" in one for one in listed):
            now = _number(found.get("last_update"))
            return "squeue", [
                (f"{where}: job {_text(one, 'job_id')}", _queued_cells(one, now)) for one in listed
            ]
        if all("time" in one for one in listed):
            return "sacct", [
                (f"{where}: job {_text(one, 'job_id')}", _ended_cells(one)) for one in listed
            ]
    raise InputError(f"{where}: nothing that sacct, squeue or sinfo print with --json; {cure}")


def _ended_cells(one: Mapping[str, Any]) -> Cells:
    """The fields of one job of sacct."""
    time = _part(one, "time")
    tres = _part(one, "tres")
    return {
        "JobID": _job_name(one),
        "Submit": _shown(_number(time.get("submission"))),
        "ElapsedRaw": _shown(_number(time.get("elapsed"))),
        "State": " ".join(_words(_part(one, "state").get("current"))),
        "Partition": _text(one, "partition"),
        "AllocTRES": _tres(tres.get("allocated")),
        "ReqTRES": _tres(tres.get("requested")),
        "Constraints": _text(one, "constraints"),
        "NNodes": _shown(_number(one.get("allocation_nodes"))),
    }


def _queued_cells(one: Mapping[str, Any], now: float | None) -> Cells:
    """The columns of one job of squeue."""
    state = (_words(one.get("job_state")) or [""])[0]
    started = _number(one.get("start_time"))
    ran = 0.0 if now is None or not started or state == "PENDING" else max(0.0, now - started)
    limit = one.get("time_limit")
    minutes = None if _is_infinite(limit) else _number(limit)
    tasks, most = _text(one, "array_task_string"), _number(one.get("array_max_tasks"))
    at_once = f"%{most:.0f}" if most and "%" not in tasks else ""
    return {
        "JOBID": f"{_text(one, 'job_id')}_[{tasks}{at_once}]" if tasks else _text(one, "job_id"),
        "STATE": state,
        "PARTITION": _text(one, "partition"),
        "NODES": _shown(_number(one.get("node_count"))),
        "TRES": _text(one, "tres_alloc_str") or _text(one, "tres_req_str"),
        "TIME": f"{ran:.0f}",
        "OVER_SUBSCRIBE": "NO" if _is_exclusive(one) else "",
        "TIME_LIMIT": "UNLIMITED" if minutes is None else f"{minutes:.0f}",
        "NODELIST": _text(one, "nodes"),
        "REASON": _text(one, "state_reason"),
        "PRIORITY": _shown(_number(one.get("priority"))),
        "SUBMIT_TIME": _shown(_number(one.get("submit_time"))),
        "START_TIME": _shown(started),
    }


def _is_exclusive(one: Mapping[str, Any]) -> bool:
    """Whether a job has its nodes for itself, in the words of newer releases or of older ones."""
    return "true" in _words(one.get("exclusive")) or "none" in _words(one.get("shared"))


def _node_cells(one: Mapping[str, Any]) -> Iterator[Cells]:
    """Nodes that are alike, in each of their partitions."""
    about = {**one, **_part(one, "node")}
    names = _words(_part(one, "nodes").get("nodes")) or _words(one.get("name"))
    gres = one.get("gres")
    partition = one.get("partition")
    named = _text(partition, "name") if isinstance(partition, Mapping) else ""
    states = [*_words(about.get("state")), *_words(about.get("state_flags"))]
    for each in [named] if named else _words(one.get("partitions")) or [""]:
        yield {
            "NODELIST": ",".join(names),
            "GRES": _text(gres, "total") if isinstance(gres, Mapping) else str(gres or ""),
            "GRES_USED": _text(gres, "used")
            if isinstance(gres, Mapping)
            else _text(one, "gres_used") or _text(one, "tres_used"),
            "STATE": "+".join(states),
            "PARTITION": each,
            "CPUS": _shown(_number(_least(one.get("cpus")))),
            "MEMORY": _shown(_number(one.get("real_memory", _least(one.get("memory"))))),
        }


def _least(found: object) -> object:
    """The least of a range, which is what sinfo gives of nodes that are alike."""
    return found.get("minimum", found) if isinstance(found, Mapping) else found


def _job_name(one: Mapping[str, Any]) -> str:
    """A job's number; a task of an array with its own, a component with its offset."""
    array, het = _part(one, "array"), _part(one, "het")
    task, offset = _number(array.get("task_id")), _number(het.get("job_offset"))
    if _number(array.get("job_id")) and task is not None:
        return f"{_number(array['job_id']):.0f}_{task:.0f}"
    if _number(het.get("job_id")) and offset is not None:
        return f"{_number(het['job_id']):.0f}+{offset:.0f}"
    return _text(one, "job_id")


def _tres(listed: object) -> str:
    """A list of trackable resources as sacct's tables write it; memory counts MiB."""
    found = []
    for one in listed if isinstance(listed, list) else []:
        kind, name, count = one.get("type"), one.get("name"), _number(one.get("count"))
        if count is not None:
            unit = "M" if kind == "mem" else ""
            found.append(f"{kind}{f'/{name}' if name else ''}={count:.0f}{unit}")
    return ",".join(found)


def _number(found: object) -> float | None:
    """A number; none where it is not set."""
    if isinstance(found, Mapping):
        return _number(found.get("number")) if found.get("set", True) else None
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return float(found)


def _is_infinite(found: object) -> bool:
    return isinstance(found, Mapping) and bool(found.get("infinite"))


def _shown(number: float | None) -> str:
    return "" if number is None else f"{number:.0f}"


def _words(found: object) -> list[str]:
    """One word or several, as a list."""
    if isinstance(found, str):
        return [found] if found else []
    return [str(one) for one in found] if isinstance(found, list) else []


def _part(one: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = one.get(key)
    return found if isinstance(found, Mapping) else {}


def _text(one: Mapping[str, Any], key: str) -> str:
    found = one.get(key)
    return "" if found is None else str(found)
