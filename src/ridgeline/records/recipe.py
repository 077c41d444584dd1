"""A training run as TOML: what to train, on what, laid out how.

`ridgeline plan training --write` makes one, `ridgeline train` runs it; `recipe_file.py` reads and
writes the file. The optimizer has the defaults of published runs (Touvron et al., "LLaMA", arXiv
2302.13971, section 2.3 and table 2). Every other default is off: a recipe of four lines trains, and
what it does not name does not happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ridgeline.errors import InputError
from ridgeline.records.image_recipe import RecipeImages
from ridgeline.records.layout import Layout
from ridgeline.records.recipe_section import Section

if TYPE_CHECKING:
    from ridgeline.models import ModelSpec


class RecipeModel(Section, frozen=True, kw_only=True):
    """The model that is trained."""

    config: str = ""
    """A preset's name, or the path of a Hugging Face `config.json` or of its folder."""
    script: str = ""
    """With `[images]`, in place of `config`: `FILE.py:NAME` of what makes a `torch.nn.Module` of
    pixels [batch, channels, height, width] → logits [batch, classes]; called without arguments."""
    checkpoint: str = ""
    """Folder of a Hugging Face checkpoint (safetensors) to start from; empty: random weights."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Which attention of transformers computes it, where `layout.cp` is 1."""


class RecipeAdapter(Section, frozen=True, kw_only=True):
    """Train a small addition to frozen weights (through peft)."""

    known_to_theory = False

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


class RecipeDistillation(Section, frozen=True, kw_only=True):
    """Learn from a teacher (Hinton et al., arXiv 1503.02531).

    Of image classifiers, `hidden_weight` matches feature maps (FitNets, arXiv 1412.6550) and
    `attention_weight` where they are active (Zagoruyko and Komodakis, arXiv 1612.03928).
    """

    known_to_theory = False

    teacher: str
    """Folder of the teacher's Hugging Face checkpoint."""
    temperature: float = 2.0
    soft_weight: float = 0.5
    """Share of the teacher's distribution in the loss; the rest is the labels'."""
    hidden_weight: float = 0.0
    """Weight of matching hidden states (squared error over the teacher's square), layers mapped
    evenly."""
    attention_weight: float = 0.0
    """Weight of matching attention probabilities; needs `model.attention = "eager"`. Of image
    classifiers, of matching attention maps, which any layer has."""
    progressive_steps: int = 0
    """Hidden and attention matching fade out over so many steps; 0: they stay."""

    def check(self, recipe: Recipe, model: ModelSpec) -> None:
        """Check this table as `Section.check` says."""
        del model
        if recipe.layout.pp > 1:
            raise InputError(
                f"distillation with layout.pp = {recipe.layout.pp}: a teacher is compared with"
                " whole models; set layout.pp = 1 and shard with layout.zero"
            )

    def check_for_images(self, recipe: Recipe) -> None:
        """Check this table as `Section.check_for_images` says."""
        del recipe
        if not 0.0 <= self.soft_weight <= 1.0 or self.temperature <= 0.0:
            raise InputError(
                "recipe: distillation.soft_weight is a share from 0 to 1, temperature is above 0;"
                f" they are {self.soft_weight:g} and {self.temperature:g}"
            )


class RecipeSource(Section, frozen=True, kw_only=True):
    """One source of a mixture."""

    path: str
    weight: float = 1.0
    """Share of the sequences drawn from it, relative to the other sources."""


