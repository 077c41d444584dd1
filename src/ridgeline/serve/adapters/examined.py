"""Examines adapter files in a process of its own, which is given a time.

    file = examined("adapters/sql")     # runs: python -m ridgeline.serve.adapters.examined

Whatever such a file makes of its reader, it makes of that process: an expression without end, a
disk that does not answer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from ridgeline.checkpoints.adapters import AdapterFile, examine
from ridgeline.errors import InputError, in_words

LONGEST_SECONDS = 20.0
"""Half a second of it is Python's start; a gigabyte of numbers takes about one."""


class _Answer(msgspec.Struct, kw_only=True):
    file: AdapterFile | None = None
    refused: str = ""


_decoder = msgspec.json.Decoder(_Answer)


def examined(folder: str, seconds: float = LONGEST_SECONDS) -> AdapterFile:
    """Examine an adapter, as `checkpoints.adapters.examine`, in another process.

    Raises:
        InputError: No adapter lies there, or one of a kind that is not served, or it takes longer.
    """
    if "\0" in folder:
        raise InputError(f"{folder!r} is no path: it has a NUL")
    words = [sys.executable, "-m", __name__, folder, str(seconds)]
    late = InputError(
        f"{folder} took longer than {seconds:g} s to read; is an alpha_pattern in"
        " adapter_config.json an expression that comes to no end?"
    )
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        raise late from None
    if done.returncode == -signal.SIGALRM:
        raise late
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no word"])[-1]
        raise InputError(f"{folder} could not be read: its reader ended with {last[:200]}")
    answer = _decoder.decode(done.stdout)
    if answer.file is None:
        raise InputError(answer.refused)
    return answer.file


def main() -> int:
    """Print what was found, as JSON."""
    # Whoever asked may have gone meanwhile.
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))
    try:
        answer = _Answer(file=examine(Path(sys.argv[1])))
    except InputError as error:
        answer = _Answer(refused=" ".join(str(error).split()))
    except Exception as error:  # files can be broken in any way
        what = f"{type(error).__name__}: {in_words(error)}"
        answer = _Answer(refused=f"{sys.argv[1]} cannot be read as an adapter: {what}")
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
