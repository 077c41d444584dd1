"""Tables of a recipe that make the trained model smaller: adapters, distillation, pruning, QAT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ridgeline.errors import InputError
from ridgeline.records.recipe_section import Section

if TYPE_CHECKING:
    from ridgeline.models import ModelSpec
    from ridgeline.records.recipe import Recipe


class RecipeAdapter(Section, frozen=True, kw_only=True):
    """Train a small addition to frozen weights (through peft)."""

    kind: Literal["lora", "qlora", "dora", "adalora"] = "lora"
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ()
    """Names of the linear layers that are adapted; empty: all but the output head."""

    def check(self, recipe: Recipe, model: ModelSpec) -> None:
        """Check this table as `Section.check` says."""
        del model
        if recipe.layout.tp > 1:
            raise InputError(
                "layout: tp splits the matrices that an adapter wraps; with [adapter], use tp = 1"
                " and shard with zero"
            )

    def check_for_images(self, recipe: Recipe) -> None:
        """Check this table as `Section.check_for_images` says."""
        del recipe
        raise InputError(
            "recipe: [adapter] is for language models; an image classifier is trained whole"
        )


class RecipeTeacher(Section, frozen=True, kw_only=True):
    """One of several teachers that a student learns from in turn (arXiv 1902.03393)."""

    teacher: str
    """Folder of this teacher's Hugging Face checkpoint."""
    steps: int
    """Optimizer steps with it; those of all stages make the run."""
    temperature: float | None = None
    """In place of the table's own."""
    soft_weight: float | None = None
    """In place of the table's own."""


class RecipeDistillation(Section, frozen=True, kw_only=True):
    """Learn from a teacher (Hinton et al., arXiv 1503.02531), or from several in turn.

    Of image classifiers, `hidden_weight` matches feature maps (FitNets, arXiv 1412.6550) and
    `attention_weight` where they are active (Zagoruyko and Komodakis, arXiv 1612.03928).
    """

    known_to_theory = False

    teacher: str = ""
    """Folder of the teacher's Hugging Face checkpoint; this or `stages`."""
    stages: tuple[RecipeTeacher, ...] = ()
    """Teachers in the order in which the student learns from them, such as a middling one and then
    a large one. Each ends with an evaluation and is a row of the run's answer."""
    temperature: float = 2.0
    soft_weight: float = 0.5
    """Share of the teacher's distribution in the loss; the rest is the labels'."""
    hidden_weight: float = 0.0
    """Weight of matching hidden states (squared error over the teacher's square), layers mapped
    evenly."""
    attention_weight: float = 0.0
    """Weight of matching attention probabilities; needs `model.attention = "eager"`. Of image
    classifiers, of matching attention maps, which any layer has."""
    fade_steps: int = 0
    """Hidden and attention matching fade out over so many steps; 0: they stay."""

    def check(self, recipe: Recipe, model: ModelSpec) -> None:
        """Check this table as `Section.check` says."""
        del model
        self._check_teachers(recipe)
        if recipe.layout.pp > 1:
            raise InputError(
                f"distillation with layout.pp = {recipe.layout.pp}: a teacher is compared with"
                " whole models; set layout.pp = 1 and shard with layout.zero"
            )

    def check_for_images(self, recipe: Recipe) -> None:
        """Check this table as `Section.check_for_images` says."""
        del recipe
        if self.stages or not self.teacher:
            raise InputError(
                "recipe: distillation.teacher names an image classifier's one teacher; stages are"
                " for language models"
            )
        if not 0.0 <= self.soft_weight <= 1.0 or self.temperature <= 0.0:
            raise InputError(
                "recipe: distillation.soft_weight is a share from 0 to 1, temperature is above 0;"
                f" they are {self.soft_weight:g} and {self.temperature:g}"
            )

    def teacher_at(self, step: int) -> RecipeTeacher:
        """The teacher of a step, with its own temperature and weight, or the table's.

        >>> found = RecipeDistillation(
        ...     stages=(RecipeTeacher(teacher="a", steps=2), RecipeTeacher(teacher="b", steps=3))
        ... )
        >>> [found.teacher_at(step).teacher for step in (0, 1, 2, 4, 9)]
        ['a', 'a', 'b', 'b', 'b']
        """
        found = RecipeTeacher(teacher=self.teacher, steps=0)
        end = 0
        for found in self.stages:
            end += found.steps
            if step < end:
                break
        return RecipeTeacher(
            teacher=found.teacher,
            steps=found.steps,
            temperature=self.temperature if found.temperature is None else found.temperature,
            soft_weight=self.soft_weight if found.soft_weight is None else found.soft_weight,
        )

    def _check_teachers(self, recipe: Recipe) -> None:
        if bool(self.teacher) == bool(self.stages):
            raise InputError(
                "recipe: [distillation] wants one of teacher (one for the whole run) and stages"
                " (several in turn)"
            )
        short = next((one for one in self.stages if one.steps < 1), None)
        if short is not None:
            raise InputError(
                f"recipe: distillation.stages: {short.teacher} has steps = {short.steps}; give 1 or"
                " more"
            )
        total = sum(one.steps for one in self.stages)
        if self.stages and recipe.steps is not None and total != recipe.steps:
            raise InputError(
                f"recipe: distillation.stages have {total} steps together and the run has"
                f" {recipe.steps}; make them the same"
            )


