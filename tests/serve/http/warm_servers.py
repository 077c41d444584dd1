"""Servers and their engines as forks of the cradle, which has imported what both of them need."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from typing import Any, NoReturn

from ridgeline.serve.process import host

_create_subprocess = asyncio.create_subprocess_exec
HOST = "ridgeline.serve.process.host"


def fork_engines() -> None:
    """From now on this process, a server, forks its engines where it would start Python anew."""
    asyncio.create_subprocess_exec = _fork_engine


async def _fork_engine(*words: str, **options: Any) -> asyncio.subprocess.Process:
    if words[1:3] != ("-m", HOST):
        return await _create_subprocess(*words, **options)

    def host_engine() -> NoReturn:
        """In the fork, which never becomes the program that it was to be."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)  # that is the server's event loop
            _close_all_but(options["pass_fds"])
            os.environ.clear()
            os.environ.update(options["env"])
            sys.argv = [HOST, *words[3:]]
            sys.stdout, sys.stderr = open(1, "w"), open(2, "w", errors="replace")  # noqa: SIM115
            code = host.main()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    return await _create_subprocess(*words, **options, preexec_fn=host_engine)


def _close_all_but(kept: tuple[int, ...]) -> None:
    """Among them the pipe on which whoever forked waits until there is another program."""
    first = 3
    for one in sorted(kept):
        os.closerange(first, one)
        first = one + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def serve(words: list[str]) -> None:
    """`ridgeline serve …` in this process."""
    from ridgeline.cli.main import run

    fork_engines()
    sys.exit(run(["serve", *words]))
