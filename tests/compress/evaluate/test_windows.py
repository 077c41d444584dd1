"""Every token of a text is scored once, with as much before it as a window holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.compress.evaluate.text import batches, windows
from ridgeline.errors import InputError


@st.composite
def protocols(draw: st.DrawFn) -> tuple[int, int, int]:
    context = draw(st.integers(2, 40))
    stride = draw(st.integers(1, context))
    return draw(st.integers(context, 300)), context, stride


@pytest.mark.slow
@given(protocols())
def test_each_token_is_scored_once_but_for_those_that_begin_a_text_or_a_disjoint_window(
    protocol: tuple[int, int, int],
) -> None:
    num_tokens, context, stride = protocol
    found = windows(num_tokens, context, stride)
    scored = [token for one in found for token in range(one.first, one.end)]
    assert scored == sorted(set(scored))
    starts = {0} if stride < context else set(range(0, num_tokens, stride))
    assert set(range(num_tokens)) - set(scored) <= starts
    assert all(one.end - one.begin <= context for one in found)
    inner = [one for one in found[1:] if one.end < num_tokens]
    assert all(one.first - one.begin >= context - stride for one in inner)


@given(protocols(), st.integers(1, 200))
def test_batches_hold_all_windows_in_order_and_only_equal_lengths(
    protocol: tuple[int, int, int], tokens: int
) -> None:
    found = windows(*protocol)
    together = list(batches(found, tokens))
    assert [one for some in together for one in some] == found
    assert all(len({one.end - one.begin for one in some}) == 1 for some in together)


@pytest.mark.parametrize(
    ("num_tokens", "context", "stride", "line"),
    [
        (10, 1, 1, "--context 1"),
        (10, 4, 0, "--stride 0"),
        (10, 4, 5, "--stride 5"),
        (10, 11, 11, "the text has 10 tokens"),
    ],
)
def test_windows_that_cannot_be_are_refused(
    num_tokens: int, context: int, stride: int, line: str
) -> None:
    with pytest.raises(InputError, match=line):
        windows(num_tokens, context, stride)
