from __future__ import annotations

import filecmp
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ridgeline.compress.finished import BlockLog
from ridgeline.compress.run import CompressionJob, stage
from ridgeline.errors import InputError
from ridgeline.records.scheme_names import parse

_CHILD = """
import sys, time
from pathlib import Path
import torch
from ridgeline.compress.run import CompressionJob, stage
from ridgeline.records.scheme_names import parse

torch.set_num_threads(1)
model, work, out, hold = sys.argv[1:]
tokens = torch.randint(0, 128, (6, 40), generator=torch.Generator().manual_seed(1))

def progress(done):
    print(done.block, done.resumed, flush=True)
    if done.block == int(hold):
        time.sleep(600)

schemes = (parse("w4a16-gptq-g16"),)
job = CompressionJob(model=Path(model), schemes=schemes, work=Path(work), tokens=tokens)
stage(job, progress).save(Path(out))
"""


def _start(model: Path, folder: Path, hold: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", _CHILD, str(model)]
    command += [str(folder / "work"), str(folder / "out"), str(hold)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow  # the same from the command line is quick: tests/cli/test_compress_interrupted.py
def test_after_a_kill_the_result_is_the_same_to_the_byte(tiny_model, tokens, tmp_path):
    model = tiny_model("mixtral")
    with _start(model, tmp_path, hold=0) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline().split() == ["0", "False"]
        killed.send_signal(signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    with _start(model, tmp_path, hold=-1) as again:
        assert again.communicate(timeout=120)[0].split() == ["0", "True", "1", "False"]
    whole = tmp_path / "whole"
    whole.mkdir()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the child does: sums are added up in one order
    try:
        scheme = parse("w4a16-gptq-g16")
        job = CompressionJob(model=model, schemes=(scheme,), work=whole / "work", tokens=tokens)
        stage(job).save(whole / "out")
    finally:
        torch.set_num_threads(threads)
    names = sorted(path.name for path in (whole / "out").iterdir())
    assert "model.safetensors" in names
    assert filecmp.cmpfiles(tmp_path / "out", whole / "out", names, shallow=False)[0] == names


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_interrupted_before_or_while_any_block_is_written_it_goes_on_the_same(
    tiny_model, tokens, tmp_path, kind, monkeypatch
):
    def job(name):
        scheme = parse("w4a16-awq-g8")
        return CompressionJob(
            model=tiny_model(kind), schemes=(scheme,), work=tmp_path / name, tokens=tokens
        )

    stage(job("straight"))
    blocks = sorted(path.name for path in (tmp_path / "straight").glob("block*"))
    write = BlockLog.write
    for stop in range(len(blocks)):

        def stopping(self, block, result, stop=stop):
            if block == stop:
                # As a kill leaves it: a part of the file, under the name of what is being written.
                (self.folder / f"block-{block:05d}.writing").write_bytes(b"half")
                raise KeyboardInterrupt
            write(self, block, result)

        monkeypatch.setattr(BlockLog, "write", stopping)
        with pytest.raises(KeyboardInterrupt):
            stage(job("interrupted"))
    monkeypatch.setattr(BlockLog, "write", write)
    stage(job("interrupted"))
    same, _, _ = filecmp.cmpfiles(
        tmp_path / "straight", tmp_path / "interrupted", blocks, shallow=False
    )
    assert same == blocks


def test_a_damaged_block_is_named(tiny_model, tokens, tmp_path):
    job = CompressionJob(
        model=tiny_model("llama"),
        schemes=(parse("w4a16-rtn-g16"),),
        work=tmp_path / "work",
        tokens=tokens,
    )
    stage(job)
    path = tmp_path / "work" / "block-00001.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"block-00001.safetensors: .* remove its folder"):
        stage(job)
