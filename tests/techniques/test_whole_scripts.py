"""A technique as a stack and as a patch: the script prints what it prints without."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.techniques.profiles import ceilings
from tests.warm_scripts import start_plainly

from ridgeline.measure.live.profile import measure
from ridgeline.measure.live.windows import MeasurementPlan
from ridgeline.techniques import Context, options_of, technique
from ridgeline.tune.patch import write_patch

pytestmark = pytest.mark.usefixtures("warm")
LINES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Lines(Dataset):
    def __len__(self):
        return 600

    def __getitem__(self, index):
        values = [((index * 31 + k) % 97) / 97 for k in range(200)]
        return torch.tensor(values), index % 3


def main():
    torch.manual_seed(0)
    loader = DataLoader(Lines(), batch_size=20, shuffle=True)
    model = nn.Sequential(nn.Linear(200, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"{loss.item():.9f}")


if __name__ == "__main__":
    main()
"""
WORDS = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(5000, 16), nn.Linear(16, 5000))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
LOSS
for step in range(40):
    words = torch.randint(5000, (8, 33))
    logits = model(words[:, :-1])
    optimizer.zero_grad()
    loss = CALL
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"{loss.item():.9f}")
"""
BY_NAME = WORDS.replace("LOSS", "").replace(
    "CALL", "nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())"
)
BY_MODULE = WORDS.replace("LOSS", "criterion = nn.CrossEntropyLoss()").replace(
    "CALL", "criterion(logits.flatten(0, 1), words[:, 1:].flatten())"
)


DROPS = WORDS.replace("nn.Embedding(5000, 16),", "nn.Embedding(5000, 16), nn.Dropout(0.3),")
"""With names of its own that a patch must leave alone."""
DROPS = DROPS.replace("LOSS", "dropout = kept = attention = 0.3").replace(
    "CALL", "nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())"
)

ATTENDS = """
import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads = heads
        self.inner = nn.Linear(width, 3 * width)
        self.outer = nn.Linear(width, width)
        self.register_buffer("seen", torch.tril(torch.ones(96, 96)).view(1, 1, 96, 96))

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (
            part.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.inner(x).split(width, dim=2)
        )
        weights = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        weights = weights.masked_fill(self.seen[:, :, :length, :length] == 0, float("-inf"))
        weights = nn.functional.softmax(weights, dim=-1)
        mixed = (weights @ v).transpose(1, 2).contiguous().view(rows, length, width)
        return x + self.outer(mixed)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), Attention(), Attention(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    x = torch.randn(4, 96, 8)
    optimizer.zero_grad()
    loss = (model(x) - x.roll(1, 1)).square().mean()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"{model[1].inner.weight.grad.double().abs().sum().item():.9f}")
"""

GRAPH = """
import torch
from torch import nn

torch.manual_seed(0)
places = torch.randint(400, (2, 3000))
matrix = torch.sparse_coo_tensor(places, torch.rand(3000) / 8, (400, 400), check_invariants=True)
x, wanted = torch.randn(400, 16), torch.randn(400, 4)
first, second = nn.Linear(16, 32), nn.Linear(32, 4)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
for step in range(40):
    optimizer.zero_grad()
    hidden = torch.spmm(matrix, first(x)).relu()
    loss = (matrix @ second(hidden) - wanted).square().mean()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"{first.weight.grad.double().abs().sum().item():.9f}")
"""

WINDOWS = """
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
series = np.sin(np.arange(5000) / 9).astype(np.float32)
model = nn.Linear(64, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def batch(length=64, ahead=32):
    begin = torch.randint(4800, (256,))
    x = torch.stack([torch.from_numpy(series[i : i + length]) for i in begin])
    y = torch.stack([
        torch.from_numpy(series[i + length : i + length + ahead])
        for i in begin
    ])
    return x, y


for step in range(40):
    x, y = batch()
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"{loss.item():.9f}")
"""


DRAWS = """
import torch
from torch import nn
from torch.distributions import Categorical, Normal, kl_divergence

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    choice, middle, width = model(torch.randn(32, 4)).split(2, dim=1)
    choices, values = Categorical(logits=choice), Normal(middle, width.exp(), validate_args=True)
    loss = kl_divergence(values, Normal(torch.zeros(2), torch.ones(2))).mean()
    loss = loss - choices.log_prob(choices.sample()).mean() + values.rsample().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"{loss.item():.9f}")
"""


FOLLOWS = """
import torch
from torch import nn

torch.manual_seed(0)


def network():
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))


model, target = network(), network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = torch.randn(4)
for step in range(40):
    action = model(state).argmax().item()
    state = 0.9 * state + 0.1 * action * torch.randn(4)
    seen, next_seen = torch.randn(2, 64, 4)
    wanted = 0.9 * target(next_seen).max(1)[0]
    loss = (model(seen).max(1)[0] - wanted).square().mean() + state.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"{loss.item():.9f}")
