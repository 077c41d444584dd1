"""The loss of a student that learns from a teacher, in place of the token loss.

    (1-a) · CE(labels) + a · T² · KL(teacher/T ‖ student/T)      Hinton et al., arXiv 1503.02531
    + h · mean over layers of ‖P·hidden_s - hidden_t‖²/‖hidden_t‖²     TinyBERT, arXiv 1909.10351
    + b · mean over layers and heads of KL(attention_t ‖ attention_s)   MiniLM, arXiv 2002.10957

All are sums over target tokens, as `build.py` wants them. TinyBERT does not divide by the length
of the teacher's hidden state; here one weight has to suit models, layers and tokens whose states
differ by orders of magnitude. Layers are mapped evenly: layer i of m learns from layer i·n/m of n
(TinyBERT's g). P is learned, and there only where the widths differ; `prepare_student` adds it to
the skeleton, so that it is laid out, filled and optimised as any weight. The KL term and its
gradient are computed together, a chunk of tokens at a time: fp32 copies of the logits of a large
vocabulary never exist whole.
"""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe, RecipeModel
from ridgeline.records.recipe_compression import RecipeDistillation, RecipeTeacher
from ridgeline.train.adapters import PROJECTION
from ridgeline.train.batch import IGNORED, Batch
from ridgeline.train.loss import Objective, token_loss
from ridgeline.train.model import fill, hf_config, skeleton
from ridgeline.train.parallel.sharding import shard
from ridgeline.train.part import FilledModel, Part
from ridgeline.train.ranks import Ranks

_CHUNK_ELEMENTS = 2**22
"""fp32 logits that exist at a time."""


def prepare_student(model: PreTrainedModel, recipe: Recipe) -> PreTrainedModel:
    """Add the learned projection to a skeleton, where the recipe needs one; in place.

    Raises:
        InputError: The layout, or the teacher, does not go with this student.
    """
    wanted = recipe.distillation
    if wanted is None:
        return model
    stages = wanted.stages or (wanted.teacher_at(0),)
    teachers = [hf_config(RecipeModel(config=one.teacher)) for one in stages]
    for one, config in zip(stages, teachers, strict=True):
        _check(wanted, one, recipe, model.config, config)
    teacher = teachers[0]
    widths = sorted({config.hidden_size for config in teachers})
    if wanted.hidden_weight and len(widths) > 1:
        raise InputError(
            f"distillation.hidden_weight with teachers of the widths {widths}: one projection is"
            " learned; give teachers of one width, or leave it out"
        )
    if wanted.hidden_weight and model.config.hidden_size != teacher.hidden_size:
        like = next(model.parameters())
        layer = nn.Linear(
            model.config.hidden_size,
            teacher.hidden_size,
            bias=False,
            dtype=like.dtype,
            device=like.device,
        )
        model.add_module(PROJECTION, layer)
    return model


