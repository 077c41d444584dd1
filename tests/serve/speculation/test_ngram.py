"""Guesses from what the text has said before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.batching.sequence import Request, Sequence
from ridgeline.errors import InputError
from ridgeline.serve.speculation.ngram import SHORTEST, Index, NgramDrafter


def slow(tokens: list[int], longest: int, most: int) -> tuple[int, ...]:
    """By searching backwards."""
    for length in range(longest, min(SHORTEST, longest) - 1, -1):
        if length >= len(tokens):
            continue
        ending = tokens[-length:]
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == ending:
                text = list(tokens)
                for at in range(start + length, start + length + most):
                    text.append(text[at])
                return tuple(text[len(tokens) :])
    return ()


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 4), st.integers(1, 5))
def test_the_last_occurrence_of_the_longest_match_is_continued(
    tokens: list[int], longest: int, most: int
) -> None:
    index = Index(longest)
    for end in range(1, len(tokens) + 1):
        if end % 3 != 1:  # not every token is asked about
            assert index.propose(tokens[:end], most) == slow(tokens[:end], longest, most)


def test_a_loop_is_continued_beyond_the_end() -> None:
    assert Index(3).propose([9, 1, 2, 1, 2], 5) == (1, 2, 1, 2, 1)


def test_each_sequence_has_its_own_past_until_it_is_forgotten() -> None:
    drafter = NgramDrafter(2, 2)
    request = Request(id="a", prompt=(1,), max_tokens=9, arrival=0.0)
    one = Sequence(request=request, tokens=[1, 2, 3, 1, 2])
    other = Sequence(request=request, tokens=[4, 1, 2])
    found = drafter.propose([one, other], [], None)
    assert [proposal.tokens for proposal in found] == [(3, 1), ()]
    assert found[0].probabilities is None
    drafter.forget(one)
    drafter.forget(one)
    assert drafter.memory() == []


def test_nothing_to_guess_or_to_look_up_is_refused() -> None:
    with pytest.raises(InputError, match="at least one draft"):
        NgramDrafter(0, 3)
