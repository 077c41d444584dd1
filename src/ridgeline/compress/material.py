"""What a compression is given, checked before anything is computed, and its calibration text."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.compress.evaluate.loaded import (
    check_directory,
    device_of,
    positions_of,
    tokenizer_of,
)
from ridgeline.compress.evaluate.text import TextWindows, read_text, text_windows
from ridgeline.errors import InputError
from ridgeline.records import input_file
from ridgeline.records.scheme import Scheme
from ridgeline.records.store import write_atomically
from ridgeline.records.work_folder import held

HELD_BACK = 10
"""Without a text or images to judge on, the last part of so many of the calibration's is taken."""
ORDER, CALIBRATION = "order.json", "calibration.txt"
CALIBRATION_TOKENS = 2**16
USUAL_LENGTH = 512
"""Tokens of a calibration sequence; as long as a judged window where --context says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What is compressed, with what, and on what it is judged."""

    model: Path
    out: Path
    calibration: Path | None = None
    """Text; None where no scheme looks at activations."""
    text: Path | None = None
    """Text to be judged on; None: the end of the calibration text, not calibrated on then."""
    context: int | None = None
    """Tokens of a judged window; None: 2,048 or the model's positions."""
    stride: int | None = None
    device: str = "auto"
    resume: bool = False
    """Go on from what an interruption left."""
    judged: bool = True
    """Measure before saving; both models are then held in memory."""

    @property
    def work(self) -> Path:
        """Where everything lies until it has been judged."""
        return self.out.with_name(f"{self.out.name}.partial")


@contextmanager
def claimed(material: Material, schemes: Sequence[Scheme], order: Sequence[str]) -> Iterator[None]:
    """Refuse what can be known to fail; within, the working folder is this job's.

    It stays when the job is interrupted or runs out of disk, and goes where what was given cannot
    be used, unless an earlier run had begun it.

    Args:
        material: Of the job.
        schemes: That will be used.
        order: Words that say what is to be done; a resumed job must be the same.

    Raises:
        InputError: Something is missing, in the way, or left from another job.
    """
    check(material, schemes)
    with held(material.work, material.out):
        _claim(material, order)
        try:
            yield
        except InputError:
            if not material.resume:
                shutil.rmtree(material.work, ignore_errors=True)
            raise
        except KeyboardInterrupt:
            if {path.name for path in material.work.glob("*")} <= {ORDER, CALIBRATION}:
                shutil.rmtree(material.work, ignore_errors=True)  # nothing was done yet
            raise


def check(material: Material, schemes: Sequence[Scheme]) -> None:
    """What can be known to fail before anything is read.

    Raises:
        InputError: Something is missing or in the way.
    """
    device_of(material.device)
    check_directory("MODEL", material.model)
    if material.out.exists():
        raise InputError(f"--out {material.out}: exists already; give another name or remove it")
    for option, path in (("--calibration", material.calibration), ("--text", material.text)):
        if path is not None and not path.exists():
            raise InputError(f"{option} {path}: no such file")
    if schemes and CheckpointFiles(material.model).config.get("quantization_config"):
        raise InputError(
            f"MODEL {material.model}: compressed already; start from the uncompressed model"
        )
    _check_texts(material, schemes)


def _check_texts(material: Material, schemes: Sequence[Scheme]) -> None:
    if material.calibration is None:
        needing = [one.name for one in schemes if one.needs_calibration]
        if needing:
            raise InputError(
                f"{needing[0]} looks at what flows through the model: give --calibration FILE, text"
                " like that which the model will see"
            )
    if not material.judged or material.text is not None:
        return
    if material.calibration is None:
        raise InputError("--text FILE is missing: held-out text to judge on")
    if material.calibration.is_dir():
        raise InputError(
            f"--calibration {material.calibration} is a folder, so no part of it can be held back:"
            " give --text FILE, held-out text to judge on"
        )


def _claim(material: Material, order: Sequence[str]) -> None:
    files = [material.model.resolve(), material.calibration, material.text]
    # Calibration sequences are as long as a judged window.
    words = [*(str(file) for file in files), f"--context {material.context}", *order]
    path = material.work / ORDER
    if not any(material.work.iterdir()):
        try:
            write_atomically(path, msgspec.json.encode(words))
        except OSError as error:
            raise InputError(f"--out {material.out}: {error.strerror}: {error.filename}") from None
        return
    where = f"--out {material.out}: {material.work} is left from"
    if not material.resume:
        raise InputError(f"{where} an interrupted run; add --resume to go on from it, or remove it")
    if not path.is_file() or path.read_bytes() != msgspec.json.encode(words):
        raise InputError(
            f"{where} another command (model, texts, --context or schemes differ); repeat that, or"
            " remove it"
        )


