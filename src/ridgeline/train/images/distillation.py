"""The loss of an image classifier that learns from a larger one, in place of the labels' alone.

    (1-a) · CE(labels) + a · T² · KL(teacher/T ‖ student/T)      Hinton et al., arXiv 1503.02531
    + h · mean over maps of ‖P·map_s - map_t‖²/‖map_t‖²          FitNets, arXiv 1412.6550, eq. 3
    + b · mean over maps of ‖Q_s/‖Q_s‖ - Q_t/‖Q_t‖‖²             arXiv 1612.03928, eq. 2

Sums over images. A map is a hidden state, [B, channels, h, w], or [B, tokens, channels] of a
transformer; Q is the map's attention, Σ over channels of its squares, as one vector. Maps are
mapped evenly from student to teacher, and brought to the teacher's height and width by the mean of
what falls together. P is a learned 1 × 1 projection where channels differ. FitNets do not divide by
the teacher's map; here one weight has to suit maps whose sizes differ by orders of magnitude.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe
from ridgeline.train.adapters import PROJECTION
from ridgeline.train.batch import IGNORED
from ridgeline.train.distillation import evenly_mapped, soft_loss
from ridgeline.train.images.batch import ImageBatch
from ridgeline.train.images.loss import class_loss
from ridgeline.train.images.model import image_skeleton
from ridgeline.train.loss import Objective
from ridgeline.train.model import DTYPES, fill
from ridgeline.train.part import FilledModel, Part
from ridgeline.train.ranks import Ranks
from ridgeline.train.task import logits_of


class ImageDistillation(Part):
    """`[distillation]` of an image classifier's recipe, with its teacher loaded."""

    def __init__(self, recipe: Recipe, ranks: Ranks) -> None:
        assert recipe.distillation is not None
        assert recipe.images is not None
        self._wanted = recipe.distillation
        self._smoothing = recipe.images.label_smoothing
        self.teacher = _load_teacher(recipe, ranks)
        self._step = 0

    @staticmethod
    def shape(model: PreTrainedModel, recipe: Recipe) -> PreTrainedModel:
        """Add the learned projections, one for each map whose channels differ."""
        if recipe.images is not None and recipe.distillation is not None:
            _add_projections(model, recipe)
        return model

    @classmethod
    def make(cls, filled: FilledModel) -> ImageDistillation | None:
        """Where the recipe is of images and has a teacher."""
        recipe = filled.recipe
        if recipe.images is None or recipe.distillation is None:
            return None
        return cls(recipe, filled.ranks)

    def objective(self, given: Objective) -> Objective:
        """Learn from the teacher in place of the labels alone."""
        del given
        return self

    def before_step(self, step: int) -> str:
        """Take note of the step."""
        self._step = step
        return ""

    def __call__(self, model: nn.Module, batch: ImageBatch) -> Tensor:
        """The loss of one micro-batch."""
        wanted, fade = self._wanted, self._fade()
        hidden = bool(wanted.hidden_weight and fade)
        attention = bool(wanted.attention_weight and fade)
        output = _forward(model, batch.pixels, maps=hidden or attention)
        with torch.no_grad():
            taught = _forward(self.teacher, batch.pixels, maps=hidden or attention)
        counted = batch.labels != IGNORED
        logits = logits_of(output)
        hard = class_loss(logits, batch, self._smoothing)
        soft = soft_loss(logits, logits_of(taught), counted, wanted.temperature)
        loss = (1.0 - wanted.soft_weight) * hard + wanted.soft_weight * soft
        if not hidden and not attention:
            return loss
        pairs = map_pairs(output.hidden_states, taught.hidden_states)
        if hidden:
            projections = getattr(_unwrapped(model), PROJECTION, None)
            matched = feature_loss(pairs, counted, projections)
            loss = loss + wanted.hidden_weight * fade * matched
        if attention:
            loss = loss + wanted.attention_weight * fade * attention_map_loss(pairs, counted)
        return loss

    def _fade(self) -> float:
        """What is left of matching maps at this step."""
        steps = self._wanted.fade_steps
        return max(0.0, 1.0 - self._step / steps) if steps else 1.0


def map_pairs(
    student: tuple[Tensor, ...], teacher: tuple[Tensor, ...]
) -> list[tuple[Tensor, Tensor]]:
    """Maps that are matched, each as [B, places, channels], the student's at the teacher's places.

    The first of each is the stem's output, which is not matched.
    """
    pairs = evenly_mapped(len(student) - 1, len(teacher) - 1)
    return [_at_same_places(student[mine + 1], teacher[theirs + 1]) for mine, theirs in pairs]


