"""`ridgeline export` on a network that was trained on scikit-learn's digits for seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.export.planted import digits
from tests.export.warm import WarmWorker

from ridgeline.cli.main import run
from ridgeline.export import orders, process
from ridgeline.export.check_inputs import CheckCase
from ridgeline.export.dead_answers import dead_answers
from ridgeline.records.work_folder import held

SCRIPT = Path(digits.__file__)
DEADLINE_SECONDS = 90


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of digits with labels, 32 × 32 in three channels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images[:300], dtype=torch.float32)[:, None] / 16
    images = torch.nn.functional.interpolate(images, (32, 32), mode="bilinear").repeat(1, 3, 1, 1)
    path = tmp_path_factory.mktemp("digits") / "images.npz"
    np.savez(path, pixel_values=images.numpy(), labels=found.target[:300])
    return path


@pytest.fixture(scope="module")
def weights(check: Path) -> Path:
    """What some passes over these images taught the network."""
    torch.manual_seed(0)
    with np.load(check) as arrays:
        images, labels = (torch.from_numpy(arrays[key]) for key in ("pixel_values", "labels"))
    net = digits.network().train()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(12):
        for batch in torch.randperm(len(images)).split(25):
            loss = torch.nn.functional.cross_entropy(net(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    path = check.with_name("weights.pt")
    torch.save(net.state_dict(), path)
    return path


@pytest.fixture(autouse=True)
def own_cache(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Path:
    """Whoever has answers judged has a network that learnt; what is refused needs none."""
    folder = tmp_path_factory.getbasetemp() / "export-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    if request.node.get_closest_marker("slow"):
        monkeypatch.setenv("PLANTED_WEIGHTS", str(request.getfixturevalue("weights")))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return folder


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forks of a process that has imported torch."""
    monkeypatch.setattr(process, "start_worker", WarmWorker)


