"""One JSON line per answer on the logger `ridgeline.serve`: what it cost and how it ended.

Preemptions and the tokens that they threw away stand in it, because that is the first question
about a slow answer, and a server that hides it cannot be debugged.
"""

from __future__ import annotations

import logging

import msgspec

from ridgeline.serve.messages import Delta

logger = logging.getLogger("ridgeline.serve")


def log_answer(last: Delta) -> None:
    """Log an answer by its last Delta; nothing is put together where nobody listens."""
    if not logger.isEnabledFor(logging.INFO):
        return
    times = last.times
    assert times is not None
    line: dict[str, object] = {
        "event": "answer",
        "id": last.id,
        "index": last.index,
        "finish_reason": last.finish_reason,
        "prompt_tokens": last.prompt_tokens,
        "cached_tokens": last.cached_tokens,
        "output_tokens": last.output_tokens,
        "num_preemptions": last.num_preemptions,
        "wasted_tokens": last.wasted_tokens,
    }
    if times.scheduled is not None:
        line["queue_seconds"] = round(times.scheduled - times.arrived, 6)
    if times.first_token is not None:
        line["first_token_seconds"] = round(times.first_token - times.arrived, 6)
    if times.finished is not None:
        line["total_seconds"] = round(times.finished - times.arrived, 6)
    logger.info(msgspec.json.encode(line).decode())
