"""On a really trained model, methods rank as the literature has them."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from ridgeline.compress.run import CompressionJob, stage
from ridgeline.records.scheme_names import parse

LIBRARY = Path(__file__).parents[3] / "examples" / "models" / "library"
_WINDOW = 256


def _windows(files: list[Path], count: int) -> Tensor:
    tokenizer = AutoTokenizer.from_pretrained(LIBRARY)
    numbers = [n for file in files for n in tokenizer(file.read_text())["input_ids"]]
    windows = torch.tensor(numbers[: len(numbers) // _WINDOW * _WINDOW]).view(-1, _WINDOW)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
    return windows[order[:count]]


@torch.no_grad()
def _perplexity(model: nn.Module, windows: Tensor) -> float:
    losses = []
    for part in windows.split(10):
        logits = model(part).logits[:, :-1].float()
        losses.append(functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()))
    return float(torch.stack(losses).mean().exp())


@pytest.mark.slow
def test_sparsegpt_loses_less_than_half_of_what_magnitude_does_at_two_of_four(
    tmp_path: Path,
) -> None:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    held, calibration = files[3::20], [file for i, file in enumerate(files) if i % 20 != 3]
    text, tokens = _windows(held, 60), _windows(calibration[:60], 64)
    dense = _perplexity(AutoModelForCausalLM.from_pretrained(LIBRARY, dtype=torch.float32), text)
    excess = {}
    for name in ("2:4-magnitude", "2:4-sparsegpt", "50%-magnitude", "50%-sparsegpt"):
        job = CompressionJob(
            model=LIBRARY, schemes=(parse(name),), work=tmp_path / name, tokens=tokens
        )
        excess[name] = _perplexity(stage(job).emulated(), text) - dense
    assert excess["2:4-magnitude"] > 2.0 * excess["2:4-sparsegpt"] > 0.0
    assert excess["50%-magnitude"] > 1.3 * excess["50%-sparsegpt"] > 0.0
