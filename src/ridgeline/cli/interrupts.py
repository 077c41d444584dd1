"""Interruptions that arrive as another error, or that Python itself drops.

Ctrl-C while native code runs (a tensor that is read from a file, say) raises its KeyboardInterrupt
there, and some of that code makes an error of its own out of whatever fails inside of it. Whoever
was interrupted should not be told that a shape could not be determined.

Ctrl-C while an object is finalised, or a weak reference's callback runs (there is one in every
import), raises where nothing can be raised: Python prints a traceback and goes on.
"""

from __future__ import annotations

import signal
import sys

TYPE_CHECKING = False  # as in `typing`
if TYPE_CHECKING:
    from types import FrameType, TracebackType

_SOON_SECONDS = 0.01
_came = False


def interrupt(number: int, frame: FrameType | None) -> None:
    """Remember that a signal came, and raise KeyboardInterrupt."""
    global _came  # noqa: PLW0603 - signals come to the process
    _came = True
    signal.default_int_handler(number, frame)


def interrupt_again_where_dropped() -> None:
    """From here on, a KeyboardInterrupt that could not be raised comes again a moment later."""
    sys.unraisablehook = _unraisable


def _unraisable(dropped: sys.UnraisableHookArgs) -> None:
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
        return
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, _SOON_SECONDS)


class ErrorsAsInterrupts:
    """A block in which an error after an interruption is that interruption."""

    def __enter__(self) -> None:
        """Nothing is done where the block begins."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        place: TracebackType | None,
    ) -> None:
        """Raise KeyboardInterrupt in place of an error that follows one; our own say so already."""
        if not _came or not isinstance(error, Exception):
            return
        from ridgeline.errors import RidgelineError

        if not isinstance(error, RidgelineError):
            raise KeyboardInterrupt from error
