"""Ridgeline's compression beside llm-compressor and torchao: quality and wall time, same schemes.

    python bench/compress_vs_peers.py [--model examples/models/library] [--text FILE]
        [--peer llm-compressor=/envs/llmc/bin/python] [--peer torchao=/envs/torchao/bin/python]
        [--threads 2] [--draws 3] [--outliers 50] [--only SCHEME …] [--write FILE]

Every program rounds the same model with the same calibration sequences, in an environment of its
own. What each saved is judged by one loop: transformers, 256 tokens of context, stride 256, on
files of Python's library that the example model was not trained on. Which text is calibrated on
moves a perplexity by more than programs differ, so schemes that look at it are done with several
draws; a row has the means, and the difference draw by draw. Wall times, reading and writing the
model included, want an idle machine. Prunings are shown for their order: neither peer saves them.

With --outliers some channels of what flows into the layers are that many times as large, by a move
of scale between each norm and the weights behind it: the model is the same as a function.

torchao keeps SmoothQuant's scales beside each layer in no format that others read, so its own
process judges that one, by the same rule. Its int4 GPTQ and AWQ (0.18) need a GPU.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import fmean, median

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ridgeline.compress.evaluate.judge import QualityJudge
from ridgeline.compress.evaluate.loaded import tokenizer_of
from ridgeline.compress.evaluate.text import TextWindows, text_windows
from ridgeline.compress.material import calibration_tokens
from ridgeline.compress.run import CompressionJob, stage
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
    inputs: bool = False
    """Rounded too, to 8 bits, a scale per token."""
    torchao: bool = False

    @property
    def looks(self) -> bool:
        """Whether calibration text matters."""
        return parse(self.name).needs_calibration

    def job(self) -> dict[str, object]:
        """What peers' scripts read."""
        return {
            "bits": self.bits,
            "method": self.method,
            "group": self.group,
            "act_order": self.act_order,
            "inputs": self.inputs,
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
    Case("w8a8", 8, inputs=True, torchao=True),
    Case("w8a8-smoothquant", 8, "smoothquant", inputs=True, torchao=True),
    *(
        Case(f"{pattern}-{criterion}")
        for pattern in ("50%", "2:4")
        for criterion in ("magnitude", "wanda", "sparsegpt")
    ),
]


@dataclass
class Result:
    """Of one program, scheme, and draw of calibration text."""

    program: str
    scheme: str
    perplexity: float
    kl: float | None
    seconds: float
    draw: int = 0


