"""Output = input, for every command that has an output: one line, exit code 2, the input unchanged.

An option that writes a file and is not in `WRITES` fails here.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.test_bad_files import FOLDERS, parameters
from tests.cli.whole_files import write_whole_files
from tests.report.records import a_ledger

import ridgeline.plan
from ridgeline.cli.main import run
from ridgeline.cli.trace_questions import QUESTIONS
from ridgeline.errors import InputError
from ridgeline.records.overwriting import note_input, one_command
from ridgeline.records.store import write_atomically, write_record

LIBRARY = Path(__file__).parents[2] / "examples" / "models" / "library"
LEDGERS = Path(ridgeline.plan.__file__).with_name("library_compression")
TRAINING = "--cluster 8xH100 --seq 128 --global-batch 8"
FLEET = "simulate serving --gpu H100 --rate 5 --requests 20 --input-tokens 9 --output-tokens 9"

JOINED = ("ranks", "critical-path", "stragglers", "tree")
TABLED = ("summary", "memory", *JOINED, *(word for word, one in QUESTIONS.items() if one.analysis))
WRITES: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("doctor", "out"): (
        ("doctor --trace whole.json --out OUTPUT", "whole.json"),
        ("doctor --out OUTPUT -- script.py", "script.py"),
    ),
    ("doctor", "html"): (("doctor --html OUTPUT -- script.py", "script.py"),),
    ("checklist", "html"): (
        ("checklist --recipe recipe.toml --html OUTPUT", "recipe.toml"),
        ("checklist --trace whole.json --html OUTPUT", "whole.json"),
    ),
    ("compare", "markdown"): (
        ("compare profile.json other.json --markdown OUTPUT", "profile.json"),
        ("compare profile.json other.json --markdown OUTPUT", "other.json"),
    ),
    ("trace export", "out"): (
        ("trace export whole.json --out OUTPUT", "whole.json"),
        ("trace export traces --out OUTPUT", "traces/rank0.json"),
    ),
    ("trace report", "html"): (
        ("trace report whole.json --html OUTPUT", "whole.json"),
        ("trace report traces/rank*.json --html OUTPUT", "traces/rank1.json"),
    ),
    **{
        (f"trace {word}", "out"): (
            (f"trace {word} whole.json --out OUTPUT", "whole.json"),
            (f"trace {word} traces --out OUTPUT", "traces/rank0.json"),
        )
        for word in TABLED
    },
    ("trace compare", "out"): (
        ("trace compare whole.json traces/rank0.json --out OUTPUT", "whole.json"),
        ("trace compare whole.json traces/rank0.json --out OUTPUT", "traces/rank0.json"),
    ),
    ("export", "html"): (
        ("export model --to onnx --check images --out exported --html OUTPUT", "model/config.json"),
        ("export model --to onnx --check images --out exported --html OUTPUT", "images/one.png"),
    ),
    ("roofline", "html"): (
        ("roofline model --device h100 --html OUTPUT", "model/config.json"),
        ("roofline gpt2 --device h100 --measured profile.json --html OUTPUT", "profile.json"),
    ),
    ("predict training", "html"): (
        (f"predict training --model model {TRAINING} --html OUTPUT", "model/config.json"),
        (
            f"predict training --model gpt2 {TRAINING} --calibrate step.json --html OUTPUT",
            "step.json",
        ),
    ),
    ("plan training", "write"): (
        (f"plan training --model model {TRAINING} --write OUTPUT", "model/config.json"),
    ),
    ("plan training", "html"): (
        (f"plan training --model model {TRAINING} --html OUTPUT", "model/config.json"),
    ),
    ("loadtest", "html"): (
        ("loadtest http://127.0.0.1:9 --trace requests.jsonl --html OUTPUT", "requests.jsonl"),
    ),
    ("simulate serving", "html"): (
        (f"{FLEET} --model model --html OUTPUT", "model/config.json"),
        ("simulate serving --steps steps.csv --html OUTPUT", "steps.csv"),
        (
            "simulate serving --model gpt2 --gpu H100 --trace requests.jsonl --html OUTPUT",
            "requests.jsonl",
        ),
    ),
    ("realtime simulate", "html"): (("realtime simulate typed.toml --html OUTPUT", "typed.toml"),),
    **{
        ("realtime run", option): ((f"realtime run script.py --{option} OUTPUT", "script.py"),)
        for option in ("out", "trace", "html")
    },
    ("queue doctor", "html"): (
        ("queue doctor state.json --html OUTPUT", "state.json"),
        ("queue doctor pods.csv --cluster nodes.csv --html OUTPUT", "pods.csv"),
        ("queue doctor pods.csv --cluster nodes.csv --html OUTPUT", "nodes.csv"),
        ("queue doctor state.json --dcgm samples.csv --html OUTPUT", "samples.csv"),
    ),
    ("queue place", "html"): (
        ("queue place tasks.csv --cluster nodes.csv --html OUTPUT", "tasks.csv"),
        ("queue place tasks.csv --cluster nodes.csv --html OUTPUT", "nodes.csv"),
    ),
    ("queue share", "html"): (
        ("queue share workloads.toml --device h100 --html OUTPUT", "workloads.toml"),
    ),
    ("queue simulate", "html"): (
        ("queue simulate jobs.csv --gpus 8 --html OUTPUT", "jobs.csv"),
        ("queue simulate jobs.csv --cluster pool.toml --html OUTPUT", "pool.toml"),
        ("queue simulate jobs.csv --gpus 8 --submit recipe.toml --html OUTPUT", "recipe.toml"),
    ),
    ("predict compression", "html"): (
        ("predict compression ledger.json --html OUTPUT", "ledger.json"),
    ),
    ("predict stack", "html"): (("predict stack tuned.json --html OUTPUT", "tuned.json"),),
    ("kernels check", "html"): (("kernels check script.py --html OUTPUT", "script.py"),),
    ("serve", "step_log"): (
        ("serve model --step-log OUTPUT", "model/config.json"),
        ("serve model --step-log OUTPUT", "model/model.safetensors"),
        ("serve model --api-key-file keys --step-log OUTPUT", "keys"),
    ),
    ("predict inference", "html"): (
        (
            "predict inference --model resnet50 --device h100 --measured call.json --html OUTPUT",
            "call.json",
        ),
    ),
}
"""(Command, option that names a file to write) → command lines, and the input that OUTPUT is."""
READ_NO_FILE = {
    ("predict memory", "html"),
    ("predict scaling", "html"),
    ("predict system", "html"),
    ("simulate batching", "html"),
    ("plan inference", "html"),
    ("kernels occupancy", "html"),
    ("lesson", "exercise"),
}
"""The same of commands that read no file of the user's."""
WHOLE_FOLDERS = (
    ("compress model --scheme w8a16 --unjudged --out OUTPUT", "model"),
    ("compress model --scheme w8a16 --text held/text.txt --out OUTPUT", "held"),
    ("train run/recipe.toml --out OUTPUT --set run.steps=7", "run"),
    ("compare profile.json other.json --history OUTPUT", "profile.json"),
)
"""A folder, or a file that is gone on with: OUTPUT is the input, or holds it."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("whole")
    write_whole_files(folder)
    shutil.copytree(LIBRARY, folder / "model")
    (folder / "traces").mkdir()
    for rank in (0, 1):
        shutil.copy(folder / "whole.json", folder / "traces" / f"rank{rank}.json")
    shutil.copy(folder / "profile.json", folder / "other.json")
    (folder / "images").mkdir()
    (folder / "images" / "one.png").write_bytes(b"no image, and not looked at")
    for name, inside in (("held", "text.txt"), ("run", "recipe.toml")):
        (folder / name).mkdir()
        shutil.copy(folder / inside, folder / name)
    (folder / "keys").write_text("secret\n")
    shutil.copy(LEDGERS / "w4a16-g32.json", folder / "ledger.json")
    write_record(folder / "tuned.json", a_ledger())
    (folder / "step.json").write_text('{"step_seconds": 0.02}')
    (folder / "call.json").write_text('{"latency_seconds": 0.02}')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def test_every_option_that_writes_a_file_is_here() -> None:
    written = {(command, name) for command, name, _, written in parameters() if written}
    assert written == set(WRITES) | READ_NO_FILE
    unmarked = {
        (command, name)
        for command, name, kind, written in parameters()
        if name in {"html", "out", "report", "markdown", "write", "step_log"} and not written
    }
    assert {name for _, name in unmarked} <= FOLDERS


LINES = [one for ones in WRITES.values() for one in ones]


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("link", ["itself", "symlink", "hardlink"])
@pytest.mark.parametrize(("line", "given"), LINES)
def test_no_command_writes_to_a_file_that_it_reads(
    line: str,
    given: str,
    link: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = given
    if link != "itself":
        output = f"{link}-{Path(given).name}"
        (place / output).unlink(missing_ok=True)
        if link == "symlink":
            (place / output).symlink_to(place / given)
        else:
            os.link(place / given, place / output)
    before = contents(place)
    code = run(line.replace("OUTPUT", output).split())
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err[-800:]
    assert f"{output} would overwrite what this command reads (" in err
    assert contents(place) == before


@pytest.mark.parametrize(("line", "output"), WHOLE_FOLDERS)
def test_no_command_fills_a_folder_over_what_it_reads(
    line: str, output: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(place)
    code = run(line.replace("OUTPUT", output).split())
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err[-800:]
    assert output in err.splitlines()[-1]
    assert contents(place) == before


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(("line", "given"), [ones[0] for ones in WRITES.values()])
def test_no_command_makes_a_folder_for_a_file(
    line: str, given: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(place)
    for output, said in (("new/folder/x.json", "new/folder is not there"),
                         (f"{given}/x.json", f"{given} is no folder")):  # fmt: skip
        code = run(line.replace("OUTPUT", output).split())
        out, err = capsys.readouterr()
        assert (code, out, err.count("\n")) == (2, "", 1), err[-800:]
        assert output in err
        assert said in err
    assert contents(place) == before
    assert not (place / "new").exists()


def test_an_output_beside_its_input_is_written(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", "export", "whole.json", "--out", "traces/new.json"]) == 0
    assert run(["roofline", "model", "--device", "h100", "--html", "model/roofline.html"]) == 0
    for name in ("traces/new.json", "model/roofline.html"):
        assert (place / name).stat().st_size > 0
        (place / name).unlink()
    capsys.readouterr()


def test_a_device_is_written_as_it_is(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "export", "whole.json", "--out", "/dev/null"]) == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    capsys.readouterr()


def test_a_link_goes_on_pointing_where_it_did(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, link = tmp_path / "page.html", tmp_path / "latest.html"
    page.write_text("old")
    link.symlink_to(page)
    assert run(["roofline", "gpt2", "--device", "h100", "--html", str(link)]) == 0
    assert link.is_symlink()
    assert "<html" in page.read_text()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["latest.html", "page.html"]
    capsys.readouterr()


def test_what_a_command_wrote_it_may_read_and_write_again(tmp_path: Path) -> None:
    with one_command():
        write_atomically(tmp_path / "ledger.json", b"1")
        note_input(tmp_path)
        write_atomically(tmp_path / "ledger.json", b"2")
        (tmp_path / "given.json").write_bytes(b"3")
        note_input(tmp_path)
        with pytest.raises(InputError, match=r"given.json would overwrite"):
            write_atomically(tmp_path / "given.json", b"4")
    write_atomically(tmp_path / "given.json", b"4")  # in somebody's own program