class Distillation(Part):
    """The objective of a student, called with the model and a micro-batch; it sums over targets.

    Without gradients (evaluation) it is the token loss alone, comparable with other runs.

    Args:
        recipe: Its `distillation`.
        ranks: The teacher is sharded over them where ZeRO 3 shards the student, else whole on each.
    """

    def __init__(self, recipe: Recipe, ranks: Ranks) -> None:
        assert recipe.distillation is not None
        self._wanted = recipe.distillation
        self._z_loss = recipe.optimizer.z_loss
        self._recipe, self._ranks = recipe, ranks
        self._stage = recipe.distillation.teacher_at(0)
        self.teacher = _load_teacher(recipe, ranks, self._stage.teacher)
        self.step = 0
        """The step of the run, after which matching fades out."""

    @staticmethod
    def shape(model: PreTrainedModel, recipe: Recipe) -> PreTrainedModel:
        """Add the learned projection."""
        return prepare_student(model, recipe) if recipe.images is None else model

    @classmethod
    def make(cls, filled: FilledModel) -> Distillation | None:
        """`[distillation]` of the recipe, with its teacher loaded."""
        recipe = filled.recipe
        wanted = recipe.distillation if recipe.images is None else None
        return cls(recipe, filled.ranks) if wanted else None

    def objective(self, given: Objective) -> Objective:
        """Learn from the teacher in place of the labels alone."""
        del given
        return self

    def before_step(self, step: int) -> str:
        """Take note of the step, and go to the next teacher where it is its turn."""
        self.step = step
        stage = self._wanted.teacher_at(step)
        if stage == self._stage:
            return ""
        self._stage = stage
        del self.teacher  # two of them need not fit into memory
        with torch.random.fork_rng():
            self.teacher = _load_teacher(self._recipe, self._ranks, stage.teacher)
        return f"learns from {stage.teacher} from now on"

    def wants_evaluation(self, done: int) -> bool:
        """At the end of each teacher's turn."""
        ends = itertools.accumulate(one.steps for one in self._wanted.stages)
        return done in set(ends)

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of one micro-batch."""
        if not torch.is_grad_enabled():
            return token_loss(_forward(model, batch).logits, batch.labels, self._z_loss)
        wanted, fade, stage = self._wanted, self.fade(), self._stage
        assert stage.temperature is not None
        assert stage.soft_weight is not None
        hidden = bool(wanted.hidden_weight and fade)
        attention = bool(wanted.attention_weight and fade)
        output = _forward(model, batch, hidden=hidden, attention=attention)
        with torch.no_grad():
            taught = _forward(self.teacher, batch, hidden=hidden, attention=attention)
        targets = batch.labels != IGNORED
        hard = token_loss(output.logits, batch.labels, self._z_loss)
        soft = soft_loss(output.logits, taught.logits, targets, stage.temperature)
        loss = (1.0 - stage.soft_weight) * hard + stage.soft_weight * soft
        if hidden:
            project = getattr(_unwrapped(model), PROJECTION, None)
            matched = hidden_loss(output.hidden_states, taught.hidden_states, targets, project)
            loss = loss + wanted.hidden_weight * fade * matched
        if attention:
            matched = attention_loss(output.attentions, taught.attentions, targets)
            loss = loss + wanted.attention_weight * fade * matched
        return loss

    def fade(self) -> float:
        """What is left of hidden and attention matching at this step."""
        steps = self._wanted.fade_steps
        return max(0.0, 1.0 - self.step / steps) if steps else 1.0


def soft_loss(student: Tensor, teacher: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """T² · KL(teacher ‖ student), summed over targets.

    Args:
        student: Logits [..., vocabulary].
        teacher: The same shape, without gradient.
        targets: [...], true where there is one.
        temperature: T, which both logits are divided by.
    """
    vocabulary = student.shape[-1]
    return _SoftLoss.apply(
        student.reshape(-1, vocabulary),
        teacher.reshape(-1, vocabulary),
        targets.reshape(-1),
        temperature,
    )


def hidden_loss(
    student: tuple[Tensor, ...],
    teacher: tuple[Tensor, ...],
    targets: Tensor,
    project: nn.Module | None,
) -> Tensor:
    """Squared distance over the teacher's squared length, mean of layers, sum over targets.

    The first of each is the embedding's output, which is not matched.
    """
    pairs = evenly_mapped(len(student) - 1, len(teacher) - 1)
    total = student[0].new_zeros((), dtype=torch.float32)
    for of_student, of_teacher in pairs:
        mine = student[of_student + 1]
        mine = project(mine) if project is not None else mine
        taught = teacher[of_teacher + 1].float()
        size = taught.square().sum(dim=-1).clamp(min=torch.finfo(torch.float32).tiny)
        distance = (mine.float() - taught).square().sum(dim=-1) / size
        total = total + (distance * targets).sum()
    return total / len(pairs)


def attention_loss(
    student: tuple[Tensor, ...], teacher: tuple[Tensor, ...], targets: Tensor
) -> Tensor:
    """KL(teacher ‖ student) of each query's attention, mean of layers and heads, sum over targets.

    Shapes: [B, heads, S, S]. Positions that the teacher does not look at add nothing.
    """
    pairs = evenly_mapped(len(student), len(teacher))
    total = student[0].new_zeros((), dtype=torch.float32)
    for of_student, of_teacher in pairs:
        p, q = teacher[of_teacher].float(), student[of_student].float()
        tiny = torch.finfo(torch.float32).tiny
        divergence = (p * (p.clamp(min=tiny).log() - q.clamp(min=tiny).log())).sum(dim=-1)
        total = total + (divergence.mean(dim=1) * targets).sum()
    return total / len(pairs)


def evenly_mapped(of_student: int, of_teacher: int) -> list[tuple[int, int]]:
    """Which of the teacher's layers each of the student's learns from; the last from the last.

    >>> evenly_mapped(2, 6)
    [(0, 2), (1, 5)]
    """
    return [
        (layer, max(0, -(-(layer + 1) * of_teacher // of_student) - 1))
        for layer in range(of_student)
    ]


class _SoftLoss(torch.autograd.Function):
    """Loss and gradient in one sweep over chunks of tokens; shapes as in `soft_loss`, flat."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        student: Tensor,
        teacher: Tensor,
        targets: Tensor,
        temperature: float,
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=student.device)
        gradient = torch.empty_like(student)
        rows = max(1, _CHUNK_ELEMENTS // student.shape[-1])
        for start in range(0, student.shape[0], rows):
            part = slice(start, start + rows)
            log_q = (student[part].float() / temperature).log_softmax(dim=-1)
            log_p = (teacher[part].float() / temperature).log_softmax(dim=-1)
            p = log_p.exp()
            counted = targets[part, None]
            total += (p * (log_p - log_q) * counted).sum()
            gradient[part] = (log_q.exp_() - p) * counted * temperature
        ctx.gradient = gradient  # type: ignore[attr-defined]
        return total * temperature**2

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *outputs: Tensor) -> tuple[object, ...]:
        gradient = ctx.gradient  # type: ignore[attr-defined]
        ctx.gradient = None  # type: ignore[attr-defined]
        if gradient is None:
            raise RuntimeError("the gradient of a soft loss was already taken")
        return gradient.mul_(outputs[0]), None, None, None


