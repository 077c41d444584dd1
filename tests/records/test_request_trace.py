"""Traces as they are published."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.records.request_trace import block_tokens, fitted, read_trace
from ridgeline.serve.loadtest.prompts import SyntheticPrompts

TRACES = Path(__file__).parents[3] / "shared/data/request_traces"
needs_traces = pytest.mark.skipif(not TRACES.exists(), reason="../shared/data is not here")


@needs_traces
def test_the_azure_trace_is_read_whole() -> None:
    rows = read_trace(TRACES / "azure2023_code.csv")
    assert len(rows) == 8_819
    assert rows[0].at_seconds == 0
    assert rows[-1].at_seconds == pytest.approx(3_436, abs=1)
    assert (rows[0].input_tokens, rows[0].output_tokens) == (4_808, 10)
    assert rows[1].at_seconds == pytest.approx(0.052, abs=1e-6)


@needs_traces
def test_the_mooncake_trace_keeps_its_prefix_ids() -> None:
    rows = read_trace(TRACES / "mooncake_conversation_head.jsonl")
    assert len(rows) == 7_933
    seen: set[tuple[int, int]] = set()
    hits = total = 0
    for row in rows:
        total += len(row.prefix_ids)
        for place, one in enumerate(row.prefix_ids):
            if (place, one) not in seen:
                break
            hits += 1
        seen |= set(enumerate(row.prefix_ids))
    assert hits / total == pytest.approx(0.350, abs=0.002), "as its README says"


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,12,x\n")
    with pytest.raises(InputError, match="line 2"):
        read_trace(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no column TIMESTAMP"):
        read_trace(path)
    path.write_text('{"timestamp": 1}\n')
    with pytest.raises(InputError, match="line 1"):
        read_trace(path)


def test_scaling_keeps_shared_prefixes_shared(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = '{"timestamp": 0, "input_length": 1500, "output_length": 10, "hash_ids": [%s]}'
    path.write_text("\n".join(row % ids for ids in ("4,5,6", "4,5,9")))
    first, second = fitted(read_trace(path), speed=1.0, length_scale=0.1, most=None)
    assert first.input_tokens == 150
    prompts = SyntheticPrompts(seed=1, token_ids=range(1000), block_tokens=block_tokens(0.1))
    one = prompts.make(first.input_tokens, first.prefix_ids, own_id=0)
    other = prompts.make(second.input_tokens, second.prefix_ids, own_id=1)
    assert len(one) == 150
    assert one[:102] == other[:102]
    assert one[102:] != other[102:]


def test_another_seed_is_new_to_every_cache() -> None:
    same = [SyntheticPrompts(seed=seed).make(40, [1], own_id=0) for seed in (1, 1, 2)]
    assert same[0] == same[1] != same[2]
