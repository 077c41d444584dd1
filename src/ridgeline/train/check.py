"""Whether a recipe's layout fits its model and the ranks that are there. No torch here.

`records/layout.py` checks what a layout alone can tell (how batches divide); this adds what takes
the model's sizes, and asks each table of the recipe what it cannot go with. What only the model's
code can tell (is there a plan for tensor parallelism, can the family be cut into stages) is said by
`parallel/`.
"""

from __future__ import annotations

import msgspec

from ridgeline.errors import InputError
from ridgeline.models import ModelSpec, load_model
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe


def check(recipe: Recipe) -> None:
    """Refuse what cannot run.

    Raises:
        InputError: The first thing that does not fit, and what would.
    """
    layout = recipe.layout
    _sharding(layout)
    if recipe.images is not None:
        check_images(recipe)
        return
    model = load_model(recipe.model.config)
    _tensor(recipe, model)
    _experts(layout, model)
    for section in recipe.sections:
        section.check(recipe, model)
    if layout.pp * layout.vpp > model.layers:
        raise InputError(
            f"layout: pp x vpp = {layout.pp} x {layout.vpp} stages of a model of"
            f" {model.layers} layers; a stage needs one at least"
        )
    if layout.vpp > 1 and layout.pp == 1:
        raise InputError("layout: vpp divides the layers of pipeline ranks; pp is 1, set vpp = 1")
    if layout.cp > 1 and recipe.text.seq % (2 * layout.cp):
        raise InputError(
            f"data.seq {recipe.text.seq} does not divide into 2 x cp = {2 * layout.cp} chunks;"
            " change data.seq or layout.cp"
        )
    if model.learned_positions and recipe.text.seq > model.max_positions:
        raise InputError(
            f"data.seq {recipe.text.seq}: {model.name} has embeddings of {model.max_positions}"
            " positions only; shorten it"
        )


def _sharding(layout: Layout) -> None:
    if layout.zero == 0 and layout.fsdp > 1:
        raise InputError(
            f"layout: fsdp is {layout.fsdp} and zero is 0, which shards nothing; set zero to 1"
            " (optimizer), 2 (and gradients) or 3 (and parameters), or fsdp to 1"
        )
    if layout.zero and layout.fsdp == 1 and layout.dp * layout.cp > 1:
        raise InputError(
            f"layout: zero {layout.zero} over fsdp = 1 ranks shards nothing; set fsdp to a divisor"
            f" of dp x cp = {layout.dp * layout.cp}, or zero to 0"
        )
    if layout.zero and layout.fsdp % layout.cp:
        raise InputError(
            f"layout: fsdp {layout.fsdp} is not a multiple of cp {layout.cp}: the ranks that share"
            " a sequence shard parameters together"
        )


def _tensor(recipe: Recipe, model: ModelSpec) -> None:
    layout = recipe.layout
    tp = layout.tp
    if tp == 1:
        return
    for count, what in ((model.heads, "attention heads"), (model.kv_heads, "key-value heads")):
        if count % tp:
            raise InputError(
                f"layout: tp {tp} does not divide the {count} {what} of {model.name}; choose a"
                f" divisor of {count}"
            )
    width = 0 if model.experts is not None and not model.experts.dense_layers else model.ffn
    if width % tp:
        raise InputError(f"layout: tp {tp} does not divide the MLP's width {width} of {model.name}")
    if layout.sp and recipe.text.seq // layout.cp % tp:
        raise InputError(
            f"layout: sp cuts sequences of {recipe.text.seq // layout.cp} tokens over tp {tp}"
            " ranks, which does not divide them; change data.seq"
        )


def _experts(layout: Layout, model: ModelSpec) -> None:
    experts = model.experts
    if experts is None:
        if layout.ep > 1 or layout.etp > 1:
            raise InputError(f"layout: {model.name} has no experts to spread; set ep and etp to 1")
        return
    if experts.num_experts % layout.ep:
        raise InputError(
            f"layout: ep {layout.ep} does not divide the {experts.num_experts} experts of"
            f" {model.name}"
        )
    if (layout.dp * layout.cp) % layout.ep:
        raise InputError(
            f"layout: ep {layout.ep} does not divide dp x cp = {layout.dp * layout.cp}, the ranks"
            " that experts are spread over"
        )
    if layout.etp not in {1, layout.tp}:
        raise InputError(
            f"layout: etp is {layout.etp}; experts are split over the tp ranks ({layout.tp}) or"
            " not at all (1)"
        )
    if layout.etp > 1 and layout.ep > 1:
        raise InputError("layout: experts are spread (ep) or split (etp), not both; set etp to 1")
    if layout.ep > 1 and layout.sp:
        raise InputError("layout: with ep, the tp ranks must see the same tokens; set sp to false")
    if experts.ffn % layout.etp:
        raise InputError(
            f"layout: etp {layout.etp} does not divide the experts' width {experts.ffn}"
        )


