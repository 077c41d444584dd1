"""Decoding through `torch.compile`: the same tokens, for every number of sequences."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.serve.engine.workloads import answers, finished, greedy, tiny_engine, write_tiny_llama


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_decoding_gives_the_same_greedy_tokens(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    found = []
    for compiled in (False, True):
        engine = tiny_engine(folder, compiled=compiled, max_sequences=3, max_length=64)
        # They end one after another, so batches of three, two and one are decoded.
        for place, count in enumerate((6, 12, 18)):
            engine.handle(greedy(str(place), list(range(3, 9 + place)), count))
        found.append(answers(finished(engine)))
    assert found[0] == found[1]
    rows = {row.what: row.bytes for row in engine.ready.ledger.rows}
    assert rows["graphs"] > 0
