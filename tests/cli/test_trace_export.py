"""`ridgeline trace export`: what was recorded is kept, and is read back as it was."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tests.trace.conftest import real_traces  # noqa: F401 - a fixture
from tests.trace.test_compare import a_run
from tests.trace.test_critical_path import late_rank
from tests.trace.written import call, host, kernel, write

from ridgeline.cli.main import run
from ridgeline.trace.critical_path.path import path_pieces
from ridgeline.trace.formats.ridgeline_export import HEADER
from ridgeline.trace.load import load_traces
from ridgeline.trace.pictures.export import export_chrome
from ridgeline.trace.pictures.tracks import rank_tracks

FEW = (
    "h100_inference/gaunernst_bert-small-uncased__1016001.json.gz",
    "mi300x_ddp/resnet_act_checkpoint.json.gz",
    "edge_cases/cpu_only_rank34.pt.trace.json.gz",
    "nsys_2gpu/mfu_2gpu_after.sqlite",
    "v100_dlrm_8rank_nccl",
)


def export(capsys: pytest.CaptureFixture[str], *files: str | Path, out: Path) -> dict[str, Any]:
    words = ["trace", "export", *map(str, files), "--out", str(out), "--json"]
    assert run(words) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def events_of(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    document = json.loads(text)
    found: list[dict[str, Any]] = (
        document["traceEvents"] if isinstance(document, dict) else document
    )
    return found


def recorded(path: Path) -> list[dict[str, Any]]:
    """The events of an export that a profiler wrote."""
    events = events_of(path)
    marks = [n for n, event in enumerate(events) if str(event["name"]).startswith("ridgeline_")]
    return [event for n, event in enumerate(events[: marks[-1]]) if n not in marks]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a question is answered, without the names of files."""

    def nameless(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: nameless(item) for key, item in value.items() if key != "file"}
        return [nameless(item) for item in value] if isinstance(value, list) else value

    assert run(["trace", *words, "--json"]) == 0
    return nameless(json.loads(capsys.readouterr().out))


def compare_answers(folder: Path, name: str, out: Path, capsys: Any) -> None:
    export(capsys, folder / name, out=out)
    given = answer(capsys, "summary", str(folder / name))
    told = answer(capsys, "summary", str(out))
    if not name.endswith("sqlite"):  # whose stamps have another unit
        assert told == given
    for one, other in zip(told["ranks"], given["ranks"], strict=True):
        assert figures(one) == pytest.approx(figures(other), abs=0.002)
        assert one["warnings"] == other["warnings"]


