"""Ridgeline's compression beside llm-compressor and torchao: quality and wall time, same schemes.

    python bench/compress_vs_peers.py [--model examples/models/library] [--text FILE]
        [--peer llm-compressor=/envs/llmc/bin/python] [--peer torchao=/envs/torchao/bin/python]
        [--threads 2] [--only SCHEME …] [--write docs/results/compression.md]

Every program rounds the same model with the same calibration sequences, in an environment of its
own. What each saved is judged by one loop: transformers, 256 tokens of context, stride 256, on
files of Python's library that the example model was not trained on. Perplexities are exact to the
digits shown; wall times, reading and writing the model included, want an idle machine. Prunings are
shown for their order: neither peer saves them any more.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

from ridgeline.compress import calibration
from ridgeline.compress.evaluate.judge import Judge
from ridgeline.compress.evaluate.loaded import tokenizer_of
from ridgeline.compress.evaluate.text import TextWindows, text_windows
from ridgeline.compress.run import Job, stage
from ridgeline.hardware.machine import this_machine
from ridgeline.records.scheme_names import parse

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(__file__).parent / "scripts" / "peers_of_compress"
CONTEXT, SEQUENCES = 256, 256
HELD_BYTES, SEEN_BYTES = 200_000, 1_000_000
PEERS = {"llm-compressor": "llmcompressor_run.py", "torchao": "torchao_run.py"}
INSTALL = {
    "llm-compressor": "pip install llmcompressor==0.14.0.1",
    "torchao": "pip install torchao==0.18 transformers",
}


@dataclass(frozen=True)
class Case:
    """One scheme, by our name and in what peers are told."""

    name: str
    bits: int = 0
    method: str = "rtn"
    group: int | None = None
    act_order: bool = False
    torchao: bool = False

    def job(self) -> dict[str, object]:
        """What peers' scripts read."""
        return {
            "bits": self.bits,
            "method": self.method,
            "group": self.group,
            "act_order": self.act_order,
        }


CASES = [
    Case("w8a16-channel", 8, torchao=True),
    Case("w4a16-g32", 4, group=32, torchao=True),
    Case("w4a16-gptq-g32", 4, "gptq", 32),
    Case("w4a16-gptq-g32-actorder", 4, "gptq", 32, act_order=True),
    Case("w4a16-awq-g32", 4, "awq", 32),
    Case("w4a16-channel", 4, torchao=True),
    Case("w4a16-gptq-channel", 4, "gptq"),
    Case("w4a16-gptq-channel-actorder", 4, "gptq", act_order=True),
    Case("w4a16-awq-channel", 4, "awq"),
    Case("w3a16-g32", 3, group=32, torchao=True),
    Case("w3a16-gptq-g32", 3, "gptq", 32),
    Case("w3a16-gptq-g32-actorder", 3, "gptq", 32, act_order=True),
    Case("w3a16-awq-g32", 3, "awq", 32),
    Case("w8a8-smoothquant", 8, "smoothquant"),
    *(
        Case(f"{pattern}-{criterion}")
        for pattern in ("50%", "2:4")
        for criterion in ("magnitude", "wanda", "sparsegpt")
    ),
]


@dataclass
class Result:
    """Of one program and scheme."""

    program: str
    scheme: str
    perplexity: float
    kl: float
    seconds: float


def texts() -> tuple[str, str]:
    """Library files that the example model was trained on, and others that it was not.

    Its recipe holds out one file in 20 by a hash of its name (`train/data/tokenise.py`).
    """
    root = Path(sysconfig.get_path("stdlib"))
    seen, held = [], []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if parts[0] == "site-packages" or {"test", "tests", "idle_test"} & set(parts):
            continue
        digest = hashlib.blake2b("/".join(parts).encode(), digest_size=8).digest()
        kept = held if int.from_bytes(digest, "little") % 20 == 0 else seen
        kept.append(path.read_text(encoding="utf-8", errors="replace"))
    return "\n".join(seen[::7])[:SEEN_BYTES], "\n".join(held)[:HELD_BYTES]


def ours(case: Case, model: Path, tokens: torch.Tensor, out: Path) -> float:
    began = time.perf_counter()
    job = Job(
        model=model, schemes=(parse(case.name),), work=out.with_suffix(".work"), tokens=tokens
    )
    stage(job).save(out)
    return time.perf_counter() - began


