"""Load traces and ask: Ridgeline, HolisticTraceAnalysis, bare parsing; one trace, or many ranks.

    python bench/trace_vs_peers.py [TRACE.json.gz …] [--tile 30] [--rounds 5]
    python bench/trace_vs_peers.py --path [TRACE.json.gz …]
    python bench/trace_vs_peers.py --ranks 8 [TRACE.json.gz]
    python bench/trace_vs_peers.py --memory [TRACE.json.gz …] [--tile 31] [--rounds 1]

Every way runs in a process of its own, one after the other, ways taking turns; seconds are without
imports, memory is the process's peak. Without traces, those of the shared data are taken.

1. One core where the system can pin, CPU seconds of load plus the six analyses: busy and idle time,
   idle causes, kernels, overlap, launches with queue depth, steps (of HTA: temporal and idle
   breakdown, kernel breakdown, overlap, launch statistics, queue length). `bare` is gunzip plus
   msgspec's typed parse of the whole text with the eight fields that any analysis needs, and no
   question asked. `--tile N` repeats the first trace N times end to end: 30 makes a gigabyte of a
   trace of 35 MB.
2. `--path`: wall seconds of load, the six and the critical path. HTA is asked for the second
   profiler step, as its manual says, and for the whole trace; Ridgeline always takes the path of
   the whole trace.
3. `--ranks N`: wall seconds for N copies of the first trace as N ranks, on all cores: HTA's own
   pool of processes against ours, load and the six. Memory is of the largest process.
4. `--memory`: every question of `ridgeline trace` as a whole command, imports and all: wall and
   CPU seconds, and peak memory, also as a share of the trace's uncompressed size.

Ratios are HTA's time over ours: Hodges-Lehmann estimate over the rounds with its Wilcoxon interval.
HTA is measured where RIDGELINE_HTA_PYTHON names a Python that has it
(pip install HolisticTraceAnalysis==0.5.0 pandas==2.2.3).
"""

import argparse
import gzip
import json
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from ridgeline.measure.statistics.intervals import ratio_interval

SHARED = Path(__file__).parents[2] / "shared" / "data" / "traces"
DEFAULTS = (
    "ddp_compare/a100_8rank_rank3.control.json.gz",
    "h100_inference/google_owlv2-large-patch14-ensemble__1016001.json.gz",
    "v100_resnet50_dataloader/num_workers_0.pt.trace.json.gz",
)
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
print(json.dumps({"cpu": spent, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}))
"""
REPORT = """
usage = [resource.getrusage(who).ru_maxrss / 1e3
         for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall,
                  "mb": max(usage), "failed": failed}))
"""
OURS = (
    """
import json, resource, sys, time
import ridgeline.trace.formats.kineto
from ridgeline.trace.critical_path.path import critical_path
from ridgeline.trace.time.idle import idle_time
from ridgeline.trace.time.kernels import kernel_use
from ridgeline.trace.time.launch import launches
from ridgeline.trace.load import for_each_rank, trace_files
from ridgeline.trace.communication.overlap import overlap
from ridgeline.trace.time.steps import step_times
from ridgeline.trace.time.summary import summarize
def asked(trace):
    questions = (summarize, idle_time, kernel_use, overlap, launches, step_times)
    found = [question(trace) for question in questions]
    return found + [critical_path([trace], {})] if "path" in sys.argv[2] else found
failed = []
cpu, wall = time.process_time(), time.perf_counter()
answers = list(for_each_rank(trace_files([sys.argv[1]]), asked))
"""
    + REPORT
)
HTA = (
    """
import json, resource, sys, time, logging
logging.disable(logging.CRITICAL)
from pathlib import Path
from hta.trace_analysis import TraceAnalysis
import hta.analyzers.critical_path_analysis
place, what = Path(sys.argv[1]), sys.argv[2]
cpu, wall = time.process_time(), time.perf_counter()
if place.is_dir():
    analysis = TraceAnalysis(trace_dir=str(place))
else:
    analysis = TraceAnalysis(trace_files={0: str(place)}, trace_dir="/")
