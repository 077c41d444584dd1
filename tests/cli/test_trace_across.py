"""Questions that span traces, from the command line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from tests.trace.test_compare import a_run
from tests.trace.test_critical_path import late_rank
from tests.trace.test_snapshot import Malicious, a_snapshot

from ridgeline.cli.main import run


@pytest.fixture
def ranks(tmp_path: Path) -> str:
    folder = tmp_path / "ranks"
    folder.mkdir()
    late_rank(folder, 0, 300)
    late_rank(folder, 1, 1000)
    return str(folder)


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.sweep(every=2)
@pytest.mark.parametrize("word", ["critical-path", "stragglers", "tree", "stack"])
def test_a_command_prints_one_document_or_a_table(
    ranks: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", word, ranks, "--json"]) == 0
    assert document(capsys)
    assert run(["trace", word, ranks]) == 0
    assert capsys.readouterr().out.strip()


def test_a_what_if_is_asked_in_percent(ranks: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trace", "critical-path", ranks, "--what-if", "gemm=50%", "--json"]
    assert run(words) == 0
    told = document(capsys)["what_if"]
    assert isinstance(told, dict)
    assert told["saved_us"] == pytest.approx(497.5)
    assert run(["trace", "critical-path", ranks, "--what-if", "gemm"]) == 2
    assert "gemm=20" in capsys.readouterr().err


def test_one_rank_has_no_stragglers(ranks: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "stragglers", f"{ranks}/rank0.json"]) == 2
    assert "two ranks or more" in capsys.readouterr().err


def test_compare_is_a_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path / "a.json")
    a_run(tmp_path / "b.json", slow=1.3, seed=2)
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    assert run(["trace", "compare", a, a]) == 0
    assert run(["trace", "compare", b, a]) == 0
    capsys.readouterr()
    assert run(["trace", "compare", a, b, "--json"]) == 3
    shown = capsys.readouterr()
    assert json.loads(shown.out)["ranks"][0]["verdict"] == "slower"
    assert "slower" in shown.err
    assert run(["trace", "compare", a, b, "--threshold", "0.5"]) == 0


def test_export_and_report_write_their_files(
    ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "out.json.gz", tmp_path / "page.html"
    assert run(["trace", "export", ranks, "--out", str(out), "--json"]) == 0
    assert document(capsys)["file"] == str(out)
    assert run(["trace", "summary", str(out)]) == 0, "what we export we also read"
    assert run(["trace", "report", ranks, "--html", str(page)]) == 0
    assert page.stat().st_size > 10_000
    nowhere = str(page / "x.json")
    assert run(["trace", "export", ranks, "--out", nowhere]) == 2
    assert nowhere in capsys.readouterr().err


@pytest.mark.slow
def test_the_doctor_reads_traces_or_runs_a_script(
    ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "verdict.json"
    assert run(["doctor", "--trace", ranks, "--json", "--out", str(out)]) == 0
    told = document(capsys)
    assert json.loads(out.read_text()) == told
    verdict = told["verdict"]
    assert isinstance(verdict, list)
    assert set(verdict[0]) >= {"cause", "share", "worth_us", "confidence", "evidence", "cure"}
    assert run(["doctor", "--trace", ranks]) == 0
    assert verdict[0]["cause"] in capsys.readouterr().out
    assert run(["doctor", "--trace", ranks, "--", "train.py"]) == 2
    assert "one or the other" in capsys.readouterr().err
    assert run(["doctor"]) == 2
    assert "--trace" in capsys.readouterr().err


def test_memory_reads_a_snapshot_and_refuses_a_hostile_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, mark = tmp_path / "good.pickle", tmp_path / "bad.pickle", tmp_path / "it-ran"
    good.write_bytes(pickle.dumps(a_snapshot()))
    bad.write_bytes(pickle.dumps({"segments": [], "x": Malicious(mark)}))
    assert run(["trace", "memory", str(good), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["snapshots"][0]["devices"][0]["peak_bytes"] > 0
    assert run(["trace", "memory", str(good)]) == 0
    assert "train.py:10 step" in capsys.readouterr().out
    renamed = good.rename(tmp_path / "told-by-its-content")
    assert run(["trace", "memory", str(renamed)]) == 0
    capsys.readouterr()
    assert run(["trace", "summary", str(renamed)]) == 2
    assert "ridgeline trace memory" in capsys.readouterr().err
    assert run(["trace", "memory", str(bad)]) == 2
    assert "could run code" in capsys.readouterr().err
    assert not mark.exists()


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize("words", [
    ["critical-path"], ["critical-path", "--what-if", "gemm=20"], ["stragglers"], ["tree"],
    ["stack", "--gpu"], ["compare", "--by", "kernel"], ["compare", "--by", "operator"],
    ["export", "--out", "OUT.json"], ["report", "--html", "OUT.html"],
])  # fmt: skip
def test_odd_published_traces_get_an_answer_or_one_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(__file__).parents[3] / "shared" / "data" / "traces" / "edge_cases"
    if not folder.exists():
        pytest.skip("needs the shared traces")
    word, *options = [part.replace("OUT", str(tmp_path / "out")) for part in words]
    for path in sorted(folder.glob("*.json.gz")):
        files = [str(path)] * (2 if word == "compare" else 1)
        code = run(["trace", word, *files, *options])
        shown = capsys.readouterr()
        assert code in (0, 2), path
        if code == 2:
            told = [line for line in shown.err.splitlines() if line.startswith("ridgeline: ")]
            assert len(told) == 1, path
