"""The process that holds one model: `python -m ridgeline.export.worker`.

It reads an order a line on stdin and writes an answer a line on the stdout that it was given; what
libraries print goes to stderr, the job's log.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from ridgeline.errors import ExportError, RidgelineError, in_words
from ridgeline.export import orders
from ridgeline.measure.parent_death import die_with_parent

if TYPE_CHECKING:
    from ridgeline.export.answers import WorkerAnswers


def main() -> None:
    """Answer orders until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when
    die_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)
    os._exit(0)  # runtimes end their threads in ways of their own


def serve(given: BinaryIO, answers: BinaryIO) -> None:
    """Answer each line of `given`."""
    from ridgeline.export.answers import WorkerAnswers

    held = WorkerAnswers()
    for line in given:
        order = msgspec.json.decode(line, type=orders.Order)
        answers.write(msgspec.json.encode(_answer(held, order)) + b"\n")
        answers.flush()


def _answer(held: WorkerAnswers, order: orders.Order) -> orders.Answer:
    try:
        return held.answer(order)
    except RidgelineError as error:
        kept = getattr(error, "log", "")
        message = str(error).replace(f" (the whole message: {kept})", "") if kept else str(error)
        kind = error.kind if isinstance(error, ExportError) else ""
        return orders.FailureAnswer(message=message, code=max(2, error.exit_code), kind=kind)
    except Exception as error:  # whatever a model or a runtime raises: the parent goes on
        traceback.print_exc()
        said = f"{type(error).__name__}: {in_words(error)}"
        return orders.FailureAnswer(message=said, code=2)


if __name__ == "__main__":
    main()
