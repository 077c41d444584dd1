"""Inputs of the public scripts that are drawn at random, in the shapes of well-known data sets.

`prepare.py` calls these; nothing is downloaded, and a second call writes the same bytes.
"""

from __future__ import annotations

import json
import pickle
import re
import struct
import wave
from pathlib import Path

import numpy as np

_MAGIC = re.compile(r"\s*(%%?[a-z]|!|\?)")
"""A notebook's line that is no Python."""

GYM = '''"""The name that gymnasium had before; older scripts import it."""

import sys

import gymnasium

{old_answers}
sys.modules["gym"] = gymnasium
'''

OLD_ANSWERS = '''_make = gymnasium.make


class FourAnswers:
    """An environment that answers as gym did before 0.26: no truncation, no seed on reset."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def reset(self):
        return self.inner.reset()[0]

    def step(self, action):
        state, reward, ended, cut, info = self.inner.step(action)
        return state, reward, ended or cut, info

    def seed(self, seed=None):
        self.inner.reset(seed=seed)


def make(name, **options):
    return FourAnswers(_make(name.replace("-v0", "-v1"), **options))


gymnasium.make = make
'''


def drawn_mnist(folder: Path, *, train: int = 6000, test: int = 1000) -> None:
    """MNIST's four files with blobs for digits: as torchvision looks for them, but shorter."""
    draw = np.random.default_rng(0)
    raw = folder / "MNIST/raw"
    raw.mkdir(parents=True, exist_ok=True)
    rows, columns = np.mgrid[0:28, 0:28]
    for part, count in (("train", train), ("t10k", test)):
        labels = draw.integers(0, 10, count).astype(np.uint8)
        images = np.empty((count, 28, 28), np.uint8)
        for index, label in enumerate(labels):
            row, column = 6 + 2 * (label % 5), 8 + 8 * (label // 5)
            blob = 255 * np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / 12)
            images[index] = np.clip(blob + draw.normal(0, 12, blob.shape), 0, 255)
        header = struct.pack(">IIII", 2051, count, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = struct.pack(">II", 2049, count)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())


def planetoid(folder: Path, source: Path, name: str = "cora", classes: int = 7) -> None:
    """Planetoid's raw files: words and citations of `source`, classes drawn."""
    raw = folder / name.capitalize() / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for part in ("x", "tx", "allx", "graph", "test.index"):
        file = f"ind.{name}.{part}"
        (raw / file).write_bytes((source / file).read_bytes())
    for part, words in (("y", "x"), ("ty", "tx"), ("ally", "allx")):
        with (raw / f"ind.{name}.{words}").open("rb") as words_file:
            count = pickle.load(words_file, encoding="latin1").shape[0]  # noqa: S301 from its repository
        one_hot = np.eye(classes, dtype=np.int32)[draw.integers(0, classes, count)]
        (raw / f"ind.{name}.{part}").write_bytes(pickle.dumps(one_hot))


def molecules(folder: Path, name: str = "MUTAG", graphs: int = 188) -> None:
    """A TU data set of rings with tails: two classes, by the size of the ring."""
    raw = folder / name / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    edges: list[str] = []
    of_graph: list[str] = []
    kinds: list[str] = []
    edge_kinds: list[str] = []
    classes = draw.integers(0, 2, graphs)
    for number, label in enumerate(classes):
        ring, tail = (5, 6)[label], int(draw.integers(6, 18))
        first = len(of_graph) + 1
        pairs = [(first + i, first + (i + 1) % ring) for i in range(ring)]
        pairs += [(first + ring + i - 1, first + ring + i) for i in range(tail)]
        for a, b in pairs:
            edges += [f"{a}, {b}", f"{b}, {a}"]
            edge_kinds += ["0", "0"]
        of_graph += [str(number + 1)] * (ring + tail)
        kinds += [str(kind) for kind in draw.integers(0, 7, ring + tail)]
    for part, lines in (
        ("A", edges),
        ("graph_indicator", of_graph),
        ("graph_labels", [str(2 * label - 1) for label in classes]),
        ("node_labels", kinds),
        ("edge_labels", edge_kinds),
    ):
        (raw / f"{name}_{part}.txt").write_text("\n".join(lines) + "\n")


