"""`ridgeline compress` ended by real signals; with --resume it saves what a quiet run saves."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.cradle import Child, cradle

from ridgeline.cli.main import run
from ridgeline.records.work_folder import held

LIBRARY = Path(__file__).parents[2] / "examples/models/library"
SOURCES = Path(json.__file__).parent
GPTQ = ["--scheme", "w4a16-gptq-g32", "--unjudged"]
SEARCH = ["--target", "kl+0.001", "--scheme", "w4a16-g32", "--scheme", "w8a16-channel"]
PRUNED = ["--scheme", "2:4-sparsegpt", "--scheme", "w4a16-gptq-g32"]
DEADLINE_SECONDS = 120


def compressing(words: list[str]) -> None:
    """In the process that will be ended: as the program, which handles SIGTERM too."""
    from ridgeline.cli.main import main

    sys.argv = ["ridgeline", "compress", *words]
    main()


def compressing_with_a_reader_that_hides_interrupts(words: list[str]) -> None:
    """Ended inside of a native reader, which makes an error of its own out of that."""
    from ridgeline.checkpoints.files import StoredTensors

    read = StoredTensors.read

    def hiding(checkpoint: StoredTensors, name: str) -> torch.Tensor:
        try:
            if "layers.1." in name:
                os.kill(os.getpid(), signal.SIGTERM)
            return read(checkpoint, name)
        except KeyboardInterrupt:
            raise ValueError("could not determine the shape of an object") from None

    StoredTensors.read = hiding  # type: ignore[method-assign]
    compressing(words)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A model of two small blocks, and its texts."""
    import transformers

    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=2048, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(LIBRARY / name, folder)
    (folder / "calibration.txt").write_text((SOURCES / "tool.py").read_text())
    (folder / "held.txt").write_text((SOURCES / "scanner.py").read_text())
    texts = ["--calibration", str(folder / "calibration.txt"), "--text", str(folder / "held.txt")]
    return [str(folder), *texts, "--context", "64", "--no-speed", "--device", "cpu"]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums are added up in one order, here as in other processes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("work", "line", "number", "code"),
    [
        (GPTQ, "w4a16-gptq-g32: block 1 of 2", signal.SIGTERM, 130),
        (GPTQ, "w4a16-gptq-g32: block 1 of 2", signal.SIGKILL, -9),
        (SEARCH, "sensitivity under w4a16-g32: 3 of", signal.SIGTERM, 130),
    ],
    ids=["one scheme, SIGTERM", "one scheme, SIGKILL", "search, SIGTERM"],
)
def test_ended_in_the_middle_it_goes_on_to_the_same_bytes(
    words: list[str], work: list[str], line: str, number: int, code: int, tmp_path: Path
) -> None:
    straight, ended = tmp_path / "straight", tmp_path / "ended"
    assert run(["compress", *words, *work, "--out", str(straight)]) == 0
    process = _start([*words, *work], ended)
    _signal_after(process, ended, line, number)
    assert process.wait(DEADLINE_SECONDS) == code
    assert not ended.exists()
    if code == 130:
        assert "the same command with --resume goes on from it" in _said(ended).splitlines()[-1]
    assert run(["compress", *words, *work, "--out", str(ended), "--resume"]) == 0
    _assert_same(ended, straight)
    assert not ended.with_name("ended.partial").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
@pytest.mark.parametrize("work", [PRUNED, SEARCH, ["--scheme", "w4a16-awq-g32"]])
def test_ended_at_any_line_it_goes_on_to_the_same_bytes(
    words: list[str], work: list[str], number: int, tmp_path: Path
) -> None:
    straight = tmp_path / "straight"
    assert _start([*words, *work], straight).wait(DEADLINE_SECONDS) == 0
    for place, line in enumerate(dict.fromkeys(_said(straight).splitlines())):
        ended = tmp_path / f"ended-{place}"
        process = _start([*words, *work], ended)
        if not _signal_after(process, ended, line, number):
            continue
        process.wait(DEADLINE_SECONDS)
        if not ended.exists():  # it may have come through
            more = ["--resume"] if ended.with_name(f"{ended.name}.partial").exists() else []
            assert _start([*words, *work, *more], ended).wait(DEADLINE_SECONDS) == 0, _said(ended)
        _assert_same(ended, straight)


@pytest.mark.slow
def test_an_interrupt_that_native_code_turns_into_an_error_is_an_interrupt(
    words: list[str], tmp_path: Path
) -> None:
    ended = tmp_path / "ended"
    process = _start([*words, *GPTQ], ended, "compressing_with_a_reader_that_hides_interrupts")
    assert process.wait(DEADLINE_SECONDS) == 130
    assert "the same command with --resume goes on from it" in _said(ended).splitlines()[-1]


def _start(words: list[str], out: Path, program: str = "compressing") -> Child:
    process = cradle().bear(
        f"tests.cli.test_compress_interrupted:{program}",
        [[*words, "--out", str(out)]],
        log=_log(out),
        environment=dict(os.environ),
    )
    return Child(process)


def _signal_after(process: Child, out: Path, line: str, number: int) -> bool:
    """Whether it was still there when it had said this."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while line not in _said(out):
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process.pid, number)
    return True


def _said(out: Path) -> str:
    path = _log(out)
    return path.read_text() if path.exists() else ""


def _log(out: Path) -> Path:
    return out.with_name(f"{out.name}.log")


def _assert_same(found: Path, expected: Path) -> None:
    """But for the ledger and the report, which hold times and names."""
    names = sorted(path.name for path in expected.iterdir())
    assert sorted(path.name for path in found.iterdir()) == names
    compared = [name for name in names if name not in ("ledger.json", "report.html")]
    assert "model.safetensors" in compared
    assert filecmp.cmpfiles(found, expected, compared, shallow=False)[0] == compared


def test_a_second_run_does_not_take_what_the_first_has_for_left(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, work = tmp_path / "out", tmp_path / "out.partial"
    with held(work, out):
        (work / "file").touch()
        assert run(["compress", *words, *GPTQ, "--resume", "--out", str(out)]) == 2
        told = capsys.readouterr().err.splitlines()[-1]
        assert f"--out {out}: another process is writing it, in {work}" in told
        assert os.listdir(work) == ["file"]


def test_a_result_may_lie_in_a_folder_that_is_new_and_a_refusal_leaves_none(
    words: list[str], tmp_path: Path
) -> None:
    rounded = ["--scheme", "w4a16-g32", "--unjudged"]
    assert run(["compress", *words, *rounded, "--out", str(tmp_path / "new" / "out")]) == 0
    assert os.listdir(tmp_path / "new") == ["out"]
    short = ["--calibration", "/dev/null", *GPTQ, "--out", str(tmp_path / "none")]
    assert run(["compress", *words, *short]) == 2
    assert os.listdir(tmp_path) == ["new"]
