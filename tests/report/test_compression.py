"""The ledger of a compression, in the terminal and as a page."""

from __future__ import annotations

import math

from tests.report.drawn import drawn

from ridgeline.compress.evaluate.judge import with_speed
from ridgeline.records.compression import (
    Attempt,
    ChannelOutliers,
    Chosen,
    CompressionLedger,
    CompressionRow,
    Decoding,
    Divergence,
    LayerLoss,
    Protocol,
    Quality,
    Search,
    Zeros,
)
from ridgeline.records.measurement import Environment
from ridgeline.report.page import draw_page
from ridgeline.report.views.compress import (
    compression_document,
    front,
    size_figure,
    speed_figure,
)

ENVIRONMENT = Environment(
    command=["ridgeline"], cwd="/", date="2026-11-22", host_cpu="cpu", cpu_count=2, device="cpu",
    python="3.11", torch="2.13", ridgeline="0.1",
)  # fmt: skip
PROTOCOL = Protocol(
    text="held.txt", context=256, stride=128, bos=True, tokens=1000, scored=999, words=400,
    bytes=3000,
)  # fmt: skip


def quality(perplexity: float) -> Quality:
    return Quality(
        loss=math.log(perplexity), perplexity=perplexity, word_perplexity=90.0, bits_per_byte=1.2,
        accuracy=0.5,
    )  # fmt: skip


def decoding(milliseconds: float, read: int) -> Decoding:
    steps = tuple(milliseconds * 1e-3 * (1 + 0.01 * place) for place in range(8))
    return Decoding(
        tokens_per_second=1e3 / milliseconds, step_seconds=steps, held_bytes=read,
        read_bytes=read, machine_bytes_per_second=1e10, dtype="bfloat16", device="cpu", threads=2,
        batch=1, context=64,
    )  # fmt: skip


def row(scheme: str, size: int, perplexity: float) -> CompressionRow:
    kl = Divergence(kl_mean=0.01, kl_p99=0.1, agreement=0.97)
    sparse = scheme.startswith("2:4")
    zeros = Zeros(
        parameters=1000, zeros=300 * sparse, matrix_weights=600, matrix_zeros=300 * sparse,
        matrices=7, two_of_four=7 * sparse,
    )  # fmt: skip
    outlier = ChannelOutliers(layer="a.c", channels=(3, 8), ratios=(40.0, 12.0), levels_left=3.17)
    return CompressionRow(
        scheme=scheme, disk_bytes=size, quality=quality(perplexity), divergence=kl, zeros=zeros,
        outliers=(outlier,) if sparse else (),
    )  # fmt: skip


def ledger() -> CompressionLedger:
    rows = with_speed(
        [
            row("as given", 4_000_000, 10.0),
            row("2:4-wanda", 4_000_000, 12.0),
            row("w4a16", 1_000_000, 12.5),
            row("nvfp4", 900_000, 13.0),
        ],
        [decoding(4, 40_000_000), decoding(4, 40_000_000), decoding(2, 10_000_000), "unknown"],
    )
    return CompressionLedger(
        model="model", protocol=PROTOCOL, rows=tuple(rows), allowed="ppl+1%",
        refused="perplexity 10 → 13", sensitive=(LayerLoss(layer="a.b", scheme="w4a16", kl=0.5),),
        search=Search(
            target="ppl+1%", aim="size", candidates=("w4a16",), sensitivities=(),
            attempts=(Attempt(predicted_kl=0.1, kl=0.2, loss=2.0, cost=1e6, allowed=False),),
            chosen=(Chosen(layer="a.b", scheme="w4a16", kl=0.5, cost=1e6),),
        ),
        environment=ENVIRONMENT,
    )  # fmt: skip


def test_a_row_is_told_against_the_one_above_and_why_it_is_not_faster() -> None:
    given, sparse, four, other = ledger().rows
    assert (given.speedup, given.remark) == (None, "")
    assert "runs it as dense" in sparse.remark
    assert four.speedup is not None
    assert four.speedup.faster
    assert four.remark == ""
    assert other.remark == "speed not measured: unknown"


def test_the_terminal_shows_rows_refusal_and_protocol() -> None:
    said = drawn(compression_document(ledger()), 160)
    for part in ("2:4-wanda", "+20.00 %", "4.00×", "context 256, stride 128, begins with BOS",
                 "nothing was saved", "a.b (KL 0.500)", "too much", "50.0 %",
                 "2:4-wanda: 2:4 in 7 of 7 matrices; 30.0 % of all parameters"):  # fmt: skip
        assert part in said
    said = " ".join(said.split())
    assert "1 layer has outlier channels; worst a.c, channel 3: 40.0× the median" in said
    assert "leaves 3.17 of int8's 127 levels" in said


def test_the_page_draws_both_fronts() -> None:
    found = ledger()
    size, speed = size_figure(found), speed_figure(found)
    assert size is not None
    assert size["data"][0]["x"] == [0.9, 1.0, 4.0]
    assert speed is not None
    assert len(speed["data"][1]["x"]) == 3
    page = draw_page(compression_document(found))
    assert 'id="plot-size"' in page
    assert 'id="plot-layers"' in page


def test_a_front_leaves_out_what_another_beats_in_both() -> None:
    points = [(4.0, 10.0), (5.0, 11.0), (1.0, 12.0), (1.0, 11.5)]
    assert front(points, more=False) == [3, 0]
    assert front(points, more=True) == [0, 1]
