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
from ridgeline.records.layout import TRAINED, UNTRAINED, Layout
from ridgeline.records.recipe_compression import (
    RecipeAdapter,
    RecipeDistillation,
    RecipeLottery,
    RecipePruning,
    RecipeQuantisation,
)
from ridgeline.records.recipe_memory import RecipeMemory
from ridgeline.records.recipe_section import Section
from ridgeline.records.recipe_survival import RecipeCheckpoint, RecipeSurvive

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


class RecipeSource(Section, frozen=True, kw_only=True):
    """One source of a mixture."""

    path: str
    weight: float = 1.0
    """Share of the sequences drawn from it, relative to the other sources."""


class RecipeData(Section, frozen=True, kw_only=True):
    """What it is trained on."""

    path: str = ""
    """A file or folder of text, JSONL or Parquet, a saved HF dataset, or prepared shards; of those
    also the address, `https://…` or `s3://…`."""
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
    cache_bytes: float | None = None
    """The most that shards from an address may take on this machine; without it, all are kept. Not
    with `shuffle`, where every step reads from all of them."""
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

    def check(self, recipe: Recipe, model: ModelSpec) -> None:
        """Check this table as `Section.check` says."""
        del recipe, model
        if self.cache_bytes is None:
            return
        if self.cache_bytes <= 0:
            raise InputError(f"recipe: data.cache_bytes is {self.cache_bytes:g}; give more than 0")
        if self.shuffle:
            raise InputError(
                "recipe: data.cache_bytes with shuffle: every step reads from all shards, which"
                " would be fetched again and again; set shuffle = false, or leave cache_bytes out"
            )


OptimizerName = Literal["adamw", "adamw8bit", "adafactor", "lion", "muon", "sgd"]


class RecipeOptimizer(Section, frozen=True, kw_only=True):
    """The optimizer, its learning rate over time, and what is done to gradients."""

    name: OptimizerName = "adamw"
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

    backend: Literal["auto", "nccl", "gloo", "mpi"] = "auto"
    """The library that carries collectives. `auto`: NCCL between GPUs, gloo between hosts; `mpi` is
    refused."""
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

    def __post_init__(self) -> None:
        if self.backend == "mpi":
            raise InputError(
                'recipe: communication.backend "mpi": ranks are started by torchrun, torch speaks'
                " MPI only where it was built from source with it (USE_MPI=1) and mpirun starts it,"
                " and PyPI's builds have none; leave backend out, or use nccl or gloo"
            )


class RecipeRun(Section, frozen=True, kw_only=True):
    """How long, how it is watched."""

    steps: int | None = None
    """Optimizer steps; without it, from `data.tokens` or the stages of `[distillation]`."""
    seed: int = 0
    log_every: int = 10
    evaluate_every: int = 0
    """Steps between evaluations; 0: only at the end, where there is validation data."""
    profile_steps: tuple[int, ...] = ()
    """Steps of which each rank writes a profiler trace."""
    profile_every: int = 0
    """Each so-manieth step is traced too; 0: none is. A phase that drifts has its next step traced
    in any case."""
    profile_keep: int = 3
    """How many of those traces stay, the newest ones of each rank."""
    balance: Literal["flops", "measured"] = "flops"
    """What stages of a pipeline are evened out by; `measured`: by the time that each kind of layer
    takes on rank 0's device, forward and backward, before the first step."""
    sample_gpus_seconds: float | None = None
    """Time between two looks at the GPUs of rank 0's machine (NVML or rocm-smi), whose means stand
    in the log; 0: none. Without it 5 where ranks train on GPUs."""
    stack: str = ""
    """A stack.toml of `ridgeline tune` that is applied to every rank."""
    kernels: Literal["torch", "fused"] = "torch"
    """What computes norms, gated MLPs and rotary embeddings; `fused`: our Triton kernels (GPUs)."""

    def __post_init__(self) -> None:
        if self.profile_every < 0 or self.profile_keep < 1:
            raise InputError(
                f"recipe: run.profile_every is {self.profile_every} and profile_keep"
                f" {self.profile_keep}; give 0 or more steps, and keep 1 or more"
            )
        period = self.sample_gpus_seconds
        if period is not None and not (period == 0 or 0.05 <= period < float("inf")):
            raise InputError(
                f"recipe: run.sample_gpus_seconds is {period:g}; give 0.05 s or more, or 0 for none"
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
        if self.layout.precision in UNTRAINED:
            raise InputError(
                f'recipe: layout.precision "{self.layout.precision}": `ridgeline train` computes in'
                f" {', '.join(TRAINED)}; choose one of them"
            )
        if self.run.kernels == "fused" and self.layout.compiled:
            raise InputError(
                'recipe: run.kernels "fused" with layout.compiled, which fuses them itself; set'
                " compiled = false, or leave kernels out"
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
        if wanted is not None:
            return max(1, round(wanted / per_step))
        stages = () if self.distillation is None else self.distillation.stages
        return sum(one.steps for one in stages) or None

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the whole run: of the course, and of the rounds of a lottery."""
        course, lottery = self.course_steps, self.lottery
        if course is None or lottery is None:
            return course
        return course + lottery.rounds * max(0, course - lottery.rewind_step)
