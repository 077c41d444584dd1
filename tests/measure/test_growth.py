"""Memory that steps leave behind: a leak is told from garbage that waits to be collected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.cli.main import run

pytestmark = pytest.mark.usefixtures("warm")
SCRIPT = str(Path(__file__).parent / "scripts" / "leaves_memory.py")


@pytest.mark.parametrize(("kind", "leaks"), [("list", True), ("cycle", False)])
def test_only_what_nobody_can_collect_is_a_leak(
    kind: str, leaks: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", "--steps", "10", "--budget", "30", "--json", "--", SCRIPT, kind]
    assert run(words) == 0
    document = json.loads(capsys.readouterr().out)
    causes = [finding["cause"] for finding in document["findings"]]
    assert ("memory-leak" in causes) is leaks
    grown = document["profile"]["memory_growth_bytes_per_step"]
    assert (grown > 900_000) is leaks
    assert document["profile"]["habits"].get("gc_collect") is None


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize(("kind", "leaks"), [("list", False), ("object", False), ("kept", True)])
def test_keys_that_the_model_is_given_again_are_no_leak(
    kind: str, leaks: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    script = str(Path(SCRIPT).with_name("grows_a_cache.py"))
    assert run(["doctor", "--steps", "10", "--budget", "30", "--json", "--", script, kind]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["profile"]["kind"] == "inference"
    assert ("memory-leak" in [finding["cause"] for finding in document["findings"]]) is leaks
