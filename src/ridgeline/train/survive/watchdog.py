"""A thread that notices that no rank moves any more, names the one to blame, and ends them all.

It runs in each rank. Once a second it looks at the main thread: has a phase begun or ended, has
its stack changed, has the process computed. It tells the others through a store (a *beat*) and
reads what they tell. A rank that has not moved for `hang_seconds` while no other moves either is
in a hang; as long as one moves (compiles, saves, evaluates), the others wait for good reason. That
patience has an end too: without a phase for `_SLOW` times as long, moving is going in circles.

Who is named: a rank that no longer tells anything (its machine is gone or cut off, its process is
stopped), else the one with the fewest steps, else one that is in no collective while others wait in
one. Every rank then ends itself with `EXIT_CODE`, so that torchrun starts them anew.

Which call a rank is in: its collective under way is one that torch's flight recorder has as begun
and not ended (gloo and NCCL; it records where `TORCH_FR_BUFFER_SIZE` is set before torch is
imported); else the innermost line of ours on the main thread's stack, and the call it made.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Protocol

import msgspec

HOST = "RIDGELINE_HOST"
"""Variable with the name that messages call this machine by; without it, its host name."""
EXIT_CODE = 75
"""The code EX_TEMPFAIL of sysexits.h, which means to try again."""
_LOOKS = 20
"""Looks in `hang_seconds`; once a second at most."""
_SLOW = 6.0
_ANSWER_SECONDS = 5.0
_FLAG = "survive/hung"
_OURS = str(Path(__file__).parents[2])
_SHORT_OF = len(str(Path(__file__).parents[3])) + 1
_WRAPPERS = {"wrapper", "inner", "_fn", "__exit__", "__enter__", "decorate_context"}
_DEPTH = 60
RECORDER = {"TORCH_FR_BUFFER_SIZE": "64"}
"""Environment under which torch records collectives."""


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank tells of itself."""

    rank: int
    host: str
    pid: int
    count: int
    """Beats so far; where it does not grow the rank is not heard from."""
    step: int
    phase: str
    call: str
    """Where its code stands."""
    collective: str
    """The collective that it waits in; empty: none."""
    still_seconds: float
    """Seconds since it moved."""


