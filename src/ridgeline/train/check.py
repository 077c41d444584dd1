"""Whether a recipe's layout fits its model, said before any process starts. No torch here.

`records/layout.py` checks what a layout alone can tell (the batch arithmetic); this adds what
takes the model's sizes. What only the model's code can tell (is there a plan for tensor
parallelism, can the family be cut into stages) is said by `parallel/`.
"""

from __future__ import annotations

from ridgeline.errors import InputError
from ridgeline.models import ModelSpec, load_model
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe, RecipePruning


def check(recipe: Recipe) -> None:
    """Refuse what cannot run.

    Raises:
        InputError: The first thing that does not fit, and what would.
    """
    model, layout = load_model(recipe.model.config), recipe.layout
    _sharding(layout)
    _tensor(recipe, model)
    _experts(layout, model)
    _sparse(recipe, model)
    _rounded(recipe, model)
    if layout.pp * layout.vpp > model.layers:
        raise InputError(
            f"layout: pp x vpp = {layout.pp} x {layout.vpp} stages of a model of"
            f" {model.layers} layers; a stage needs one at least"
        )
    if layout.pp > 1 and recipe.distillation is not None:
        raise InputError(
            f"distillation with layout.pp = {layout.pp}: a teacher is compared with whole models;"
            " set layout.pp = 1 and shard with layout.zero"
        )
    if layout.vpp > 1 and layout.pp == 1:
        raise InputError("layout: vpp divides the layers of pipeline ranks; pp is 1, set vpp = 1")
    if layout.cp > 1 and recipe.data.seq % (2 * layout.cp):
        raise InputError(
            f"data.seq {recipe.data.seq} does not divide into 2 x cp = {2 * layout.cp} chunks;"
            " change data.seq or layout.cp"
        )
    if model.learned_positions and recipe.data.seq > model.max_positions:
        raise InputError(
            f"data.seq {recipe.data.seq}: {model.name} has embeddings of {model.max_positions}"
            " positions only; shorten it"
        )


def _sparse(recipe: Recipe, model: ModelSpec) -> None:
    """`[pruning]` and `[lottery]`."""
    if recipe.pruning is not None and recipe.lottery is not None:
        raise InputError("recipe: [pruning] and [lottery] both choose weights; leave one out")
    if recipe.pruning is not None:
        _gradual(recipe.pruning, recipe.steps)
        _weights_alone("[pruning]", recipe, model)
    if recipe.lottery is not None:
        _rounds(recipe)
        _weights_alone("[lottery]", recipe, model)


def _gradual(wanted: RecipePruning, steps: int | None) -> None:
    if (wanted.share is None) == (wanted.pattern is None):
        raise InputError("recipe: [pruning] wants one of share and pattern, such as share = 0.5")
    if wanted.share is not None and not 0.0 < wanted.share < 1.0:
        raise InputError(f"recipe: pruning.share is {wanted.share:g}; it must be between 0 and 1")
    if wanted.every_steps < 1 or not 0 <= wanted.begin_step <= wanted.end_step:
        raise InputError(
            f"recipe: pruning goes from step {wanted.begin_step} to {wanted.end_step} every"
            f" {wanted.every_steps}; begin_step must not be after end_step, and every_steps 1 or"
            " more"
        )
    if steps is not None and wanted.end_step >= steps:
        raise InputError(
            f"recipe: pruning.end_step is {wanted.end_step} and the run has {steps} steps: nothing"
            " is left to make up for the last weights; end it sooner"
        )


def _rounds(recipe: Recipe) -> None:
    wanted, course = recipe.lottery, recipe.course_steps
    assert wanted is not None
    if not 0.0 < wanted.share < 1.0 or wanted.rounds < 1:
        raise InputError(
            f"recipe: lottery.share is {wanted.share:g} and lottery.rounds {wanted.rounds}; the"
            " share must be between 0 and 1, and the rounds 1 or more"
        )
    if course is None:
        raise InputError("recipe: neither run.steps nor data.tokens says how long; set one")
    if not 0 <= wanted.rewind_step < course:
        raise InputError(
            f"recipe: lottery.rewind_step is {wanted.rewind_step}, outside of the {course} steps of"
            " a course"
        )
    if recipe.survive.spike_deviations:
        raise InputError(
            "recipe: the loss jumps when a lottery goes back, and survive.spike_deviations would"
            " take it for a failure; leave it out"
        )


def _rounded(recipe: Recipe, model: ModelSpec) -> None:
    """`[quantisation]`."""
    if recipe.quantisation is None:
        return
    _weights_alone("[quantisation]", recipe, model)
    if recipe.layout.tp > 1:
        raise InputError(
            f"layout: tp {recipe.layout.tp} cuts rows that share a scale; with [quantisation], use"
            " tp = 1 and shard with zero"
        )
    if recipe.layout.precision == "fp8":
        raise InputError(
            'layout.precision "fp8" rounds weights in its own way; with [quantisation], use "bf16"'
        )
    if recipe.layout.zero and recipe.layout.precision not in {"fp32", recipe.precision.weights}:
        raise InputError(
            f"layout: zero {recipe.layout.zero} gathers weights as {recipe.layout.precision}, and"
            " what is rounded in training would not be what is saved; with [quantisation], set"
            ' precision.weights = "bf16" and layout.precision = "bf16", or zero = 0'
        )


def _weights_alone(table: str, recipe: Recipe, model: ModelSpec) -> None:
    """What needs each linear layer's weight as one matrix of its own."""
    if recipe.adapter is not None:
        raise InputError(
            f"recipe: {table} changes weights that [adapter] freezes; merge the adapter first"
            " (`ridgeline compress --merge-adapter`), or leave one out"
        )
    if model.experts is not None:
        raise InputError(
            f"recipe: {table} is for linear layers, and {model.name} keeps its experts' weights as"
            " one block; train it dense, then use `ridgeline compress`"
        )
    if table != "[quantisation]" and recipe.communication.sync_every > 1:
        raise InputError(
            f"recipe: {table} with communication.sync_every {recipe.communication.sync_every}:"
            " ranks that train alone would choose different weights; set it to 1"
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
    if layout.sp and recipe.data.seq // layout.cp % tp:
        raise InputError(
            f"layout: sp cuts sequences of {recipe.data.seq // layout.cp} tokens over tp {tp}"
            " ranks, which does not divide them; change data.seq"
        )
    if recipe.adapter is not None:
        raise InputError(
            "layout: tp splits the matrices that an adapter wraps; with [adapter], use tp = 1 and"
            " shard with zero"
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
