"""Logs of all ranks as one: ordered by time, each line with its rank, the first error found.

Each line begins with `[rank3]:`, as torchrun is told to write (`RANK_PREFIX`): which node has which
ranks is settled only when the nodes meet.
When one rank fails the others fail after it (connections that close, collectives that time out),
and torchrun itself ends with a long table: the error worth reading is the earliest one that is
none of those.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

_SETTLE_SECONDS = 0.5
_RANK = re.compile(r"\[rank(\d+)\]:\s?")
RANK_PREFIX = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}]:"}
"""Variable of torchrun's environment that makes it so."""
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d) ?")
_SECONDS = re.compile(r"(\d{9,}\.\d+) ")
_ERROR = re.compile(
    r"^(?:[\w.]*(?:Error|Exception|Exit|Interrupt|Died|Killed)\b.*"
    r"|ridgeline: .*|.*CUDA error: .*|.*\bNCCL WARN\b.*|.*Segmentation fault.*|.*Bus error.*"
    r"|.*OutOfMemory.*|.*\bSIGKILL\b.*)"
)
_RESUMED = re.compile(r"\bresum(?:e|ed|ing|es)\b.*\bstep\s+[\d,]+", re.IGNORECASE)
_AFTERMATH = re.compile(
    r"ChildFailedError|Connection (?:closed|reset|refused) by peer|Connection closed|"
    r"recvValue failed|Broken pipe|SignalException|RendezvousConnectionError|"
    r"RendezvousClosedError|process group watchdog|ProcessExitedException|exitcode: -15|"
    r"KeyboardInterrupt"
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LogLine:
    """One line of one rank. `rank` None: torchrun or the shell around it."""

    seconds: float
    node: int
    rank: int | None
    text: str

    @property
    def prefixed(self) -> str:
        """The line as it is shown, with who says it."""
        who = f"node {self.node}" if self.rank is None else f"rank {self.rank}"
        return f"[{who}] {self.text}"


def parse_line(raw: str, *, node: int, otherwise: float = 0.0) -> LogLine:
    """A line with its time stamp (RFC 3339 or Unix seconds) and its rank.

    >>> line = parse_line("2026-11-21T10:00:00.5Z [rank9]:step 3", node=2)
    >>> line.seconds % 60, line.rank, line.text
    (0.5, 9, 'step 3')
    """
    seconds, text = _stamp(raw.rstrip("\n"), otherwise)
    told = _RANK.match(text)
    if told is None:
        return LogLine(seconds=seconds, node=node, rank=None, text=text)
    rank = int(told.group(1))
    return LogLine(seconds=seconds, node=node, rank=rank, text=text[told.end() :])


def _stamp(raw: str, otherwise: float) -> tuple[float, str]:
    found = _STAMP.match(raw)
    if found:
        whole, part, zone = found.groups()
        moment = datetime.fromisoformat(whole + zone.replace("Z", "+00:00")).timestamp()
        return moment + float(part or 0.0), raw[found.end() :]
    found = _SECONDS.match(raw)
    if found:
        return float(found.group(1)), raw[found.end() :]
    return otherwise, raw


def read_lines(raw: Iterable[str], *, node: int) -> Iterator[LogLine]:
    """A node's lines in order; one without a stamp has the time of the line before it."""
    before = 0.0
    for text in raw:
        line = parse_line(text, node=node, otherwise=before)
        before = line.seconds
        yield line


def merged(streams: Sequence[Iterable[LogLine]]) -> Iterator[LogLine]:
    """All nodes' lines, ordered by time; each node's own order is kept."""
    return heapq.merge(*streams, key=lambda line: line.seconds)


def resumed(lines: Iterable[LogLine]) -> LogLine | None:
    """The newest line that says from which step a run went on after a restart."""
    found = None
    for line in lines:
        if _RESUMED.search(line.text):
            found = line
    return found


def first_error(lines: Iterable[LogLine]) -> LogLine | None:
    """The earliest line that says what went wrong; aftermath only where there is nothing else."""
    after: LogLine | None = None
    for line in lines:
        if _ERROR.match(line.text):
            if not _AFTERMATH.search(line.text):
                return line
            after = after or line
    return after


class LogReader(Protocol):
    """The log of a run, opened: each call returns what has come since the last one."""

    def __call__(self, *, over: bool) -> list[LogLine]:
        """Read new lines, ordered by time; `over`: the run has ended, so no more will come."""


class WholeLog:
    """A log that can only be read whole; a call returns what is new in it."""

    def __init__(self, read: Callable[[], list[LogLine]]) -> None:
        self._read = read
        self._returned = 0

    def __call__(self, *, over: bool) -> list[LogLine]:
        """Read new lines, but for the newest while others may still write before them."""
        # Nodes write at the same time: what is a moment old has no earlier line to come.
        settled = float("inf") if over else time.time() - _SETTLE_SECONDS
        lines = [line for line in self._read() if line.seconds < settled]
        new = lines[self._returned :]
        self._returned = len(lines)
        return new