class RankStore(Protocol):
    """What a watchdog needs of torch's stores."""

    def set(self, key: str, value: str) -> None:
        """Set or replace a value."""

    def get(self, key: str) -> bytes:
        """The value of a key that is there."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""

    def add(self, key: str, amount: int) -> int:
        """Count a key up and return the sum."""


def blame(beats: Sequence[Beat], silent: Sequence[int]) -> str:
    """Who holds the others up, in one line.

    Args:
        beats: The last of every rank that ever told one.
        silent: Ranks that are not heard from any more.
    """
    by_rank = {beat.rank: beat for beat in beats}
    lost = [by_rank[rank] for rank in silent if rank in by_rank]
    others = [beat for beat in beats if beat.rank not in silent]
    waiting = next((beat for beat in others if beat.collective), None)
    wait = f"; rank {waiting.rank} waits in {waiting.collective}" if waiting else ""
    if silent:
        names = ", ".join(f"rank {beat.rank} on {beat.host}" for beat in lost)
        names = names or ", ".join(f"rank {rank}" for rank in silent)
        last = f", last in {_doing(lost[0])}" if lost else ""
        return f"not heard from: {names}{last}{wait}"
    least = min(beat.step for beat in others)
    behind = [beat for beat in others if beat.step == least]
    if len(behind) == len(others):
        outside = [beat for beat in others if not beat.collective]
        behind = outside if outside and len(outside) < len(others) else behind
    named = behind[0]
    if len(behind) == len(others) > 1:
        return f"all ranks wait, rank {named.rank} in {_doing(named)}"
    wait = wait if waiting is not None and waiting.rank != named.rank else ""
    return f"rank {named.rank} on {named.host} stands still in {_doing(named)}{wait}"


def _doing(beat: Beat) -> str:
    where = f"step {beat.step + 1}, {beat.phase or 'between phases'}"
    return f"{where}: {beat.call}" + (f" ({beat.collective})" if beat.collective else "")


class Watchdog:
    """The watch over one rank from `start` to `stop`."""

    def __init__(
        self,
        *,
        rank: int,
        world: int,
        hang_seconds: float,
        where: Callable[[], tuple[int, str, int]],
        report: Callable[[str], None],
        store: RankStore | None,
        computes_on_host: bool,
    ) -> None:
        """Make the watch of one rank.

        Args:
            rank: This process.
            world: Number of ranks.
            hang_seconds: Without movement for so long, it hangs.
            where: Steps done, the open phase, and a number that grows with every mark of a phase.
            report: Takes the one line; called by one rank.
            store: Through which ranks tell each other; None: there is one rank.
            computes_on_host: Time of the processor is a sign of progress (a device's driver burns
                it while it waits).
        """
        self.period_seconds = min(1.0, hang_seconds / _LOOKS)
        self._rank, self._world = rank, world
        self._hang_seconds = hang_seconds
        self._where, self._report, self._store = where, report, store
        self._computes_on_host = computes_on_host
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")
        self._host = os.environ.get(HOST) or socket.gethostname()
        self._count = 0
        self._seen: tuple[object, ...] = ()
        self._marks = -1
        self._cpu = 0.0
        self._moved = self._marked = time.monotonic()

    def start(self) -> None:
        """Begin to watch the rank."""
        self._moved = self._marked = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End the watch; the run goes on unwatched."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(2 * _ANSWER_SECONDS)

    def _watch(self) -> None:
        while not self._stopped.wait(self.period_seconds):
            self._look()
            told = self._tell()
            if told and self._store is not None and self._others_left():
                os._exit(EXIT_CODE)
            if self._is_stuck():
                self._judge()

    def _look(self) -> None:
        """Note whether the main thread has moved."""
        now = time.monotonic()
        _, _, marks = self._where()
        stands = stack()
        cpu = time.process_time()
        computed = self._computes_on_host and cpu - self._cpu > 0.5 * self.period_seconds
        if marks != self._marks:
            self._marked = now
        if marks != self._marks or stands != self._seen or computed:
            self._moved = now
        self._marks, self._seen, self._cpu = marks, stands, cpu

    def _is_stuck(self) -> bool:
        now = time.monotonic()
        circles = now - self._marked > _SLOW * self._hang_seconds
        return now - self._moved > self._hang_seconds or circles

    def _beat(self) -> Beat:
        step, phase, _ = self._where()
        return Beat(
            rank=self._rank,
            host=self._host,
            pid=os.getpid(),
            count=self._count,
            step=step,
            phase=phase,
            call=described(self._seen),  # type: ignore[arg-type]
            collective=collective(),
            still_seconds=time.monotonic() - self._moved,
        )

    def _tell(self) -> bool:
        """Tell the others of this rank; whether the store took it."""
        self._count += 1
        if self._store is None:
            return True
        try:
            self._store.set(_key(self._rank), msgspec.json.encode(self._beat()).decode())
        except (RuntimeError, OSError):
            # Rank 0 holds the store. If it has died, torchrun ends us; if it is cut off, we are
            # stuck in a moment, and say so then.
            return False
        return True

    def _others_left(self) -> bool:
        try:
            assert self._store is not None
            return self._store.check([_FLAG])
        except (RuntimeError, OSError):
            return False

    def _judge(self) -> None:
        """Find out whether all ranks are stuck as this one is."""
        if self._store is None:
            self._leave(blame([self._beat()], []), [])
        before = self._beats()
        # Long enough that whoever lives has told another beat.
        if self._stopped.wait(2.0 * self.period_seconds + 0.5):
            return
        self._look()
        if not self._is_stuck():
            return
        self._tell()
        after = self._beats()
        if after is None or before is None:
            self._leave("not heard from: rank 0, which holds the ranks' store", [])
            return
        silent = [
            rank
            for rank in range(self._world)
            if rank not in after or (rank in before and after[rank].count == before[rank].count)
        ]
        alive = [beat for rank, beat in after.items() if rank not in silent]
        if any(beat.still_seconds < self._hang_seconds / 2.0 for beat in alive):
            circles = time.monotonic() - self._marked > _SLOW * self._hang_seconds
            if not circles:
                return
        self._leave(blame(list(after.values()), silent), [after[r] for r in silent if r in after])

    def _beats(self) -> dict[int, Beat] | None:
        """What every rank told last; None: the store does not answer."""
        assert self._store is not None
        found = {}
        try:
            for rank in range(self._world):
                if self._store.check([_key(rank)]):
                    content = self._store.get(_key(rank))
                    found[rank] = msgspec.json.decode(content, type=Beat)
        except (RuntimeError, OSError):
            return None
        return found

    def _leave(self, line: str, silent: Sequence[Beat]) -> None:
        if self._first():
            self._report(f"no rank moved for {self._hang_seconds:g} s: {line}")
        for beat in silent:
            if beat.host == self._host and beat.pid != os.getpid():
                # A process that is stopped heeds nothing else, and torchrun would wait for it.
                os.kill(beat.pid, signal.SIGKILL)
        os._exit(EXIT_CODE)

    def _first(self) -> bool:
        """Whether no other rank has spoken; when in doubt, speak."""
        if self._store is None:
            return True
        try:
            return self._store.add(_FLAG, 1) == 1
        except (RuntimeError, OSError):
            return True


def _key(rank: int) -> str:
    return f"survive/beat{rank}"


def shared_store(world: int) -> RankStore | None:
    """A connection of its own to the store of the ranks; the group's own is busy while it waits."""
    from torch.distributed import TCPStore

    if world == 1:
        return None
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=_ANSWER_SECONDS),
        wait_for_workers=False,
    )


