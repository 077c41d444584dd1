"""What administrators have beside nodes and jobs of Slurm, as rows under the names of columns.

    sinfo -R > reasons.txt
    sacctmgr -p show assoc > assoc.txt
    sacctmgr -p show qos > qos.txt
    scontrol show licenses > licenses.txt
    scontrol show partition > partitions.txt
    sdiag > sdiag.txt

and slurm.conf itself, whose parameters are one row. What sprio and sshare print says who comes
first and not what keeps GPUs from anybody: it is known, and left out. Fields as in the manual
pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ridgeline.errors import InputError
from ridgeline.queue.readers import slurm_conf
from ridgeline.queue.readers.slurm_json import Cells, Rows

REASONS, ASSOCIATIONS, QOS, LICENSES, CONF = "reasons", "associations", "qos", "licenses", "conf"
SDIAG, SPRIO, SSHARE = "sdiag", "sprio", "sshare"
PARENT = "parent account"
"""The name under which an association has the account above its own."""
_CONF = re.compile(
    r"\s*(ClusterName|SlurmctldHost|ControlMachine|SelectType|SchedulerType|AuthType)\s*=",
    re.IGNORECASE,
)
_LICENSE = re.compile(r"\s*LicenseName=")
_SDIAG = re.compile(r"\s*sdiag output at")
_DIAGNOSED = {
    "DEPTH": re.compile(r"^\s*Depth Mean \(try depth\):\s*(\d+)", re.MULTILINE),
    "LAST_DEPTH": re.compile(r"^\s*Last depth cycle:\s*(\d+)", re.MULTILINE),
    "QUEUE": re.compile(r"Backfilling stats.*?Last queue length:\s*(\d+)", re.DOTALL),
}
"""How many jobs backfill looks at in a cycle, and how many there are."""
_SHOWN = re.compile(r"\b(CPUTot|AllowGroups)=")
"""What `scontrol show` prints and slurm.conf has not."""
_REASON = re.compile(r"\s*REASON\s+USER\s+TIMESTAMP\s+NODELIST\s*$")
_PAIR = re.compile(r"(\w+)=(\S*)")
_SETTING = re.compile(r"\s*(\w+)\s*=\s*(.*?)\s*$")
_LISTS = ("nodename", "partitionname", "nodeset", "downnodes", "include")
"""Lines of slurm.conf that there may be several of."""


def kind_beside(text: str) -> str:
    """Which of these a text is; empty: none."""
    lines = text.lstrip("\ufeff").splitlines()
    told = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    first = told[0] if told else ""
    if _REASON.match(first):
        return REASONS
    if _LICENSE.match(first):
        return LICENSES
    words = {one.strip().casefold() for one in re.split(r"[|\s]+", first)}
    if any(_SDIAG.match(line) for line in told[:3]):
        return SDIAG
    if {"rawshares", "normshares"} <= words:
        return SSHARE
    if {"jobid", "priority"} <= words and words & {"fairshare", "site", "age"}:
        return SPRIO
    if slurm_conf.SHOWS_PARTITION.match(first) and "AllowGroups=" in text:
        return slurm_conf.PARTITIONS
    if slurm_conf.BEGINS.match(first) and not _SHOWN.search(text):
        of_nodes = any(line.lstrip().casefold().startswith("nodename=") for line in told)
        return CONF if of_nodes else slurm_conf.PARTITIONS
    if {"account", "grptres"} <= words or {"account", "grptre+"} <= words:
        return ASSOCIATIONS
    if {"name", "priority", "gracetime"} <= words:
        return QOS
    shown = first.startswith("Configuration data as of")
    return CONF if any(_CONF.match(line) for line in told[: None if shown else 40]) else ""


def rows_beside(kind: str, text: str, where: str) -> Rows:
    """Its rows, each with where it stands.

    Raises:
        InputError: A table of sacctmgr's that is cut to widths.
    """
    lines = [
        (f"{where}, line {number}", line)
        for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if kind == CONF:
        return [(where, _settings(line for _, line in lines))]
    if kind == LICENSES:
        return _licenses(" ".join(line for _, line in lines), where)
    if kind == slurm_conf.PARTITIONS:
        return slurm_conf.partition_rows(text, where)
    if kind == SDIAG:
        return [(where, {name: found[1] for name, one in _DIAGNOSED.items()
                         if (found := one.search(text))})]  # fmt: skip
    if kind in (SPRIO, SSHARE):
        return []
    if kind == REASONS:
        return _reasons(lines)
    return _accounts(kind, lines, where)


def _reasons(lines: list[tuple[str, str]]) -> Rows:
    found: Rows = []
    for at, line in lines:
        words = line.rsplit(maxsplit=3)
        if len(words) == 4 and not _REASON.match(line):
            found.append((at, {"REASON": words[0].strip(), "USER": words[1],
                               "TIMESTAMP": words[2], "NODELIST": words[3]}))  # fmt: skip
    return found


def _licenses(text: str, where: str) -> Rows:
    found: Rows = []
    for block in re.split(r"(?=LicenseName=)", text):
        if cells := dict(_PAIR.findall(block)):
            found.append((f"{where}: license {cells.get('LicenseName')}", cells))
    return found


def _accounts(kind: str, lines: list[tuple[str, str]], where: str) -> Rows:
    what = "assoc" if kind == ASSOCIATIONS else "qos"
    head = [one.strip() for one in lines[0][1].split("|")]
    above: list[tuple[int, str]] = []
    if len(head) < 2:
        raise InputError(
            f"{where}: a table that is cut to widths; print it with sacctmgr -p show {what}"
        )
    found: Rows = []
    for at, line in lines[1:]:
        cells = [one.strip() for one in line.split("|")]
        if len(cells) != len(head):
            raise InputError(
                f"{at}: {len(cells)} fields under {len(head)}; print it with sacctmgr -p show"
                f" {what}"
            )
        told = dict(zip(head, cells, strict=True))
        found.append((at, told | _above(told, line.split("|")[head.index("Account")], above))
                     if kind == ASSOCIATIONS and "Account" in head else (at, told))  # fmt: skip
    return found


def _above(told: Cells, account: str, above: list[tuple[int, str]]) -> Cells:
    """The account above an association's, by its column or by how far `tree` sets it in."""
    named = told.get("ParentName") or told.get("Par Name")
    if named:
        return {PARENT: named}
    depth = len(account) - len(account.lstrip())
    while above and (above[-1][0] >= depth or above[-1][1] == told["Account"]):
        above.pop()
    parent = above[-1][1] if above else ""
    above.append((depth, told["Account"]))
    return {PARENT: parent} if parent else {}


def _settings(lines: Iterable[str]) -> Cells:
    """The parameters that slurm.conf has once, in small letters."""
    found: Cells = {}
    for line in lines:
        match = _SETTING.match(line.partition("#")[0])
        if match and match[1].casefold() not in _LISTS:
            found[match[1].casefold()] = match[2]
    return found