def prepared(material: Material, *, calibrated: bool) -> tuple[Tensor | None, TextWindows | None]:
    """Calibration tokens, where they are needed, and the windows to judge on.

    Raises:
        InputError: A text cannot be read or is too short, or there is no tokenizer.
    """
    calibrating, judged = material.calibration, None
    if material.judged:
        calibrating, text, name = _texts(material)
        judged = text_windows(
            text,
            name,
            tokenizer_of("MODEL", material.model),
            context=material.context,
            stride=material.stride,
            positions=positions_of("MODEL", material.model),
        )
    if not calibrated or calibrating is None:
        return None, judged
    length = material.context or USUAL_LENGTH
    count = CALIBRATION_TOKENS // length
    tokens = calibration_tokens(material.model, calibrating, sequences=count, length=length)
    return tokens, judged


def _texts(material: Material) -> tuple[Path | None, str, str]:
    """What to calibrate on, what to judge on, and the name of that."""
    if material.text is not None:
        return material.calibration, read_text("--text", material.text), str(material.text)
    assert material.calibration is not None
    content = read_text("--calibration", material.calibration)
    cut = len(content) - len(content) // HELD_BACK
    first = material.work / CALIBRATION
    write_atomically(first, content[:cut].encode())
    return first, content[cut:], f"{material.calibration}, its last 1/{HELD_BACK}"


_TEXTS = ("*.txt", "*.md", "*.py", "*.rst", "*.json", "*.jsonl")
"""The files of a folder that are read."""


def calibration_tokens(
    model: Path,
    text: Path,
    *,
    sequences: int = 128,
    length: int = 512,
    seed: int = 0,
    option: str = "--calibration",
) -> Tensor:
    """Pieces of a text, drawn evenly from all of it, as tokens [sequences, length] int64.

    Args:
        model: WeightReader with the tokenizer.
        text: A file, or a folder of text files.
        sequences: At most; fewer where the text is short.
        length: Tokens of each; at most the model's context.
        seed: Where pieces begin within their share of the text.
        option: The option, or the key, that named the text.

    Raises:
        InputError: No text, too little of it, or no tokenizer.
    """
    tokenizer = tokenizer_of("MODEL", model)
    length = min(length, positions_of("MODEL", model) or length)
    whole = _content(text, option)
    generator = torch.Generator().manual_seed(seed)
    found = _cut_out(tokenizer, whole, sequences, length, generator)
    if found is not None:
        return found
    ids = torch.tensor(_numbers(tokenizer, [whole])[0])
    count = min(sequences, len(ids) // length)
    if not count:
        raise InputError(
            f"{option} {text}: {len(ids)} tokens; at least one sequence of {length} is needed"
        )
    share = len(ids) // count
    offsets = torch.randint(0, share - length + 1, (count,), generator=generator)
    starts = torch.arange(count) * share + offsets
    return torch.stack([ids[start : start + length] for start in starts.tolist()])


_CHARACTERS = 8
"""Characters that are cut out of a long text for each token: most tokens are shorter."""


def _cut_out(
    tokenizer: Any, whole: str, sequences: int, length: int, generator: torch.Generator
) -> Tensor | None:
    """Pieces of a long text, each from a part of it that is tokenised alone, [sequences, length].

    None: the text is short, or its tokens are long, so that all of it has to be looked at.
    """
    share, size = len(whole) // sequences, _CHARACTERS * length
    if share < 2 * size:
        return None
    offsets = torch.randint(0, share - size - size // 2, (sequences,), generator=generator).tolist()
    parts = []
    for number, offset in enumerate(offsets):
        start = number * share + offset
        space = _SPACE.search(whole, start, start + size // 2)
        start = space.start() if space else start  # a word is not cut
        parts.append(whole[start : start + size])
    numbers = _numbers(tokenizer, parts)
    if min(map(len, numbers)) < length:
        return None
    return torch.tensor([found[:length] for found in numbers])


_SPACE = re.compile(r"\s")


def _numbers(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    found: list[list[int]] = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return found


def _content(text: Path, option: str) -> str:
    paths = [text]
    if text.is_dir():
        paths = sorted(path for pattern in _TEXTS for path in text.rglob(pattern))
    if not paths:
        raise InputError(f"{text}: no text files in it ({', '.join(_TEXTS)})")
    return "\n".join(input_file.read_text(path, option=option) for path in paths)