class RecipePruning(Section, frozen=True, kw_only=True):
    """Set weights to zero while training (Zhu and Gupta, arXiv 1710.01878).

    Of every linear layer in the blocks the smallest go, more and more of them, and stay zero.
    """

    share: float | None = None
    """Share of each layer's weights that is removed in the end; this or `pattern`."""
    pattern: tuple[int, int] | None = None
    """At most so many of so many neighbours stay in the end, such as `[2, 4]`."""
    begin_step: int = 0
    """Before it nothing is removed."""
    end_step: int
    """From it on, all that is to go is gone. With `end_step = begin_step` it goes at once."""
    every_steps: int = 100
    """Between them, weights are chosen every so many steps; the share rises as a cube."""

    def check(self, recipe: Recipe, model: ModelSpec) -> None:
        """Check this table as `Section.check` says."""
        self._check_course(recipe)
        _check_dense_and_whole("[pruning]", recipe, model)
        _check_agreed_weights("[pruning]", recipe)

    def check_for_images(self, recipe: Recipe) -> None:
        """Check this table as `Section.check_for_images` says."""
        self._check_course(recipe)
        _check_agreed_weights("[pruning]", recipe)

    def _check_course(self, recipe: Recipe) -> None:
        steps = recipe.steps
        if recipe.lottery is not None:
            raise InputError("recipe: [pruning] and [lottery] both choose weights; leave one out")
        if (self.share is None) == (self.pattern is None):
            raise InputError(
                "recipe: [pruning] wants one of share and pattern, such as share = 0.5"
            )
        if self.share is not None and not 0.0 < self.share < 1.0:
            raise InputError(f"recipe: pruning.share is {self.share:g}; it must be between 0 and 1")
        if self.every_steps < 1 or not 0 <= self.begin_step <= self.end_step:
            raise InputError(
                f"recipe: pruning goes from step {self.begin_step} to {self.end_step} every"
                f" {self.every_steps}; begin_step must not be after end_step, and every_steps 1 or"
                " more"
            )
        if steps is not None and self.end_step >= steps:
            raise InputError(
                f"recipe: pruning.end_step is {self.end_step} and the run has {steps} steps:"
                " nothing is left to make up for the last weights; end it sooner"
            )


