"""What was picked becomes what is sent: text, and whether and why the answer ends."""

from __future__ import annotations

from typing import Literal

from ridgeline.serve.messages import Delta, TokenLogprobs
from ridgeline.serve.sampling.sampler import Picked
from ridgeline.serve.sampling.state import SamplingState


def take(
    state: SamplingState,
    picked: Picked,
    *,
    prompt_logprobs: tuple[TokenLogprobs, ...] = (),
) -> Delta:
    """Append the picked tokens to the answer, up to the one that ends it.

    Tokens after that one are dropped: `Delta.tokens` is what the answer really got, and what
    `Scheduler.complete` must be given. The token that ends an answer is one of its tokens; its text
    is none of the answer's, unless `keep_stop` asks for it. The text of the tokens before a stop
    string that lies in the middle of a token is cut there, and the token counts.
    """
    kept: list[int] = []
    finish: Literal["stop", "length"] | None = None
    reason: str | int | None = None
    for token in picked.tokens:
        kept.append(token)
        state.append(token)
        finish, reason = _end(state, token)
        if finish is not None:
            state.text.flush()
            break
    if state.text.stopped_by is not None:
        finish, reason = "stop", state.text.stopped_by
    return Delta(
        id=state.submit.id,
        index=state.index,
        tokens=tuple(kept),
        text=state.text.take(),
        logprobs=picked.logprobs[: len(kept)],
        prompt_logprobs=prompt_logprobs,
        finish_reason=finish,
        stop_reason=reason,
    )


def _end(
    state: SamplingState, token: int
) -> tuple[Literal["stop", "length"] | None, str | int | None]:
    """Whether the answer ends with this token, and the stop string or stop id that ended it."""
    sampling, text = state.sampling, state.text
    ends = token in state.ending_ids
    if not ends or sampling.keep_stop:
        text.push(token)
    if text.stopped_by is not None:
        return "stop", None
    if ends:
        return "stop", token if token in sampling.stop_ids else None
    if state.num_tokens >= sampling.max_tokens:
        return "length", None
    return None, None
