"""What an answer gets of what was picked, and why it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from ridgeline.serve.messages import Delta, Sampling, Submit
from ridgeline.serve.sampling.state import Picked, SamplingState, take

LIBRARY = Path(__file__).parents[3] / "examples/models/library"
tokenizer = PreTrainedTokenizerFast.from_pretrained(LIBRARY)
EOS = tokenizer.eos_token_id
WORDS = tuple(tokenizer.encode("import os\nimport sys\n"))


def state_of(**asked: Any) -> SamplingState:
    submit = Submit(id="a", prompt=(5,), sampling=Sampling(**{"max_tokens": 100, **asked}))
    return SamplingState(submit, 0, vocab=2048, eos_ids=(EOS,), tokenizer=tokenizer)


def deltas_of(state: SamplingState, tokens: tuple[int, ...], at_once: int) -> list[Delta]:
    found = []
    for first in range(0, len(tokens), at_once):
        found.append(take(state, Picked(tokens[first : first + at_once])))
        if found[-1].finish_reason is not None:
            break
    return found


@pytest.mark.parametrize("at_once", [1, 3, 100])
@pytest.mark.parametrize(
    ("asked", "tokens", "text", "finish", "reason"),
    [
        ({}, (*WORDS, EOS, 7), "import os\nimport sys\n", "stop", None),
        ({"stop": ("\nimp",)}, WORDS, "import os", "stop", "\nimp"),
        ({"stop": ("os",), "keep_stop": True}, WORDS, "import os", "stop", "os"),
        ({"stop": ("sys\nx",), "max_tokens": len(WORDS)}, WORDS, None, "length", None),
        ({"stop_ids": (WORDS[-1],)}, WORDS, None, "stop", WORDS[-1]),
        ({"ignore_eos": True, "max_tokens": 2}, (EOS, EOS, EOS), "", "length", None),
        ({"max_tokens": 1}, (EOS,), "", "stop", None),
        ({"stop_ids": (EOS,)}, (EOS,), "", "stop", EOS),
    ],
)
def test_an_answer_ends_for_the_right_reason(
    asked: dict[str, Any],
    tokens: tuple[int, ...],
    text: str | None,
    finish: str,
    reason: str | int | None,
    at_once: int,
) -> None:
    found = deltas_of(state_of(**asked), tokens, at_once)
    assert [one.finish_reason for one in found[:-1]] == [None] * (len(found) - 1)
    assert (found[-1].finish_reason, found[-1].stop_reason) == (finish, reason)
    kept = sum((one.tokens for one in found), ())
    assert kept == tokens[: len(kept)]
    if text is None:
        text = tokenizer.decode([one for one in kept if one not in asked.get("stop_ids", ())])
    assert "".join(one.text for one in found) == text


def test_tokens_after_the_end_are_dropped_with_their_logprobs() -> None:
    delta = take(state_of(), Picked((WORDS[0], EOS, 9), num_accepted=2))
    assert delta.tokens == (WORDS[0], EOS)


def test_a_stop_that_shows_only_at_the_end_is_a_stop() -> None:
    first = tokenizer.encode("😀")[0]
    delta = take(state_of(stop=("�",), max_tokens=1), Picked((first,)))
    assert (delta.finish_reason, delta.text) == ("stop", "")