def _forward(
    model: nn.Module, batch: Batch, *, hidden: bool = False, attention: bool = False
) -> Any:
    return model(
        input_ids=batch.input_ids,
        **batch.positions,
        use_cache=False,
        output_hidden_states=hidden,
        output_attentions=attention,
    )


def _load_teacher(recipe: Recipe, ranks: Ranks, folder: str) -> PreTrainedModel:
    """Load a teacher frozen, laid out and filled as a student of the same recipe would be."""
    whole = recipe.layout.zero != 3
    layout = msgspec.structs.replace(recipe.layout, dp=1, fsdp=1, zero=0, cp=1, offload="none")
    layout = msgspec.structs.replace(layout, global_batch=layout.micro_batch)
    teachers = msgspec.structs.replace(
        recipe,
        model=msgspec.structs.replace(recipe.model, config=folder, checkpoint=folder),
        layout=layout if whole else recipe.layout,
        adapter=None,
        distillation=None,
    )
    model = skeleton(teachers)
    model.requires_grad_(requires_grad=False).eval()
    if not whole:
        shard(model, teachers, ranks)
    fill([model], teachers, ranks)
    return model


def _check(
    wanted: RecipeDistillation,
    stage: RecipeTeacher,
    recipe: Recipe,
    student: PretrainedConfig,
    teacher: PretrainedConfig,
) -> None:
    for axis in ("pp", "tp"):
        if getattr(recipe.layout, axis) > 1:
            raise InputError(
                f"layout: {axis} = {getattr(recipe.layout, axis)} with a distillation: a student"
                f" learns with dp, fsdp and cp; set layout.{axis} = 1"
            )
    if student.vocab_size != teacher.vocab_size:
        raise InputError(
            f"distillation.teacher {stage.teacher}: its vocabulary has {teacher.vocab_size} tokens"
            f" and the student's {student.vocab_size}; give a teacher with the student's tokenizer"
        )
    weight = wanted.soft_weight if stage.soft_weight is None else stage.soft_weight
    temperature = wanted.temperature if stage.temperature is None else stage.temperature
    if not 0.0 <= weight <= 1.0 or temperature <= 0.0:
        raise InputError(
            "distillation: soft_weight is a share from 0 to 1, temperature is above 0;"
            f" they are {weight} and {temperature}"
        )
    if not wanted.attention_weight:
        return
    if recipe.model.attention != "eager" or recipe.layout.cp > 1:
        raise InputError(
            "distillation.attention_weight needs the attention probabilities, which only"
            ' model.attention = "eager" with layout.cp = 1 has'
        )
    if student.num_attention_heads != teacher.num_attention_heads:
        raise InputError(
            f"distillation.attention_weight: the teacher has {teacher.num_attention_heads} heads"
            f" and the student {student.num_attention_heads}; matching wants as many: set it"
            " to 0 and use hidden_weight"
        )


def _unwrapped(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
