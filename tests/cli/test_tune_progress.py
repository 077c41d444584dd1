"""What is seen of a tune while it works, on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tests.diagnose.profiles import profile

from ridgeline.cli import tune_progress
from ridgeline.cli.tune_progress import watching
from ridgeline.records import Ledger, LedgerRow


def row() -> LedgerRow:
    return LedgerRow(
        technique="fused-optimizer",
        multiplier=1.25,
        ci_low=1.2,
        ci_high=1.3,
        cumulative=1.25,
        step_seconds=0.8,
        baseline_step_seconds=1.0,
        peak_memory_bytes=0,
        verified=True,
        verification="rounding: fine",
        kept=True,
        reason="kept, 1.250×",
        rounds=5,
    )


def ledger() -> Ledger:
    return Ledger(
        baseline=profile(),
        tuned=None,
        rows=[row()],
        cumulative=1.25,
        cumulative_ci=(1.2, 1.3),
        loss_check=None,
        findings=[],
        stack=None,
        report=None,
        patch=None,
        environment=profile().environment,
        complete=False,
        stack_rows=["fused-optimizer"],
    )


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    shown = io.StringIO()
    monkeypatch.setattr(
        tune_progress,
        "Console",
        lambda stderr: Console(file=shown, force_terminal=True, width=100),
    )
    return shown


def test_on_a_terminal_rows_come_as_they_are_proved_with_the_time_left(
    screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_progress, "monotonic", lambda: 1060.0)
    with watching(1000.0, 900.0) as (say, show):
        show(ledger())
        say("trying [compile]")
    seen = screen.getvalue()
    assert "fused-optimizer" in seen
    assert "1.25×" in seen
    assert "trying [compile]" in seen, "a bracket stays a bracket"
    assert "at most 14m left" in seen


def test_in_a_pipe_each_word_is_a_line_with_the_time_since_the_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_progress, "monotonic", lambda: 1075.0)
    with watching(1000.0, 900.0) as (say, show):
        say("trying compile")
        show(ledger())
    assert capsys.readouterr().err == "  75 s  trying compile\n"
