"""Nsight Systems exports: whole commands of Ridgeline and of nsys-ai, and whose figures are exact.

    RIDGELINE_NSYS_AI=…/bin/nsys-ai python bench/nsight_vs_peers.py [FILE.sqlite …] [--rounds 5]

Every question is a command of its own, from its start to its end, ways taking turns: wall seconds
and the process's peak memory. nsys-ai keeps a cache of Parquet files beside the trace: `first` is
without it, `again` with it; Ridgeline keeps nothing. Each works on a copy in a temporary folder.
Ratios are nsys-ai's time over ours (Hodges-Lehmann estimate over the rounds, Wilcoxon interval).
Installed with: pip install nsys-ai==0.3.0 duckdb==1.5.5 duckdb-extension-sqlite-scanner==1.5.5
duckdb-extensions, and once in its Python: import duckdb_extensions;
duckdb_extensions.import_extension("sqlite_scanner"). Without that extension nsys-ai tries to
download it in every command.

The second table holds the times of each GPU as both tell them, and the exact ones where
`notes/nsys_reference.json` lies beside the shared traces.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ridgeline.measure.statistics.intervals import ratio_interval

SHARED = Path(__file__).parents[2] / "shared"
RIDGELINE = "import sys; from ridgeline.cli.main import run; sys.exit(run(sys.argv[1:]))"
QUESTIONS = {
    "summary": ["summary"],
    "kernels": ["skill", "run", "top_kernels"],
    "overlap": ["skill", "run", "overlap_breakdown"],
    "communication": ["skill", "run", "nccl_breakdown"],
    "idle": ["skill", "run", "gpu_idle_gaps"],
}
"""Question of `ridgeline trace` → the nearest one of nsys-ai."""


def timed(command: list[str]) -> tuple[float, float]:
    """Wall seconds and peak megabytes of a command."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        output.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}: {output.read()[-300:].decode()}")
    return seconds, usage.ru_maxrss / 1e3


def theirs(peer: str, question: list[str], trace: Path) -> list[str]:
    return [peer, *question, str(trace), *(["--format", "json"] if "skill" in question else [])]


def ours(question: str, trace: Path) -> list[str]:
    return [sys.executable, "-c", RIDGELINE, "trace", question, str(trace), "--json"]


def show_times(trace: Path, peer: str | None, rounds: int) -> None:
    for question, asked in QUESTIONS.items():
        found: dict[str, list[tuple[float, float]]] = {"ours": [], "first": [], "again": []}
        for number in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(shutil.copy(trace, folder))
                turns = ["ours", "theirs"] if number % 2 else ["theirs", "ours"]
                for turn in turns:
                    if turn == "ours":
                        found["ours"].append(timed(ours(question, copy)))
                    elif peer:
                        found["first"].append(timed(theirs(peer, asked, copy)))
                        found["again"].append(timed(theirs(peer, asked, copy)))
        cells = [trace.stem, question]
        for results in (results for results in found.values() if results):
            seconds, megabytes = sorted(results)[len(results) // 2]
            cells.append(f"{seconds:.2f} s, {megabytes:.0f} MB")
        mine = [seconds for seconds, _ in found["ours"]]
        for way in ("first", "again") if peer else ():
            ratio = ratio_interval([seconds for seconds, _ in found[way]], mine)
            cells.append(f"{ratio.ratio:.1f} ({ratio.low:.1f} – {ratio.high:.1f})")
        print("| " + " | ".join(cells) + " |", flush=True)


def figures_of_peer(peer: str, trace: Path) -> dict[int, dict[str, float]]:
    """What nsys-ai says of each GPU, in milliseconds."""
    found: dict[int, dict[str, float]] = {}
    for words in (
        ["overlap_breakdown", "0"],
        ["overlap_breakdown", "1"],
        ["pipeline_bubble_metrics"],
    ):
        command = theirs(peer, ["skill", "run", words[0]], trace)
        command += ["-p", f"device={words[1]}"] if len(words) > 1 else []
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        for row in json.loads(done.stdout[done.stdout.index("[") :]):
            number = row.get("device_id", row.get("deviceId"))
            found.setdefault(number, {}).update(row)
    return found


def show_figures(trace: Path, peer: str | None) -> None:
    told = subprocess.check_output(ours("summary", trace), text=True)
    exact = {}
    reference = SHARED / "notes" / "nsys_reference.json"
    if reference.exists():
        for one in json.loads(reference.read_text())["files"]:
            if one["file"] == trace.name:
                exact = one["devices"]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(trace, folder))
        peers = figures_of_peer(peer, copy) if peer else {}
    for rank in json.loads(told)["ranks"]:
        known, other = exact.get(str(rank["device"]), {}), peers.get(rank["device"], {})
        for name, own, truth, keys in (
            ("window", "window_us", "span_ms", ("total_span_ms", "total_ms")),
            ("busy", "busy_us", "busy_ms", ("active_ms",)),
            ("idle", "idle_us", "idle_ms", ("bubble_ms", "idle_ms")),
            ("compute", "compute_us", "compute_ms", ("compute_only_ms",)),
            ("communication", "communication_us", "comm_ms", ("nccl_only_ms",)),
        ):
            said = " / ".join(f"{other[key]:.2f}" for key in keys if key in other)
            true = f"{known[truth]:.3f}" if truth in known else ""
            cells = (trace.stem, str(rank["device"]), name, true, f"{rank[own] / 1e3:.3f}", said)
            print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    here = sorted((SHARED / "data" / "traces" / "nsys_2gpu").glob("*.sqlite"))
    traces = options.traces or here
    if not traces:
        print("no export was named, and the shared ones are not here: nothing to measure")
        return
    peer = os.environ.get("RIDGELINE_NSYS_AI")
    headings = ["trace", "question", "ours"]
    if peer:
        headings += ["nsys-ai first", "nsys-ai again", "first / ours", "again / ours"]
    print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|")
    for trace in traces:
        show_times(trace, peer, options.rounds)
    headings = ["trace", "GPU", "ms", "exact", "ours", "nsys-ai (bubbles / overlap)"]
    print("\n| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|")
    for trace in traces:
        show_figures(trace, peer)


if __name__ == "__main__":
    main()
