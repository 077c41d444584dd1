"""From `ridgeline serve MODEL` to the first token of an answer over HTTP, when started again.

    python bench/serve_start.py [--model l500] [--rounds 6] [--weights model] [--threads N]
        [--beside SRC] [--folder DIR] [--json FILE]

The command is started, its ready line awaited, one completion asked for and its first token
awaited; wall time counts from before the command is executed, CPU time is that of all processes of
the server. The first start of each, which packs and proves, is shown apart. `--beside` takes the
`src` folder of another version, started in turns with this one; ratios are its times over ours,
above 1 we are faster. CPU time says more than wall time where other programs use the machine. The
model has random weights in bf16 and is made here.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ridgeline.measure.statistics.intervals import ratio_interval

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.serve_vs_peers import SHAPES, make

PROMPT = list(range(10, 42))
COMMAND = "import sys; from ridgeline.cli.main import main; sys.argv[0] = 'ridgeline'; main()"


@dataclass(frozen=True)
class Start:
    """One start, in seconds."""

    ready_seconds: float
    ready_cpu_seconds: float
    first_token_seconds: float
    first_token_cpu_seconds: float
    answer: str
    """Every start has to answer alike."""


def cpu_seconds(pid: int) -> float:
    """Of a process and of all that it started and that run."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(cpu_seconds(int(child)) for child in children)


def start(source: Path | None, folder: Path, options: list[str]) -> Start:
    """Start the server once and ask it once."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    if source is not None:
        environment["PYTHONPATH"] = str(source)
    words = [sys.executable, "-c", COMMAND, "serve", str(folder), "--port", "0", "--json", *options]
    began = time.perf_counter()
    server = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = server.stdout.readline()
        if not line:
            sys.exit(server.stderr.read())
        ready, ready_cpu = time.perf_counter() - began, cpu_seconds(server.pid)
        address = json.loads(line)["address"]
        connection = http.client.HTTPConnection(address.partition("//")[2])
        body = {"model": folder.name, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), headers)
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(response.read().decode())
        rows = [response.readline().decode()]
        first, first_cpu = time.perf_counter() - began, cpu_seconds(server.pid)
        rows += response.read().decode().splitlines()
        chunks = [json.loads(row[6:]) for row in rows if row.startswith("data: {")]
        answer = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    finally:
        server.send_signal(signal.SIGTERM)
        server.stderr.read()
        server.wait()
    return Start(ready, ready_cpu, first, first_cpu, answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(SHAPES), default="l500")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--weights", default="model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--beside", type=Path, metavar="SRC", help="of another version")
    parser.add_argument("--folder", type=Path, help="keeps the model")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    words = ["--weights", options.weights, "--threads", str(options.threads)]
    sources = {"this": None, **({"beside": options.beside} if options.beside else {})}
    with tempfile.TemporaryDirectory() as name:
        folder = (options.folder or Path(name)) / options.model
        if not (folder / "config.json").exists():
            make(folder, SHAPES[options.model], options.model == "smoke")
        first = {one: start(source, folder, words) for one, source in sources.items()}
        again: dict[str, list[Start]] = {one: [] for one in sources}
        for number in range(options.rounds):
            for one in list(sources)[:: 1 if number % 2 else -1]:
                again[one].append(start(sources[one], folder, words))
    for one, starts in again.items():
        print(f"{one}: the first start takes {first[one].first_token_cpu_seconds:.1f} CPU seconds")
        for what in ("ready", "first_token"):
            wall = [getattr(each, f"{what}_seconds") for each in starts]
            cpu = [getattr(each, f"{what}_cpu_seconds") for each in starts]
            print(
                f"  {what.replace('_', ' '):11s} {statistics.median(wall):6.2f} s"
                f" (least {min(wall):.2f}), {statistics.median(cpu):6.2f} CPU s ({min(cpu):.2f})"
            )
    if options.beside and options.rounds >= 6:
        for what in ("first_token_seconds", "first_token_cpu_seconds"):
            theirs, mine = ([getattr(s, what) for s in again[one]] for one in ("beside", "this"))
            found = ratio_interval(theirs, mine)
            print(f"{what}: {found.ratio:.2f}x ours [{found.low:.2f}, {found.high:.2f}]")
    answers = {each.answer for one, starts in again.items() for each in (first[one], *starts)}
    print("answers are equal" if len(answers) == 1 else f"ANSWERS DIFFER: {answers}")
    if options.json:
        found = {one: [asdict(each) for each in (first[one], *again[one])] for one in again}
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