class RecipeData(Section, frozen=True, kw_only=True):
    """What it is trained on."""

    path: str = ""
    """A file or folder of text, JSONL or Parquet, a saved HF dataset, or prepared shards."""
    sources: tuple[RecipeSource, ...] = ()
    """Several of those, mixed; instead of `path`."""
    pattern: str = ""
    """Which files of a folder, e.g. `**/*.py`; empty: all of a known kind."""
    exclude: tuple[str, ...] = ()
    """Files of a folder to leave out, e.g. `["**/test/**"]`."""
    column: str = "text"
    """Where JSONL, Parquet and datasets keep the text."""
    tokenizer: str = ""
    """Folder or hub name of a tokenizer; empty: the checkpoint's or the config folder's own."""
    seq: int
    """Tokens in one sequence."""
    tokens: float | None = None
    """Tokens of the whole run; sets the number of steps where `run.steps` does not."""
    packing: Literal["packed", "padded"] = "packed"
    """How documents fill sequences. `packed`: they follow each other without a gap; `padded`: one
    document a sequence."""
    document_mask: bool = False
    """In packed sequences, no token sees another document."""
    shuffle: bool = True
    workers: int = 1
    """Processes that read ahead; 0: the training process itself."""
    validation: str = ""
    """Held-out text, given as `path` is; its loss is taken every `run.evaluate_every` steps."""
    holdout: int = 0
    """One document in so many is held out for validation, chosen by a hash of its name or text;
    0: none."""


class RecipeOptimizer(Section, frozen=True, kw_only=True):
    """The optimizer, its learning rate over time, and what is done to gradients."""

    name: Literal["adamw", "adamw8bit", "adafactor", "lion", "muon", "sgd"] = "adamw"
    learning_rate: float
    """Peak learning rate; with `muon` that of the matrices inside the blocks (`adam_learning_rate`
    has the rest)."""
    adam_learning_rate: float | None = None
    """With `muon`, of embeddings, head, norms and biases, which AdamW trains. Without it one rate
    serves all: updates of matrices are scaled to AdamW's size (arXiv 2502.16982)."""
    betas: tuple[float, float] = (0.9, 0.95)
    momentum: float = 0.95
    """Momentum of `sgd` and `muon`."""
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    """On matrices; norms and biases have none."""
    clip_norm: float = 1.0
    """Largest norm of all gradients together; 0: not clipped."""
    schedule: Literal["cosine", "linear", "wsd", "step", "constant"] = "cosine"
    """How the learning rate moves; `wsd`: warm-up, stable, then linear decay over the last
    `decay_share`; `step`: it falls by one factor at each of `falls_at`."""
    warmup_steps: int = 2000
    final_learning_rate: float
    """At the end of the schedule."""
    decay_share: float = 0.2
    """With `wsd`, the last part of the steps, in which the rate falls."""
    falls_at: tuple[float, ...] = (1 / 3, 2 / 3, 8 / 9)
    """With `step`, the shares of all steps at which the rate falls; after the last it is
    `final_learning_rate`. As given: epochs 30, 60 and 80 of 90 (arXiv 1706.02677, section 5.1)."""
    batch_scaling: Literal["none", "linear", "sqrt"] = "none"
    """How `learning_rate` follows `layout.global_batch` from `reference_batch`."""
    reference_batch: int | None = None
    """Sequences in the batch that `learning_rate` was found for."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights; 0: none is kept."""
    z_loss: float = 0.0
    """Weight of log²Z in the loss (PaLM, arXiv 2204.02311, section 5: 1e-4); 0: none."""

    def check(self, recipe: Recipe, model: ModelSpec) -> None:
        """Check this table as `Section.check` says."""
        del recipe, model
        self._check_falls()

    def check_for_images(self, recipe: Recipe) -> None:
        """Check this table as `Section.check_for_images` says."""
        del recipe
        self._check_falls()
        if self.name == "muon":
            raise InputError(
                'recipe: optimizer.name "muon" turns matrices, and a convolution is none; use sgd'
                " or adamw for an image classifier"
            )
        if self.z_loss:
            raise InputError("recipe: optimizer.z_loss is for language models; leave it out")

    def _check_falls(self) -> None:
        falls = self.falls_at
        if self.schedule != "step":
            return
        if not falls or list(falls) != sorted(falls) or not 0.0 < falls[0] <= falls[-1] < 1.0:
            raise InputError(
                f"recipe: optimizer.falls_at is {list(falls)}; give rising shares of the steps"
                " between 0 and 1"
            )
        if self.final_learning_rate <= 0.0:
            raise InputError(
                'recipe: optimizer.schedule "step" falls by a factor and never reaches'
                f" final_learning_rate {self.final_learning_rate:g}; give one above 0"
            )