def with_outliers(given: Path, times: float, folder: Path) -> Path:
    """The same model as a function, with two channels in 128 of each norm's output so much larger.

    The norm's weights are multiplied, the columns behind it divided.
    """
    model = AutoModelForCausalLM.from_pretrained(given)
    for number, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        readers = {
            layer.input_layernorm: (attention.q_proj, attention.k_proj, attention.v_proj),
            layer.post_attention_layernorm: (mlp.gate_proj, mlp.up_proj),
        }
        for norm, behind in readers.items():
            generator = torch.Generator().manual_seed(number)
            width = len(norm.weight)
            channels = torch.randperm(width, generator=generator)[: max(1, width // 64)]
            norm.weight.data[channels] *= times
            for linear in behind:
                linear.weight.data[:, channels] /= times
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(given).save_pretrained(folder)
    return folder


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
    job = CompressionJob(
        model=model,
        schemes=(parse(case.name),),
        work=out.with_suffix(".work"),
        tokens=tokens if case.looks else None,
    )
    stage(job).save(out)
    return time.perf_counter() - began


def theirs(program: str, options: argparse.Namespace, job: dict[str, object]) -> dict:
    """What the program's script printed."""
    path = Path(str(job["out"])).with_suffix(".json")
    path.write_text(json.dumps({**job, "model": str(options.model), "threads": options.threads}))
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
    found: dict = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def takes(program: str, case: Case) -> bool:
    return case.bits > 0 and (program == "llm-compressor" or case.torchao)


class Bench:
    """The text, the judge, and the sequences of each draw."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        seen, held = texts()
        (folder / "seen.txt").write_text(seen)
        self.options, self.folder = options, folder
        self.draws = [
            calibration_tokens(
                options.model, folder / "seen.txt", sequences=SEQUENCES, length=CONTEXT, seed=seed
            )
            for seed in range(options.draws)
        ]
        tokenizer = tokenizer_of("--model", options.model)
        text = options.text.read_text() if options.text else held
        name = str(options.text or "held-out files of Python's library")
        self.judged = text_windows(
            text, name, tokenizer, context=CONTEXT, stride=CONTEXT, positions=CONTEXT
        )
        self.judge = QualityJudge(options.model, self.judged, "cpu", lambda _: None)

    def result(self, program: str, case: Case, draw: int) -> Result:
        """Compressed by one program, and judged."""
        tokens = self.draws[draw]
        name = f"{program}-{case.name}-{draw}".replace("%", "p").replace(":", "of")
        out = self.folder / name
        if program == "ridgeline":
            seconds = ours(case, self.options.model, tokens, out)
        else:
            job = {**case.job(), "out": str(out), "tokens": tokens.tolist()}
            if program == "torchao" and case.inputs:
                job["judged"] = [one.tolist() for one in self.judged.tokens.split(CONTEXT)]
            found = theirs(program, self.options, job)
            seconds = float(found["seconds"])
            if "perplexity" in found:
                return Result(program, case.name, found["perplexity"], None, seconds, draw)
        row = self.judge.row(case.name, out)
        shutil.rmtree(out)
        kl = row.divergence.kl_mean
        return Result(program, case.name, row.quality.perplexity, kl, seconds, draw)


def measured(options: argparse.Namespace, folder: Path) -> tuple[list[Result], TextWindows]:
    if options.outliers:
        options.model = with_outliers(options.model, options.outliers, folder / "outliers")
    bench = Bench(options, folder)
    results = [Result("as given", "", bench.judge.quality.perplexity, 0.0, 0.0)]
    options.known = dict(pair.partition("=")[::2] for pair in options.peer)
    for program in PEERS.keys() - options.known.keys():
        print(f"{program}: left out; in an environment of its own: {INSTALL[program]}")
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        for draw in range(options.draws if case.looks else 1):
            for program in ("ridgeline", *options.known):
                if program != "ridgeline" and not takes(program, case):
                    continue
                try:
                    results.append(bench.result(program, case, draw))
                except Exception as error:  # one program's failure is a line of the table
                    print(f"{program} {case.name}: {error}", flush=True)
                    continue
                print(results[-1], flush=True)
    return results, bench.judged


def table(results: list[Result]) -> list[str]:
    """Means over draws; behind each peer, our perplexity less its, and in how many draws."""
    peers = sorted({one.program for one in results} - {"ridgeline", "as given"})
    found: dict[tuple[str, str], list[Result]] = {}
    for one in results:
        found.setdefault((one.scheme, one.program), []).append(one)
    head = ["ridgeline: perplexity | KL | s"]
    head += [f"{name}: perplexity | KL | s | ours less its, draw by draw" for name in peers]
    lines = [f"| scheme | {' | '.join(head)} |", "|---" * (4 + 4 * len(peers)) + "|"]
    for scheme in dict.fromkeys(one.scheme for one in results if one.scheme):
        own = found.get((scheme, "ridgeline"), [])
        cells = [_cells(own)]
        for name in peers:
            other = found.get((scheme, name), [])
            pairs = zip(own, other, strict=True) if len(own) == len(other) else ()
            less = [mine.perplexity - its.perplexity for mine, its in pairs]
            cells += [_cells(other), ", ".join(f"{one:+.3f}" for one in less)]
        lines.append(f"| {scheme} | {' | '.join(cells)} |")
    return lines


def _cells(results: list[Result]) -> str:
    if not results:
        return " | | "
    perplexity = fmean(one.perplexity for one in results)
    kls = [one.kl for one in results if one.kl is not None]
    seconds = median(one.seconds for one in results)
    return f"{perplexity:.3f} | {f'{fmean(kls):.4f}' if kls else ''} | {seconds:.1f}"


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
    parser.add_argument("--draws", type=int, default=3, help="of calibration text")
    parser.add_argument("--outliers", type=float, help="move a scale of this size about first")
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
