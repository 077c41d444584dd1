"""The trained model as a Hugging Face folder, whatever layout trained it.

Every tensor is made whole in turn, by all ranks that share it, and kept by one process: rank 0,
to which the leaders of other pipeline stages send theirs. transformers writes the folder, so that
what it renames or fuses in memory is stored as hub checkpoints have it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase

from ridgeline.checkpoints.names import first_names, original_name
from ridgeline.records.recipe import Recipe
from ridgeline.train.adapters import PROJECTION
from ridgeline.train.model import skeleton
from ridgeline.train.ranks import Ranks


def save_model(
    modules: Sequence[nn.Module],
    recipe: Recipe,
    ranks: Ranks,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """Write config, weights and tokenizer; the folder is whole or not there. All ranks call it."""
    state = gathered(modules, ranks)
    with written_whole(folder, ranks) as temporary:
        if temporary is None:
            return
        model = skeleton(recipe)
        model.save_pretrained(temporary, state_dict=_with_tied(model, state))
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)


@contextmanager
def written_whole(folder: Path, ranks: Ranks) -> Iterator[Path | None]:
    """A folder for rank 0 to write, put in place of `folder` in the end; None elsewhere.

    All ranks enter it, and leave it when the folder is there.
    """
    if ranks.rank != 0:
        yield None
    else:
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        try:
            yield temporary
            _replace(folder, temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    dist.barrier()


def gathered(modules: Sequence[nn.Module], ranks: Ranks) -> dict[str, Tensor]:
    """Everything on rank 0; nothing elsewhere."""
    leads = all(ranks.index(axis) == 0 for axis in ("gradients", "tp"))
    mine = {}
    for name, whole in _whole_tensors(modules):
        if leads:
            mine[name] = whole.cpu().contiguous()
    stages = ranks.size("pp")
    if stages == 1 or not leads:
        return mine
    group = ranks.group("pp")
    leaders = dist.get_process_group_ranks(group)
    listed: list[dict[str, tuple[torch.Size, torch.dtype]]] = [{} for _ in range(stages)]
    described = {name: (tensor.shape, tensor.dtype) for name, tensor in mine.items()}
    dist.all_gather_object(listed, described, group=group)
    for stage in range(1, stages):
        for name, (shape, dtype) in listed[stage].items():
            if ranks.index("pp") == stage:
                _send(mine[name], leaders[0], group, ranks.device)
            elif ranks.index("pp") == 0:
                mine[name] = _receive(shape, dtype, leaders[stage], group, ranks.device)
    return mine if ranks.index("pp") == 0 else {}


def _whole_tensors(modules: Sequence[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for part in modules:
        for name, parameter in part.named_parameters():
            if PROJECTION in name:
                continue
            tensor = parameter.detach()
            yield (
                original_name(name),
                (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor),
            )


def _send(tensor: Tensor, to: int, group: dist.ProcessGroup, device: torch.device) -> None:
    dist.send(tensor.to(device), to, group=group)


def _receive(
    shape: torch.Size,
    dtype: torch.dtype,
    sender: int,
    group: dist.ProcessGroup,
    device: torch.device,
) -> Tensor:
    tensor = torch.empty(shape, dtype=dtype, device=device)
    dist.recv(tensor, sender, group=group)
    return tensor.cpu()


def _with_tied(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A tied weight under each of its names, as transformers expects a state."""
    for name, other in first_names(model).items():
        if name not in state and other in state:
            state[name] = state[other]
        elif name in state and other not in state:
            state[other] = state[name]
    return state


def _replace(folder: Path, temporary: Path) -> None:
    """Put a finished folder in place of an older one."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    if folder.exists():
        os.replace(folder, old)
    os.replace(temporary, folder)
    shutil.rmtree(old, ignore_errors=True)
