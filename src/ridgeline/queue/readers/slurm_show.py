"""What `scontrol show node|job|reservation` prints, as rows of tables.

An object is a block of lines with `Key=Value` pairs, or with `--oneliner` one line; a value may
have blanks in it. Source: manual page of scontrol.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.queue.readers.slurm_json import Cells, Rows

BEGINS = re.compile(r"\s*(NodeName|JobId|ReservationName)=")
_PAIR = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=(.*?)(?=\s+[A-Z][\w:/]*=|\s*$)", re.MULTILINE)
_OBJECT = re.compile(r"^(?=\s*(?:NodeName|JobId|ReservationName)=)", re.MULTILINE)
_NONE = ("(null)", "N/A", "None")


def shown_rows(text: str, where: str) -> tuple[str, Rows]:
    """Which table the objects stand for (sinfo, squeue, reservations), and its rows."""
    rows: Rows = []
    kind = "sinfo"
    for block in _OBJECT.split(text):
        found = {name: "" if value in _NONE else value for name, value in _PAIR.findall(block)}
        if "NodeName" in found:
            rows += [(f"{where}: node {found['NodeName']}", one) for one in _node_cells(found)]
        elif "JobId" in found:
            kind = "squeue"
            rows.append((f"{where}: job {found['JobId']}", _job_cells(found)))
        elif "ReservationName" in found:
            kind = "reservations"
            rows.append((f"{where}: reservation {found['ReservationName']}", _reserved(found)))
    return kind, rows


def _node_cells(found: Cells) -> Iterator[Cells]:
    """A node in each of its partitions."""
    for partition in (found.get("Partitions") or "").split(","):
        yield {
            "NODELIST": found["NodeName"],
            "GRES": found.get("Gres") or found.get("CfgTRES", ""),
            "GRES_USED": found.get("GresUsed") or found.get("AllocTRES", ""),
            "STATE": found.get("State", ""),
            "REASON": found.get("Reason", ""),
            "ACTIVE_FEATURES": found.get("ActiveFeatures", ""),
            "PARTITION": partition,
            "CPUS": found.get("CPUTot", ""),
            "CPUS_USED": found.get("CPUAlloc", ""),
            "MEMORY_USED": found.get("AllocMem", ""),
            "MEMORY": found.get("RealMemory", ""),
        }


def _reserved(found: Cells) -> Cells:
    """The cells of a reservation: its nodes, and for whom they are."""
    whom = ((one, found.get(one)) for one in ("Accounts", "Users", "Groups"))
    return {
        "RESV_NAME": found["ReservationName"],
        "STATE": found.get("State", ""),
        "NODELIST": found.get("Nodes", ""),
        "FOR": ", ".join(f"{one.casefold()} {names}" for one, names in whom if names),
        "END_TIME": found.get("EndTime", ""),
    }


def _job_cells(found: Cells) -> Cells:
    tasks, most = found.get("ArrayTaskId", ""), found.get("ArrayTaskThrottle", "")
    several = not tasks.isdigit() and bool(tasks)
    at_once = f"%{most}" if most and "%" not in tasks else ""
    asked = ("AllocTRES", "TRES", "ReqTRES", "TresPerNode", "Gres")
    return {
        "JOBID": f"{found['JobId']}_[{tasks}{at_once}]" if several else found["JobId"],
        "STATE": found.get("JobState", ""),
        "PARTITION": found.get("Partition", ""),
        "NODES": found.get("NumNodes", "").partition("-")[0],
        "TRES": next((found[one] for one in asked if found.get(one)), ""),
        "TIME": found.get("RunTime", ""),
        "TIME_LIMIT": found.get("TimeLimit", ""),
        "NODELIST": found.get("NodeList", ""),
        "REASON": found.get("Reason", ""),
        "ACCOUNT": found.get("Account", ""),
        "QOS": found.get("QOS", ""),
        "USER": found.get("UserId", "").partition("(")[0],
        "FEATURES": found.get("Features", ""),
        "REQ_NODES": found.get("ReqNodeList", ""),
        "LICENSES": found.get("Licenses", ""),
        "DEPENDENCY": found.get("Dependency", ""),
        "OVER_SUBSCRIBE": found.get("OverSubscribe", ""),
        "PRIORITY": found.get("Priority", ""),
        "SUBMIT_TIME": found.get("SubmitTime", ""),
        "START_TIME": found.get("StartTime", ""),
    }
