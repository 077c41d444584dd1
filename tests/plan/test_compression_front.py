"""`predict compression`: measured schemes, and predictions of rows that are kept back."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cli.main import run
from ridgeline.cost.rounding_loss import noise_ratio, resized_bytes
from ridgeline.errors import InputError
from ridgeline.plan.compression_front import compression_front
from ridgeline.records.compression import CompressionLedger

FORETOLD = ("w6a16-channel", "w4a16-channel", "w4a16-g32")


def shipped() -> list[CompressionLedger]:
    folder = Path("src/ridgeline/plan/library_compression")
    return [
        msgspec.json.decode(one.read_bytes(), type=CompressionLedger)
        for one in sorted(folder.glob("*.json"))
    ]


def test_every_shipped_row_is_a_point_and_the_best_are_beaten_by_none() -> None:
    found = compression_front()
    rows = {row.scheme: row for ledger in shipped() for row in ledger.rows}
    assert {one.scheme for one in found.points} == set(rows)
    for one in found.points:
        assert one.disk_bytes == rows[one.scheme].disk_bytes
        better = [
            other
            for other in found.points
            if other.disk_bytes <= one.disk_bytes
            and other.perplexity <= one.perplexity
            and other is not one
        ]
        assert one.best_for_its_size == (not better)


@pytest.mark.parametrize("scheme", FORETOLD)
def test_a_prediction_comes_near_the_measured_row_it_did_not_see(scheme: str) -> None:
    (one,) = compression_front(schemes=[scheme]).foretold
    assert one.measured is not None
    assert one.basis != scheme
    assert one.disk_bytes == pytest.approx(one.measured.disk_bytes, rel=0.12)
    assert one.kl_mean == pytest.approx(one.measured.kl_mean, rel=0.6)
    assert one.perplexity == pytest.approx(one.measured.perplexity, rel=0.03)


def test_the_smallest_allowed_is_within_what_may_be_lost() -> None:
    for most in (0.0005, 0.01, 0.1, 1.0):
        found = compression_front(most_rise=most)
        allowed = [one for one in found.points if one.rise <= most]
        smallest = min(allowed, key=lambda one: one.disk_bytes)
        assert found.smallest_allowed == smallest.scheme


def test_kinds_choose_what_is_shown_and_leave_predictions_alone() -> None:
    every = compression_front(schemes=FORETOLD)
    zeros = compression_front(schemes=FORETOLD, kinds=["zeros"])
    assert {one.kind for one in zeros.points} == {None, "zeros"}
    assert zeros.foretold == every.foretold


@given(known=st.integers(2, 16), asked=st.integers(2, 16), weights=st.floats(1.0, 1e12))
def test_bits_more_and_bits_less_lead_back(known: int, asked: int, weights: float) -> None:
    assert noise_ratio(known, asked) * noise_ratio(asked, known) == pytest.approx(1.0)
    assert (noise_ratio(known, asked) > 1.0) == (asked < known)
    there = resized_bytes(2.0 * weights, known, asked, weights)
    assert resized_bytes(there, asked, known, weights) == pytest.approx(2.0 * weights)


def test_ones_own_ledger_and_what_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = shipped()[0]
    own, other = tmp_path / "own.json", tmp_path / "other.json"
    own.write_bytes(msgspec.json.encode(ledger))
    assert run(["predict", "compression", str(own), "--scheme", "w7a16-rtn-tensor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["scheme"] for one in found["points"]] == [row.scheme for row in ledger.rows]
    assert "not foretold" in found["notes"][0]
    other.write_bytes(msgspec.json.encode(msgspec.structs.replace(ledger, model="another")))
    assert run(["predict", "compression", str(own), str(other)]) == 2
    assert "one model, text and context" in capsys.readouterr().err
    unjudged = msgspec.structs.replace(ledger, protocol=None)
    other.write_bytes(msgspec.json.encode(unjudged))
    assert run(["predict", "compression", str(other)]) == 2
    assert "nothing was judged" in capsys.readouterr().err
    assert run(["predict", "compression", "--kind", "sizes"]) == 2
    with pytest.raises(InputError, match="share"):
        compression_front(most_rise=float("nan"))