def feature_loss(
    pairs: list[tuple[Tensor, Tensor]], counted: Tensor, projections: nn.Module | None
) -> Tensor:
    """Squared distance over the teacher's squared size, mean of maps, sum over images."""
    total = pairs[0][0].new_zeros((), dtype=torch.float32)
    for number, (mine, theirs) in enumerate(pairs):
        project = getattr(projections, f"map{number}", None)
        projected = mine if project is None else project(mine)
        taught = theirs.float()
        size = taught.square().sum((1, 2)).clamp_min(torch.finfo(torch.float32).tiny)
        distance = (projected.float() - taught).square().sum((1, 2)) / size
        total = total + (distance * counted).sum()
    return total / len(pairs)


def attention_map_loss(pairs: list[tuple[Tensor, Tensor]], counted: Tensor) -> Tensor:
    """Squared distance of normalised attention maps, mean of maps, sum over images."""
    total = pairs[0][0].new_zeros((), dtype=torch.float32)
    for mine, theirs in pairs:
        maps = [
            functional.normalize(one.float().square().sum(-1), dim=-1) for one in (mine, theirs)
        ]
        total = total + ((maps[0] - maps[1]).square().sum(-1) * counted).sum()
    return total / len(pairs)


def _at_same_places(mine: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    if mine.ndim == theirs.ndim == 4:
        if mine.shape[2:] != theirs.shape[2:]:
            mine = functional.adaptive_avg_pool2d(mine, theirs.shape[2:])
        return mine.flatten(2).transpose(1, 2), theirs.flatten(2).transpose(1, 2)
    if mine.ndim != theirs.ndim or mine.shape[1] != theirs.shape[1]:
        raise InputError(
            f"distillation: hidden states of {list(mine.shape[1:])} and {list(theirs.shape[1:])}"
            " have no common places; set hidden_weight and attention_weight to 0, or give a"
            " teacher of the student's kind"
        )
    return mine, theirs


def _forward(model: nn.Module, pixels: Tensor, *, maps: bool) -> Any:
    return model(pixels, output_hidden_states=True) if maps else model(pixels)


def _add_projections(model: nn.Module, recipe: Recipe) -> None:
    """Ask both models, on the meta device, which channels their maps have."""
    wanted, images = recipe.distillation, recipe.images
    assert wanted is not None
    assert images is not None
    teacher = image_skeleton(_of_teacher(recipe), DTYPES[recipe.precision.weights])
    _check_teacher(recipe, model, teacher)
    if not wanted.hidden_weight:
        return
    pixels = torch.empty(2, images.channels, images.size, images.size, device="meta")
    states = []
    for one in (model, teacher):
        dtype = next(one.parameters()).dtype
        with torch.no_grad():
            found = _forward(deepcopy(one).to("meta"), pixels.to(dtype), maps=True)
        states.append(found.hidden_states)
    layers = nn.Module()
    for number, (mine, theirs) in enumerate(map_pairs(states[0], states[1])):
        if mine.shape[-1] != theirs.shape[-1]:
            layer = nn.Linear(mine.shape[-1], theirs.shape[-1], bias=False, device="meta")
            layers.add_module(f"map{number}", layer)
    if any(True for _ in layers.children()):
        model.add_module(PROJECTION, layers)


def _check_teacher(recipe: Recipe, student: nn.Module, teacher: nn.Module) -> None:
    wanted = recipe.distillation
    assert wanted is not None
    assert recipe.images is not None
    both = all(isinstance(one, PreTrainedModel) for one in (student, teacher))
    if (wanted.hidden_weight or wanted.attention_weight) and not both:
        raise InputError(
            "distillation: model.script makes a model without hidden states; set hidden_weight and"
            " attention_weight to 0"
        )
    labels = teacher.config.num_labels
    if labels != recipe.images.classes:
        raise InputError(
            f"distillation.teacher {wanted.teacher}: tells {labels} classes apart and the images"
            f" have {recipe.images.classes}; give a teacher of these images"
        )


def _of_teacher(recipe: Recipe) -> Recipe:
    """The recipe as it would be for the teacher."""
    assert recipe.distillation is not None
    folder = recipe.distillation.teacher
    if not (Path(folder).expanduser() / "config.json").is_file():
        raise InputError(
            f"distillation.teacher {folder}: has no config.json; give the folder of an image"
            " classifier that transformers loads"
        )
    return msgspec.structs.replace(
        recipe,
        model=msgspec.structs.replace(recipe.model, config=folder, checkpoint=folder, script=""),
        layout=msgspec.structs.replace(recipe.layout, zero=0, fsdp=1),
        distillation=None,
        quantisation=None,
        pruning=None,
        lottery=None,
    )


def _load_teacher(recipe: Recipe, ranks: Ranks) -> nn.Module:
    """The teacher, frozen and whole on each rank."""
    teachers = _of_teacher(recipe)
    model = image_skeleton(teachers, DTYPES[recipe.precision.weights])
    model.requires_grad_(requires_grad=False).eval()
    fill([model], teachers, ranks)
    return model


def _unwrapped(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
