from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from ridgeline.compress import apply
from ridgeline.compress.memory import LIBRARY_BYTES, forecast
from ridgeline.compress.run import CompressionJob
from ridgeline.records.scheme_names import parse

_CHILD = """
import json, resource, sys
from pathlib import Path
import torch
from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.compress.memory import forecast
from ridgeline.compress.methods import awq
from ridgeline.compress.run import CompressionJob, stage
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.records.scheme_names import parse

torch.set_num_threads(int(sys.argv[4]))
awq.STEPS, awq.SHARES = 2, (1.0, 0.9)  # a search takes the same memory however long it is
model, work = Path(sys.argv[1]), Path(sys.argv[2])
tokens = torch.randint(0, 4096, (16, 256), generator=torch.Generator().manual_seed(1))
job = CompressionJob(model=model, schemes=(parse(sys.argv[3]),), work=work, tokens=tokens)
ModelSkeleton(CheckpointFiles(model))  # what the program itself takes is no part of the forecast
torch.linalg.cholesky(torch.eye(64)) @ torch.eye(64)
page = resource.getpagesize()
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = int(Path("/proc/self/statm").read_text().split()[1]) * page
told = forecast(job)
stage(job)
# Not getrusage: after fork and exec that still remembers the parent's peak.
status = Path("/proc/self/status").read_text().split()
peak = int(status[status.index("VmHWM:") + 1]) * 1024 - before
print(json.dumps({
    "peak": peak, "told": told.peak_bytes, "block": told.block_bytes,
    "statistics": told.statistics_bytes, "activations": told.activation_bytes,
}))
"""


def _peak(folder, scheme, threads, dtype, **sizes):
    """What sixteen layers take, as foretold and measured, and the bytes that they are stored in."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=4096,
        num_hidden_layers=16,  # so many that less is held than is stored
        num_key_value_heads=4,
        max_position_embeddings=512,
        **sizes,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder / "model", max_shard_size="50MB")
    stored = sum(path.stat().st_size for path in (folder / "model").glob("*.safetensors"))
    del model
    command = [sys.executable, "-W", "ignore", "-c", _CHILD]
    command += [str(folder / "model"), str(folder / "work"), scheme, str(threads)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(answer.splitlines()[-1]), stored


_SCHEMES = pytest.mark.parametrize(
    "scheme", ["w4a16-gptq-g128", "w4a16-rtn-g128", "w4a16-awq-g128"]
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@_SCHEMES
def test_the_peak_of_a_large_model_is_foretold_and_is_that_of_two_blocks(tmp_path, scheme):
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16}
    found, stored = _peak(tmp_path, scheme, 1, torch.bfloat16, **sizes)
    assert stored > 3e8
    assert abs(found["peak"] - found["told"]) <= 0.2 * found["peak"], found
    working_set = found["block"] + found["statistics"]
    assert found["peak"] <= 2 * working_set + found["activations"]
    assert found["peak"] < stored


@pytest.mark.slow
@pytest.mark.timeout(1800)
@_SCHEMES
def test_the_peak_is_foretold_where_chunks_in_float32_go_side_by_side(tmp_path, scheme):
    sizes = {"hidden_size": 768, "intermediate_size": 1536, "num_attention_heads": 12}
    found, _ = _peak(tmp_path, scheme, 2, torch.float16, **sizes)
    assert abs(found["peak"] - found["told"]) <= 0.2 * found["peak"], found


def test_the_forecast_grows_with_what_is_gathered_and_not_with_the_number_of_blocks(
    tiny_model, tokens, tmp_path
):
    def told(kind, scheme, calibration):
        job = CompressionJob(
            model=tiny_model(kind),
            schemes=(parse(scheme),),
            work=tmp_path / "work",
            tokens=calibration,
        )
        return forecast(job)

    plain = told("llama", "w4a16-rtn-g16", None)
    walked = told("llama", "w4a16-gptq-g16", tokens)
    assert plain.activation_bytes == 0
    assert walked.block_bytes == plain.block_bytes
    assert walked.statistics_bytes > plain.statistics_bytes
    assert walked.activation_bytes >= tokens.numel() * 32 * 4
    assert walked.peak_bytes == (
        walked.block_bytes + walked.statistics_bytes + walked.activation_bytes + LIBRARY_BYTES
    )


@pytest.mark.sweep("1000000000000")
@pytest.mark.parametrize("unused", [0, 10**12])
def test_what_is_freed_is_kept_only_where_memory_is_plenty_and_nothing_else_changes(
    tiny_model, tokens, tmp_path, monkeypatch, unused
):
    said = []
    for name, free in (("a", unused), ("b", 0)):
        monkeypatch.setattr(apply, "unused_memory_bytes", lambda free=free: free)
        job = CompressionJob(
            model=tiny_model("llama"),
            schemes=(parse("w4a16-gptq-g16"),),
            work=tmp_path / f"{name}.blocks",
            tokens=tokens,
        )
        apply.saved(job, tmp_path / name, name, said.append)
    assert ("what is freed is kept" in said[0]) == bool(unused)
    first, second = (
        b"".join(path.read_bytes() for path in sorted((tmp_path / name).glob("*.safetensors")))
        for name in ("a", "b")
    )
    assert first == second
