"""Interruptions that arrive as another error.

Ctrl-C while native code runs (a tensor that is read from a file, say) raises its KeyboardInterrupt
there, and some of that code makes an error of its own out of whatever fails inside of it. Whoever
was interrupted should not be told that a shape could not be determined.
"""

from __future__ import annotations

import signal

TYPE_CHECKING = False  # as in `typing`
if TYPE_CHECKING:
    from types import FrameType, TracebackType

_came = False


def interrupt(number: int, frame: FrameType | None) -> None:
    """Remember that a signal came, and raise KeyboardInterrupt."""
    global _came  # noqa: PLW0603 - signals come to the process
    _came = True
    signal.default_int_handler(number, frame)


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