class RecipeLottery(Section, frozen=True, kw_only=True):
    """Find a sparse network that trains as the dense one does: train, prune, rewind, train again.

    Frankle and Carbin, arXiv 1803.03635; rewinding to a step: arXiv 1912.05671.
    """

    share: float
    """Share of each linear layer's weights in the blocks that is removed in the end."""
    rounds: int
    """How often it is pruned, by the same ratio each time, and trained again. `run.steps` are those
    of the first course; each round adds those from `rewind_step` on."""
    rewind_step: int = 0
    """Weights and learning rate go back to what they were here."""

    def check(self, recipe: Recipe, model: ModelSpec) -> None:
        """Check this table as `Section.check` says."""
        self._check_course(recipe)
        _check_dense_and_whole("[lottery]", recipe, model)
        _check_agreed_weights("[lottery]", recipe)

    def check_for_images(self, recipe: Recipe) -> None:
        """Check this table as `Section.check_for_images` says."""
        self._check_course(recipe)
        _check_agreed_weights("[lottery]", recipe)

    def _check_course(self, recipe: Recipe) -> None:
        course = recipe.course_steps
        if not 0.0 < self.share < 1.0 or self.rounds < 1:
            raise InputError(
                f"recipe: lottery.share is {self.share:g} and lottery.rounds {self.rounds}; the"
                " share must be between 0 and 1, and the rounds 1 or more"
            )
        if course is None:
            raise InputError("recipe: neither run.steps nor data.tokens says how long; set one")
        if not 0 <= self.rewind_step < course:
            raise InputError(
                f"recipe: lottery.rewind_step is {self.rewind_step}, outside of the {course} steps"
                " of a course"
            )
        if recipe.survive.spike_deviations:
            raise InputError(
                "recipe: the loss jumps when a lottery goes back, and survive.spike_deviations"
                " would take it for a failure; leave it out"
            )


class RecipeQuantisation(Section, frozen=True, kw_only=True):
    """Train with weights, and activations, rounded in the forward pass as they will be saved.

    The gradient goes straight through (Bengio et al., arXiv 1308.3432).
    """

    scheme: str
    """A scheme as `ridgeline compress --scheme` takes it, rounded to nearest, e.g.
    `w4a16-rtn-g32`; of image classifiers `w8a8-int8-rtn` or
    `w4a8-int8-rtn`."""
    begin_step: int = 0
    """Image classifiers are not rounded before it."""
    freeze_step: int | None = None
    """From it on, batch norms of an image classifier keep their statistics and activations their
    ranges; without it, from three quarters of the run on."""
    whole: tuple[str, ...] = ()
    """Layers of an image classifier that are not rounded, by name or pattern (`*.classifier.*`)."""

    def check(self, recipe: Recipe, model: ModelSpec) -> None:
        """Check this table as `Section.check` says."""
        layout = recipe.layout
        _check_dense_and_whole("[quantisation]", recipe, model)
        if layout.tp > 1:
            raise InputError(
                f"layout: tp {layout.tp} cuts rows that share a scale; with [quantisation], use"
                " tp = 1 and shard with zero"
            )
        if layout.precision == "fp8":
            raise InputError(
                'layout.precision "fp8" rounds weights in its own way; with [quantisation], use'
                ' "bf16"'
            )
        if layout.zero and layout.precision not in {"fp32", recipe.precision.weights}:
            raise InputError(
                f"layout: zero {layout.zero} gathers weights as {layout.precision}, and what is"
                " rounded in training would not be what is saved; with [quantisation], set"
                ' precision.weights = "bf16" and layout.precision = "bf16", or zero = 0'
            )

    def check_for_images(self, recipe: Recipe) -> None:
        """Check this table as `Section.check_for_images` says."""
        if recipe.layout.zero:
            raise InputError(
                f"layout: zero {recipe.layout.zero} shards rows that share a scale; an image"
                " classifier with [quantisation] trains with zero = 0"
            )
        freeze, steps = self.freeze_step, recipe.steps
        if self.begin_step < 0 or (freeze is not None and freeze < self.begin_step):
            raise InputError(
                f"recipe: quantisation.begin_step is {self.begin_step} and freeze_step {freeze};"
                " statistics freeze after rounding began"
            )
        if steps is not None and self.begin_step >= steps:
            raise InputError(
                f"recipe: quantisation.begin_step is {self.begin_step} and the run has {steps}"
                " steps: nothing would be rounded; begin sooner"
            )


def _check_dense_and_whole(table: str, recipe: Recipe, model: ModelSpec) -> None:
    """Refuse what takes each linear layer's weight away as one matrix of its own."""
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


def _check_agreed_weights(table: str, recipe: Recipe) -> None:
    every = recipe.communication.sync_every
    if every > 1:
        raise InputError(
            f"recipe: {table} with communication.sync_every {every}: ranks that train alone would"
            " choose different weights; set it to 1"
        )
