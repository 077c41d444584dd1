"""What of a model is trained, with which optimizer, and how weights are kept.

`linear_layers.toml` beside this file has the names of linear layers, `optimizers.toml` what each
optimizer keeps.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from ridgeline.cost.training.workload import LowRankAdapters, Stack, Workload
from ridgeline.errors import InputError
from ridgeline.models.counts import parameter_parts
from ridgeline.models.sequence import sequence_of
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.training.stacks import stack
from ridgeline.records.input_file import read_toml
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import OptimizerName
from ridgeline.records.recipe_compression import RecipeAdapter

LINEAR_LAYERS = Path(__file__).with_name("linear_layers.toml")
OPTIMIZERS = Path(__file__).with_name("optimizers.toml")
FOUR_BITS = 4.25 / 8.0
"""Bytes of a weight in NF4 with a 16-bit scale for each 64 (`ridgeline train`'s; bitsandbytes takes
4.5 bits, with double quantisation 4.13)."""
WIDTHS = {"fp32": 4.0, "bf16": 2.0}
WeightFormat = Literal["fp32", "bf16"]


class OptimizerState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of `optimizers.toml`."""

    name: OptimizerName
    numbers: float = 0.0
    """Numbers kept of each parameter, in the format of the weights."""
    numbers_of_tables: float | None = None
    """The same of embeddings and head, where it differs."""
    bytes: float = 0.0
    """Bytes kept of each parameter beside them."""
    uncounted: str = ""
    """What of its time the cost model leaves out."""


class OptimizerFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `optimizers.toml`."""

    optimizer: list[OptimizerState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What is trained of a language model, in the words of a recipe."""

    adapter: RecipeAdapter | None = None
    """Trained in place of the weights: kind `lora` or `qlora`."""
    optimizer: OptimizerName = "adamw"
    """The `optimizer.name` of a recipe."""
    weights: WeightFormat | None = None
    """In what weights are kept. None: fp32 master weights, with an adapter bf16."""

    @property
    def kept_in(self) -> WeightFormat:
        """In what weights are kept, whether it was said or not."""
        return self.weights or ("fp32" if self.adapter is None else "bf16")

    @property
    def by_usual_adamw(self) -> bool:
        """Whether it is AdamW, whose state is as usual for what is trained."""
        return self.optimizer == "adamw" and (self.adapter is not None or self.kept_in == "fp32")

    def shards_alone(self, software: str) -> bool:
        """Whether a plan for this class of software shards it and splits neither layers nor stages.

        The recipe of a plan is for `ridgeline train`, which adapts layers that are whole.
        """
        return self.adapter is not None and software == "torch"


WHOLE = Trained()
"""All weights, by AdamW with fp32 master weights."""


def adapters_of(trained: Trained) -> LowRankAdapters:
    """The adapters as the cost model takes them.

    Raises:
        InputError: Their kind, rank or targets are not known.
    """
    adapter = trained.adapter
    if adapter is None:
        return LowRankAdapters()
    if adapter.kind not in ("lora", "qlora"):
        raise InputError(
            f"adapter {adapter.kind}: the cost model knows lora and qlora; lora of this rank is"
            " near in memory, not in time"
        )
    if adapter.rank < 1:
        raise InputError(f"adapter rank is {adapter.rank}; it must be 1 or more")
    width = WIDTHS[trained.kept_in]
    return LowRankAdapters(
        rank=float(adapter.rank),
        weight_bytes=FOUR_BITS if adapter.kind == "qlora" else width,
        table_bytes=width,
        dropout=adapter.dropout > 0.0,
        saves_inputs=False,
        **_at(adapter.targets),
    )


@functools.cache
def linear_layers() -> dict[str, list[str]]:
    """What a linear layer computes → its names in Hugging Face's models."""
    found: dict[str, list[str]] = read_toml(LINEAR_LAYERS, dict[str, list[str]])
    return found


@functools.cache
def optimizer_states() -> dict[str, OptimizerState]:
    """Every optimizer of the file by its name."""
    return {one.name: one for one in read_toml(OPTIMIZERS, OptimizerFile).optimizer}