ranks = sorted(analysis.t.traces)
questions = [
    lambda: analysis.get_temporal_breakdown(visualize=False),
    lambda: analysis.get_idle_time_breakdown(ranks=ranks, visualize=False),
    lambda: analysis.get_gpu_kernel_breakdown(visualize=False),
    lambda: analysis.get_comm_comp_overlap(visualize=False),
    lambda: analysis.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False),
    lambda: analysis.get_queue_length_summary(ranks=ranks),
]
def path():
    annotation = "ProfilerStep" if what == "path step" else ""
    if not analysis.critical_path_analysis(rank=0, annotation=annotation, instance_id=1)[1]:
        raise ValueError
if "path" in what:
    questions.append(path)
failed = []
for question in questions:
    try:
        question()
    except Exception as error:
        failed.append(type(error).__name__)
"""
    + REPORT
)


def measured(python: str, program: str, *words: object) -> dict:
    """CPU and wall seconds, megabytes, and which questions failed."""
    command = [python, "-c", program, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words[0]}: {done.stderr.strip().splitlines()[-1][:200]}")
    return json.loads(done.stdout.splitlines()[-1])


def in_turns(ways: dict[str, tuple], rounds: int) -> dict[str, list[dict]]:
    """Some rounds of every way, another way first in each."""
    found: dict[str, list[dict]] = {name: [] for name in ways}
    for number in range(rounds):
        order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
        for name in order:
            found[name].append(measured(*ways[name]))
    return found


def middle(results: list[dict], key: str) -> float:
    return sorted(result[key] for result in results)[len(results) // 2]


def ratio(theirs: list[dict], ours: list[dict], key: str) -> str:
    found = ratio_interval([one[key] for one in theirs], [one[key] for one in ours])
    missed = f", failed: {', '.join(theirs[0]['failed'])}" if theirs[0]["failed"] else ""
    return f"{found.ratio:.1f} ({found.low:.1f} – {found.high:.1f}){missed}"


def made(maker: Callable[..., Path], *words: object) -> Path:
    """What the maker makes, in a process of its own: a child's peak memory begins with ours."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(maker, *words).result()


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


def as_ranks(trace: Path, count: int, folder: Path) -> Path:
    """A folder with the trace as so many ranks of one job."""
    with gzip.open(trace) as file:
        text = file.read()
    place = folder / f"{count}_ranks"
    place.mkdir()
    for rank in range(count):
        named = re.sub(rb'("distributedInfo":[^}]*"rank": *)\d+', rb"\g<1>%d" % rank, text, count=1)
        (place / f"rank{rank}.json.gz").write_bytes(gzip.compress(named, 6))
    return place


def raw_megabytes(trace: Path) -> float:
    with gzip.open(trace) as file:
        return sum(len(piece) for piece in iter(lambda: file.read(2**20), b"")) / 1e6


def show_alone(trace: Path, peer: str | None, rounds: int) -> None:
    ways = {"bare": (sys.executable, BARE, trace), "ours": (sys.executable, OURS, trace, "six")}
    if peer:
        ways["HTA"] = (peer, HTA, trace, "six")
    found = in_turns(ways, rounds)
    cells = [trace.name[:32], f"{raw_megabytes(trace):.1f}"]
    cells += [f"{middle(r, 'cpu'):.3f} s, {middle(r, 'mb'):.0f} MB" for r in found.values()]
    cells.append(f"{middle(found['ours'], 'cpu') / middle(found['bare'], 'cpu'):.2f}")
    if peer:
        cells.append(ratio(found["HTA"], found["ours"], "cpu"))
        cells.append(f"1/{middle(found['HTA'], 'mb') / middle(found['ours'], 'mb'):.1f}")
    print("| " + " | ".join(cells) + " |", flush=True)


def show_path(trace: Path, peer: str | None, rounds: int) -> None:
    ways = {"ours": (sys.executable, OURS, trace, "path")}
    if peer:
        ways["step"] = (peer, HTA, trace, "path step")
        ways["all"] = (peer, HTA, trace, "path all")
    found = in_turns(ways, rounds)
    cells = [trace.name[:32], f"{raw_megabytes(trace):.1f}"]
    cells += [f"{middle(r, 'wall'):.3f} s, {middle(r, 'mb'):.0f} MB" for r in found.values()]
    cells += [ratio(found[name], found["ours"], "wall") for name in ways if name != "ours"]
    print("| " + " | ".join(cells) + " |", flush=True)


