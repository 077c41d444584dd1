"""A LoRA adapter as PEFT writes it: `adapter_config.json` and `adapter_model.safetensors`.

The tensors' names say which layers are adapted, so `target_modules` (a list, an expression, or
"all-linear") has nothing to add. What would change the result in another way than W x + s B A x
is refused by name: an adapter that is half applied computes something else and says nothing.

Whoever may have an adapter served may name any file of this machine, with anything in it: a pipe, a
number where a word should be, an expression that never comes to an end. So `examine` trusts
nothing, a server runs it in a process of its own, and torch has no part in it: what comes out says
where in the file the numbers lie. They are finite, and the file is known by its identity.
safetensors' own reader maps a file into memory, and one that is cut short meanwhile would end the
process, so this is the one place where a header is read by ourselves. `low_rank.py` reads the
numbers themselves.
"""

from __future__ import annotations

import math
import os
import re
import stat
from pathlib import Path
from typing import Any, Literal

import msgspec

from ridgeline.checkpoints.names import PEFT_PREFIX
from ridgeline.errors import InputError, in_words
from ridgeline.records.input_file import too_deep

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"

MOST_CONFIG_BYTES = 1 << 20
MOST_HEADER_BYTES = 32 << 20
MOST_RANK = 1024
"""Ranks beyond are not served: each place in memory grows to the largest, in every layer."""
_ANY_RANK = 1 << 31
_TENSOR = re.compile(r"(?P<layer>.+)\.lora_(?P<side>[AB](?=\.weight)|magnitude_vector)(\.weight)?")
_PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva")
"""Initialisations that leave the model's own weights as they are. The others (PiSSA, OLoRA, LoftQ,
CorDA, LoRA-GA, MiCA) move part of them into the adapter."""
_PLAIN_KEYS = frozenset(
    (
        "alpha_pattern",
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",  # of the initialisation, as the next two
        "eva_config",
        "loftq_config",
        "ensure_weight_tying",  # of modules_to_save
        "exclude_modules",  # which layers: the tensors' names say it
        "fan_in_fan_out",  # of the model's own weight
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "rank_pattern",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "use_rslora",
    )
)
"""Settings that change nothing here, or that are read below. Any other must be off."""

Dtype = Literal["F32", "F16", "BF16"]
_WORDS: dict[Dtype, tuple[str, int, int]] = {
    "F32": ("<u4", 4, 0x7F800000),
    "F16": ("<u2", 2, 0x7C00),
    "BF16": ("<u2", 2, 0x7F80),
}
"""A number's word as numpy names it, its bytes, and the bits that are all set in NaN and
infinities."""
_CHUNK_BYTES = 16 << 20


class StoredMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """Where a matrix, or a vector, lies in a file, row by row."""

    dtype: Dtype
    shape: tuple[int, ...]
    start: int
    """The byte of the file at which it begins."""

    @property
    def num_bytes(self) -> int:
        """The bytes that it takes in the file."""
        return math.prod(self.shape) * _WORDS[self.dtype][1]


class AdaptedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The addition to one layer: s B A x."""

    name: str
    a: StoredMatrix
    """The matrix A, [rank, inputs]."""
    b: StoredMatrix
    """The matrix B, [outputs, rank]."""
    scaling: float
    magnitude: StoredMatrix | None = None
    """What the rows' lengths become (DoRA), [outputs]."""


