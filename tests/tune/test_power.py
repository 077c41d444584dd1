"""Loss equivalence has power: what changes the training is told from what only rounds it.

Small trainings of four kinds run as they are, disturbed, changed harmlessly, and with mistakes
that a hand-written speed-up makes. Wrong ones must be rejected, harmless ones must pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.measure.child.points import Points
from ridgeline.measure.child.shake import Shaker
from ridgeline.measure.child.updates import UpdateWatch
from ridgeline.measure.wire import Updates
from ridgeline.records import LossCheck
from ridgeline.tune.losses import SHAKES, check_losses
from ridgeline.tune.updates import WEIGHED_STEPS, update_fault

STEPS = 24
ACCUMULATE = 2
VOCABULARY = 48


class Transformer(nn.Module):
    def __init__(self, width: int = 48, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, batch_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 32)
        self.cell = nn.LSTM(32, 48, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(48, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.drop(self.cell(self.tokens(tokens))[0]))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, VOCABULARY),
    )  # fmt: skip


def dense() -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, VOCABULARY)
    )  # fmt: skip


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


Make = Callable[[], nn.Module]
KINDS: dict[str, tuple[Make, Callable[[nn.Module], torch.optim.Optimizer]]] = {
    "transformer": (Transformer, adamw),
    "recurrent": (Recurrent, adamw),
    "convolutional": (convolutional, momentum),
    "dense": (dense, momentum),
}


def batch(kind: str, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    if kind in ("transformer", "recurrent"):
        tokens = torch.randint(0, VOCABULARY, (6, 25), generator=draw)
        return tokens[:, :-1], tokens[:, 1:].flatten()
    shape = (24, 3, 12, 12) if kind == "convolutional" else (24, 20)
    images = torch.randn(shape, generator=draw)
    return images, (images.flatten(1).sum(1) > 0).long()


@cache
def training(  # noqa: PLR0915
    kind: str, change: str = "", shake: float = 0.0, seed: int = 3
) -> tuple[list[float], Updates]:
    """One training's losses and updates; `change` says what is done differently."""
    torch.manual_seed(seed)
    watch = UpdateWatch(WEIGHED_STEPS)
    make, optimize = KINDS[kind]
    model = make()
    shaker = Shaker(shake)
    if shake:
        shaker.begin(model)
    if change == "dropout left out":
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
    if change == "layer frozen":
        next(model.parameters()).requires_grad_(False)
    if change == "channels last":
        model = model.to(memory_format=torch.channels_last)
    optimizer = optimize(model)
    if change == "fused optimizer":
        for group in optimizer.param_groups:
            group.update(fused=True, foreach=False)
    if change == "momentum left out":
        group = optimizer.param_groups[0]
        group.update({"betas": (0.0, 0.999)} if "betas" in group else {"momentum": 0.0})
    draw = torch.Generator().manual_seed(11)
    found = []
    stale: list[Tensor] = []
    for step in range(STEPS):
        if change == "batch skipped" and step == 8:
            batch(kind, draw)
        if change == "batch repeated":
            again = draw.get_state()
        if change == "state forgotten" and step == 8:
            optimizer = optimize(model)
        if change == "eval left on" and step == 8:
            model.eval()
        if change == "learning rate forgotten" and step == 8:
            optimizer.param_groups[0]["lr"] *= 0.5
        parts = []
        for part in range(ACCUMULATE):
            if change == "batch repeated" and part:
                draw.set_state(again)
            last = part == ACCUMULATE - 1
            parts.append(_micro_batch(kind, model, batch(kind, draw), change, last=last))
            if change == "wrong no_sync" and not last:
                # The other rank's gradient never arrives: this one steps by its own mean.
                own = [ACCUMULATE * p.grad for p in model.parameters() if p.grad is not None]
        if change == "wrong no_sync":
            for p, gradient in zip(_with_gradients(model), own, strict=True):
                p.grad = gradient
        if change == "stale gradients":
            now = [p.grad.clone() for p in _with_gradients(model)]
            for p, gradient in zip(_with_gradients(model), stale or now, strict=True):
                p.grad = gradient
            stale = now
        if change == "clipping added":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if shake:
            shaker.before_step(optimizer)
        watch.before_step(optimizer)
        watch.boundary()
        if not (change == "step skipped" and step % 8 == 7):
            optimizer.step()
        if change == "stepped twice" and step == 8:
            optimizer.step()
        if change == "weights in bfloat16":
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(p.bfloat16().float())
        if not (change == "gradients kept" and step == 8):
            optimizer.zero_grad()
        found.append(sum(parts))
    shaker.end()
    return found, watch.report()


def _with_gradients(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.grad is not None]


