"""A stage of a model: some of its layers, between states that come and states that go.

Stages stand in a ring. The first one has the embedding and the head, which are often one tensor,
and the first layers; its last layer sends states on, and takes what the last stage has made of
them. Each other stage takes states before its first layer and sends them on behind its last one,
so that a step passes every stage once and ends where it began. To everything else a stage is a
model with fewer layers: its own, counted from zero, with a cache of their own.

Where each stage is cut over several ranks besides (`tensor_parallel/`), the ranks with the same
share of neighbouring stages pass states on to each other: every one of them has all of them.

A step keeps one stage busy at a time. So the first stage begins as many steps as there are stages,
each with some of the running requests, before it takes back the states of the first one (`gate.py`,
and the engine's `step_rows.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.names import first_names
from ridgeline.checkpoints.skeleton import (
    empty_model,
    owner_of,
    read_generation_config,
    set_tensor,
    stored_pieces,
)
from ridgeline.checkpoints.ties import settle_ties
from ridgeline.errors import InputError
from ridgeline.models.folder import read_by_library
from ridgeline.serve.pipeline_parallel.gate import StageGate
from ridgeline.serve.tensor_parallel.group import RankGroup
from ridgeline.serve.tensor_parallel.plan import TensorPlan, plan_of
from ridgeline.serve.tensor_parallel.reading import (
    check_all_read,
    cut_parameters,
    note_peaks,
    peaks_of,
    place_shares,
    share_of,
    words_of,
)

OPTION = "--pp"


@dataclass(frozen=True, slots=True)
class LayerStage:
    """Where a stage's layers lie in the whole model."""

    prefix: str
    """What the names of the whole model's layers begin with, with its dot."""
    first: int
    last: int
    """Behind the last layer."""
    is_first: bool

    def own_name(self, target: str) -> str | None:
        """What a tensor of the whole model is called here; None: another stage has it."""
        if not target.startswith(self.prefix):
            return target if self.is_first else None
        number, _, rest = target.removeprefix(self.prefix).partition(".")
        if not self.first <= int(number) < self.last:
            return None
        return f"{self.prefix}{int(number) - self.first}.{rest}"


def stage_bounds(num_layers: int, size: int, rank: int) -> tuple[int, int]:
    """The first layer of a stage, and the one behind its last; later stages get what is over.

    The first stage has embedding and head besides.

    >>> [stage_bounds(10, 4, rank) for rank in range(4)]
    [(0, 2), (2, 4), (4, 7), (7, 10)]
    """
    each, over = divmod(num_layers, size)
    begins = [each * at + max(0, at - (size - over)) for at in range(size + 1)]
    return begins[rank], begins[rank + 1]


def check_stages(config: Any, directory: Path, size: int, *, trust_remote_code: bool) -> None:
    """Find out, without reading a weight, whether a model can be cut into so many stages.

    Raises:
        InputError: It has fewer layers, or more than hidden states pass between them.
    """
    model = _without_weights(config, directory, torch.float32, trust_remote_code=trust_remote_code)
    _, layers = _layers_of(model)
    if len(layers) < size:
        raise InputError(
            f"{OPTION} {size}: the model has {len(layers)} layers; give as many or less"
        )


def load_stage(
    config: Any,
    directory: Path,
    dtype: torch.dtype,
    group: RankGroup,
    *,
    trust_remote_code: bool = False,
    whole_experts: bool = False,
    weights: bool = True,
    scaled_by_row: bool = False,
) -> tuple[nn.Module, StageGate | None]:
    """One rank's stage of a model, or its share of one, which computes once all ranks do.

    With the first stage comes the gate by which a step leaves it.

    Args:
        config: The model's, as transformers reads it.
        directory: The checkpoint.
        dtype: The dtype of the parameters.
        group: The ranks.
        trust_remote_code: As transformers means it.
        whole_experts: Deal a mixture's experts out whole, where a stage is cut over ranks.
        weights: Read them; without, parameters have the share's shapes on the meta device.
        scaled_by_row: Note the row peaks of shares of the inputs: they are to be rounded by them.

    Raises:
        InputError: What `check_stages` would have said, or tensors do not fit.
    """
    model = _without_weights(config, directory, dtype, trust_remote_code=trust_remote_code)
    tied = first_names(model)
    plan = plan_of(model, whole_experts=whole_experts) if group.shares > 1 else None
    words = {} if plan is None else words_of(model, plan)
    prefix, layers = _layers_of(model)
    first, last = stage_bounds(len(layers), group.stages, group.stage)
    stage = LayerStage(prefix, first, last, is_first=not group.stage)
    found: dict[str, Tensor] = {}
    peaks: dict[str, Tensor | None] = {}
    if weights:
        found = _read_stage(model, directory, stage, plan, group)
    if weights and scaled_by_row and plan is not None:
        peaks = _peaks_of_stage(model, directory, stage, plan, group)
    if plan is not None and not weights:
        cut_parameters(model, plan, group.line)
    _keep(model, prefix, first, last)
    if group.stage:
        _without_ends(model, dtype)
    for name, values in found.items():
        set_tensor(*owner_of(model, name), values)
    found.clear()
    note_peaks(model, peaks)
    if stage.is_first:
        for name, other in tied.items():
            if name != other:
                parent, leaf = owner_of(model, name)
                parent._parameters[leaf] = model.get_parameter(other)
    if plan is not None:
        place_shares(model, plan, group.line, words)
    read_generation_config(model, directory)
    gate = _join(_layers_of(model)[1], group)
    if not weights:
        return model, gate
    check_all_read(model)
    return model.to(group.device), gate


