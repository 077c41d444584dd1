"""Tokens per second of preparing text and of reading batches: Ridgeline and its peers.

    python bench/data_pipeline.py [--rounds 12] [--text FOLDER] [--json OUT.json]

The same text (by default Python's own sources, as JSONL), the same tokenizer (byte-level BPE of
2,048, learnt once), sequences of 512 tokens in batches of 16, shuffled. Each library works in
processes of its own; rounds go over all of them in changing order, and a ratio is that of their
rounds (Hodges-Lehmann estimate with its Wilcoxon interval). `prepare` is wall time from JSONL to
files that batches are read from, with as many processes as there are cores; `read` is wall time
per batch, until int64 inputs and labels are there, with 0 and 1 worker processes. At last a small
model is trained on such batches: the share of its steps that waits for data.

A peer that cannot be imported is named with what installs it. litdata brings a CUDA build of
torchvision: uninstall that where torch is the CPU build. mosaicml-streaming wants torchvision to
be importable, though text does not use it.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

SEQ, BATCH, BATCHES = 512, 16, 100
CORES = len(os.sched_getaffinity(0))
PEERS = {
    "ridgeline": ("ridgeline", "pip install 'ridgeline[train]'"),
    "datasets": ("datasets", "pip install datasets"),
    "litdata": ("litdata", "pip install litdata==0.2.76"),
    "streaming": ("mosaicml-streaming", "pip install mosaicml-streaming==0.13.0"),
}


def recipe_of(folder: Path, workers: int = 0) -> Any:
    from ridgeline.records.layout import Layout
    from ridgeline.records.recipe import Recipe, RecipeData, RecipeModel, RecipeOptimizer

    return Recipe(
        model=RecipeModel(config="gpt2"),
        data=RecipeData(
            path=str(folder / "text.jsonl"),
            tokenizer=str(folder / "tokenizer"),
            seq=SEQ,
            workers=workers,
        ),
        layout=Layout(micro_batch=BATCH, global_batch=BATCH),
        optimizer=RecipeOptimizer(learning_rate=1e-3, final_learning_rate=1e-3),
    )


def encoder(folder: Path) -> Callable[[list[str]], list[list[int]]]:
    """Ids of documents, each with its end: the same for every peer."""
    from tokenizers import Tokenizer

    fast = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    end = fast.token_to_id("<|end|>")
    return lambda texts: [[*one.ids, end] for one in fast.encode_batch_fast(texts)]


def prepare_ridgeline(folder: Path, out: Path) -> None:
    from ridgeline.train.data.preparation import prepare

    prepare(recipe_of(folder), out, lambda _: None)


def read_ridgeline(folder: Path, out: Path, workers: int) -> Iterator[Any]:
    from ridgeline.train.data.loader import Loader
    from ridgeline.train.data.preparation import prepare
    from ridgeline.train.ranks import join

    recipe = recipe_of(folder, workers)
    ready = prepare(recipe, out, lambda _: None)
    for (batch,) in Loader(ready, recipe, join(recipe.layout)):
        yield batch.input_ids, batch.labels


def prepare_datasets(folder: Path, out: Path) -> None:
    """As transformers' run_clm.py does it: tokenise, then group into blocks."""
    import datasets

    datasets.disable_progress_bars()
    encode = encoder(folder)
    rows = datasets.load_dataset(
        "json", data_files=str(folder / "text.jsonl"), split="train", cache_dir=str(out / "cache")
    )

    def tokenise(texts: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"tokens": encode(texts["text"])}

    def group(found: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        flat = [token for document in found["tokens"] for token in document]
        ends = range(0, len(flat) - SEQ, SEQ)
        return {"tokens": [flat[start : start + SEQ + 1] for start in ends]}

    options = {"batched": True, "num_proc": CORES, "load_from_cache_file": False}
    rows = rows.map(tokenise, remove_columns=rows.column_names, **options)
    rows.map(group, **options).save_to_disk(str(out / "blocks"))


def read_datasets(_: Path, out: Path, workers: int) -> Iterator[Any]:
    import datasets
    from torch.utils.data import DataLoader

    rows = datasets.load_from_disk(str(out / "blocks")).with_format("torch")
    while True:
        for batch in DataLoader(rows, BATCH, shuffle=True, num_workers=workers, drop_last=True):
            yield batch["tokens"][:, :-1], batch["tokens"][:, 1:]


class LitDocuments:
    """A part of the lines, for one process of litdata."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.encode: Any = None

    def __call__(self, part: tuple[int, int]) -> Iterator[Any]:
        """Tokens of each document of these lines."""
        import torch

        self.encode = self.encode or encoder(self.folder)
        with (self.folder / "text.jsonl").open() as lines:
            texts = [json.loads(line)["text"] for line in islice(lines, *part)]
        for ids in self.encode(texts):
            yield torch.tensor(ids, dtype=torch.int32)


def prepare_litdata(folder: Path, out: Path) -> None:
    import litdata

    with (folder / "text.jsonl").open() as lines:
        count = sum(1 for _ in lines)
    parts = [(start, min(start + 100, count)) for start in range(0, count, 100)]
    litdata.optimize(
        fn=LitDocuments(folder),
        inputs=parts,
        output_dir=str(out / "lit"),
        chunk_bytes="64MB",
        num_workers=CORES,
        item_loader=litdata.TokensLoader(block_size=SEQ + 1),
    )


def read_litdata(_: Path, out: Path, workers: int) -> Iterator[Any]:
    import litdata

    rows = litdata.StreamingDataset(
        str(out / "lit"),
        item_loader=litdata.TokensLoader(block_size=SEQ + 1),
        shuffle=True,
        drop_last=True,
    )
    loader = litdata.StreamingDataLoader(rows, batch_size=BATCH, num_workers=workers)
    while True:
        for batch in loader:
            tokens = batch.long()
            yield tokens[:, :-1], tokens[:, 1:]


def prepare_streaming(folder: Path, out: Path) -> None:
    """One writing process; the tokenizer itself works on all cores."""
    import numpy as np
    from streaming import MDSWriter

    encode = encoder(folder)
    kept: list[int] = []
    with (
        (folder / "text.jsonl").open() as lines,
        MDSWriter(columns={"tokens": f"ndarray:uint16:{SEQ + 1}"}, out=str(out / "mds")) as writer,
    ):
        while texts := [json.loads(line)["text"] for line in islice(lines, 200)]:
            for ids in encode(texts):
                kept += ids
            while len(kept) > SEQ:
                writer.write({"tokens": np.array(kept[: SEQ + 1], np.uint16)})
                del kept[:SEQ]


def read_streaming(_: Path, out: Path, workers: int) -> Iterator[Any]:
    import numpy as np
    import torch
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    def together(rows: list[dict[str, Any]]) -> Any:
        return torch.from_numpy(np.stack([row["tokens"] for row in rows]).astype(np.int64))

    rows = StreamingDataset(local=str(out / "mds"), shuffle=True, batch_size=BATCH)
    while True:
        for tokens in DataLoader(
            rows, BATCH, num_workers=workers, collate_fn=together, drop_last=True
        ):
            yield tokens[:, :-1], tokens[:, 1:]


def worker(peer: str, what: str, folder: Path, out: Path) -> None:
    """One library in a process of its own; seconds go to standard output, a line a round."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    if what == "prepare":
        importlib.import_module("ridgeline.train.data" if peer == "ridgeline" else peer)
        start = time.perf_counter()
        globals()[f"prepare_{peer}"](folder, out)
        print(time.perf_counter() - start, file=answers, flush=True)
        return
    import torch

    torch.set_num_threads(1)
    batches = globals()[f"read_{peer}"](folder, out, int(what))
    for _ in sys.stdin:
        start = time.perf_counter()
        for inputs, labels in islice(batches, BATCHES):
            assert inputs.shape == labels.shape == (BATCH, SEQ)
            assert inputs.dtype == labels.dtype == torch.int64
        print(time.perf_counter() - start, file=answers, flush=True)


def start(peer: str, what: str, folder: Path, out: Path) -> subprocess.Popen[str]:
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--worker", peer, what, str(folder), str(out)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    log = (folder / f"{peer}-{what}.log").open("w")
    return subprocess.Popen(command, stderr=log, **pipes)


def rounds_of_preparing(peers: list[str], folder: Path, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {peer: [] for peer in peers}
    for number in range(rounds):
        for peer in peers[number % len(peers) :] + peers[: number % len(peers)]:
            child = start(peer, "prepare", folder, folder / peer / str(number))
            text, _ = child.communicate()
            if child.returncode:
                drop(peer, found, folder / f"{peer}-prepare.log")
            else:
                found[peer].append(float(text))
        peers = list(found)
    return found


def drop(peer: str, found: dict[str, list[float]], log: Path) -> None:
    """Say that a peer failed, and go on without it."""
    if peer == "ridgeline":
        raise SystemExit(log.read_text()[-3000:])
    lines = log.read_text().strip().splitlines() or ["it said nothing"]
    print(f"{peer} failed and is not measured further: {lines[-1]}")
    del found[peer]


def rounds_of_reading(
    peers: list[str], folder: Path, rounds: int, workers: int
) -> dict[str, list[float]]:
    children = {peer: start(peer, str(workers), folder, folder / peer / "0") for peer in peers}
    found: dict[str, list[float]] = {peer: [] for peer in peers}
    for number in range(rounds + 1):
        for peer in peers[number % len(peers) :] + peers[: number % len(peers)]:
            child = children[peer]
            print("go", file=child.stdin, flush=True)
            seconds = child.stdout.readline()
            if not seconds:
                drop(peer, found, folder / f"{peer}-{workers}.log")
            elif number:  # the first one starts workers and fills caches
                found[peer].append(float(seconds))
        peers = list(found)
    for child in children.values():
        child.stdin.close()
        child.kill()
        child.wait()
    return found


def waiting_share(folder: Path, steps: int = 12) -> dict[str, float]:
    """Share of a step in which a small model waits for its batch: mean after a warm-up."""
    import torch

    from ridgeline.train.data.loader import Loader
    from ridgeline.train.data.preparation import prepare
    from ridgeline.train.ranks import join
    from ridgeline.train.watch.phases import Phases

    # Of torch alone: where torchvision is a stand-in, transformers cannot make models.
    layer = torch.nn.TransformerEncoderLayer(256, 4, 704, batch_first=True, dropout=0.0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(2048, 256),
        torch.nn.TransformerEncoder(layer, 4),
        torch.nn.Linear(256, 2048),
    )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    found = {}
    for workers in (0, 1):
        recipe = recipe_of(folder, workers)
        ready = prepare(recipe, folder / "ridgeline" / "0", lambda _: None)
        ranks = join(recipe.layout)
        phases, loader = Phases(ranks.device), Loader(ready, recipe, ranks)
        for step in range(steps + 3):
            if step == 3:
                phases.take()
            with phases.phase("data"):
                (batch,) = next(loader)
            with phases.phase("other"):
                logits = model(batch.input_ids).flatten(0, 1)
                torch.nn.functional.cross_entropy(logits, batch.labels.flatten()).backward()
                optimizer.step()
                optimizer.zero_grad()
        taken = phases.take()
        found[f"{workers} workers"] = taken["data"] / sum(taken.values())
        loader.close()
    return found


def make_text(source: Path, folder: Path, limit_bytes: int) -> int:
    """Rows of JSONL from the sources, and the tokenizer; returns the number of bytes."""
    from ridgeline.train.data.tokenizer import train_tokenizer

    size, texts = 0, []
    for path in sorted(source.rglob("*.py")):
        if "site-packages" in path.parts or size > limit_bytes:
            continue
        try:
            texts.append(path.read_text())
        except UnicodeDecodeError:
            continue
        size += len(texts[-1].encode())
    rows = [json.dumps({"text": text}) + "\n" for text in texts if text]
    (folder / "text.jsonl").write_text("".join(rows))
    train_tokenizer(texts, 2048, folder / "tokenizer")
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--text", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--bytes", type=int, default=8_000_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        peer, what, *folders = asked.worker
        worker(peer, what, *map(Path, folders))
        return
    peers = [peer for peer in PEERS if importable(peer)]
    with tempfile.TemporaryDirectory() as name:
        report = compare(asked, peers, Path(name))
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=1) + "\n")