def _micro_batch(
    kind: str, model: nn.Module, inputs: tuple[Tensor, Tensor], change: str, *, last: bool
) -> float:
    """One backward; returns what it began with, which is what is compared."""
    x, y = inputs
    if change == "half of a batch" and last:
        tokens = y.reshape(len(x), -1)
        x, y = x[: len(x) // 2], tokens[: len(x) // 2].flatten()
    half = change in ("bfloat16", "loss under autocast in bfloat16")
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        logits = model(x).flatten(0, -2)
    if change == "bfloat16":
        logits = logits.float()
    if change == "loss in bfloat16":
        logits = logits.bfloat16()
    if change == "labels shifted":
        y = y.roll(1)
    smoothing = 0.1 if change == "label smoothing added" else 0.0
    loss = functional.cross_entropy(logits, y, label_smoothing=smoothing)
    if change != "division forgotten":
        loss = loss / ACCUMULATE
    left_out = "last micro-batch lost" if last else "accumulation dropped"
    if change != left_out:
        loss.backward()
    return float(loss.detach())


def judged(kind: str, change: str, equivalence: str, seed: int = 3) -> LossCheck:
    """What `tune` says of a changed run beside the same training unchanged and disturbed."""
    runs = [
        training(kind, seed=seed),
        training(kind, change, seed=seed),
        training(kind, shake=SHAKES[equivalence], seed=seed),
    ]
    base, other, shaken = (losses for losses, _ in runs)
    check = check_losses(equivalence, base, other, shaken=shaken)
    fault = update_fault(equivalence, *(updates for _, updates in runs))
    return check if fault is None else replace(check, passed=False, summary=fault)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


WRONG = (
    "loss in bfloat16",
    "loss under autocast in bfloat16",
    "accumulation dropped",
    "last micro-batch lost",
    "state forgotten",
    "eval left on",
    "gradients kept",
    "learning rate forgotten",
    "clipping added",
    "wrong no_sync",
    "division forgotten",
    "labels shifted",
    "label smoothing added",
    "dropout left out",
    "layer frozen",
    "momentum left out",
    "batch skipped",
    "batch repeated",
    "half of a batch",
    "stale gradients",
    "step skipped",
    "stepped twice",
    "weights in bfloat16",
)
"""The first nine and what follows them: two dozen ways to train another model."""


@pytest.mark.slow
@pytest.mark.parametrize("equivalence", ["rounding", "reduced-precision"])
def test_of_all_planted_mistakes_hardly_one_passes(equivalence: str) -> None:
    """A patch is held to its stack under rounding; autocast itself is allowed more."""
    planted = [
        (kind, change)
        for kind in KINDS
        for change in WRONG
        if not (kind == "convolutional" and change == "dropout left out")  # it has none
    ]
    passed = [one for one in planted if judged(*one, equivalence).passed]
    assert len(planted) >= 90
    assert len(passed) <= 0.05 * len(planted), passed


@pytest.mark.sweep("fused optimizer-rounding-dense")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "equivalence"),
    [
        ("fused optimizer", "rounding"),
        ("channels last", "rounding"),
        ("bfloat16", "reduced-precision"),
    ],
)
def test_what_only_rounds_passes(kind: str, change: str, equivalence: str) -> None:
    if change == "channels last" and kind != "convolutional":
        pytest.skip("only images have a layout")
    check = judged(kind, change, equivalence)
    assert check.passed, check.summary


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 11))
@pytest.mark.parametrize("kind", KINDS)
def test_right_autocast_passes_whatever_the_seed(kind: str, seed: int) -> None:
    check = judged(kind, "bfloat16", "reduced-precision", seed)
    assert check.passed, check.summary


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_not_taken_for_rounding_in_float32(kind: str) -> None:
    check = judged(kind, "bfloat16", "rounding")
    assert not check.passed
    assert "times what rounding does" in check.summary


def test_the_disturbance_leaves_the_scripts_own_draws_alone() -> None:
    points = Points()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    shaker = Shaker(2.0**-8)
    shaker.install(points)
    model = dense()
    torch.manual_seed(5)
    before = [p.detach().clone() for p in model.parameters()]
    for seen in points.around_forward:
        seen(model)
        seen(model)
    shaker.end()
    assert torch.equal(torch.rand(3), expected)
    moved = [
        float((p.detach() - b).norm() / b.norm())
        for p, b in zip(model.parameters(), before, strict=True)
    ]
    assert all(0.5 * 2.0**-8 < size < 2 * 2.0**-8 for size in moved)


def test_the_disturbance_reaches_each_call_under_inference_mode() -> None:
    points, shaker, model = Points(), Shaker(2.0**-8), dense().eval()
    shaker.install(points)
    answers = []
    for _ in range(3):
        with torch.inference_mode():
            for seen in points.around_forward:
                seen(model)
            answers.append(model(torch.ones(4, 20)))
    shaker.end()
    undisturbed = model(torch.ones(4, 20))
    assert not any(torch.equal(answer, undisturbed) for answer in answers)


def test_a_model_that_is_traced_and_compared_is_disturbed_only_after_that() -> None:
    points, shaker, model, rows = Points(), Shaker(2.0**-4), dense().eval(), torch.ones(4, 20)
    shaker.install(points)
    for seen in points.around_forward:
        seen(model)
    traced = torch.jit.trace(model, rows)  # compares, and raises where matmuls differ
    moved = [traced(rows) for _ in range(2)]
    shaker.end()
    assert not torch.equal(*moved)
