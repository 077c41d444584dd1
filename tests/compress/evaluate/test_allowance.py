"""What `--max-loss` and `--target` mean."""

from __future__ import annotations

import math

import pytest

from ridgeline.compress.evaluate.allowance import allowance
from ridgeline.errors import InputError
from ridgeline.records.compression import Divergence, Quality


def quality(perplexity: float) -> Quality:
    return Quality(
        loss=math.log(perplexity), perplexity=perplexity, word_perplexity=1.0, bits_per_byte=1.0,
        accuracy=0.5,
    )  # fmt: skip


def divergence(kl: float) -> Divergence:
    return Divergence(kl_mean=kl, kl_p99=kl, agreement=1.0)


@pytest.mark.parametrize(
    ("text", "after", "kl", "holds"),
    [
        ("ppl+1%", 10.1, 9.0, True),
        ("ppl+1%", 10.11, 0.0, False),
        ("ppl+0.5", 10.49, 9.0, True),
        ("ppl+0.5", 10.51, 0.0, False),
        ("kl+0.02", 99.0, 0.02, True),
        ("kl+0.02", 9.0, 0.021, False),
        ("ppl + 1 %", 9.0, 0.0, True),
    ],
)
def test_a_bound_holds_up_to_itself(text: str, after: float, kl: float, *, holds: bool) -> None:
    bound = allowance("--target", text)
    assert bound.holds(quality(10.0), quality(after), divergence(kl)) is holds


def test_a_model_that_is_not_finite_never_holds() -> None:
    ruined = Quality(
        loss=math.nan, perplexity=math.nan, word_perplexity=1.0, bits_per_byte=1.0, accuracy=0.0
    )
    for text in ("ppl+1000%", "kl+1000"):
        bound = allowance("--max-loss", text)
        assert not bound.holds(quality(10.0), ruined, divergence(math.nan))


@pytest.mark.parametrize("text", ["1%", "ppl-1%", "ppl+x", "kl+1%", "acc+1%", ""])
def test_anything_else_is_refused_with_the_forms_that_are_not(text: str) -> None:
    with pytest.raises(InputError, match=r"--max-loss .*ppl\+1%"):
        allowance("--max-loss", text)
