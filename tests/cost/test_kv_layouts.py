"""The layouts of the KV cache by formula, beside what the caches that serve really hold."""

from __future__ import annotations

import json

import pytest

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.sequence import Request, Sequence
from ridgeline.cli.main import run
from ridgeline.cost.serving.kv_layouts import compare_kv_layouts

LENGTHS = (1, 16, 17, 130, 999)


@pytest.mark.parametrize("layout", ["contiguous", "paged"])
def test_what_is_held_is_what_the_cache_gives(layout: str) -> None:
    cache = BlockCache(1000, 16, layout=layout, max_length=1024)
    for length in LENGTHS:
        request = Request(id="a", prompt=(length,) * length, max_tokens=1, arrival=0.0)
        assert cache.admit(Sequence(request=request, tokens=list(request.prompt)), [])
    found = compare_kv_layouts(LENGTHS, max_length=1024)
    (row,) = (one for one in found.layouts if one.layout == layout)
    assert row.held_bytes == (1000 - cache.num_free) * 16
    assert row.wasted == pytest.approx(1.0 - sum(LENGTHS) / row.held_bytes)


def test_the_command_puts_all_layouts_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["calc", "kv-layouts", "lengths=100,500", "max_length=1024", "bytes_per_token=64"]
    assert run([*words, "--json"]) == 0
    rows = {row["layout"]: row for row in json.loads(capsys.readouterr().out)["result"]["layouts"]}
    # Tokens held and read, by hand: 2·1024; 2·500 held and read; 2·500 held; 7·16 + 32·16.
    assert [rows[name]["held_bytes"] / 64 for name in rows] == [2048, 1000, 1000, 624]
    assert [rows[name]["read_bytes"] / 64 for name in rows] == [600, 1000, 600, 600]
    assert [rows[name]["pieces"] for name in rows] == [2, 1, 600, 39]
    assert run(words) == 0
    shown = capsys.readouterr().out
    assert all(layout in shown for layout in rows)
    assert run(["calc", "kv-layouts", "lengths=100,5000", "max_length=1024"]) == 2
    assert "a sequence has 5000 tokens" in " ".join(capsys.readouterr().err.split())