def _read_stage(
    model: nn.Module, directory: Path, stage: LayerStage, plan: TensorPlan | None, group: RankGroup
) -> dict[str, Tensor]:
    """What this rank has of a stage's tensors, by their names within it."""
    checkpoint = CheckpointFiles(directory)
    return {
        name: share_of(model, target, parts, checkpoint, plan, group.line.place)
        for target, parts in stored_pieces(model, checkpoint).items()
        if (name := stage.own_name(target)) is not None
    }


def _peaks_of_stage(
    model: nn.Module, directory: Path, stage: LayerStage, plan: TensorPlan, group: RankGroup
) -> dict[str, Tensor | None]:
    """What rows of a stage's weights reach over all ranks, by the weights' names within it."""
    checkpoint = CheckpointFiles(directory)
    return {
        name: peaks_of(model, target, parts, checkpoint, plan, group.line.place)
        for target, parts in stored_pieces(model, checkpoint).items()
        if (name := stage.own_name(target)) is not None
    }


def _without_weights(
    config: Any, directory: Path, dtype: torch.dtype, *, trust_remote_code: bool
) -> Any:
    with read_by_library(directory, what="config.json makes no causal language model"):
        model = empty_model(
            config, dtype=dtype, attention="eager", trust_remote_code=trust_remote_code
        )
    settle_ties(model, CheckpointFiles(directory))
    return model


def _layers_of(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """The layers of a model between which only hidden states pass, and their names' beginning.

    Raises:
        InputError: transformers does not say that it is such a model, or keys pass, too.
    """
    family = model.config.model_type  # type: ignore[union-attr]
    base: Any = model.base_model
    plan = getattr(base, "_pp_plan", None) or getattr(base.config, "base_model_pp_plan", None)
    layers = getattr(base, "layers", None)
    if not plan or "hidden_states" not in plan.get("layers", ([], []))[1] or layers is None:
        raise InputError(
            f"{OPTION}: transformers has no plan of how to cut models of the family {family} into"
            f" stages; leave out {OPTION}, or use --tp"
        )
    if getattr(base.config, "num_kv_shared_layers", 0):
        raise InputError(
            f"{OPTION}: the last layers of {family} read keys of layers before them, which another"
            f" stage would hold; leave out {OPTION}, or use --tp"
        )
    prefix = next(name for name, module in model.named_modules() if module is layers)
    return f"{prefix}.", layers


def _keep(model: nn.Module, prefix: str, first: int, last: int) -> None:
    """Leave a stage's layers alone in the model, counted from zero."""
    parent, leaf = owner_of(model, prefix.rstrip("."))
    kept = nn.ModuleList(list(getattr(parent, leaf))[first:last])
    setattr(parent, leaf, kept)
    for module in kept.modules():
        if isinstance(getattr(module, "layer_idx", None), int):
            module.layer_idx -= first  # type: ignore[operator, assignment]
    config = model.config.get_text_config()  # type: ignore[union-attr, operator]
    config.num_hidden_layers = last - first
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[first:last]


class _NoWords(nn.Module):
    """Stands where the first stage has the embedding: its states come from another stage."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._shape = (width, dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """States of the right shape, which nobody reads."""
        width, dtype = self._shape
        return torch.empty((), dtype=dtype, device=ids.device).expand(*ids.shape, width)


class _NoHead(nn.Module):
    """Stands where the first stage has the head: what this stage gives went to another one."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self._vocab = vocab

    def forward(self, states: Tensor) -> Tensor:
        """Logits of the right shape, which nobody reads."""
        zero = torch.zeros((), dtype=torch.float32, device=states.device)
        return zero.expand(*states.shape[:-1], self._vocab)


def _without_ends(model: nn.Module, dtype: torch.dtype) -> None:
    """Leave embedding, last norm and head to the first stage."""
    base: Any = model.base_model
    config = model.config.get_text_config()  # type: ignore[union-attr, operator]
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[operator]
    for name, module in list(model.named_modules()):
        new: nn.Module | None = None
        if module is embedding:
            new = _NoWords(config.hidden_size, dtype)
        elif module is head:
            new = _NoHead(config.vocab_size)
        elif name.count(".") == 1 and module in base.children() and "norm" in name:
            new = nn.Identity()
        if new is not None:
            parent, leaf = owner_of(model, name)
            setattr(parent, leaf, new)


def _join(layers: nn.ModuleList, group: RankGroup) -> StageGate | None:
    """Take states before the first layer and send them on behind the last, as the stage has to."""
    if not group.stage:
        return StageGate(layers, group)

    def take(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        states = args[0] if args else kwargs["hidden_states"]
        came = group.take(states)
        if args:
            return (came, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": came}

    def send(_layer: nn.Module, _args: Any, out: Any) -> None:
        group.send_on(out[0] if isinstance(out, tuple) else out)

    layers[0].register_forward_pre_hook(take, with_kwargs=True)
    layers[-1].register_forward_hook(send)
    return None
