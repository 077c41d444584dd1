"""What a student minimises, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.train.processes import run_ranks
from tests.train.tiny_models import VOCAB, write_config
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe, RecipeData, RecipeModel, RecipeOptimizer
from ridgeline.records.recipe_compression import RecipeDistillation
from ridgeline.train.batch import IGNORED, Batch
from ridgeline.train.distillation import (
    Distillation,
    attention_loss,
    hidden_loss,
    prepare_student,
    soft_loss,
)
from ridgeline.train.loss import token_loss
from ridgeline.train.model import fill, skeleton
from ridgeline.train.optimizers.build import build_optimizer
from ridgeline.train.ranks import Ranks, join, leave


def write_teacher(folder: Path, vocabulary: int = VOCAB, heads: int = 4) -> Path:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=8,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "teacher")
    return folder / "teacher"


def recipe_of(folder: Path, layout: Layout | None = None, **distillation: Any) -> Recipe:
    return Recipe(
        model=RecipeModel(config=str(folder / "llama"), attention="eager"),
        data=RecipeData(seq=8),
        layout=layout or Layout(precision="fp32", compiled=False),
        optimizer=RecipeOptimizer(learning_rate=3e-3, final_learning_rate=1e-3, weight_decay=0.0),
        distillation=RecipeDistillation(teacher=str(folder / "teacher"), **distillation),
    )


def batch_of(seed: int = 0) -> Batch:
    tokens = torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(seed))
    labels = tokens[:, 1:].clone()
    labels[0, :3] = IGNORED
    return Batch(input_ids=tokens[:, :-1], labels=labels, position_ids=torch.arange(8).expand(2, 8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("distillation")
    write_config(place, "llama")
    write_teacher(place)
    return place


@pytest.fixture
def ranks() -> Any:
    yield join(Layout())
    leave()


def _student(recipe: Recipe, ranks: Ranks) -> Any:
    student = prepare_student(skeleton(recipe), recipe)
    fill([student], recipe, ranks)
    return student


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_soft_loss_and_its_gradient_are_those_of_the_formula(temperature: float) -> None:
    torch.manual_seed(0)
    student = torch.randn(2, 5, 11, requires_grad=True)
    teacher = torch.randn(2, 5, 11)
    targets = torch.rand(2, 5) > 0.3
    loss = soft_loss(student, teacher, targets, temperature)
    (gradient,) = torch.autograd.grad(3.0 * loss, student)
    p = (teacher / temperature).softmax(-1)
    q = (student / temperature).softmax(-1)
    formula = temperature**2 * ((p * (p / q).log()).sum(-1) * targets).sum()
    (expected,) = torch.autograd.grad(3.0 * formula, student)
    torch.testing.assert_close(loss, formula)
    torch.testing.assert_close(gradient, expected)


def test_a_step_minimises_the_sum_of_all_its_terms(folder: Path, ranks: Ranks) -> None:
    recipe = recipe_of(
        folder, soft_weight=0.3, temperature=3.0, hidden_weight=0.7, attention_weight=0.2
    )
    student, distillation, batch = _student(recipe, ranks), Distillation(recipe, ranks), batch_of()
    loss = distillation(student, batch)
    gradients = torch.autograd.grad(loss, list(student.parameters()))

    def run(model: Any) -> Any:
        return model(input_ids=batch.input_ids, output_hidden_states=True, output_attentions=True)

    mine, other = run(student), run(distillation.teacher)
    targets = (batch.labels != IGNORED).float()
    p, q = (other.logits / 3).softmax(-1), (mine.logits / 3).softmax(-1)
    formula = 0.7 * token_loss(mine.logits, batch.labels)
    formula = formula + 0.3 * 9 * ((p * (p / q).log()).sum(-1) * targets).sum()
    for layer in range(4):
        projected = student.distillation_projection(mine.hidden_states[layer + 1])
        taught = other.hidden_states[2 * layer + 2]
        away = (projected - taught).square().sum(-1) / taught.square().sum(-1)
        formula = formula + 0.7 / 4 * (away * targets).sum()
        a, b = other.attentions[2 * layer + 1], mine.attentions[layer]
        tiny = torch.finfo(torch.float32).tiny
        divergence = (a * ((a + tiny) / (b + tiny)).log()).sum(-1).mean(1)
        formula = formula + 0.2 / 4 * (divergence * targets).sum()
    torch.testing.assert_close(loss, formula)
    expected = torch.autograd.grad(formula, list(student.parameters()))
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


def test_matching_oneself_costs_nothing() -> None:
    torch.manual_seed(0)
    states = tuple(torch.randn(2, 4, 8) for _ in range(3))
    twice = hidden_loss(tuple(2 * one for one in states), states, torch.ones(2, 4), None)
    assert twice.item() == pytest.approx(8.0)  # one for each token, whatever its size
    looks = tuple(torch.randn(2, 2, 4, 4).tril().softmax(-1) for _ in range(3))
    targets = torch.ones(2, 4)
    assert hidden_loss(states, states, targets, None).item() == 0.0
    assert attention_loss(looks, looks, targets).item() == 0.0


def test_matching_fades_out_and_evaluation_is_the_token_loss(folder: Path, ranks: Ranks) -> None:
    recipe = recipe_of(folder, soft_weight=0.0, hidden_weight=1.0, progressive_steps=10)
    student, distillation, batch = _student(recipe, ranks), Distillation(recipe, ranks), batch_of()
    losses: list[Tensor] = []
    for step in (0, 5, 10, 20):
        distillation.step = step
        losses.append(distillation(student, batch).detach())
    with torch.no_grad():
        plain = distillation(student, batch)
    torch.testing.assert_close(losses[1] - plain, (losses[0] - plain) / 2, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(losses[2:], [plain, plain])


def test_a_student_comes_to_agree_with_its_teacher(folder: Path, ranks: Ranks) -> None:
    recipe = recipe_of(folder, soft_weight=1.0, temperature=1.0)
    faster = msgspec.structs.replace(recipe.optimizer, learning_rate=1e-2)
    recipe = msgspec.structs.replace(recipe, optimizer=faster)
    student, distillation, batch = _student(recipe, ranks), Distillation(recipe, ranks), batch_of()
    before = [p.clone() for p in distillation.teacher.parameters()]
    optimizer = build_optimizer([student], recipe, ranks)
    losses = []
    for _ in range(30):
        loss = distillation(student, batch)
        losses.append(loss.item())
        (loss / 13).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.3 * losses[0]
    assert all(
        torch.equal(a, b) for a, b in zip(before, distillation.teacher.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": Layout(pp=2)}, "layout: pp = 2 with a distillation"),
        ({"layout": Layout(tp=2)}, "layout: tp = 2 with a distillation"),
        ({"model": "sdpa"}, r'model\.attention = "eager"'),
        ({"temperature": 0.0}, "temperature is above 0"),
    ],
)
def test_what_cannot_be_distilled_is_refused(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    recipe = recipe_of(folder, change.get("layout"), attention_weight=1.0)
    if "model" in change:
        model = msgspec.structs.replace(recipe.model, attention=change["model"])
        recipe = msgspec.structs.replace(recipe, model=model)
    if "temperature" in change:
        recipe = recipe_of(folder, temperature=0.0)
    with pytest.raises(InputError, match=message):
        prepare_student(skeleton(recipe), recipe)


def test_a_teacher_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path, "llama")
    write_teacher(tmp_path, vocabulary=50)
    recipe = recipe_of(tmp_path)
    with pytest.raises(InputError, match="vocabulary has 50 tokens and the student's 97"):
        prepare_student(skeleton(recipe), recipe)


def train_sharded(argument: dict[str, Any]) -> list[list[float]]:
    """Losses of a few steps in each layout, on the same two micro-batches."""
    from ridgeline.train.parallel.plain import PlainPasses
    from ridgeline.train.parallel.sharding import shard, share_gradients

    courses = []
    for layout in argument["layouts"]:
        recipe = recipe_of(Path(argument["folder"]), layout, hidden_weight=0.5)
        ranks = join(layout, timeout_seconds=60)
        student = prepare_student(skeleton(recipe), recipe)
        shard(student, recipe, ranks)
        fill([student], recipe, ranks)
        shared = share_gradients(student, recipe, ranks)
        passes = PlainPasses(shared, ranks, Distillation(recipe, ranks))
        optimizer = build_optimizer([student], recipe, ranks)
        courses.append([])
        for step in range(4):
            both = [batch_of(2 * step), batch_of(2 * step + 1)]
            mine = both if layout.dp == 1 else [both[ranks.index("data")]]
            loss = passes.run(mine, sum(batch.num_targets() for batch in both))
            if layout.dp > 1:
                torch.distributed.all_reduce(loss, group=ranks.group("data"))
            courses[-1].append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    leave()
    return courses


@pytest.mark.slow
@pytest.mark.multiprocess
def test_sharded_students_learn_as_one_process_does(folder: Path) -> None:
    def layout(**axes: Any) -> Layout:
        return Layout(precision="fp32", compiled=False, global_batch=4, micro_batch=2, **axes)

    function = "tests.train.test_distillation:train_sharded"
    shared = {"folder": str(folder)}
    (((alone,)),) = run_ranks(1, function, shared | {"layouts": [layout()]})
    layouts = [layout(dp=2), layout(dp=2, fsdp=2, zero=3), layout(dp=2, fsdp=2, zero=2)]
    for courses in run_ranks(2, function, shared | {"layouts": layouts}):
        for course in courses:
            assert course == pytest.approx(alone, rel=1e-5)
