"""The other ranks of a model that is cut over several processes, as the first rank sees them.

The first rank schedules, samples and answers; the others are processes of its own that compute what
they are told (`rank_process.py`). They cannot do without each other: one that ends leaves the rest
waiting in a collective, one that is stopped does, too, and one at which a step fails leaves it in
another step than the rest. So whatever happens to one ends the engine, with a line that says which
rank and why, and the supervisor starts the whole group again. A thread per rank watches its
connection, because a rank may also end while there is nothing to compute, or while the main thread
waits in C++.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import torch

from ridgeline.errors import InputError, in_words
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.attempt import RanksLost
from ridgeline.serve.engine.rank_work import Leave, Meet, RankWork, encode
from ridgeline.serve.tensor_parallel.group import RankGroup

NOTICE_SECONDS = 2.0
"""For a watching thread to see the end of a rank whose absence was felt in a collective."""
SILENCE_SECONDS = 30.0
"""A rank whose heartbeat does not come for so long is stopped or stuck."""
END_SECONDS = 5.0
"""For a rank to end by itself once its connection is closed."""


class OtherRanks:
    """The processes of ranks 1, 2, …; made before the model is loaded, so that all load at once."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        """Start them and meet them.

        Raises:
            RanksLost: One of them ended meanwhile.
        """
        self._lost: Callable[[str], None] | None = None
        self._why: str | None = None
        self._refused: str | None = None
        """What a rank that did not take the configuration has said."""
        self._ended = threading.Event()
        self._closing = False
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        # Kept as long as the group: a rank that is late still looks for the others in it.
        _sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
        meeting = self._folder / "meeting"
        try:
            for rank in range(1, config.ranks):
                self._start(config, rank, meeting)
            with self.in_step("they met"):
                self.group = RankGroup(
                    meeting, rank=0, size=config.ranks, device=device, shares=config.tp
                )
        except BaseException:
            self.close(at_once=True)
            raise

    def watch(self, lost: Callable[[str], None]) -> None:
        """Have the first end of a rank told, from a thread, in one line."""
        self._lost = lost
        if self._why is not None:
            lost(self._why)

    def check(self) -> None:
        """Raise `RanksLost` if one has ended."""
        if self._why is not None:
            raise RanksLost(self._why)

    def send(self, work: RankWork) -> None:
        """Tell all of them what to do next. Raises RanksLost."""
        self.check()
        content = encode(work)
        with self.in_step("it was told what to do"):
            for connection in self._connections:
                connection.send_bytes(content)

    @contextlib.contextmanager
    def in_step(self, what: str) -> Iterator[None]:
        """Turn whatever goes wrong in work that all ranks do into `RanksLost`.

        What is wrong with the configuration stays an `InputError`: all ranks find it.
        """
        try:
            yield
        except (InputError, KeyboardInterrupt, SystemExit):
            if self._why is not None and self._refused is None:
                raise RanksLost(self._why) from None  # a trial of the model met its end first
            raise
        except RanksLost:
            raise
        except BaseException as error:
            self._ended.wait(NOTICE_SECONDS)
            if self._refused is not None:
                raise InputError(self._refused) from None
            why = self._why or f"rank 0 failed while {what}: {in_words(error)}"
            raise RanksLost(why) from error

    def close(self, *, at_once: bool = False) -> None:
        """End them, by force where they do not end by themselves."""
        self._closing = True
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send_bytes(encode(Leave()))
        for process in self._processes:
            try:
                process.wait(0 if at_once else END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for connection in self._connections:
            connection.close()
        if hasattr(self, "group"):
            self.group.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, config: EngineConfig, rank: int, meeting: Path) -> None:
        ours, theirs = Pipe()
        with theirs:
            process = start_rank(theirs)
        self._processes.append(process)
        self._connections.append(ours)
        ours.send_bytes(encode(Meet(config=config, rank=rank, meeting=str(meeting))))
        threading.Thread(
            target=self._watch, args=(rank, ours, process), name=f"rank-{rank}-watch", daemon=True
        ).start()

    def _watch(self, rank: int, connection: Connection, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a rank, whose last words are its reason, or for its silence."""
        words, heard, silent = "", False, False
        with contextlib.suppress(EOFError, OSError):
            # Until the first heartbeat it loads torch, which may take as long as it likes.
            while not (silent := not connection.poll(SILENCE_SECONDS if heard else None)):
                words = connection.recv_bytes().decode(errors="replace") or words
                heard = True
        if silent and not self._closing:
            process.kill()
            words = f"it was silent for {SILENCE_SECONDS:g} s"
        code = process.wait()
        if self._closing or self._why is not None:
            return
        if code == InputError.exit_code and words:
            self._refused = words
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._why = f"rank {rank} (process {process.pid}) ended with {how}"
        if words:
            self._why += f": {words}"
        self._ended.set()
        if self._lost is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._lost(self._why)


def start_rank(connection: Connection) -> subprocess.Popen[bytes]:
    """A process of its own for the rank that is told over `connection` which it is."""
    words = [sys.executable, "-m", "ridgeline.serve.engine.rank_process", str(connection.fileno())]
    return subprocess.Popen(
        words,
        pass_fds=[connection.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


_FOLDER = "ridgeline-ranks-"


def _sweep() -> None:
    """Remove the folders of groups whose first rank was killed, and so could not."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        owner = folder.name.removeprefix(_FOLDER).partition("-")[0]
        with contextlib.suppress(OSError):
            ours = folder.stat().st_uid == os.getuid()
            if ours and owner.isdigit() and not _lives(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
