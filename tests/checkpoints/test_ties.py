"""Heads that config.json ties to the embedding, where the files say otherwise, and missing ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.serve.engine.workloads import (
    VOCAB,
    answers,
    finished,
    greedy,
    plain_greedy,
    tiny_engine,
    write_tiny_llama,
)
from tests.warm_scripts import start_rank_warm

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.errors import InputError
from ridgeline.serve.engine import ranks

PROMPT = [5, 6, 7, 8, 9]


def tied_llama_with_a_head(folder: Path, head: torch.Tensor | None) -> Path:
    """A tied model whose files have a head, too; None: the embedding's values again."""
    write_tiny_llama(folder, tie_word_embeddings=True)
    stored = load_file(folder / "model.safetensors")
    embedding = stored["model.embed_tokens.weight"]
    stored["lm_head.weight"] = embedding.clone() if head is None else head
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def served(folder: Path, **changes: Any) -> list[int]:
    engine = tiny_engine(folder, **changes)
    try:
        engine.handle(greedy("a", PROMPT, 12))
        return list(answers(finished(engine))["a", 0])
    finally:
        engine.close()


def expected(folder: Path) -> list[int]:
    from transformers import AutoModelForCausalLM

    return plain_greedy(AutoModelForCausalLM.from_pretrained(folder), PROMPT, 12)


def test_a_tied_models_own_head_is_used_where_it_has_other_values(tmp_path: Path) -> None:
    head = torch.randn(VOCAB, 32, generator=torch.Generator().manual_seed(3))
    folder = tied_llama_with_a_head(tmp_path, head)
    assert served(folder) == expected(folder)
    skeleton = ModelSkeleton(CheckpointFiles(folder))
    assert "lm_head.weight" in skeleton.pieces
    assert not skeleton.model.config.tie_word_embeddings


def test_a_head_that_is_stored_twice_stays_tied(tmp_path: Path) -> None:
    folder = tied_llama_with_a_head(tmp_path, None)
    assert served(folder) == expected(folder)
    assert "lm_head.weight" not in ModelSkeleton(CheckpointFiles(folder)).pieces


@pytest.mark.multiprocess
@pytest.mark.parametrize("cut", [{"tp": 2}, pytest.param({"pp": 2}, marks=pytest.mark.slow)])
def test_ranks_use_a_tied_models_own_head(
    tmp_path: Path, cut: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "start_rank", start_rank_warm)
    head = torch.randn(VOCAB, 32, generator=torch.Generator().manual_seed(3))
    folder = tied_llama_with_a_head(tmp_path, head)
    assert served(folder, **cut) == expected(folder)


def test_a_model_whose_head_is_missing_is_refused_and_not_made_up(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    stored = load_file(folder / "model.safetensors")
    del stored["lm_head.weight"]
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"are missing, such as lm_head\.weight; copy the model"):
        tiny_engine(folder)
