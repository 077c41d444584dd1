"""Figures of the trained example model, against plain loops in float64."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ridgeline.compress.evaluate.evaluate import evaluate
from ridgeline.compress.evaluate.judge import QualityJudge
from ridgeline.compress.evaluate.loaded import Loaded, load, tokenizer_of
from ridgeline.compress.evaluate.quality import measure
from ridgeline.compress.evaluate.sensitive import common_layers, layer_losses
from ridgeline.compress.evaluate.text import TextWindows, text_windows
from ridgeline.errors import InputError

LIBRARY = Path(__file__).parents[3] / "examples/models/library"
TEXT = (Path(json.__file__).parent / "decoder.py").read_text()[:6000]


@pytest.fixture(scope="module")
def library() -> Loaded:
    return load("MODEL", LIBRARY, "cpu")


@pytest.fixture(scope="module")
def judged() -> TextWindows:
    tokenizer = tokenizer_of("MODEL", LIBRARY)
    return text_windows(TEXT, "text", tokenizer, context=128, stride=96, positions=1024)


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with one layer's weights coarse, another's slightly so."""
    folder = tmp_path_factory.mktemp("models") / "rounded"
    shutil.copytree(LIBRARY, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, steps in (("layers.1.mlp.down_proj", 4.0), ("layers.2.self_attn.o_proj", 40.0)):
        key = f"model.{name}.weight"
        scale = tensors[key].abs().max() / steps
        tensors[key] = (tensors[key] / scale).round() * scale
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def scored(model: torch.nn.Module, judged: TextWindows) -> tuple[torch.Tensor, torch.Tensor]:
    """Log probabilities [N, V] and targets [N] by the protocol, window by window."""
    rows, targets = [], []
    reached = 0
    for begin in range(0, len(judged.tokens), 96):
        end = min(begin + 128, len(judged.tokens))
        with torch.inference_mode():
            logits = model(input_ids=judged.tokens[None, begin:end]).logits[0].double()
        for place in range(max(reached, begin + 1), end):
            rows.append(logits[place - begin - 1].log_softmax(0))
            targets.append(judged.tokens[place])
        reached = end
        if end == len(judged.tokens):
            break
    return torch.stack(rows), torch.stack(targets)


def test_loss_accuracy_and_kl_are_those_of_a_plain_loop(
    library: Loaded, judged: TextWindows, rounded: Path
) -> None:
    other = load("MODEL", rounded, "cpu")
    found = measure(other.model, judged.tokens, judged.windows, library.model)
    own, targets = scored(other.model, judged)
    theirs, _ = scored(library.model, judged)
    quality = found.scores.quality(judged.protocol)
    assert found.scores.count == len(targets) == judged.protocol.scored
    assert quality.loss == pytest.approx(-own.gather(1, targets[:, None]).mean().item(), abs=1e-5)
    assert quality.accuracy == pytest.approx((own.argmax(1) == targets).double().mean().item())
    assert quality.bits_per_byte == pytest.approx(
        quality.loss * len(judged.tokens) / len(TEXT.encode()) / math.log(2)
    )
    assert quality.word_perplexity == pytest.approx(
        math.exp(quality.loss * len(judged.tokens) / len(TEXT.split()))
    )
    kl = (theirs.exp() * (theirs - own)).sum(1)
    divergence = found.distances.divergence()
    assert divergence.kl_mean == pytest.approx(kl.mean().item(), rel=1e-3)
    assert divergence.kl_p99 == pytest.approx(torch.quantile(kl, 0.99).item(), rel=1e-3)
    agreed = (own.argmax(1) == theirs.argmax(1)).double().mean().item()
    assert divergence.agreement == pytest.approx(agreed)


def test_a_model_is_nothing_away_from_itself(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    found = evaluate(LIBRARY, text, reference=LIBRARY, context=128, device="cpu")
    assert found.divergence is not None
    assert (found.divergence.kl_mean, found.divergence.agreement) == (0.0, 1.0)
    assert found.reference_quality == found.quality
    assert found.disk_bytes == (LIBRARY / "model.safetensors").stat().st_size
    assert (found.protocol.context, found.protocol.stride, found.protocol.bos) == (128, 128, False)
    # The model knows the language: far better than chance over 2,048 words.
    assert found.quality.perplexity < 60


@pytest.mark.slow
def test_the_coarser_layer_is_the_more_sensitive_and_the_model_is_left_as_it_was(
    judged: TextWindows, rounded: Path
) -> None:
    judge = QualityJudge(LIBRARY, judged, "cpu", lambda _: None)
    before = judge.watched()
    other = judge.load(rounded)
    names = common_layers(judge.given.model, other.model)
    assert names == ["model.layers.1.mlp.down_proj", "model.layers.2.self_attn.o_proj"]
    coarse, fine = layer_losses(before, other.model, [[name] for name in names], "test")
    assert coarse.kl > fine.kl > 0
    assert before.kl() == 0.0
    worst = judge.most_sensitive(rounded, "test")
    assert [one.layer for one in worst] == names


def test_what_does_not_load_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(LIBRARY, broken)
    content = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="broken") as truncated:
        load("MODEL", broken, "cpu")
    assert "\n" not in str(truncated.value)
    tensors = load_file(LIBRARY / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"missing, such as .*up_proj"):
        load("MODEL", broken, "cpu")


def test_a_reference_must_speak_the_same_tokens(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    other = tmp_path / "other"
    shutil.copytree(LIBRARY, other)
    about = json.loads((other / "tokenizer.json").read_text())
    about["model"]["merges"] = about["model"]["merges"][:100]
    (other / "tokenizer.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"--reference .* cuts text differently"):
        evaluate(LIBRARY, text, reference=other, context=128, device="cpu")