def stack() -> tuple[tuple[str, int, str], ...]:
    """The main thread's stack as file, line and function, innermost first."""
    thread = threading.main_thread().ident
    frame = sys._current_frames().get(thread) if thread is not None else None
    return tuple(_frames(frame))


def _frames(frame: FrameType | None) -> Iterator[tuple[str, int, str]]:
    for _ in range(_DEPTH):
        if frame is None:
            return
        line: int | None = frame.f_lineno  # None within an instruction that belongs to no line
        yield frame.f_code.co_filename, line or frame.f_code.co_firstlineno, frame.f_code.co_name
        frame = frame.f_back


def described(frames: tuple[tuple[str, int, str], ...]) -> str:
    """The call that our code made, and where: `all_reduce, called at ridgeline/train/x.py:12`."""
    called = ""
    for file, line, name in frames:
        if file.startswith(_OURS):
            place = f"{file[_SHORT_OF:]}:{line}"
            return f"{called}, called at {place}" if called else f"{name} at {place}"
        if name not in _WRAPPERS:
            called = name
    return f"{frames[0][2]} at {frames[0][0]}:{frames[0][1]}" if frames else "nothing"


def collective() -> str:
    """The oldest collective that has begun and not ended; empty: there is none, or no recorder."""
    from torch._C import _distributed_c10d

    # Its stub has the NCCL name alone.
    dump = getattr(_distributed_c10d, "_dump_fr_trace_json")  # noqa: B009
    told = json.loads(dump(True, False) or "{}")
    waiting = [entry for entry in told.get("entries", []) if not entry["retired"]]
    if not waiting:
        return ""
    entry = min(waiting, key=lambda one: one["record_id"])
    _, _, name = entry["profiling_name"].rpartition(":")
    group = entry["process_group"][1]
    inside = "" if group == "undefined" else f" in group {group}"
    return f"{name} of {_shape(entry)}{inside}"


def _shape(entry: dict[str, list[list[int]]]) -> str:
    return " x ".join(str(size) for size in (entry["input_sizes"] or [[]])[0]) or "one number"
