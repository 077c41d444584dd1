"""`ridgeline loadtest` at the rim."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.cli.main import run

URL = "http://127.0.0.1:9"


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["127.0.0.1:8000"], "scheme"),
        ([URL, "--arrivals", "sometimes"], "not one of 'closed'"),
        ([URL, "--api", "images"], "'completions', 'chat'"),
        ([URL, "--rate", "0"], "--rate 0.0: has to be a number above 0"),
        ([URL, "--rate", "nan"], "--rate"),
        ([URL, "--arrivals", "ramp"], "--to-rate"),
        ([URL, "--arrivals", "ramp", "--to-rate", "9", "--requests", "5"], "--seconds"),
        ([URL, "--to-rate", "5"], "ramp"),
        ([URL, "--arrivals", "trace"], "--trace FILE"),
        ([URL, "--trace", "none.csv"], "none.csv"),
        ([URL, "--sweep", "--arrivals", "closed"], "--sweep"),
        ([URL, "--warmup", "60"], "--warmup"),
        ([URL, "--token-ids", "5"], "LOW:HIGH"),
        ([URL, "--token-ids", "9:5"], "--token-ids 9:5"),
        ([URL, "--token-ids", "1:5", "--api", "chat"], "text only"),
    ],
)
def test_what_cannot_be_run_is_one_line_that_names_the_flag(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["loadtest", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_a_missing_client_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(["loadtest", URL]) == 2
    assert "pip install 'ridgeline[serve]'" in capsys.readouterr().err


def test_the_page_is_written_even_as_json_goes_to_stdout(
    start: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    url = start(ttft_seconds=0.01)
    flags = ["--requests", "5", "--rate", "50", "--output-tokens", "3", "--max-send-lag", "60"]
    assert run(["loadtest", url, *flags, "--html", str(page), "--json"]) == 0
    assert capsys.readouterr().out.startswith("{")
    assert "Definitions" in page.read_text()