class RecipePrecision(Section, frozen=True, kw_only=True):
    """How weights are kept; `layout.precision` says how they are multiplied."""

    weights: Literal["fp32", "bf16"] = "fp32"
    """The dtype of the weights. `fp32`: master weights; `bf16`: half the memory."""
    stochastic_rounding: bool = False
    """Round updates of bf16 weights up or down by chance, so that small ones are not lost."""
    reduce: Literal["fp32", "bf16"] = "fp32"
    """In what gradients are summed over ranks."""
    loss_scale: float = 65536.0
    """With fp16, the first one."""
    growth_interval: int = 2000
    """With fp16, the steps without overflow after which the scale doubles."""


class RecipeCommunication(Section, frozen=True, kw_only=True):
    """How data-parallel ranks agree on gradients."""

    bucket_bytes: int = 25 * 2**20
    """Gradients that travel together (DDP)."""
    compression: Literal["none", "fp16", "bf16", "powersgd", "topk", "randomk", "int8", "sign"] = (
        "none"
    )
    """What travels in place of fp32 gradients; lossy ones carry their error to the next step."""
    powersgd_rank: int = 4
    kept_share: float = 0.01
    """Share of the gradient's elements that `topk` and `randomk` keep."""
    compression_start: int = 0
    """Steps of plain all-reduce before compression begins."""
    hierarchical: bool = False
    """Reduce inside each node, then across nodes, then share inside the node."""
    sync_every: int = 1
    """Steps between agreements; above 1 each rank trains alone in between (local SGD)."""
    outer: Literal["average", "diloco"] = "average"
    """With `sync_every` above 1: plain averaging, or Nesterov on the outer difference (DiLoCo,
    arXiv 2311.08105)."""
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9


class RecipeMemory(Section, frozen=True, kw_only=True):
    """What is given up for memory, beyond `layout.recompute` and `layout.offload`."""

    activation_budget_bytes: float | None = None
    """Recompute as few layers as keep a rank's activations below this; overrides
    `layout.recompute`."""
    offload_activations: bool = False
    """Keep what backward needs in host memory."""


class RecipeRun(Section, frozen=True, kw_only=True):
    """How long, how it is watched."""

    steps: int | None = None
    """Optimizer steps; without it, from `data.tokens`."""
    seed: int = 0
    log_every: int = 10
    evaluate_every: int = 0
    """Steps between evaluations; 0: only at the end, where there is validation data."""
    profile_steps: tuple[int, ...] = ()
    """Steps of which each rank writes a profiler trace."""
    stack: str = ""
    """A stack.toml of `ridgeline tune` that is applied to every rank."""


class RecipeCheckpoint(Section, frozen=True, kw_only=True):
    """How often the whole state of the run is saved, and what is kept."""

    every_steps: int | None = None
    """Optimizer steps between checkpoints."""
    every_seconds: float | None = None
    """The time between checkpoints. With neither, it follows from what a save costs and how often
    the run fails (Young and Daly), at most half an hour; the first is made after the first step."""
    mean_seconds_between_failures: float | None = None
    """Mean time between failures of the whole run; without it, 5.8 years over the number of devices
    (Llama 3, arXiv 2407.21783, section 3.3.4)."""
    keep: int = 2
    """The newest so many stay; 0: no checkpoints are made."""
    keep_every: int = 0
    """One checkpoint in so many stays for good; 0: none does."""