def theirs(program: str, options: argparse.Namespace, case: Case, tokens: list, out: Path) -> float:
    job = {**case.job(), "model": str(options.model), "out": str(out), "threads": options.threads}
    path = out.with_suffix(".json")
    path.write_text(json.dumps({**job, "tokens": tokens}))
    environment = {
        **os.environ, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [options.known[program], SCRIPTS / PEERS[program], path],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return float(json.loads(done.stdout.strip().splitlines()[-1])["seconds"])


def takes(program: str, case: Case) -> bool:
    return case.bits > 0 and (program == "llm-compressor" or case.torchao)


def measured(options: argparse.Namespace, folder: Path) -> tuple[list[Result], TextWindows]:
    seen, held = texts()
    (folder / "seen.txt").write_text(seen)
    tokens = calibration.tokens(
        options.model, folder / "seen.txt", sequences=SEQUENCES, length=CONTEXT
    )
    tokenizer = tokenizer_of("--model", options.model)
    text = options.text.read_text() if options.text else held
    name = str(options.text or "held-out files of Python's library")
    judged = text_windows(text, name, tokenizer, context=CONTEXT, stride=CONTEXT, positions=CONTEXT)
    judge = Judge(options.model, judged, "cpu", lambda _: None)
    results = [Result("as given", "", judge.quality.perplexity, 0.0, 0.0)]
    options.known = dict(pair.partition("=")[::2] for pair in options.peer)
    for program in PEERS.keys() - options.known.keys():
        print(f"{program}: left out; in an environment of its own: {INSTALL[program]}")
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        for program in ("ridgeline", *options.known):
            if program != "ridgeline" and not takes(program, case):
                continue
            out = folder / f"{program}-{case.name}".replace("%", "p").replace(":", "of")
            try:
                if program == "ridgeline":
                    seconds = ours(case, options.model, tokens, out)
                else:
                    seconds = theirs(program, options, case, tokens.tolist(), out)
                row = judge.row(case.name, out)
            except Exception as error:  # one program's failure is a line of the table
                print(f"{program} {case.name}: {error}", flush=True)
                continue
            results.append(
                Result(program, case.name, row.quality.perplexity, row.divergence.kl_mean, seconds)
            )
            print(results[-1], flush=True)
    return results, judged


def table(results: list[Result]) -> list[str]:
    programs = ["ridgeline", *sorted({one.program for one in results} - {"ridgeline", "as given"})]
    found = {(one.scheme, one.program): one for one in results}
    head = [f"{name}: perplexity | KL | s" for name in programs]
    lines = [f"| scheme | {' | '.join(head)} |", "|---" * (1 + 3 * len(programs)) + "|"]
    for scheme in dict.fromkeys(one.scheme for one in results if one.scheme):
        cells = []
        for program in programs:
            one = found.get((scheme, program))
            cells.append(
                f"{one.perplexity:.3f} | {one.kl:.4f} | {one.seconds:.1f}" if one else " | | "
            )
        lines.append(f"| {scheme} | {' | '.join(cells)} |")
    return lines


def page(results: list[Result], judged: TextWindows, options: argparse.Namespace) -> str:
    cpu = this_machine(gpus=[]).cpu.model
    protocol = judged.protocol
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers"))
    command = " ".join(["python", "bench/compress_vs_peers.py", *sys.argv[1:]])
    first = (
        f"{datetime.now(UTC):%Y-%m-%d}, {options.threads} threads of {cpu}, {versions};"
        f" `{command}`. {options.model}, as given: perplexity {results[0].perplexity:.3f} on"
        f" {protocol.text} (context {protocol.context}, stride {protocol.stride}, no BOS,"
        f" {protocol.scored:,} tokens scored, {protocol.words:,} words)."
    )
    return "\n".join([first, "", *table(results), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=ROOT / "examples/models/library")
    parser.add_argument("--text", type=Path, help="judged on instead of held-out library files")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="*", help="names of schemes")
    parser.add_argument("--write", type=Path, help="also into this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        results, judged = measured(options, Path(folder))
    text = page(results, judged, options)
    print(text)
    if options.write:
        options.write.write_text(text)


if __name__ == "__main__":
    main()