def show_ranks(folder: Path, count: int, peer: str | None, rounds: int) -> None:
    ways = {"ours": (sys.executable, OURS, folder, "six")}
    if peer:
        ways["HTA"] = (peer, HTA, folder, "six")
    found = in_turns(ways, rounds)
    cells = [str(count)]
    cells += [f"{middle(r, 'wall'):.3f} s, {middle(r, 'mb'):.0f} MB" for r in found.values()]
    cells += [ratio(found[name], found["ours"], "wall") for name in ways if name != "ours"]
    print("| " + " | ".join(cells) + " |", flush=True)


QUESTIONS = (
    "summary", "idle", "kernels", "overlap", "communication", "launch", "sync", "steps",
    "operators", "operators --by line", "memory", "critical-path",
    "critical-path --what-if gemm=20", "compare", "tree", "stack", "stack --gpu",
    "export --out OUT.json.gz", "report --html OUT.html",
)  # fmt: skip


def show_memory(trace: Path, rounds: int, folder: Path) -> None:
    raw = raw_megabytes(trace)
    for question in QUESTIONS:
        word, *options = (part.replace("OUT", str(folder / "out")) for part in question.split())
        files = [trace] * (2 if word == "compare" else 1)
        program = "import sys; from ridgeline.cli.main import main; main()"
        command = [sys.executable, "-c", program, "trace", word, *map(str, files), *options]
        found = [spent(command) for _ in range(rounds)]
        wall, cpu, peak = (middle(found, key) for key in ("wall", "cpu", "mb"))
        cells = [trace.name[:24], question, f"{wall:.2f} s", f"{cpu:.2f} s", f"{peak:.0f} MB"]
        print("| " + " | ".join([*cells, f"{peak / raw:.2f}"]) + " |", flush=True)


def spent(command: list[str]) -> dict:
    """Wall and CPU seconds of a command, and its peak memory in megabytes."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    told = child.stderr.read().decode()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command[3:])}: {told.strip()[-300:]}")
    return {
        "wall": time.perf_counter() - start,
        "cpu": usage.ru_utime + usage.ru_stime,
        "mb": usage.ru_maxrss / 1e3,
    }


def heading(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |\n" + "|---" * len(cells) + "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--tile", type=int)
    parser.add_argument("--path", action="store_true")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    traces = options.traces or [SHARED / name for name in DEFAULTS if (SHARED / name).exists()]
    if not traces:
        print("no trace was named, and the shared ones are not here: nothing to measure")
        return
    peer = os.environ.get("RIDGELINE_HTA_PYTHON")
    hta = ["HTA"] if peer else []
    ask = "import numpy, msgspec; print(numpy.__version__, msgspec.__version__)"
    versions = subprocess.check_output([sys.executable, "-c", ask], text=True).split()
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, "
        f"numpy {versions[0]}, msgspec {versions[1]}"
    )
    with tempfile.TemporaryDirectory() as folder:
        if options.ranks:
            place = made(as_ranks, traces[0], options.ranks, Path(folder))
            heading("ranks", "ours", *hta, *(f"{name} / ours" for name in hta))
            show_ranks(place, options.ranks, peer, options.rounds)
            return
        if options.tile:
            traces = [made(tiled, traces[0], options.tile, Path(folder))]
        if options.memory:
            heading("trace", "question", "wall", "CPU", "peak memory", "of the raw size")
            for trace in traces:
                show_memory(trace, options.rounds, Path(folder))
            return
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        if options.path:
            both = [f"HTA, {what}" for what in ("one step", "whole trace") if hta]
            heading("trace", "raw MB", "ours", *both, *(f"{name} / ours" for name in both))
        else:
            both = [f"{name} / ours" for name in hta]
            memory = ["memory"] if hta else []
            heading("trace", "raw MB", "bare", "ours", *hta, "ours / bare", *both, *memory)
        for trace in traces:
            (show_path if options.path else show_alone)(trace, peer, options.rounds)


if __name__ == "__main__":
    main()
