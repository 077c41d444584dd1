"""Load a trace and ask six questions: Ridgeline, HolisticTraceAnalysis, bare parsing.

    python bench/trace_vs_peers.py TRACE.json.gz … [--tile 30]

Every way runs in a process of its own, one after the other, on one core where the system can pin.
CPU seconds are of load plus the six analyses, without imports; memory is the process's peak. The
six: busy and idle time, idle causes, kernels, overlap, launches with queue depth, steps (of HTA:
temporal and idle breakdown, kernel breakdown, overlap, launch statistics, queue length). `bare` is
gunzip plus msgspec's typed parse of the whole text with the eight fields that any analysis needs,
and no question asked. HTA is measured where RIDGELINE_HTA_PYTHON names a Python that has it
(pip install HolisticTraceAnalysis==0.5.0 pandas==2.2.3). `--tile N` repeats the first trace N times
end to end in a temporary folder: 30 makes a gigabyte of a trace of 35 MB. The last column is load
plus the critical path, which HTA is not asked for.
"""

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

BARE = """
import gzip, json, resource, sys, time
import msgspec

class Args(msgspec.Struct, gc=False):
    stream: int | str | None = None
    correlation: int | None = None

class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0
    dur: float = 0
    args: Args | None = None

class Document(msgspec.Struct):
    traceEvents: list[Event]

import gc
gc.disable()
start = time.process_time()
text = gzip.open(sys.argv[1]).read()
found = msgspec.json.decode(text, type=Document)
spent = time.process_time() - start
print(json.dumps([spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3]))
"""
OURS = """
import json, resource, sys, time
import ridgeline.trace.kineto
from ridgeline import load_traces
from ridgeline.trace.idle import idle_time
from ridgeline.trace.kernels import kernel_use
from ridgeline.trace.launch import launches
from ridgeline.trace.overlap import overlap
from ridgeline.trace.steps import step_times
from ridgeline.trace.summary import summarize
start = time.process_time()
(trace,) = load_traces(sys.argv[1])
loaded = time.process_time()
for question in (summarize, idle_time, kernel_use, overlap, launches, step_times):
    question(trace)
spent = time.process_time() - start
print(json.dumps([spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, loaded - start]))
"""
PATH = """
import json, resource, sys, time
from ridgeline import load_traces
from ridgeline.trace.critical_path import critical_path
start = time.process_time()
traces = load_traces(sys.argv[1])
critical_path(traces, {})
spent = time.process_time() - start
print(json.dumps([spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3]))
"""
HTA = """
import json, resource, sys, time, logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
start = time.process_time()
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
loaded = time.process_time()
failed = []
for question in (
    lambda: analysis.get_temporal_breakdown(visualize=False),
    lambda: analysis.get_idle_time_breakdown(ranks=[0], visualize=False),
    lambda: analysis.get_gpu_kernel_breakdown(visualize=False),
    lambda: analysis.get_comm_comp_overlap(visualize=False),
    lambda: analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False),
    lambda: analysis.get_queue_length_summary(ranks=[0]),
):
    try:
        question()
    except Exception as error:
        failed.append(type(error).__name__)
spent = time.process_time() - start
print(json.dumps([spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, loaded - start,
                  failed]))
"""


def measured(python: str, program: str, trace: Path, rounds: int) -> list:
    """The quickest of some rounds: seconds, megabytes, and what else the program tells."""
    results = []
    for _ in range(rounds):
        command = [python, "-c", program, str(trace)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return [float("nan"), float("nan"), done.stderr.strip().splitlines()[-1][:80]]
        results.append(json.loads(done.stdout.splitlines()[-1]))
    return min(results, key=lambda result: result[0])


def tiled(trace: Path, count: int, folder: Path) -> Path:
    """The trace `count` times end to end: later stamps, other correlations and step numbers."""
    opened = gzip.open if trace.suffix == ".gz" else open
    with opened(trace, "rb") as file:
        document = json.load(file)
    events = document.pop("traceEvents")
    timed = [event for event in events if "ts" in event]
    span = max(e["ts"] + e.get("dur", 0) for e in timed) - min(e["ts"] for e in timed) + 10
    out = folder / f"tiled_{count}.json.gz"
    with gzip.open(out, "wt", compresslevel=1) as file:
        file.write(json.dumps(document)[:-1] + ', "traceEvents": [\n')
        for number in range(count):
            parts = [json.dumps(moved(event, number, span)) for event in events]
            file.write(",\n".join(parts) + ("\n" if number == count - 1 else ",\n"))
        file.write("]}")
    return out


def moved(event: dict, number: int, span: float) -> dict:
    """The event in the number-th copy."""
    if "ts" not in event:
        return event
    event = {**event, "ts": event["ts"] + number * span}
    if "id" in event and isinstance(event["id"], int):
        event["id"] += number * 10_000_000
    args = event.get("args")
    if isinstance(args, dict) and isinstance(args.get("correlation"), int):
        event["args"] = {**args, "correlation": args["correlation"] + number * 10_000_000}
    name = event.get("name", "")
    if name.startswith("ProfilerStep#"):
        event["name"] = f"ProfilerStep#{int(name[13:]) + 1000 * number}"
    return event


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--tile", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    peer = os.environ.get("RIDGELINE_HTA_PYTHON")
    ask = "import numpy, msgspec; print(numpy.__version__, msgspec.__version__)"
    versions = subprocess.check_output([sys.executable, "-c", ask], text=True).split()
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, "
        f"numpy {versions[0]}, msgspec {versions[1]}"
    )
    headings = (
        "trace",
        "raw MB",
        "bare s, MB",
        "ours s, MB",
        "of bare",
        "HTA s, MB",
        "times",
        "memory",
        "critical path s",
    )
    print("| " + " | ".join(headings) + " |")
    print("|---" * len(headings) + "|")
    with tempfile.TemporaryDirectory() as folder:
        traces = (
            [tiled(options.traces[0], options.tile, Path(folder))]
            if options.tile
            else (options.traces)
        )
        for trace in traces:
            show(trace, peer, options.rounds)


def show(trace: Path, peer: str | None, rounds: int) -> None:
    with gzip.open(trace) as file:
        raw = sum(len(piece) for piece in iter(lambda: file.read(2**20), b""))
    ours = measured(sys.executable, OURS, trace, rounds)
    bare = measured(sys.executable, BARE, trace, rounds)
    path = measured(sys.executable, PATH, trace, 1)
    theirs = measured(peer, HTA, trace, 1) if peer else [float("nan")] * 2
    note = f" {theirs[-1]}" if isinstance(theirs[-1], str | list) and theirs[-1] else ""
    print(
        f"| {trace.name[:32]} | {raw / 1e6:.1f} | {bare[0]:.3f}, {bare[1]:.0f} "
        f"| {ours[0]:.3f}, {ours[1]:.0f} | {ours[0] / bare[0]:.2f} "
        f"| {theirs[0]:.2f}, {theirs[1]:.0f}{note} | {theirs[0] / ours[0]:.1f}× "
        f"| 1/{theirs[1] / ours[1]:.1f} | {path[0]:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