def importable(peer: str) -> bool:
    try:
        importlib.import_module(peer)
    except ImportError as error:
        print(f"{peer} is not measured: {error}; {PEERS[peer][1]}")
        return False
    return True


def compare(asked: argparse.Namespace, peers: list[str], folder: Path) -> dict[str, Any]:
    from ridgeline.measure.statistics.intervals import ratio_interval

    versions = ", ".join(f"{peer} {importlib.metadata.version(PEERS[peer][0])}" for peer in peers)
    print(f"{platform.machine()}, {CORES} cores, Python {platform.python_version()}, {versions}")
    size = make_text(asked.text, folder, asked.bytes)
    from ridgeline.train.data.preparation import prepare

    tokens = prepare(recipe_of(folder), folder / "ridgeline" / "count", lambda _: None).num_tokens
    print(f"{size / 1e6:.1f} MB of text, {tokens / 1e6:.2f} M tokens")
    preparing = rounds_of_preparing(peers, folder, max(6, asked.rounds // 2))
    parts = {"prepare": (preparing, tokens)}
    for workers in (0, 1):
        found = rounds_of_reading(list(preparing), folder, asked.rounds, workers)
        parts[f"read, {workers} workers"] = (found, BATCHES * BATCH * SEQ)
    report: dict[str, Any] = {"versions": versions, "cores": CORES, "tokens": tokens}
    print(f"{'':18} {'':11} {'M tokens/s':>11}   ridgeline is so many times faster")
    for part, (found, count) in parts.items():
        for peer in found:
            middle = sorted(found[peer])[len(found[peer]) // 2]
            ratio = ratio_interval(found[peer], found["ridgeline"])
            beside = (
                ""
                if peer == "ridgeline"
                else f"{ratio.ratio:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
            )
            print(f"{part:18} {peer:11} {count / middle / 1e6:11.2f}   {beside}")
            report[f"{part}: {peer}"] = {
                "tokens_per_second": count / middle, "seconds": found[peer],
                "ratio": ratio.ratio, "low": ratio.low, "high": ratio.high,
            }  # fmt: skip
    report["waiting"] = waiting_share(folder)
    for workers, share in report["waiting"].items():
        print(f"share of a training step that waits for data, {workers}: {share:.2%}")
    return report


if __name__ == "__main__":
    main()
