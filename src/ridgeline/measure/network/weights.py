"""A file of weights, and the module that it is given to."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ridgeline.errors import InputError, in_words
from ridgeline.records.overwriting import note_input

_AROUND = ("state_dict_ema", "model_ema", "state_dict", "model", "model_state_dict")
"""Where training scripts keep the state dict in what they save, the averaged one first."""


def load_weights(module: nn.Module, path: Path, option: str, owner: str) -> None:
    """Give a module the weights of a file.

    Args:
        module: Its state dict is the file's.
        path: See `read_weights`; also the .npz that a model of timm reads itself.
        option: What named the file, for messages.
        owner: The model's name, for messages.

    Raises:
        InputError: The file cannot be read, or is of another model.
    """
    read_itself = getattr(module, "load_pretrained", None)
    try:
        if path.suffix == ".npz" and read_itself is not None and path.is_file():
            note_input(path)
            read_itself(str(path))
        else:
            module.load_state_dict(read_weights(path, option))
    except InputError:
        raise
    except Exception as error:  # load_state_dict's, and what timm's readers raise
        raise InputError(
            f"{option} {path}: does not fit {owner} ({in_words(error)}); give its own state dict"
        ) from None


def read_weights(path: Path, option: str) -> dict[str, Tensor]:
    """A state dict out of .safetensors, or out of what torch.save wrote, whatever is around it.

    Raises:
        InputError: It cannot be read, or holds none.
    """
    if not path.is_file():
        raise InputError(f"{option} {path}: no such file; check the path")
    note_input(path)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the readers of torch and safetensors raise what they like
        raise InputError(f"{option} {path}: cannot be read ({in_words(error)})") from None
    for key in _AROUND:
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not any(isinstance(one, Tensor) for one in found.values()):
        raise InputError(f"{option} {path}: holds no state dict; give what state_dict() returned")
    return {key.removeprefix("module."): value for key, value in found.items()}