def fitted(layout: Layout, world: int) -> Layout:
    """The same layout with as many data-parallel ranks as `world` processes hold.

    Data parallelism gives way and nothing else does: tensor, pipeline, context and expert
    parallelism are what a model needs to fit. The global batch stays, so each remaining rank takes
    more micro-batches of it, and the order of samples does not depend on the number of ranks: the
    run trains on the same batches.

    >>> fitted(Layout(dp=4, tp=2, global_batch=12), 6).dp
    3

    Raises:
        InputError: One replica alone needs more processes than there are.
    """
    replica = layout.num_devices // layout.dp
    for dp in range(min(layout.dp, world // replica), 0, -1):
        if layout.global_batch % (dp * layout.micro_batch) or (dp * layout.cp) % layout.ep:
            continue
        fsdp = _sharded(layout, dp)
        if fsdp:
            return msgspec.structs.replace(layout, dp=dp, fsdp=fsdp)
    raise InputError(
        f"{world} processes are left and one replica of the model needs {replica}"
        f" (tp {layout.tp} x pp {layout.pp} x cp {layout.cp}); wait for nodes, or plan anew"
    )


def _sharded(layout: Layout, dp: int) -> int:
    """Ranks that shards lie on: as many of the layout's as fit; 0: none do."""
    if layout.zero == 0:
        return layout.fsdp
    over = dp * layout.cp
    fitting = (n for n in range(min(layout.fsdp, over), 0, -1) if over % n == 0)
    found = next((n for n in fitting if n % layout.cp == 0), 0)
    return 0 if found == 1 and over > 1 else found


_ONE = {
    "tp": "tensor parallelism splits the matrices of language models",
    "pp": "pipelines are cut between the blocks of language models",
    "cp": "context parallelism cuts sequences of tokens",
    "ep": "there are no experts to spread",
}


def check_images(recipe: Recipe) -> None:
    """Refuse what cannot run.

    Raises:
        InputError: The first thing that does not fit, and what would.
    """
    for axis, why in _ONE.items():
        if getattr(recipe.layout, axis) > 1:
            raise InputError(
                f"layout: {axis} = {getattr(recipe.layout, axis)} with [images]: {why}; set it to"
                " 1 and use dp, with zero and fsdp to shard"
            )
    _check_precision(recipe.layout)
    if recipe.precision.weights != "fp32":
        raise InputError(
            f'recipe: precision.weights "{recipe.precision.weights}" is for language models; batch'
            ' norms want "fp32" (layout.precision says what is computed in)'
        )
    if recipe.layout.zero and recipe.images is not None and recipe.images.sync_batch_norm:
        raise InputError(
            f"layout: zero {recipe.layout.zero} with images.sync_batch_norm: shards of its gains"
            " are not gathered; set zero to 0"
        )
    if recipe.cluster is not None or recipe.prediction is not None:
        raise InputError(
            "recipe: [cluster] and [prediction] are the planner's, for language models; leave them"
            " out of a recipe with [images]"
        )
    for section in recipe.sections:
        section.check_for_images(recipe)


def _check_precision(layout: Layout) -> None:
    if layout.precision == "fp8":
        raise InputError(
            'layout.precision "fp8" is for matrices, and convolutions have none;'
            ' use "bf16", "fp16" or "fp32" with [images]'
        )
    if layout.zero and layout.precision != "fp32":
        raise InputError(
            f'layout.precision "{layout.precision}" with zero {layout.zero}: batch norms keep fp32'
            ' statistics, which shards cast to less cannot use; set zero = 0, or "fp32"'
        )
    if layout.offload != "none" or layout.recompute == "selective":
        raise InputError(
            "layout: offload and selective recomputation are for language models; with [images],"
            ' set offload = "none", and recompute to "none" or "full"'
        )
