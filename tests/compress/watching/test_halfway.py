from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.compress import flow
from ridgeline.compress.run import CompressionJob, stage
from ridgeline.records.scheme_names import parse


class _Attention(TorchDispatchMode):
    """Counts how often attention is computed."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "scaled_dot_product" in func.__name__
        return func(*args, **(kwargs or {}))


@pytest.fixture
def staged(tiny_model, tokens, tmp_path, monkeypatch):
    """Compresses with room to hold so much; returns weights, and how often attention computed."""

    def compressed(kind, scheme, held):
        monkeypatch.setattr(flow, "HELD", held)
        monkeypatch.setattr(flow, "CHUNK_TOKENS", 80)
        job = CompressionJob(
            model=tiny_model(kind),
            schemes=(parse(scheme),),
            work=tmp_path / f"{kind}-{scheme}-{held}",
            tokens=tokens,
        )
        attention = _Attention()
        with attention if scheme == "w4a16-g16" else nullcontext():
            result = stage(job)
        return dict(result.emulated().named_parameters()), attention.count

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what counts attention sees its own thread alone
    yield compressed
    torch.set_num_threads(threads)


@pytest.mark.sweep("llama-w4a16-gptq-g16")
@pytest.mark.parametrize("scheme", ["w4a16-gptq-g16", "w4a16-awq-g16", "50%-sparsegpt"])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt", "mixtral", "gemma3"])
def test_passes_that_go_on_where_they_stopped_give_what_those_from_the_beginning_do(
    staged, kind, scheme
):
    anew, _ = staged(kind, scheme, 0)
    going_on, _ = staged(kind, scheme, 100)
    assert all(torch.equal(anew[name], going_on[name]) for name in anew)


@pytest.mark.slow
def test_attention_of_a_chunk_is_computed_once_where_there_is_room_for_what_is_held(staged):
    _, all_held = staged("llama", "w4a16-g16", 100)
    _, some_held = staged("llama", "w4a16-g16", 3)
    _, none_held = staged("llama", "w4a16-g16", 0)
    blocks, chunks = 2, 3
    assert all_held == blocks * (chunks + 1)  # once more for what flows where
    assert all_held < some_held < none_held