def figures(rank: dict[str, Any]) -> dict[str, Any]:
    """What a rank's summary says, without lists and with the parts of its idle time beside it."""
    plain = {key: value for key, value in rank.items() if not isinstance(value, list | dict)}
    return {**plain, **rank["idle_by"]}


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("name", FEW)
def test_the_summary_of_an_export_is_that_of_the_original(
    name: str,
    real_traces: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compare_answers(real_traces, name, tmp_path / "out.json", capsys)


@pytest.mark.slow
def test_the_summary_of_every_export_is_that_of_its_original(
    real_traces: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for path in sorted([*real_traces.rglob("*.json.gz"), *real_traces.rglob("*.sqlite")]):
        compare_answers(path.parent, path.name, tmp_path / "out.json.gz", capsys)


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    folder = tmp_path / "ranks"
    folder.mkdir()
    late_rank(folder, 0, 300)
    late_rank(folder, 1, 1000)
    return folder


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_every_event_stays_as_it_was_recorded(
    name: str, ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = ranks / "rank0.json", tmp_path / name
    told = export(capsys, given, out=out)
    assert recorded(out) == events_of(given)
    drawn = events_of(out)[len(events_of(given)) + 3 :]
    assert told["events"] == len(events_of(given)) + len(drawn)
    assert {event["name"] for event in drawn if event["ph"] == "C"} >= {
        "GPU busy %", "communication %", "queue depth",
    }  # fmt: skip
    slices = [event for event in drawn if event["ph"] == "X"]
    pieces = path_pieces(load_traces(given))
    assert [event["name"] for event in slices] == [piece.name for piece in pieces]
    assert sum(event["dur"] for event in slices) == pytest.approx(
        sum(piece.duration_us for piece in pieces), abs=0.01
    )
    assert not any("cat" in event for event in slices), "they would count as somebody's work"
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")]


def test_arrows_of_the_path_end_on_tracks_that_were_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        a_run(tmp_path / f"rank{rank}.json", seed=rank)
    told = export(capsys, *sorted(tmp_path.glob("rank*")), out=tmp_path / "out.json")
    events = events_of(tmp_path / "out.json")
    tracks = {(e["pid"], e["tid"]) for e in recorded(tmp_path / "out.json") if e["ph"] == "X"}
    ends = [e for e in events if e["name"] == "critical path" and e["ph"] in "sf"]
    assert len(ends) == 2 * told["flows"] > 0
    assert {(e["pid"], e["tid"]) for e in ends} <= tracks


@pytest.mark.slow
def test_ranks_in_one_file_are_apart_and_are_found_again(
    ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    export(capsys, ranks, out=out)
    for words in (["summary"], ["stragglers"], ["critical-path"], ["kernels"]):
        told, given = answer(capsys, *words, str(out)), answer(capsys, *words, str(ranks))
        assert told.pop("files", None) is None or given.pop("files")
        assert told == given
    per_rank = [events_of(ranks / f"rank{rank}.json") for rank in (0, 1)]
    found = recorded(out)
    assert len(found) == sum(map(len, per_rank))
    first, second = found[: len(per_rank[0])], found[len(per_rank[0]) :]
    assert first == per_rank[0]
    assert not {e["pid"] for e in first} & {e["pid"] for e in second}
    numbers = {e["id"] for e in first if e["ph"] in "stf"}
    assert not numbers & {e["id"] for e in second if e["ph"] in "stf"}


def test_ranks_of_different_clocks_are_on_the_first_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, clock in enumerate((0.0, 90000.125)):
        write(tmp_path / f"rank{rank}.json", [
            kernel(clock + 1000 * n, 100, name="ncclDevKernel_AllReduce") for n in range(1, 6)
        ])  # fmt: skip
    out = tmp_path / "out.json"
    export(capsys, tmp_path / "rank0.json", tmp_path / "rank1.json", out=out)
    stamps = [float(event["ts"]) for event in recorded(out)]
    assert stamps[:5] == stamps[5:]


def test_an_export_of_an_export_is_the_same(
    ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once, twice = tmp_path / "once.json", tmp_path / "twice.json"
    for given in (ranks / "rank1.json", ranks):
        export(capsys, given, out=once)
        export(capsys, once, out=twice)
        assert recorded(twice) == recorded(once)
        assert len(events_of(twice)) == len(events_of(once))


WHOLE = json.dumps({
    "schemaVersion": 1, "distributedInfo": {"rank": 3},
    "traceEvents": [
        call(1, 2, 5), kernel(10, 20, correlation=5), host(0, 40, 'aten::mm {"} , {"ph":'),
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
    ],
    "deviceProperties": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}],
})  # fmt: skip
ODD = {
    "bare array": json.dumps(json.loads(WHOLE)["traceEvents"]).encode(),
    "indented": json.dumps(json.loads(WHOLE), indent=2).encode(),
    "not a number": WHOLE.replace('"dur": 20', '"dur": 20, "x": NaN').encode(),
    "cut short": WHOLE[:-140].encode(),
    "cut in the packing": gzip.compress(WHOLE.encode())[:-20],
    "not UTF-8": WHOLE.replace("aten::mm", "at\udcffen").encode("utf-8", "surrogateescape"),
    "byte order mark": b"\xef\xbb\xbf" + WHOLE.encode(),
    "no event of ours": WHOLE.replace('"ph": "M"', '"ph": "Q"').encode(),
    "something that is no event": WHOLE.replace('"traceEvents": [', '"traceEvents": [7, ').encode(),
    "rubbish behind": WHOLE.encode() + b"\n{",
}


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("way", ODD)
@pytest.mark.parametrize("several", [False, True])
def test_what_is_written_is_json_whatever_was_read(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, several: bool
) -> None:
    given, out = tmp_path / "odd.json", tmp_path / "out.json"
    given.write_bytes(ODD[way])
    export(capsys, *[given, write(tmp_path / "b.json", [kernel(1, 2)])][: 1 + several], out=out)
    json.loads(out.read_bytes().decode())
    told, whole = (answer(capsys, "kernels", str(path)) for path in (out, given))
    assert told["ranks"][0]["kernels"] == whole["ranks"][0]["kernels"]
    assert whole["ranks"][0]["kernels"]


def test_devices_are_known_that_stand_behind_the_events(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(WHOLE)
    (trace,) = load_traces(tmp_path / "t.json")
    assert [device.name for device in trace.devices] == ["A", "B"]
    assert not trace.warnings


@pytest.mark.slow
def test_an_export_among_the_ranks_is_no_rank(
    ranks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("all.json", "packed.json.gz"):
        export(capsys, ranks, out=ranks / name)
    assert (ranks / "all.json").read_bytes().startswith(HEADER)
    for given in (ranks, ranks / "*"):
        assert run(["trace", "summary", str(given), "--json"]) == 0
        out, err = capsys.readouterr()
        assert [rank["rank"] for rank in json.loads(out)["ranks"]] == [0, 1]
        assert err.count("left out: it is an export") == 2
    assert run(["trace", "summary", str(ranks / "all.json"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["ranks"]) == 2
    with pytest.warns(UserWarning, match=r"left out: it is an export") as said:
        assert len(load_traces(ranks)) == 2
    assert len(said) == 2


def test_a_folder_of_nothing_but_exports_asks_for_a_name(
    ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "only").mkdir()
    export(capsys, ranks, out=tmp_path / "only" / "all.json")
    assert run(["trace", "summary", str(tmp_path / "only")]) == 2
    assert "nothing but exports" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_memory_does_not_grow_with_the_events_that_are_copied(
    tmp_path: Path, *, several: bool
) -> None:
    events = [host(n, 1, "aten::op", note="x" * 400) for n in range(50_000)]
    paths = [write(tmp_path / f"rank{n}.json", [kernel(1, 2), *events]) for n in range(2)]
    size = paths[0].stat().st_size
    assert size > 20e6
    files = paths[: 1 + several]
    tracks = [rank_tracks(trace) for trace in load_traces(files)]
    tracemalloc.start()
    export_chrome(files, tracks, tmp_path / "out.json")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size / 2