class RecipeSurvive(Section, frozen=True, kw_only=True):
    """What a run does when something fails."""

    max_restarts: int = 3
    """Starts of all ranks from the last checkpoint after a rank died or hung; then the run ends."""
    allow_shrink: bool = False
    """Go on with fewer data-parallel ranks while a node is away; the batch stays as it is."""
    hang_seconds: float = 600.0
    """No rank moves for so long: the run hangs, is ended and starts again; 0: nobody watches.
    Longer than the longest save takes."""
    grace_seconds: float = 30.0
    """After SIGTERM or Ctrl-C, for the step under way and a checkpoint; then ranks are killed."""
    spike_deviations: float = 0.0
    """A loss so many standard deviations above the mean of the last 100 steps is rolled back and
    its batch skipped; 0: only a loss or gradient that is no number."""
    max_rollbacks: int = 3
    """Then the run ends; 0: nothing is rolled back."""


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
    `w4a16-rtn-g32`; of image classifiers `w8a8-int8` or `w4a8-int8`."""
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


class RecipeCluster(Section, frozen=True, kw_only=True):
    """On what it is trained; bandwidths per device and direction."""

    devices: str
    """The devices, written `COUNTxDEVICE`."""
    domain_size: int
    domain_bytes_per_second: float
    network_bytes_per_second: float


class RecipePrediction(Section, frozen=True, kw_only=True):
    """What theory said when the recipe was written."""

    step_seconds: float
    tokens_per_second_per_gpu: float
    peak_bytes: float
    steps: int | None = None


class Recipe(Section, frozen=True, kw_only=True):
    """A whole recipe file."""

    model: RecipeModel
    data: RecipeData | None = None
    """Needed by language models; image classifiers have `images` in its place."""
    images: RecipeImages | None = None
    layout: Layout = Layout()
    optimizer: RecipeOptimizer
    precision: RecipePrecision = RecipePrecision()
    communication: RecipeCommunication = RecipeCommunication()
    memory: RecipeMemory = RecipeMemory()
    run: RecipeRun = RecipeRun()
    checkpoint: RecipeCheckpoint = RecipeCheckpoint()
    survive: RecipeSurvive = RecipeSurvive()
    adapter: RecipeAdapter | None = None
    distillation: RecipeDistillation | None = None
    pruning: RecipePruning | None = None
    lottery: RecipeLottery | None = None
    quantisation: RecipeQuantisation | None = None
    cluster: RecipeCluster | None = None
    prediction: RecipePrediction | None = None

    def __post_init__(self) -> None:
        if (self.data is None) == (self.images is None):
            raise InputError(
                "recipe: has neither [data] nor [images]; give [data] to train a language model,"
                " [images] to train an image classifier"
                if self.data is None
                else "recipe: has both [data] and [images]; keep the one that the model is of"
            )
        if self.data is not None and self.model.script:
            raise InputError(
                "recipe: model.script is for image classifiers; a language model has model.config"
            )
        if bool(self.model.config) == bool(self.model.script):
            raise InputError(
                "recipe: [model] wants one of config and script"
                if self.images is not None
                else "recipe: model.config is missing; give a preset's name or a config.json"
            )

    @property
    def text(self) -> RecipeData:
        """What a language model is trained on; only where there is no `images`."""
        assert self.data is not None, "the recipe is an image classifier's"
        return self.data

    @property
    def sections(self) -> tuple[Section, ...]:
        """The tables that are there."""
        tables = (getattr(self, name) for name in self.__struct_fields__)
        return tuple(table for table in tables if isinstance(table, Section))

    @property
    def course_steps(self) -> int | None:
        """Steps of one course of the learning rate; None: nothing says how many."""
        if self.run.steps is not None:
            return self.run.steps
        per_step: float = self.layout.global_batch
        if self.images is not None:
            wanted = self.images.images
        else:
            wanted, per_step = self.text.tokens, per_step * self.text.seq
        return None if wanted is None else max(1, round(wanted / per_step))

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the whole run: of the course, and of the rounds of a lottery."""
        course, lottery = self.course_steps, self.lottery
        if course is None or lottery is None:
            return course
        return course + lottery.rounds * max(0, course - lottery.rewind_step)


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
