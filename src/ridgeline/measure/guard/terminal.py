"""A terminal for the script of a user who sits at one.

Scripts ask theirs how wide it is, by `stty size` or `os.get_terminal_size`, and some fail where
there is none. Ours is not shared with a script that is frozen and started again and again: each
gets another, as large, that nobody types at. Whoever reads from it reads the end of the input.
"""

from __future__ import annotations

import functools
import os
import sys

_ENDS_OF_INPUT = b"\x04" * 1000


def size_of(descriptor: int) -> tuple[int, int] | None:
    """Columns and lines of the terminal behind a descriptor; None: it is none."""
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:
        return None
    return size.columns, size.lines


def own_terminal(size: tuple[int, int]) -> int:
    """A new descriptor of a terminal of this size."""
    master, slave = _pair()
    _prepare(master, slave, size)
    return os.dup(slave)


@functools.cache
def _pair() -> tuple[int, int]:
    """Both ends; they stay open as long as this process lives."""
    import pty

    return pty.openpty()


def _prepare(master: int, slave: int, size: tuple[int, int]) -> None:
    if sys.platform == "win32":
        return
    import fcntl
    import struct
    import termios

    columns, lines = size
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
    modes = termios.tcgetattr(slave)
    modes[3] &= ~termios.ECHO  # nobody reads what it would write
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    termios.tcflush(slave, termios.TCIFLUSH)
    os.write(master, _ENDS_OF_INPUT)