class Identity(msgspec.Struct, frozen=True):
    """What a file is known by not to have changed."""

    device: int
    inode: int
    num_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, descriptor: int) -> Identity:
        """The identity of an open file."""
        found = os.fstat(descriptor)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class AdapterFile(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter that can be read."""

    path: str
    """The file of the tensors."""
    identity: Identity
    layers: tuple[AdaptedLayer, ...]
    transposed: bool = False
    """The model's own weights are [in, out] (GPT-2)."""


def examine(folder: Path, *, merging: bool = False) -> AdapterFile:
    """Find what lies in a directory that PEFT's `save_pretrained` wrote.

    The scaling is α/r, with rank-stabilised LoRA α/√r (Kalajdzievski, 2312.03732), where r is the
    layer's own rank.

    Args:
        folder: The directory.
        merging: It is to be merged into weights, which any rank and DoRA can be, too.

    Raises:
        InputError: No adapter lies there, or one of a kind that is not read here.
    """
    most_rank = _ANY_RANK if merging else MOST_RANK
    config = _config(folder, most_rank, merging=merging)
    path = folder / WEIGHTS_FILE
    missing = f"{folder} has no {WEIGHTS_FILE}; pickled weights are not read"
    descriptor = _open(path, missing)
    try:
        identity = Identity.of(descriptor)
        sides = _matrices(path, descriptor, identity.num_bytes, most_rank, dora=config.use_dora)
        layers = []
        wanted = {"A", "B", "magnitude_vector"} if config.use_dora else {"A", "B"}
        for layer, found in sides.items():
            if set(found) != wanted or found["A"].shape[0] != found["B"].shape[1]:
                raise InputError(
                    f"{folder}: {layer} lacks one of lora_{' and lora_'.join(sorted(wanted))}, or"
                    " their ranks differ"
                )
            scaling = _scaling(folder, config, layer, found["A"].shape[0])
            layers.append(
                AdaptedLayer(
                    name=layer,
                    a=found["A"],
                    b=found["B"],
                    scaling=scaling,
                    magnitude=found.get("magnitude_vector"),
                )
            )
        if not layers:
            raise InputError(f"{folder}: {WEIGHTS_FILE} has no lora_A and lora_B")
        for layer, found in sides.items():
            for side, matrix in found.items():
                if not _is_finite(descriptor, matrix):
                    raise InputError(f"{path}: lora_{side} of {layer} has NaN or infinities")
    finally:
        os.close(descriptor)
    return AdapterFile(
        path=str(path),
        identity=identity,
        layers=tuple(layers),
        transposed=config.fan_in_fan_out,
    )


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of PEFT whose values matter here."""

    peft_type: str
    r: int = 8
    lora_alpha: float = 8.0
    use_rslora: bool = False
    use_dora: bool = False
    fan_in_fan_out: bool = False
    alpha_pattern: dict[str, float] | None = None
    rank_pattern: dict[str, int] | None = None
    target_modules: str | list[str] | None = None
    bias: str = "none"
    init_lora_weights: bool | str | None = True


def _config(folder: Path, most_rank: int, *, merging: bool) -> _Config:
    path = folder / CONFIG_FILE
    missing = f"{folder} has no {CONFIG_FILE}; give the directory that PEFT's save_pretrained wrote"
    descriptor = _open(path, missing)
    try:
        text = os.pread(descriptor, MOST_CONFIG_BYTES + 1, 0)
    finally:
        os.close(descriptor)
    if len(text) > MOST_CONFIG_BYTES:
        raise InputError(f"{path} is over {MOST_CONFIG_BYTES} bytes: no PEFT writes one so long")
    if too_deep(text):
        raise InputError(f"{path} is nested too deeply")
    try:
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no JSON: {in_words(error)}") from None
    if not isinstance(given, dict):
        raise InputError(f"{path} holds no object")
    _refuse_other_kinds(folder, given, merging=merging)
    try:
        config = msgspec.convert(given, _Config)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {in_words(error)}") from None
    if not 1 <= config.r <= most_rank:
        raise InputError(f"{path}: r is {config.r}; ranks of 1 to {most_rank} are read")
    for pattern in (config.target_modules, *(config.alpha_pattern or ())):
        if isinstance(pattern, str):
            _expression(path, pattern)
    return config


def _expression(path: Path, text: str) -> re.Pattern[str]:
    try:
        return re.compile(rf"(.*\.)?({text})$")
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"{path}: {text[:60]!r} is no expression: {in_words(error)}") from None


def _refuse_other_kinds(folder: Path, config: dict[str, Any], *, merging: bool) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise InputError(
            f"{folder}: peft_type {kind}: an adapter of type {kind} is not read; LORA is"
        )
    bias = config.get("bias", "none")
    if bias != "none":
        raise InputError(f"{folder}: bias = {bias!r} is not read; train with bias='none'")
    start = config.get("init_lora_weights", True)
    if start not in _PLAIN_STARTS:
        raise InputError(
            f"{folder}: init_lora_weights = {start!r} changed the model's own weights; save it with"
            " PEFT's path_initial_model_for_weight_conversion"
        )
    for key, value in config.items():
        plain = key in _PLAIN_KEYS or key == "bias" or (key == "use_dora" and merging)
        if value and not plain:
            raise InputError(
                f"{folder}: {key} = {str(value)[:60]!r} is not read here; merge the adapter into"
                " the model with PEFT's merge_and_unload"
            )


def _scaling(folder: Path, config: _Config, layer: str, rank: int) -> float:
    """The scaling by `alpha_pattern`'s first entry that ends the name, else by `lora_alpha`."""
    alpha = config.lora_alpha
    for pattern, special in (config.alpha_pattern or {}).items():
        if _expression(folder / CONFIG_FILE, pattern).match(layer):
            alpha = special
            break
    return alpha / (math.sqrt(rank) if config.use_rslora else rank)


def _open(path: Path, missing: str) -> int:
    """Open a regular file; nothing else is waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise InputError(missing) from None
        raise InputError(f"{path}: {in_words(error)}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path} is no regular file")
    return descriptor


class _Entry(msgspec.Struct, frozen=True):
    """A tensor in a safetensors header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _matrices(
    path: Path, descriptor: int, num_bytes: int, most_rank: int, *, dora: bool
) -> dict[str, dict[str, StoredMatrix]]:
    """The matrices of a safetensors file, by layer and side."""
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if not 2 <= length <= min(MOST_HEADER_BYTES, num_bytes - 8):
        raise InputError(f"{path} cannot be read: it is no safetensors file")
    header = os.pread(descriptor, length, 8)
    try:
        if too_deep(header):
            raise InputError(f"{path} cannot be read: its header is nested too deeply")
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(one, type=_Entry) for name, one in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: its header: {in_words(error)}") from None
    sides: dict[str, dict[str, StoredMatrix]] = {}
    for name, entry in entries.items():
        match = _TENSOR.fullmatch(name.removeprefix(PEFT_PREFIX))
        vector = match is not None and match["side"] == "magnitude_vector"
        if match is None or (vector and not dora):
            raise InputError(
                f"{path}: {name[:200]!r} is no part of a LoRA over linear layers; copies of"
                " embeddings stay out with save_pretrained(save_embedding_layers=False)"
            )
        matrix = _matrix(path, name, entry, 8 + length, num_bytes)
        if len(matrix.shape) != (1 if vector else 2):
            raise InputError(f"{path}: {name} is no {'vector' if vector else 'matrix'}")
        rank = 1 if vector else matrix.shape[0 if match["side"] == "A" else 1]
        if not 1 <= rank <= most_rank:
            raise InputError(f"{path}: {name} has rank {rank}; ranks of 1 to {most_rank} are read")
        sides.setdefault(match["layer"], {})[match["side"]] = matrix
    return sides


def _matrix(path: Path, name: str, entry: _Entry, first: int, num_bytes: int) -> StoredMatrix:
    if entry.dtype not in _WORDS:
        raise InputError(f"{path}: {name} is {entry.dtype}; {', '.join(_WORDS)} are read")
    if min(entry.shape, default=-1) < 0:
        raise InputError(f"{path}: {name} is no matrix")
    matrix = StoredMatrix(
        dtype=entry.dtype,
        shape=tuple(entry.shape),
        start=first + entry.data_offsets[0],
    )
    begins, ends = entry.data_offsets
    if begins < 0 or ends - begins != matrix.num_bytes or first + ends > num_bytes:
        raise InputError(f"{path} cannot be read: {name} does not lie where its header says")
    return matrix


def _is_finite(descriptor: int, matrix: StoredMatrix) -> bool:
    import numpy as np

    word, _, exponent = _WORDS[matrix.dtype]
    end = matrix.start + matrix.num_bytes
    for at in range(matrix.start, end, _CHUNK_BYTES):
        words = np.frombuffer(os.pread(descriptor, min(_CHUNK_BYTES, end - at), at), word)
        if bool(((words & exponent) == exponent).any()):
            return False
    return True