def exported(
    model: str, out: Path, check: Path, *words: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any], str]:
    line = ["export", f"{SCRIPT}:{model}", "--check", str(check), "--out", str(out), "--json"]
    code = run([*line, *words])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out else {}, printed.err.strip()


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.filterwarnings("default:The given buffer is not writable")  # torch 2.11 itself
def test_formats_are_compared_measured_and_kept(
    check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--to", "torch-export", "--to", "onnx", "--to", "openvino", "--seconds", "0.3"]
    page = tmp_path / "page.html"
    code, found, said = exported("sound", out, check, *words, "--html", str(page), capsys=capsys)
    assert code == 0, said
    eager, *rows = found["rows"]
    assert [row["format"] for row in rows] == ["torch-export", "onnx", "openvino"]
    for row in rows:
        assert row["status"] == "ok"
        assert [(one["batch"], one["size"]) for one in row["likeness"]] == [
            (1, [32, 32]), (8, [32, 32]), (1, [64, 64]), (8, [64, 64]),
        ]  # fmt: skip
        assert all(one["agreement"] == 1 and one["inputs"] >= 16 for one in row["likeness"])
        assert row["top1"] == eager["top1"] > 0.8
        assert Path(row["file"]).is_file()
        speed = row["speed"]
        assert len(speed["throughput"]) == 6
        assert speed["closed"]["p50"]["seconds"] <= speed["closed"]["p99"]["seconds"]
        assert 0 < speed["before_memory_bytes"] < speed["peak_memory_bytes"]
        assert row["speedup"]["rounds"] == 7
    onnx = rows[1]["fusion"]
    assert onnx["before"]["native_batch_norm"] == 3
    assert "BatchNormalization" not in onnx["after"]
    assert onnx["kernels"] < onnx["operators"]
    assert json.loads((out / "export.json").read_text()) == found
    assert "openvino" in page.read_text()
    program = torch.export.load(out / "torch-export/model.pt2").module()
    with np.load(check) as arrays:
        image = torch.from_numpy(arrays["pixel_values"][:3])
    with torch.no_grad():
        (answer,) = program(image)
        assert torch.equal(answer, digits.sound().eval()(image))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out", "page.html"]


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_what_answers_wrongly_at_another_size_is_not_kept_and_its_layer_is_named(
    check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--to", "torch-export", "--no-speed"]
    code, found, said = exported(
        "wrong_at_other_sizes", tmp_path / "out", check, *words, capsys=capsys
    )
    assert code == 3
    row = found["rows"][1]
    assert row["status"] == "differs"
    assert [bool(one["wrong"]) for one in row["likeness"]] == [False, False, True, True]
    assert row["wrong_stage"]["layer"] == "3.linear"
    assert "64 × 64" in said.splitlines()[-1]
    assert "3.linear" in said.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_drop_past_what_is_allowed_ends_with_3_and_keeps_nothing(
    check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--to", "torch-export", "--precision", "bf16", "--max-drop", "1%", "--no-speed"]
    code, found, said = exported("disturbed", tmp_path / "out", check, *words, capsys=capsys)
    assert code == 3
    assert found["rows"][1]["status"] in ("dropped", "differs")
    assert "--max-drop allows 1.00 %" in said or "SQNR" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_conversion_is_made_once_and_a_damaged_one_anew(
    check: Path, tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--to", "torch-export", "--no-speed", "--fix", "size"]
    cached, damaged = [], []
    for number in range(3):
        out = tmp_path / str(number)
        code, found, said = exported("sound", out, check, *words, capsys=capsys)
        assert code == 0, said
        cached.append(found["rows"][1]["cached"])
        damaged.append(any("damaged" in note for note in found["rows"][1]["notes"]))
        if number == 1:
            for file in (own_cache / "ridgeline/exports").rglob("model.pt2"):
                file.write_bytes(file.read_bytes()[:-100] + b"x" * 100)
    assert cached == [False, True, False]
    assert damaged == [False, False, True]
    assert "takes" in found["rows"][1]["likeness"][2]["fixed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["SIGINT", "SIGKILL"]
)
def test_a_job_that_is_ended_while_it_converts_leaves_nothing_running_and_no_directory(
    number: int, code: int, check: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, out = tmp_path / "begun", tmp_path / "out"
    monkeypatch.setenv("PLANTED_BEGUN", str(begun))
    words = ["export", f"{SCRIPT}:slow", "--to", "torch-export", "--check", str(check)]
    program = "from ridgeline.cli.main import main; main()"
    job = subprocess.Popen(
        [sys.executable, "-c", program, *words, "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not begun.exists():
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (worker,) = _workers(job.pid)
    job.send_signal(number)
    _, said = job.communicate(timeout=DEADLINE_SECONDS)
    assert job.returncode == code
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not out.exists()
    if number == signal.SIGINT:
        assert said.splitlines()[-1] == "ridgeline: interrupted; nothing was left behind"
        assert not out.with_name("out.partial").exists()


def _workers(parent: int) -> list[int]:
    from ridgeline.measure.child_tree import descendants

    return [
        pid
        for pid in descendants(parent)
        if b"ridgeline.export.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


@pytest.mark.usefixtures("warm")
def test_random_numbers_are_said_and_no_int8_is_made_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = tmp_path / "noise.npz"
    generator = np.random.default_rng(0)
    np.savez(noise, pixel_values=generator.normal(size=(16, 3, 32, 32)).astype(np.float32))
    words = ["--to", "onnx", "--no-speed", "--precision", "int8"]
    code, _, said = exported("sound", tmp_path / "out", noise, *words, capsys=capsys)
    assert code == 2
    assert "random numbers" in said.splitlines()[-1]
    assert [one.name for one in tmp_path.iterdir()] == ["noise.npz"]


@pytest.mark.usefixtures("warm")
def test_one_row_of_arrays_is_none_to_judge_int8_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = tmp_path / "one.npz"
    np.savez(one, pairs=np.full((1, 4), 0.5, np.float32))
    words = ["--to", "onnx", "--no-speed", "--precision", "int8"]
    code, _, said = exported("sound", tmp_path / "out", one, *words, capsys=capsys)
    assert code == 2
    assert "arrays of one row; int8 needs others to take its ranges from" in said.splitlines()[-1]


@pytest.mark.usefixtures("warm")
@pytest.mark.sweep("no such format", "exists", "threshold")
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--to", "onxx"], "no runtime 'onxx'; known: "),
        (["--to", "onnx", "--to", "onnx"], "named twice"),
        (["--to", "onnx", "--out", "TAKEN"], "there is something already"),
        (["--to", "onnx", "--out", "/nowhere/out"], "/nowhere is no folder"),
        (["--to", "onnx", "--max-drop", "much"], "--max-drop much: no share"),
        (["--to", "onnx", "--precision", "bf16"], "do not compute in it"),
        (["--to", "onnx", "--period", "0s"], "--period"),
        (["--to", "onnx", "--check", "/nowhere"], "--check /nowhere: no such file"),
    ],
    ids=["no such format", "twice", "exists", "no folder", "threshold", "precision", "period",
         "no images"],
)  # fmt: skip
def test_bad_input_is_one_line(
    words: list[str], line: str, check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").touch()
    words = [str(taken) if word == "TAKEN" else word for word in words]
    code, _, said = exported("sound", tmp_path / "out", check, *words, capsys=capsys)
    assert code == 2
    assert line in said.splitlines()[-1]
    assert sorted(os.listdir(tmp_path)) == ["taken"]


def test_a_second_export_to_the_same_place_leaves_the_first_alone(
    check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "out.partial"
    with held(work, tmp_path / "out"):
        (work / "file").touch()
        code, _, said = exported("sound", tmp_path / "out", check, "--to", "onnx", capsys=capsys)
        assert code == 2
        assert f"another process is writing it, in {work}" in said.splitlines()[-1]
        assert os.listdir(work) == ["file"]


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "line"),
    [
        (f"{SCRIPT}:no_module", "gives a dict; return an nn.Module"),
        (f"{SCRIPT}:nothing", "defines no 'nothing'; it has Block, Head"),
        (f"{SCRIPT}", "say which, as"),
        ("nowhere.py:net", "MODEL nowhere.py: no such file"),
        ("resnet-of-nobody", "no such directory, script or file"),
        (str(SCRIPT.parent), "has no config.json"),
    ],
)
def test_a_model_that_is_none_is_one_line(
    model: str, line: str, check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", model, "--to", "onnx", "--check", str(check), "--out", str(tmp_path / "out")]
    assert run(words) == 2
    assert line in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


STEREO = """
import torch

class Stereo(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, padding=1)
    def forward(self, left, right, scale):
        return {"disparity": (self.first(left) - self.first(right)) * scale[:, None, None, None]}

class OfOneDict(Stereo):
    def forward(self, batch, refine=False):
        batch["left"] = batch["left"] + 0  # as those do that write into what they are given
        return super().forward(**batch)
"""


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
@pytest.mark.parametrize("model", ["Stereo", "OfOneDict"])
def test_pairs_of_images_are_compared_at_two_sizes(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, out, pairs = tmp_path / "stereo.py", tmp_path / "out", tmp_path / "pairs.npz"
    script.write_text(STEREO)
    random = np.random.default_rng(0)
    images = random.normal(size=(2, 8, 3, 32, 48)).astype(np.float32)
    np.savez(pairs, left=images[0], right=images[1], scale=np.ones(8, np.float32))
    words = ["--to", "torch-export", "--no-speed", "--json", "--check", str(pairs)]
    code = run(["export", f"{script}:{model}", *words, "--out", str(out)])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    seen = json.loads(printed.out)["rows"][1]["likeness"]
    sizes = [(one["batch"], one["size"], one["fixed"]) for one in seen]
    small, large = [3, 32, 48], [3, 64, 80]
    assert sizes == [(1, small, ""), (8, small, ""), (1, large, ""), (8, large, "")]


PROMPTED = """
import torch

class Prompted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 4)
    def forward(self, points, labels):
        return self.first(points) * labels[..., None]

class Dead(Prompted):
    def forward(self, points, labels):
        return super().forward(points, labels) * 0
"""


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
@pytest.mark.parametrize("model", ["Prompted", "Dead"])
def test_labels_that_forward_needs_are_inputs_and_answers_that_prove_nothing_are_told(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, points = tmp_path / "prompted.py", tmp_path / "points.npz"
    script.write_text(PROMPTED)
    random = np.random.default_rng(0)
    points_labels = {"points": random.normal(size=(8, 3, 2)), "labels": np.ones((8, 3))}
    np.savez(points, **{name: one.astype(np.float32) for name, one in points_labels.items()})
    words = ["--to", "torch-export", "--no-speed", "--json", "--check", str(points)]
    code = run(["export", f"{script}:{model}", *words, "--out", str(tmp_path / "out")])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    said = " ".join(json.loads(printed.out)["notes"])
    assert ("the same to every input, zero everywhere" in said) is (model == "Dead")


def test_answers_that_are_not_numbers_are_told() -> None:
    calls = [{"": torch.zeros(1)}, {"": torch.ones(1)}]
    case = CheckCase(batch=1, size=(1,), calls=calls)
    (note,) = dead_answers(case, [torch.tensor([0.0]), torch.tensor([float("nan")])])
    assert "NaN or infinity in 1 of 2 outputs" in note
    assert dead_answers(case, [torch.zeros(1), torch.ones(1)]) == []
    one = CheckCase(batch=1, size=(1,), calls=[calls[0]] * 2)
    assert dead_answers(one, [torch.ones(1)] * 2) == [], "the inputs are the same"


WAVES = """
import torch

class Waves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3)
    def forward(self, x):
        return torch.special.bessel_j0(self.first(x))
"""


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_a_format_that_fails_leaves_the_others_their_rows_and_files(
    check: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ONNX has no such operator, and eager's own process dies while it is timed."""
    ask: Any = process.Worker.ask
    killed: list[int] = []

    def asked(worker: Any, order: orders.Order, kind: type[Any]) -> Any:
        if isinstance(order, orders.RoundOrder) and not killed:
            killed.append(worker._process.pid)
            os.killpg(killed[0], signal.SIGKILL)
        return ask(worker, order, kind)

    monkeypatch.setattr(process.Worker, "ask", asked)
    script, out = tmp_path / "waves.py", tmp_path / "out"
    script.write_text(WAVES)
    words = ["--to", "onnx", "--to", "torch-export", "--seconds", "0.3", "--json"]
    line = ["export", f"{script}:Waves", *words, "--check", str(check), "--out", str(out)]
    code = run(line)
    printed = capsys.readouterr()
    found = json.loads(printed.out)["rows"]
    assert [row["status"] for row in found] == ["failed", "failed", "ok"], printed.err
    assert "fails while it is timed: its process was killed by SIGKILL" in found[0]["reason"]
    last = printed.err.strip().splitlines()[-1]
    assert (code, "2 of 3 were not kept: " in last, "onnx: " in last) == (2, True, True), last
    assert found[2]["speed"]["closed"]["p50"]["seconds"] > 0
    assert sorted(os.listdir(out)) == ["export.json", "torch-export"]


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_int8_is_judged_on_other_images_than_its_ranges_come_from(
    check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--to", "onnx", "--to", "openvino", "--precision", "int8", "--max-drop", "3%"]
    words += ["--seconds", "2", "--period", "2ms"]
    code, found, said = exported("sound", tmp_path / "out", check, *words, capsys=capsys)
    assert code == 0, said
    for row in found["rows"][1:]:
        assert row["precision"] == "int8"
        assert row["likeness"][1]["agreement"] > 0.9
        assert 10 < row["likeness"][1]["sqnr_db"] < 60
        assert row["speed"]["paced"]["period_seconds"] == 0.002


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_aot_inductor_and_executorch_answer_as_eager_where_they_are_installed(
    check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ridgeline.runtimes import all_runtimes

    there = [
        name
        for name in ("aoti", "executorch")
        if name in all_runtimes() and all_runtimes()[name].missing() is None
    ]
    if not there:
        pytest.skip("neither AOTInductor nor ExecuTorch can run here")
    words = [word for name in there for word in ("--to", name)]
    code, found, said = exported(
        "sound", tmp_path / "out", check, *words, "--no-speed", capsys=capsys
    )
    assert code == 0, said
    for row in found["rows"][1:]:
        assert all(one["agreement"] == 1 for one in row["likeness"] if not one["fixed"])
    aoti = found["rows"][1]["fusion"]
    assert aoti is not None
    assert aoti["kernels"] < aoti["operators"]


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_a_directory_of_transformers_is_exported(
    check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=10
    )
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path / "model")
    capsys.readouterr()
    words = ["export", str(tmp_path / "model"), "--to", "torch-export", "--check", str(check)]
    assert run([*words, "--out", str(tmp_path / "out"), "--no-speed", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    likeness = [one["sqnr_db"] for one in found["rows"][1]["likeness"]]
    assert all(one is None or one > 100.0 for one in likeness), likeness


@pytest.mark.slow
def test_a_script_that_draws_its_weights_draws_the_same_in_every_process(
    check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--to", "torch-export", "--no-speed"]
    code, found, said = exported("unseeded", tmp_path / "out", check, *words, capsys=capsys)
    assert code == 0, said
    assert all(one["agreement"] == 1 for one in found["rows"][1]["likeness"])


@pytest.mark.usefixtures("warm")
def test_a_model_of_one_batch_alone_is_exported_for_that_batch(tmp_path: Path) -> None:
    script, inputs = tmp_path / "one.py", tmp_path / "inputs.npz"
    script.write_text(
        "import torch\n\n\nclass One(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.part = torch.nn.Conv2d(3, 4, 3)\n\n"
        "    def forward(self, x):\n        assert x.shape[0] == 1\n"
        "        return self.part(x).reshape(1, -1)\n"
    )
    np.savez(inputs, x=np.random.default_rng(0).normal(size=(8, 3, 16, 16)).astype("float32"))
    words = ["export", f"{script}:One", "--to", "torch-export", "--check", str(inputs)]
    assert run([*words, "--out", str(tmp_path / "out"), "--no-speed"]) == 0
    assert (tmp_path / "out" / "torch-export").is_dir()


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_one_line_that_fixes_the_batch_is_told_of_once(
    check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--to", "torch-export", "--no-speed"]
    code, found, said = exported("looping", tmp_path / "out", check, *words, capsys=capsys)
    assert code == 0, said
    notes = found["rows"][1]["notes"]
    assert sum("fixes the batch" in note for note in notes) == 1, notes


STREAM = """
import torch
class Stream(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.past = torch.nn.Conv2d(3, 4, 3), None
    def forward(self, x):
        found = self.first(x)
        if self.past is not None:
            found += self.past
        self.past = found.detach()
        return found
"""


@pytest.mark.usefixtures("warm")
def test_a_network_that_keeps_frames_between_calls_is_told_where_it_does_once_for_all_formats(
    check: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "stream.py"
    script.write_text(STREAM)
    words = ["--to", "torch-export", "--to", "onnx", "--no-speed", "--check", str(check)]
    assert run(["export", f"{script}:Stream", *words, "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    last = printed.err.strip().splitlines()[-1]
    assert "torch-export, onnx: " in last
    assert "stream.py" in last
    told = [
        line for line in (printed.out + printed.err).splitlines() if "torch-export, onnx" in line
    ]
    assert len(told) == 2, told  # under the table and in the last line, for both formats at once
