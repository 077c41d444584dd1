"""A script that crashes: its own traceback is shown, and whether it also crashes without us."""

from __future__ import annotations

import socketserver
import threading
import traceback
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.measure.live.crash import crash_of

pytestmark = pytest.mark.usefixtures("warm")
LOOP = """import sys

import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Shy(torch.nn.Linear):
    def forward(self, x):
        if self._forward_hooks:
            raise RuntimeError("somebody watches")
        return super().forward(x)


def loss_of(step):
    print(end=f"{step} of 50", file=sys.stderr)
    if step == 5:
        torch.randn(2, 3) @ torch.randn(2, 3)
    return model(torch.randn(2, 4)).sum()


for step in range(50):
    loss_of(step).backward()
    optimizer.step()
    with open("written.txt", "w") as file:
        file.write("by the script")
"""


def test_a_scripts_own_crash_shows_its_traceback_without_our_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(LOOP)
    assert run(["doctor", "--", "train.py"]) == 2
    told = capsys.readouterr().err
    assert "it fails the same way without ridgeline" in told.splitlines()[-1]
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in told.splitlines()[-1]
    assert 'train.py", line 19, in loss_of' in told
    assert "ridgeline/measure" not in told
    assert "running it without ridgeline" in told


DEEP = """
class DynamoError(Exception):
    pass


def left(depth):
    return right(depth - 1)


def right(depth):
    if not depth:
        raise DynamoError("no graph: the error itself\\n\\nSet VERBOSE=1 for the stack trace")
    return left(depth - 1)


def loss_of(step):
    return left(201)

"""


def test_of_a_crash_in_deep_frames_the_error_is_told_and_not_what_is_advised_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(LOOP.replace("\nfor step", DEEP + "\nfor step"))
    assert run(["doctor", "--", "train.py"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "DynamoError: no graph: the error itself" in last
    assert "VERBOSE" not in last


def test_a_script_that_is_no_python_is_shown_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python prints no traceback of it: the words above the error are its place."""
    monkeypatch.chdir(tmp_path)
    Path("old.py").write_text("import torch\nx = torch.ones(1)\nx.cuda(async=True)\n")
    assert run(["doctor", "--", "old.py"]) == 2
    told = capsys.readouterr().err
    assert 'old.py", line 3' in told
    assert "x.cuda(async=True)" in told
    assert "SyntaxError: invalid syntax (it fails the same way" in told.splitlines()[-1]


def test_a_script_that_asks_for_more_than_it_is_given_is_told_to_take_it_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch\nsize = int(input('How many layers? '))\n")
    assert run(["doctor", "--", "train.py"]) == 2
    told = capsys.readouterr().err
    assert told.splitlines()[-1].endswith(
        "it asks for input, which a measured run has not: give the answers as a file, with "
        "`< answers.txt` behind the command"
    )
    assert 'train.py", line 2' in told
    assert "running it without ridgeline" not in told, "it would ask again"


def test_a_crash_that_needs_us_is_our_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shy = LOOP.replace("\n\ndef loss_of", "\n\nmodel = Shy(4, 4)\n\n\ndef loss_of")
    Path("train.py").write_text(shy.replace("step == 5", "step < 0"))
    assert run(["doctor", "--", "train.py"]) == 1
    told = capsys.readouterr().err
    assert "it does NOT fail without ridgeline" in told.splitlines()[-1]
    assert "somebody watches" in told


ASKS = """import socket

with socket.socket(socket.AF_UNIX) as door:
    door.connect("DOOR")
    if door.recv(1) == b"n":
        raise ValueError("drawn badly")
"""


def test_a_script_that_fails_now_and_then_is_not_called_our_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first run is told to fail; those that compare are not."""
    monkeypatch.chdir(tmp_path)
    asks = ASKS.replace("DOOR", str(tmp_path / "door"))
    Path("train.py").write_text(asks + LOOP.replace("step == 5", "step < 0"))
    answers = iter(b"nyyyy")

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.send(bytes([next(answers)]))

    with socketserver.UnixStreamServer(str(tmp_path / "door"), Answer) as door:
        thread = threading.Thread(target=door.serve_forever)
        thread.start()
        code = run(["doctor", "--", "train.py"])
        door.shutdown()
        thread.join()
    assert code == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "ValueError: drawn badly (it fails now and then: run once more it went through" in told


WORKERS = """from multiprocessing import Process


def train(rank):
    raise FileNotFoundError("there is no train-images")


if __name__ == "__main__":
    process = Process(target=train, args=(0,))
    process.start()
    process.join()
"""


def test_what_kept_a_scripts_processes_from_training_is_told_although_it_ended_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(WORKERS)
    assert run(["doctor", "--", "train.py"]) == 2
    told = capsys.readouterr().err
    assert "no optimizer step" in told.splitlines()[-1]
    assert "FileNotFoundError: there is no train-images" in told.splitlines()[-1]
    assert 'train.py", line 5, in train' in told
    assert "ridgeline/measure" not in told


CHAINED = """step 3
Traceback (most recent call last):
  File "/home/me/train.py", line 4, in load
    open("absent")
FileNotFoundError: [Errno 2] No such file or directory: 'absent'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    load()
  File "{ours}", line 200, in backward
    original(tensors, *args, **kwargs)
    ~~~~~~~~^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/home/me/train.py", line 6, in load
    raise KeyError("absent")
KeyError: 'absent'
terminate called
"""


def test_a_chain_of_errors_is_kept_and_our_frames_are_not() -> None:
    import ridgeline.measure.child.hooks as ours

    crash = crash_of(1, CHAINED.replace("{ours}", ours.__file__))
    assert crash.what == "KeyError: 'absent'"
    assert "FileNotFoundError" in crash.traceback
    assert "original(tensors" not in crash.traceback
    assert crash.traceback.count('File "/home/me/train.py"') == 3


def test_the_place_of_a_crash_is_the_innermost_line_of_the_users_own() -> None:
    library = "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py"
    frames = [("train.py", 9), (library, 1775), (str(Path.cwd() / "net" / "vae.py"), 33),
              (library, 12), ("<eval_with_key>.1", 4)]  # fmt: skip
    lines = [f'  File "{file}", line {line}, in forward\n    ...' for file, line in frames]
    told = "\n".join(["Traceback (most recent call last):", *lines, "RuntimeError: view size"])
    assert crash_of(1, told).place == "net/vae.py:33"
    assert crash_of(1, "killed").place == ""


def test_of_what_dynamo_cannot_trace_the_explanation_is_told_with_the_error() -> None:
    import torch

    def flatten(x: torch.Tensor) -> torch.Tensor:
        return x.view(3, 7)

    try:
        torch.compile(flatten, backend="eager", fullgraph=True)(torch.randn(4, 5))
    except Exception:
        crash = crash_of(1, traceback.format_exc())
    assert "RuntimeError when making fake tensor call: Dynamo failed to run" in crash.what
    assert "shape '[3, 7]' is invalid for input of size 20" in crash.what
    assert "Hint" not in crash.what


def test_crashes_are_alike_when_only_numbers_differ() -> None:
    one, two, other = (
        crash_of(1, f'Traceback (most recent call last):\n  File "a", line 1\n{error}')
        for error in ("E: at 0x7f01, 3", "E: at 0x7fee, 4", "F: at 0x7f01, 3")
    )
    assert one.is_like(two)
    assert not one.is_like(other)
    assert crash_of(-11, "").what == "killed by SIGSEGV"
