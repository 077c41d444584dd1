"""What a student minimises, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.train.processes import run_ranks
from tests.train.small_run import write_small_run
from tests.train.tiny_models import VOCAB, write_config
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe, RecipeData, RecipeModel, RecipeOptimizer
from ridgeline.records.recipe_compression import RecipeDistillation, RecipeTeacher
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
        distillation=RecipeDistillation(
            **{"teacher": str(folder / "teacher")} | distillation  # type: ignore[arg-type]
        ),
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
    recipe = recipe_of(folder, soft_weight=0.0, hidden_weight=1.0, fade_steps=10)
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


def test_a_student_learns_from_its_teachers_in_turn(folder: Path, ranks: Ranks) -> None:
    large = write_teacher(folder / "large", heads=2)
    stages = (
        RecipeTeacher(teacher=str(folder / "teacher"), steps=2, soft_weight=1.0),
        RecipeTeacher(teacher=str(large), steps=3, soft_weight=1.0, temperature=1.0),
    )
    recipe = recipe_of(folder, teacher="", stages=stages)
    in_turn, batch = Distillation(recipe, ranks), batch_of()
    student = _student(recipe, ranks)
    seen = []
    for step in range(5):
        torch.manual_seed(7)
        said = in_turn.before_step(step)
        drawn = torch.rand(())
        torch.manual_seed(7)
        assert torch.equal(drawn, torch.rand(())), "a new teacher draws no numbers of the run"
        assert said == (f"learns from {large} from now on" if step == 2 else "")
        seen.append(in_turn(student, batch).item())
    assert seen[0] == seen[1] != seen[2] == seen[3] == seen[4]
    for teacher, temperature, loss in ((folder / "teacher", 2.0, seen[0]), (large, 1.0, seen[4])):
        alone = recipe_of(folder, teacher=str(teacher), soft_weight=1.0, temperature=temperature)
        assert Distillation(alone, ranks)(student, batch).item() == loss
    assert [in_turn.wants_evaluation(done) for done in range(6)] == [
        False, False, True, False, False, True,
    ]  # fmt: skip
    resumed = Distillation(recipe, ranks)
    assert resumed.before_step(4)
    assert resumed(student, batch).item() == seen[4]


def test_teachers_of_several_widths_share_no_projection(tmp_path: Path) -> None:
    write_config(tmp_path, "llama")
    write_teacher(tmp_path)
    wide = LlamaConfig.from_pretrained(tmp_path / "teacher")
    wide.hidden_size = 64
    wide.save_pretrained(tmp_path / "wide")
    stages = tuple(
        RecipeTeacher(teacher=str(tmp_path / name), steps=1) for name in ("teacher", "wide")
    )
    recipe = recipe_of(tmp_path, teacher="", stages=stages, hidden_weight=1.0)
    with pytest.raises(InputError, match=r"teachers of the widths \[48, 64\]"):
        prepare_student(skeleton(recipe), recipe)


TWO = 'stages = [{teacher = "a", steps = 2}, {teacher = "b", steps = 3}]'


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "[distillation] wants one of teacher"),
        (f'teacher = "a"\n{TWO}', "[distillation] wants one of teacher"),
        (TWO, "distillation.stages have 5 steps together and the run has 12"),
        ('stages = [{teacher = "a", steps = 0}]', "a has steps = 0; give 1 or more"),
        ('stages = [{teacher = "a"}]', "missing required field `steps`"),
        ("progressive_steps = 5", "unknown field `progressive_steps`"),
    ],
)
def test_teachers_that_cannot_be_are_one_line(
    table: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_small_run(tmp_path, f"[run]\nsteps = 12\n[distillation]\n{table}\n")
    assert run(["train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "out")]) == 2
    _, err = capsys.readouterr()
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.multiprocess
def test_each_teacher_is_a_row_of_the_runs_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = (
        "[run]\nsteps = 5\nlog_every = 2\n[[distillation.stages]]\nteacher = 'teacher'\nsteps = 3\n"
    )
    write_small_run(tmp_path, f"{table}[[distillation.stages]]\nteacher = 'large'\nsteps = 2\n")
    write_teacher(tmp_path, vocabulary=300)
    shutil.move(write_teacher(tmp_path / "two", vocabulary=300, heads=2), tmp_path / "large")
    line = ["train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "out")]
    assert run([*line, "--json"]) == 0
    taught = json.loads(capsys.readouterr().out)["teachers"]
    assert [(Path(one["teacher"]).name, one["steps"]) for one in taught] == [
        ("teacher", 3), ("large", 2),
    ]  # fmt: skip
    assert all(one["validation_loss"] > 0 and one["seconds"] > 0 for one in taught)


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
