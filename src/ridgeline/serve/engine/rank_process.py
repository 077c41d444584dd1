"""A further rank of a model: `python -m ridgeline.serve.engine.rank_process FD`.

The first rank starts it (`ranks.py`) with one end of a pipe. It builds the same share of the model
and of the cache as the first one, in the same order, since ranks meet in collectives, and then
computes what it is told until the pipe closes. What goes wrong here ends it, with one line on the
pipe: a rank that left out a step could never meet the others again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from ridgeline.errors import RidgelineError, in_words
from ridgeline.measure.parent_death import die_with_parent
from ridgeline.serve.engine.rank_work import (
    ComputeStep,
    CopyBlocks,
    FinishStep,
    Leave,
    Meet,
    ProbeRanks,
    decode_meeting,
    decode_work,
    step_batch,
)
from ridgeline.serve.engine.share import RankShare, build_share, rank_device, set_threads
from ridgeline.serve.tensor_parallel.group import RankGroup

HEARTBEAT_SECONDS = 1.0


def main() -> int:
    """Build this rank's share and compute with it; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent()
    connection = Connection(int(sys.argv[1]))
    threading.Thread(target=_beat, args=(connection,), name="rank-heart", daemon=True).start()
    try:
        share = _build(decode_meeting(connection.recv_bytes()))
        _follow(connection, share)
    except RidgelineError as error:
        return _end(connection, str(error), error.exit_code)
    except Exception as error:  # the first rank says it in one line; the trace is for us
        if not _is_alone(connection):
            traceback.print_exc()
        return _end(connection, f"{type(error).__name__}: {in_words(error)}", 1)
    return _end(connection, "", 0)


def _build(meet: Meet) -> RankShare:
    config = meet.config
    set_threads(config)
    device = rank_device(config, meet.rank)
    group = RankGroup(
        Path(meet.meeting), rank=meet.rank, size=config.ranks, device=device, shares=config.tp
    )
    return build_share(config, group=group)


@torch.inference_mode()
def _follow(connection: Connection, share: RankShare) -> None:
    while True:
        try:
            content = connection.recv_bytes()
        except (EOFError, OSError):
            return
        match decode_work(content):
            case ComputeStep() as work:
                batch = step_batch(work, share.loaded.device)
                if work.number is None or share.loaded.gate is None:
                    share.runner.forward(batch)
                else:
                    share.runner.begin(batch)
            case FinishStep(number=number):
                if share.loaded.gate is not None:
                    share.runner.finish(number)
            case CopyBlocks(pairs=pairs):
                share.pool.copy(pairs)
            case ProbeRanks():
                share.runner.probe()
            case Leave():
                return


def _beat(connection: Connection) -> None:
    """Tell the first rank now and then that this process runs, whatever its main thread does."""
    with contextlib.suppress(OSError):  # the first rank has ended
        while True:
            connection.send_bytes(b"")
            time.sleep(HEARTBEAT_SECONDS)


def _is_alone(connection: Connection) -> bool:
    """Whether the first rank has gone, so that a failed collective was to be expected."""
    try:
        return connection.poll(0.5)
    except (EOFError, OSError):
        return True


def _end(connection: Connection, words: str, code: int) -> int:
    with contextlib.suppress(OSError):  # the first rank has ended, and says why
        connection.send_bytes(" ".join(words.split()).encode())
    # Without the farewell of torch.distributed, which waits for ranks that are gone.
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
