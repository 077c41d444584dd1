"""A directory as a model that is ready to be evaluated, read by transformers.

Dense models compute in the number format that they are stored in. compressed-tensors ones are
multiplied by their dequantised weights, and where their scheme rounds activations or the KV cache,
compressed-tensors rounds them too: it is the quality of what is saved, whichever engine runs it.
Codebooks are read here, since transformers reads them only beside the package aqlm, and so is what
it would not read, or read otherwise (`saved/unread.py`).
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ridgeline.checkpoints import aqlm
from ridgeline.checkpoints.compressed_tensors import quantisation_of
from ridgeline.checkpoints.tokenizer import read_tokenizer
from ridgeline.errors import InputError, MissingExtra
from ridgeline.models.folder import check_model_folder, read_by_library


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model on its device."""

    directory: Path
    model: nn.Module

    @property
    def vocab(self) -> int:
        """The number of words of the vocabulary."""
        return int(self.model.config.get_text_config().vocab_size)  # type: ignore[union-attr,operator]

    @property
    def computed_with(self) -> str:
        """The program, number format and device."""
        import transformers

        dtype = str(self.model.dtype).removeprefix("torch.")
        device = next(self.model.parameters()).device.type
        return f"transformers {transformers.__version__}, {dtype} on {device}"


def check_directory(option: str, directory: Path) -> None:
    """Raise `InputError` unless this looks like the directory of a Hugging Face model."""
    if not directory.is_dir():
        raise InputError(
            f"{option} {directory}: no such directory; fetch a hub model first: hf download NAME"
            " --local-dir DIR"
        )
    if not (directory / "config.json").is_file():
        raise InputError(
            f"{option} {directory}: no config.json in it; give the directory of a Hugging Face"
            " model"
        )
    check_model_folder(directory)


def load(option: str, directory: Path, device: str = "auto") -> Loaded:
    """Read a model whole into memory.

    Args:
        option: Named in complaints.
        directory: With config.json and safetensors.
        device: auto, cpu or cuda.

    Raises:
        InputError: It is no causal language model, or files are missing, broken or do not fit.
    """
    check_directory(option, directory)
    where = device_of(device)
    try:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging as notices
    except ImportError:
        raise MissingExtra("transformers", "compress") from None
    from ridgeline.compress.saved.unread import is_read_here_alone

    books = quantisation_of(directory).get("quant_method") == aqlm.LAYOUT
    if books or is_read_here_alone(directory):
        from ridgeline.compress.saved.whole_model import whole_model

        return Loaded(directory, whole_model(directory, attention=None).model.to(where))
    notices.disable_progress_bar()
    level = notices.get_verbosity()
    notices.set_verbosity_error()
    try:
        # compressed-tensors draws progress bars, and unpacks weights in the first call.
        silent = contextlib.redirect_stderr(io.StringIO())
        with read_by_library(directory, option=option), silent:
            model, about = AutoModelForCausalLM.from_pretrained(
                directory, dtype="auto", output_loading_info=True, local_files_only=True
            )
            model = model.to(where).eval().requires_grad_(requires_grad=False)
            with torch.inference_mode():
                model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=where), use_cache=False)
    finally:
        notices.set_verbosity(level)
    missing = sorted(about.get("missing_keys", ()))
    if missing:
        raise InputError(
            f"{option} {directory}: {len(missing)} tensors that config.json asks for are missing,"
            f" such as {missing[0]}; copy the model again"
        )
    unknown = sorted(about.get("unexpected_keys", ()))
    if unknown:
        raise InputError(
            f"{option} {directory}: {len(unknown)} tensors of its files belong to no model that"
            f" config.json describes, such as {unknown[0]}; copy the model again"
        )
    return Loaded(directory, model)


def positions_of(option: str, directory: Path) -> int | None:
    """Tokens that a model reaches; None: its configuration does not say.

    Raises:
        InputError: The configuration cannot be read.
    """
    check_directory(option, directory)
    from transformers import AutoConfig

    with read_by_library(directory, option=option):
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
    found: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return found


def device_of(device: str) -> torch.device:
    """The device to compute on.

    Raises:
        InputError: CUDA was asked for and is not there, or the name is another.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device {device}: give auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: PyTorch sees no GPU here; use --device cpu")
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def tokenizer_of(option: str, directory: Path) -> Any:
    """The tokenizer beside a model.

    Raises:
        InputError: There is none, or it cannot be read.
    """
    return read_tokenizer(directory, option=option, local=True)
