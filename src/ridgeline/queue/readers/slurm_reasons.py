"""Why Slurm itself says that a job does not start, by the reasons in `slurm_reasons.toml`.

The reasons say only which kind of limit holds a job back: sacctmgr says what accounts, users and
QOS may have of GPUs, and scontrol which licenses are used up.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from ridgeline.queue.doctor.state import ToldReason
from ridgeline.queue.readers.slurm_beside import ASSOCIATIONS, LICENSES, PARENT, QOS
from ridgeline.queue.readers.slurm_jobs import LIMITS, reason_of, waits_on_purpose
from ridgeline.queue.readers.slurm_printed import SlurmPrint, SlurmRow
from ridgeline.queue.readers.slurm_resources import num_gpus

PLAIN = (
    "none",
    "resources",
    "priority",
    "reqnodenotavail",
    "nodes required",
    "schedule",
    "cleaning",
)
"""How reasons begin by which a job waits for its turn or for nodes, which is found by counting."""


def told_of_job(row: SlurmRow) -> ToldReason | None:
    """The reason of a line of squeue that has a cure of its own, if it is one."""
    reason = reason_of(row).casefold()
    for one in _reasons():
        if reason.startswith(tuple(one["begins"])) and one.get("holds", "") in reason:
            more = row.cells.get(one["cell"], "").strip("()")
            more = "" if more.casefold() in ("null", "n/a") else more
            return ToldReason(way=one["way"], said=one["said"] + (f" ({more})" if more else ""))
    plain = not reason or reason.startswith((*PLAIN, *LIMITS)) or waits_on_purpose(row)
    return None if plain else ToldReason(way="reason", said=f"Slurm says of jobs: {reason_of(row)}")


@cache
def _reasons() -> list[dict[str, Any]]:
    text = (files("ridgeline.queue.readers") / "slurm_reasons.toml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = tomllib.loads(text)["reason"]
    return found


_COLUMNS = (("grp", "GrpTRES"), ("peruser", "MaxTRESPU"), ("peraccount", "MaxTRESPA"),
            ("perjob", "MaxTRES"), ("pernode", "MaxTRESPerNode"))  # fmt: skip
"""Parts of reasons, and the column of sacctmgr that has the limit."""


@dataclass(frozen=True, slots=True)
class SlurmLimits:
    """The limits of one cluster, as rows of sacctmgr and of scontrol."""

    associations: tuple[SlurmRow, ...] = ()
    qos: tuple[SlurmRow, ...] = ()
    licenses: tuple[SlurmRow, ...] = ()

    def named(self, job: SlurmRow) -> str:
        """The limit that a job's reason names, with whose it is and how many GPUs, if told."""
        reason = reason_of(job)
        column = next((c for part, c in _COLUMNS if part in reason.casefold()), "MaxTRES")
        if "minutes" in reason.casefold():
            column = f"{column}Mins"
        if reason.casefold().startswith("qos"):
            owner, name = "QOS", job.cells.get("QOS", "")
            found = [row for row in self.qos if row.cells.get("Name") == name]
        else:
            owner, name = "account", job.cells.get("ACCOUNT", "")
            user = job.cells.get("USER", "")
            found = self._of_account(name, user)
            name, found = self._nearest_with(column, name, found)
        most = [gpus for row in found if (gpus := num_gpus(row.cells.get(column, "")))]
        whose = f"{reason} of {owner} {name}" if name else reason
        unit = "GPU-minutes" if column.endswith("Mins") else "GPUs"
        return f"{whose} ({column} {min(most)} {unit})" if most else whose

    def _of_account(self, name: str, user: str) -> list[SlurmRow]:
        return [row for row in self.associations if row.cells.get("Account") == name
                and row.cells.get("User", "") in ("", user)]  # fmt: skip

    def _nearest_with(
        self, column: str, name: str, found: list[SlurmRow]
    ) -> tuple[str, list[SlurmRow]]:
        """The account, or the nearest of those above it, that has a limit of GPUs."""
        seen: set[str] = set()
        account, rows = name, found
        while rows and account not in seen:
            if any(num_gpus(row.cells.get(column, "")) for row in rows):
                return account, rows
            seen.add(account)
            account = next((row.cells[PARENT] for row in rows if PARENT in row.cells
                            and row.cells[PARENT] != account), "")  # fmt: skip
            rows = self._of_account(account, "")
        return name, found

    def with_licenses(self, told: ToldReason | None) -> ToldReason | None:
        """The reason with how many of each license that is used up there are."""
        if told is None or told.way != "licenses":
            return told
        full = [
            f"{row.cells.get('LicenseName')}: {row.cells.get('Used')} of {row.cells.get('Total')}"
            for row in self.licenses
            if row.cells.get("Free") == "0" and str(row.cells.get("LicenseName")) in told.said
        ]
        return replace(told, said=f"{told.said} ({', '.join(full)})") if full else told


def slurm_limits(printed: Mapping[str, SlurmPrint]) -> SlurmLimits:
    """What was printed of limits and licenses."""
    return SlurmLimits(*(
        tuple(printed[kind].rows) if kind in printed else ()
        for kind in (ASSOCIATIONS, QOS, LICENSES)
    ))  # fmt: skip