def waves(path: Path) -> None:
    """The sine waves of pytorch/examples' `generate_sine_wave.py`, in its file."""
    import torch

    draw = np.random.default_rng(2)
    starts = draw.integers(-80, 80, (100, 1))
    table = np.sin((np.arange(1000) + starts) / 20.0).astype("float64")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        torch.save(table, file)


def speech(folder: Path, words: tuple[str, ...], each: int = 40) -> None:
    """One-second recordings of tones, a folder for each word."""
    draw = np.random.default_rng(0)
    times = np.arange(16_000) / 16_000
    for number, word in enumerate(words):
        (folder / word).mkdir(parents=True, exist_ok=True)
        for index in range(each):
            tone = np.sin(2 * np.pi * (200 + 60 * number) * times) + draw.normal(0, 0.2, 16_000)
            with wave.open(str(folder / word / f"{index:08x}_nohash_0.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(16_000)
                file.writeframes((tone * 8000).astype("<i2").tobytes())


def token_file(path: Path, text: str) -> None:
    """Token ids in the format of llm.c: 256 numbers of header, then uint16."""
    header = np.zeros(256, dtype=np.int32)
    ids = np.frombuffer(text.encode("ascii", "ignore")[:400_000], dtype=np.uint8)
    header[:3] = (20240520, 1, len(ids))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.tobytes() + ids.astype(np.uint16).tobytes())


def ratings(folder: Path, users: int = 600, items: int = 400) -> None:
    """Who liked what, as recommenders read it: lists by user, pairs, the MovieLens table."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    liked = [np.sort(draw.choice(items, draw.integers(8, 30), replace=False)) for _ in range(users)]
    lists = {"train": [row[:-2] for row in liked], "test": [row[-2:] for row in liked]}
    for part, rows in lists.items():
        lines = (" ".join(map(str, (user, *row))) for user, row in enumerate(rows))
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")
    pairs = [(user + 1, item + 1) for user, row in enumerate(liked) for item in row]
    (folder / "pairs.txt").write_text("".join(f"{user} {item}\n" for user, item in pairs))
    stars = draw.integers(1, 6, len(pairs))
    (folder / "ratings.dat").write_text(
        "".join(f"{u}::{i}::{s}::97830{u:04d}\n" for (u, i), s in zip(pairs, stars, strict=True))
    )
    for name in ("README", "movies.dat", "users.dat"):  # of the archive; nobody reads them
        (folder / name).write_text("")


def series(path: Path, columns: int = 8, hours: int = 3000) -> None:
    """Hourly series in the shape of ETTh1: a date, waves with noise, the target last."""
    draw = np.random.default_rng(0)
    start = np.datetime64("2016-07-01T00")
    clock = np.arange(hours)
    waves_of = np.sin(clock[:, None] * 2 * np.pi / (24 * (1 + np.arange(columns))))
    table = waves_of + draw.normal(0, 0.1, waves_of.shape)
    names = [*(f"c{index}" for index in range(columns - 1)), "OT"]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(["date", *names])]
    for hour, row in zip(clock, table, strict=True):
        date = str(start + int(hour)).replace("T", " ") + ":00:00"
        lines.append(",".join([date, *(f"{value:.4f}" for value in row)]))
    path.write_text("\n".join(lines) + "\n")
    plain = "\n".join(",".join(f"{value:.4f}" for value in row) for row in table)
    path.with_name("plain.txt").write_text(plain + "\n")


def mnist_of_keras(path: Path, mnist: Path) -> None:
    """The archive that Keras keeps below its home, from the files of `drawn_mnist`."""
    raw = mnist / "MNIST/raw"
    arrays = {}
    for name, part in (("train", "train"), ("test", "t10k")):
        images = np.frombuffer((raw / f"{part}-images-idx3-ubyte").read_bytes()[16:], np.uint8)
        arrays[f"x_{name}"] = images.reshape(-1, 28, 28)
        labels = (raw / f"{part}-labels-idx1-ubyte").read_bytes()[8:]
        arrays[f"y_{name}"] = np.frombuffer(labels, np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def digits(folder: Path, mnist: Path, count: int = 1000) -> None:
    """Folders of PNG files by digit, the first of `drawn_mnist`."""
    from PIL import Image

    raw = mnist / "MNIST/raw"
    images = np.frombuffer((raw / "train-images-idx3-ubyte").read_bytes()[16:], np.uint8)
    labels = (raw / "train-labels-idx1-ubyte").read_bytes()[8:]
    for index, pixels in enumerate(images.reshape(-1, 28, 28)[:count]):
        (folder / str(labels[index])).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{labels[index]}/{index}.png")


def pictures(folder: Path, kinds: int = 4, each: int = 30, size: int = 96) -> None:
    """Folders of JPEG pictures by class, for training and validation."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for part, count in (("train", each), ("val", each // 3)):
        for kind in range(kinds):
            (folder / part / f"kind{kind}").mkdir(parents=True, exist_ok=True)
            for index in range(count):
                pixels = draw.integers(0, 90, (size, size, 3), dtype=np.uint8)
                pixels[:, :, kind % 3] += 40 * (1 + kind // 3)
                Image.fromarray(pixels).save(folder / part / f"kind{kind}/{index}.jpg")


def boxes(folder: Path, count: int = 24, size: int = 96) -> None:
    """Bright squares with their boxes, as YOLO reads them."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for part in ("train", "val"):
        for kind in ("images", "labels"):
            (folder / kind / part).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            pixels = draw.integers(0, 80, (size, size, 3), dtype=np.uint8)
            left, top = draw.integers(0, size - 32, 2)
            pixels[top : top + 32, left : left + 32, index % 3] = 250
            Image.fromarray(pixels).save(folder / f"images/{part}/{index}.jpg")
            label = f"{index % 3} {(left + 16) / size} {(top + 16) / size} {32 / size} {32 / size}"
            (folder / f"labels/{part}/{index}.txt").write_text(label + "\n")
    (folder / "shapes.yaml").write_text(
        f"path: {folder}\ntrain: images/train\nval: images/val\n"
        "names: {0: red, 1: green, 2: blue}\n"
    )


def segments(folder: Path, count: int = 20, size: int = 128) -> None:
    """Pictures with a mask of the same name each."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for kind in ("imgs", "masks"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for index in range(count):
        pixels = draw.integers(0, 80, (size, size, 3), dtype=np.uint8)
        mask = np.zeros((size, size), np.uint8)
        mask[20:80, 30:90] = 255
        pixels[mask > 0] += 100
        Image.fromarray(pixels).save(folder / f"imgs/{index}.png")
        Image.fromarray(mask).save(folder / f"masks/{index}.png")


def exported(notebook: Path) -> None:
    """Write a notebook's code cells as a script beside it, without its shell and magic lines."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = "\n\n".join(code).splitlines()
    kept = [line for line in lines if not _MAGIC.match(line)]
    name = notebook.stem.replace(" ", "_").replace("(", "").replace(")", "") + ".py"
    notebook.with_name(name).write_text("\n".join(kept) + "\n", encoding="utf-8")


def drawn_cifar(folder: Path, each: int = 400) -> None:
    """CIFAR-10's pickled batches, shorter; their checksums are not those of the real ones."""
    draw = np.random.default_rng(0)
    into = folder / "cifar-10-batches-py"
    into.mkdir(parents=True, exist_ok=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        labels = draw.integers(0, 10, each).tolist()
        pixels = draw.integers(0, 255, (each, 3072), dtype=np.uint8)
        (into / name).write_bytes(pickle.dumps({"data": pixels, "labels": labels}))
    kinds = {"label_names": [f"kind{number}" for number in range(10)]}
    (into / "batches.meta").write_bytes(pickle.dumps(kinds))