"""


DRAWN_ANEW = (
    LINES.replace("class Lines(Dataset):", "class Lines(Dataset):\n    first = 0\n")
    .replace("index * 31", "self.first + index * 31")
    .replace("loader = DataLoader(Lines(),", "lines = Lines()\n    loader = DataLoader(lines,")
    .replace("for _ in range(3):", "for epoch in range(3):\n        lines.first = 1000 * epoch")
)
"""The data set draws its samples anew before each epoch, as negatives of a ranking are."""


@dataclass(frozen=True)
class Case:
    """A script, what is applied to it, a line of its patch, and how near the numbers are."""

    name: str
    script: str
    written: str
    tolerance: float


CASES = {
    "samples": Case("samples-in-memory", LINES, "DataLoader(SamplesInMemory(Lines()), batch", 0.0),
    "samples drawn anew": Case(
        "samples-in-memory", DRAWN_ANEW, "DataLoader(SamplesInMemory(lines), batch", 0.0
    ),
    "samples of workers": Case(
        "samples-in-memory",
        LINES.replace("shuffle=True", "shuffle=True, num_workers=1, prefetch_factor=4"),
        "num_workers=0, prefetch_factor=None",
        0.0,
    ),
    "loss": Case("chunked-cross-entropy", BY_NAME, "loss = chunked_cross_entropy(logits", 1e-6),
    "attention": Case(
        "fused-attention", ATTENDS, "torch.Tensor.__matmul__ = makes_scores_wait", 1e-4
    ),
    "graph": Case("compressed-rows", GRAPH, "torch.spmm = by_compressed_rows(torch.spmm", 0.0),
    "slices": Case("gathered-slices", WINDOWS, "x = gathered_slices(torch.stack, series, ", 0.0),
    "checks of arguments": Case(
        "no-argument-checks", DRAWS, "Distribution.set_default_validate_args(False)", 0.0
    ),
    "graphs for nobody": Case("no-unused-graph", FOLLOWS, "with torch.no_grad():", 0.0),
    "criterion": Case(
        "chunked-cross-entropy", BY_MODULE, "functional.cross_entropy = chunked_cross", 1e-6
    ),
}


def printed(script: str, folder: Path) -> list[float]:
    """The numbers that a script prints when it is run as it stands."""
    log = folder / "printed.log"
    log.unlink(missing_ok=True)
    assert start_plainly([script], log, folder).wait(60) == 0, log.read_text()
    return numbers(log.read_text())


def printed_with_its_stack(script: str, folder: Path) -> list[float]:
    """The numbers that it prints under `ridgeline run`, with the stack.toml beside it."""
    command = [sys.executable, "-m", "ridgeline.cli.main", "run", "--stack", "stack.toml", "--"]
    done = subprocess.run(
        [*command, script], cwd=folder, capture_output=True, text=True, check=True
    )
    return numbers(done.stdout)


def numbers(text: str) -> list[float]:
    return [float(line) for line in re.findall(r"^\d\.\d{9}$", text, re.MULTILINE)]


@pytest.mark.slow
def test_masks_of_other_numbers_are_the_same_with_a_stack_and_with_its_patch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(DROPS)
    plain = printed("train.py", tmp_path)
    (profile,) = measure(
        ["train.py"], MeasurementPlan(steps=8, warmup=1, window=2), ceilings=ceilings()
    )
    context, module = (
        Context(profile=profile, ceilings=ceilings()),
        technique("sixteen-bit-dropout"),
    )
    (tmp_path / "stack.toml").write_text('[[technique]]\nname = "sixteen-bit-dropout"\n')
    stacked = printed_with_its_stack("train.py", tmp_path)
    edits = [("sixteen-bit-dropout", edit) for edit in module.edits(context, {})]
    (text,) = write_patch(edits, tmp_path).files.values()
    (tmp_path / "patched.py").write_text(text)
    assert printed("patched.py", tmp_path) == stacked != plain
    assert stacked == pytest.approx(plain, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_script_prints_the_same_with_a_stack_and_with_its_patch(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(case.script)
    plain = printed("train.py", tmp_path)
    assert len(plain) > 1

    (profile,) = measure(
        ["train.py"], MeasurementPlan(steps=8, warmup=1, window=2), ceilings=ceilings()
    )
    context, module = Context(profile=profile, ceilings=ceilings()), technique(case.name)
    fits = module.applies(context)
    assert fits.ok, fits.reason
    (options,) = options_of(module, context)
    table = ", ".join(f'{key} = "{value}"' for key, value in options.items())
    (tmp_path / "stack.toml").write_text(
        f'[[technique]]\nname = "{case.name}"\noptions = {{ {table} }}\n'
    )
    stacked = printed_with_its_stack("train.py", tmp_path)
    assert stacked == pytest.approx(plain, rel=case.tolerance, abs=0)

    patch = write_patch([(case.name, edit) for edit in module.edits(context, options)], tmp_path)
    assert not patch.unplaced
    (text,) = patch.files.values()
    assert case.written in text
    (tmp_path / "train.py").write_text(text)
    assert printed("train.py", tmp_path) == pytest.approx(stacked, rel=1e-6, abs=0)
    assert (stacked == plain) == (case.tolerance == 0), "what rounds anew prints other digits"
