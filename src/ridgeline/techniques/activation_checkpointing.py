"""Give up activations of the repeated blocks and compute them again in the backward.

It buys memory with time (about a third more forward work when full; `selective` keeps what
matmuls produced and recomputes only the cheap operators), so it is offered only where memory is
the limit.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.anatomy import parts
from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records.edits import Edit, InsertBefore
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage

if TYPE_CHECKING:
    from torch import nn

CARD = Card(
    name="activation-checkpointing",
    title="Activation checkpointing of the repeated blocks",
    cures=("memory-limit",),
    costs="Their forward runs twice (full), or its cheap operators do (selective).",
    source="Chen et al. 2016; PyTorch documentation, create_selective_checkpoint_contexts",
    equivalence="bit-equal",
    stage=Stage.MEMORY,
    slot="checkpointing",
    required={"kind": str, "block": str},
)

_TIGHT = 0.9


def applies(context: Context) -> Applicability:
    """Memory is the limit, and there is a block that repeats."""
    profile = context.profile
    if profile.kind != "training":
        return Applicability(False, "inference keeps no activations")
    if profile.habit("recompute").seconds > 0:
        return Applicability(False, "the script checkpoints activations itself")
    if not profile.models or profile.models[0].repeated_block is None:
        return Applicability(False, "the model has no repeated block")
    tight = profile.device_memory_bytes and (
        profile.peak_memory_bytes > _TIGHT * profile.device_memory_bytes
    )
    if not tight and not context.has_finding("memory-limit"):
        return Applicability(False, "memory is not the limit")
    return Applicability(True, "")


def options(context: Context) -> list[Options]:
    """The cheaper of the two first."""
    block = context.profile.models[0].repeated_block
    return [{"kind": kind, "block": str(block)} for kind in ("selective", "full")]


def predict(context: Context, options: Options) -> Gain:
    """Slower, unless the allocator was struggling for memory."""
    return Gain(0.75, 1.02) if options["kind"] == "full" else Gain(0.9, 1.05)


def apply(points: Points, options: Options) -> Undo:
    """Wrap the forward of the block's class, so that the objects themselves stay clean."""
    patched: dict[type, Any] = {}

    def checkpoint_blocks(module: nn.Module) -> None:
        blocks = [m for m in parts(module) if type(m).__name__ == options["block"]]
        for kind in {type(block) for block in blocks} - set(patched):
            patched[kind] = kind.forward
            kind.forward = _checkpointed(kind.forward, str(options["kind"]))
        if blocks:
            points.changed(CARD.name, f"{len(blocks)} × {options['block']} checkpointed")

    points.on_model.append(checkpoint_blocks)

    def undo() -> None:
        points.on_model.remove(checkpoint_blocks)
        for kind, forward in patched.items():
            kind.forward = forward  # type: ignore[attr-defined]

    return undo


def _checkpointed(forward: Any, kind: str) -> Any:
    import torch
    from torch.utils.checkpoint import (
        checkpoint,
        create_selective_checkpoint_contexts,
        noop_context_fn,
    )

    keep = [
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten.baddbmm.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten.convolution.default,
    ]
    contexts: Any = noop_context_fn
    if kind == "selective":
        contexts = functools.partial(create_selective_checkpoint_contexts, keep)

    @functools.wraps(forward)
    def checkpointed(block: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(block, *args, **kwargs)
        run = functools.partial(forward, block)
        return checkpoint(run, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return checkpointed


def edits(context: Context, options: Options) -> list[Edit]:
    """Wrap each block's forward once the model is complete (full checkpointing only)."""
    made = next((o.site for o in context.profile.optimizers if o.site is not None), None)
    if made is None or options["kind"] != "full":
        return []
    code = (
        "for block in {model}.modules():\n"
        f'    if type(block).__name__ == "{options["block"]}":\n'
        "        block.forward = functools.partial(\n"
        "            torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False\n"
        "        )"
    )
    return [InsertBefore(site=made, code=code)]
