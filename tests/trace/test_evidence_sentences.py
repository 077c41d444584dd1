"""The evidence of a finding about a trace reads as sentences, on terminals and pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cli.main import run
from ridgeline.report.views.trace_summary import evidence_sentence

KEYS = st.from_regex(r"[a-z]{2,8}(_[a-z0-9]{2,8}){0,3}(_us|_share|_bytes|)", fullmatch=True)


@pytest.mark.slow
def test_the_verdict_of_a_real_run_is_told_in_sentences(
    real_traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", "summary", str(real_traces / "v100_dlrm_8rank_nccl")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Rank 7 most often arrives last." in said
    assert re.search(r"The ranks together wait [\d.]+ ms for the last one to arrive\.", said)
    assert "skew wait" not in said
    assert "launch to start" not in said


@given(KEYS, st.one_of(st.floats(0, 1e7), st.integers(0, 10**9), st.text("abc:", min_size=1)))
def test_any_figure_makes_a_sentence_even_without_words_of_its_own(
    key: str, value: float | str
) -> None:
    said = evidence_sentence(key, value)
    assert said.endswith(".")
    assert said[0].upper() == said[0]
    assert "_" not in said
    assert "{" not in said


def test_a_figure_whose_key_ends_with_another_word_keeps_its_unit() -> None:
    assert "46.8 ms" in evidence_sentence("skew_wait_us_all_ranks", 46_843.0)
    assert "2.00 GB" in evidence_sentence("offload_in_bytes_per_step", 2e9)
    assert "99 %" in evidence_sentence("tensor_core_share_by_name", 0.99)