def optimizer_called(name: str) -> OptimizerState:
    """What the optimizer of this name keeps.

    >>> optimizer_called("lion").numbers
    1.0

    Raises:
        InputError: There is none.
    """
    known = optimizer_states()
    if name not in known:
        raise InputError(f"--optimizer {name}: use one of {', '.join(known)}")
    return known[name]


def stack_for(software: Stack, trained: Trained, model: ModelSpec) -> Stack:
    """The class of software with what the optimizer keeps, and in what weights are kept."""
    state = optimizer_called(trained.optimizer)
    if trained.optimizer == "adamw" and trained.kept_in == "fp32":
        return software
    parts = parameter_parts(model)
    tables = 0.0 if trained.adapter else (parts.embedding + parts.head) / parts.total
    of_tables = state.numbers if state.numbers_of_tables is None else state.numbers_of_tables
    numbers = (1.0 - tables) * state.numbers + tables * of_tables
    kept = replace(software, optimizer_bytes=numbers * WIDTHS[trained.kept_in] + state.bytes)
    if trained.kept_in == "fp32":
        return kept
    return replace(kept, master_bytes=0.0, gradient_bytes=2.0, reduce_bytes=2.0)


def trained_sentences(trained: Trained, model: ModelSpec) -> list[str]:
    """What is assumed of what is trained."""
    uncounted = optimizer_called(trained.optimizer).uncounted
    found = [uncounted] if uncounted else []
    if trained.adapter is not None:
        found.append(
            "of runs with adapters six of NeMo's were fitted; how far off the memory of others was"
            " is in docs/results/accuracy_training.md"
        )
        if model.experts is not None:
            found.append("routed experts have no adapters: peft passes their stacked tensors by")
        if trained.adapter.kind == "qlora":
            found.append(
                "kernels that keep nothing of four-bit weights in 16 bits, as those of `ridgeline"
                " train`, torchtune and bitsandbytes since 0.43.2, which before kept each layer's"
                " input as well"
            )
    return found


def workload_of(
    model: ModelSpec,
    *,
    seq: int | None,
    software: str,
    trained: Trained = WHOLE,
    recompute_share: float = 1.0,
) -> Workload:
    """The task of a run, with software of the class of this name.

    Args:
        model: What is trained, wholly or by adapters.
        seq: Tokens in one sequence; a model of images has its own.
        software: A class of `stacks.toml`.
        trained: The weights or adapters that are trained.
        recompute_share: The share of the layers that recompute where the layout says so.

    Raises:
        InputError: A name is unknown, or the adapter's fields make no sense.
    """
    return Workload(
        seq=sequence_of(model, seq),
        stack=stack_for(stack(software), trained, model),
        adapters=adapters_of(trained),
        recompute_share=recompute_share,
    )


def check_trained(trained: Trained, layout: Layout) -> None:
    """Refuse what is trained where the layout does not go with it.

    Raises:
        InputError: It says what to change.
    """
    adapter = trained.adapter
    if adapter is None:
        return
    if layout.offload == "all-on-disk":
        raise InputError(
            f"--offload all-on-disk with --adapter {adapter.kind}: reading frozen weights from disk"
            " is not counted; leave it out, and take qlora or more devices with --zero 3"
        )


def check_named_as_in_model(trained: Trained) -> None:
    """Refuse targets that are named by what they compute where a recipe is written of them.

    Raises:
        InputError: It says which names a recipe takes.
    """
    short = {names[0]: names[1] for names in linear_layers().values()}
    targets = () if trained.adapter is None else trained.adapter.targets
    if any(target in short for target in targets):
        named = ",".join(short.get(target, target) for target in targets)
        raise InputError(
            f"--write: a recipe names linear layers as the model does; give them so, as"
            f" --adapter-targets {named}"
        )


def _at(targets: Sequence[str]) -> dict[str, float]:
    """Which linear layers have an adapter: 1 or 0 for each kind."""
    known = linear_layers()
    if not targets or list(targets) in (["all"], ["all-linear"]):
        return {}
    for target in targets:
        if not any(target in names for names in known.values()):
            raise InputError(
                f"adapter target {target!r} is no linear layer that the cost model knows; use"
                f" {', '.join(names[0] for names in known.values())}, or names such as q_proj"
            )
    return {kind: float(bool(set(targets) & set(names))) for kind, names in known.items()}
