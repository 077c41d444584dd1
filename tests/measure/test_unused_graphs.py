"""Lines that record graphs for nobody are told from those whose graphs somebody uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.measure.live.conductor import Conductor
from ridgeline.measure.wire import Session
from ridgeline.records import UnusedGraph

pytestmark = pytest.mark.usefixtures("warm")
SCRIPT = Path(__file__).parent / "scripts" / "graphs_for_nobody.py"


def seen(*words: str) -> dict[str, UnusedGraph]:
    """What stands on each line that was told, without its comment → what was told."""
    with Conductor([str(SCRIPT), *words], Session()) as run:
        run.steps(3)
        found = run.steps(3, "operators")[0].unused_graphs
    text = SCRIPT.read_text().splitlines()
    return {text[one.site.line - 1].partition("  #")[0].strip(): one for one in found}


def test_lines_whose_every_graph_is_of_no_use_are_told_and_no_others() -> None:
    found = seen()
    assert set(found) == {
        "action = model(x).argmax(1)", "wanted = target(x)", "made = maker(x).detach()",
    }  # fmt: skip
    assert [line for line, one in found.items() if one.in_backward] == ["wanted = target(x)"]
    assert {one.calls for one in found.values()} == {1.0}
    assert 0.1 < sum(one.forward_share for one in found.values()) < 0.6


def test_gradients_that_a_script_asks_for_may_be_of_weights_that_no_optimizer_steps() -> None:
    assert set(seen("asks")) == {"action = model(x).argmax(1)", "made = maker(x).detach()"}
