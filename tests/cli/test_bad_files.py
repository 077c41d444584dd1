"""Every file that a command reads, broken in every way: one line that names it, and exit code 2.

A command or an option that reads a file and is not in `READS` fails here.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.cli.commands import COMMANDS
from ridgeline.cli.main import run
from ridgeline.cli.option_groups import with_flat_options
from ridgeline.cli.show import announce

LIBRARY = str(Path(__file__).parents[2] / "examples" / "models" / "library")
TRAINING = "--cluster 8xH100 --seq 128 --global-batch 8"
PREDICTED = "predict serving --gpu H100 --prompt 8 --answer 8 --model"
FLEET = "simulate serving --model llama-2-7b --gpu H100"
TRACE_COMMANDS = tuple(name for name in COMMANDS if name.startswith("trace "))
TRACE_TAILS = {"trace export": " --out out.json", "trace report": " --html out.html"}

TEXT, KEYS, TABLE = "text", "keys", "table"
"""What a file should be; in a text brackets are no fault, a table is structured in any way."""

READS: dict[tuple[str, str], tuple[str, str]] = {
    **{
        (name, "files"): (f"{name} PATH{TRACE_TAILS.get(name, '')}", TABLE)
        for name in TRACE_COMMANDS
        if name != "trace compare"
    },
    ("trace compare", "reference"): ("trace compare PATH PATH", TABLE),
    ("trace compare", "new"): ("trace compare whole.json PATH", TABLE),
    ("doctor", "trace"): ("doctor --trace PATH", TABLE),
    ("checklist", "profile"): ("checklist --profile PATH", TABLE),
    ("checklist", "trace"): ("checklist --trace PATH", TABLE),
    ("checklist", "recipe"): ("checklist --recipe PATH", TABLE),
    ("checklist", "ledger"): ("checklist --ledger PATH", TABLE),
    ("run", "stack"): ("run --stack PATH -- script.py", TABLE),
    ("compare", "reference"): ("compare PATH profile.json", TABLE),
    ("compare", "new"): ("compare profile.json PATH", TABLE),
    ("compare", "history"): ("compare profile.json profile.json --history PATH", TABLE),
    ("roofline", "model"): ("roofline PATH --device h100", TABLE),
    ("roofline", "measured"): ("roofline gpt2 --device h100 --measured PATH", TABLE),
    ("predict training", "model"): (f"predict training --model PATH {TRAINING}", TABLE),
    ("predict training", "calibrate"): (
        f"predict training --model llama-2-7b {TRAINING} --calibrate PATH",
        TABLE,
    ),
    ("predict serving", "model"): (
        f"{PREDICTED} PATH",
        TABLE,
    ),
    ("predict serving", "draft_model"): (
        f"{PREDICTED} llama-2-7b --draft-model PATH --drafts 3 --acceptance 0.5",
        TABLE,
    ),
    ("predict serving", "measured"): (
        f"{PREDICTED} llama-2-7b --measured PATH",
        TABLE,
    ),
    ("simulate batching", "model"): ("simulate batching --model PATH --gpu H100 --rate 1", TABLE),
    ("predict memory", "model"): (f"predict memory --model PATH {TRAINING}", TABLE),
    ("predict scaling", "model"): (
        "predict scaling --model PATH --device H100 --devices 8 --seq 128",
        TABLE,
    ),
    ("validate training", "table"): ("validate training PATH", TABLE),
    ("validate training", "calibration"): (
        "validate training table.csv --calibration PATH",
        TABLE,
    ),
    ("predict compression", "ledgers"): ("predict compression PATH", TABLE),
    ("predict stack", "ledger"): ("predict stack PATH", TABLE),
    ("predict inference", "model"): ("predict inference --model PATH --device h100", TABLE),
    ("plan inference", "model"): ("plan inference --model PATH --device h100 --rate 9", TABLE),
    ("predict inference", "measured"): (
        "predict inference --model resnet50 --device h100 --measured PATH",
        TABLE,
    ),
    ("predict inference", "inputs"): (
        "predict inference --model net.py:Net --device h100 --inputs PATH",
        TABLE,
    ),
    ("plan inference", "inputs"): (
        "plan inference --model net.py:Net --device h100 --rate 9 --inputs PATH",
        TABLE,
    ),
    ("predict training", "inputs"): (
        f"predict training --model net.py:Net {TRAINING} --inputs PATH",
        TABLE,
    ),
    ("plan training", "inputs"): (
        f"plan training --model net.py:Net {TRAINING} --images 1M --inputs PATH",
        TABLE,
    ),
    ("roofline", "inputs"): ("roofline net.py:Net --device h100 --inputs PATH", TABLE),
    ("validate vision", "table"): ("validate vision PATH", TABLE),
    ("validate serving", "table"): ("validate serving PATH", TABLE),
    ("validate serving", "calibration"): ("validate serving served.csv --calibration PATH", TABLE),
    ("plan training", "model"): (f"plan training --model PATH {TRAINING}", TABLE),
    ("plan serving", "model"): ("plan serving --model PATH --rate 1", TABLE),
    ("train", "recipe"): ("train PATH", TABLE),
    ("train", "against"): ("train recipe.toml --out out --against folder-of-PATH", TABLE),
    ("launch", "files"): ("launch --check PATH", TABLE),
    ("launch", "state"): ("launch recipe.toml --on kubernetes --dry-run --state PATH", TABLE),
    ("simulate serving", "autoscaler_manifest"): (
        "simulate serving --model llama3.1-8b --gpu H100 --autoscaler-manifest PATH",
        TABLE,
    ),
    ("launch", "cluster"): ("launch recipe.toml --on slurm --cluster PATH --dry-run", TABLE),
    ("compress", "model"): ("compress model-of-PATH --scheme w8a16 --out out --unjudged", TABLE),
    ("compress", "calibration"): (
        f"compress {LIBRARY} --scheme w4a16-gptq-g128 --out out --text text.txt --calibration PATH",
        TEXT,
    ),
    ("compress", "text"): (f"compress {LIBRARY} --scheme w8a16 --out out --text PATH", TEXT),
    ("compress chain", "chain"): ("compress chain PATH --out out", TABLE),
    ("compress", "merge_adapter"): (
        f"compress {LIBRARY} --merge-adapter adapter-of-PATH --out out --unjudged",
        TABLE,
    ),
    ("evaluate", "model"): ("evaluate model-of-PATH --text text.txt", TABLE),
    ("evaluate", "text"): (f"evaluate {LIBRARY} --text PATH", TEXT),
    ("evaluate", "reference"): (
        f"evaluate {LIBRARY} --text text.txt --reference model-of-PATH",
        TABLE,
    ),
    ("serve", "model"): ("serve model-of-PATH", TABLE),
    ("serve", "api_key_file"): (f"serve {LIBRARY} --api-key-file PATH", KEYS),
    ("serve", "cluster_key_file"): (
        f"serve {LIBRARY} --role prefill --cluster-key-file PATH",
        KEYS,
    ),
    ("serve", "chat_template"): (f"serve {LIBRARY} --chat-template PATH", TEXT),
    ("serve", "ssl_certfile"): (
        f"serve {LIBRARY} --ssl-certfile PATH --ssl-keyfile {LIBRARY}/config.json",
        KEYS,
    ),
    ("serve", "ssl_keyfile"): (
        f"serve {LIBRARY} --ssl-certfile {LIBRARY}/config.json --ssl-keyfile PATH",
        KEYS,
    ),
    ("serve", "tokenizer"): (f"serve {LIBRARY} --tokenizer model-of-PATH", TABLE),
    ("serve", "manifest"): (f"serve {LIBRARY} --manifest PATH", TABLE),
    ("serve", "speculative"): (f"serve {LIBRARY} --speculative draft:model-of-PATH", TABLE),
    ("generate", "model"): ("generate model-of-PATH --prompt a", TABLE),
    ("generate", "tokenizer"): (f"generate {LIBRARY} --prompt a --tokenizer model-of-PATH", TABLE),
    ("generate", "speculative"): (
        f"generate {LIBRARY} --prompt a --speculative heads:heads-of-PATH",
        TABLE,
    ),
    ("bench decode", "model"): ("bench decode model-of-PATH", TABLE),
    ("draft-heads", "model"): ("draft-heads model-of-PATH --text text.txt --out out", TABLE),
    ("draft-heads", "text"): (f"draft-heads {LIBRARY} --text PATH --out out", TEXT),
    ("loadtest", "trace"): ("loadtest http://127.0.0.1:9 --trace PATH", TABLE),
    ("simulate serving", "model"): ("simulate serving --model PATH --gpu H100", TABLE),
    ("simulate serving", "trace"): (f"{FLEET} --trace PATH", TABLE),
    ("simulate serving", "steps"): ("simulate serving --steps PATH", TABLE),
    ("simulate serving", "alone"): ("simulate serving --steps steps.csv --alone PATH", TABLE),
    ("realtime simulate", "source"): ("realtime simulate PATH", TABLE),
    ("realtime run", "pipeline"): ("realtime run PATH", TABLE),
    ("realtime tune", "pipeline"): ("realtime tune PATH --out out", TABLE),
    ("drill", "answers"): ("drill --answers PATH", TABLE),
    ("queue doctor", "state"): ("queue doctor PATH", TABLE),
    ("queue doctor", "cluster"): ("queue doctor pods.csv --cluster PATH", TABLE),
    ("queue doctor", "dcgm"): ("queue doctor state.json --dcgm PATH", TABLE),
    ("queue place", "tasks"): ("queue place PATH --cluster nodes.csv", TABLE),
    ("queue place", "cluster"): ("queue place tasks.csv --cluster PATH", TABLE),
    ("queue share", "workloads"): ("queue share PATH --device h100", TABLE),
    ("queue simulate", "jobs"): ("queue simulate PATH --gpus 8", TABLE),
    ("queue simulate", "submit"): ("queue simulate jobs.csv --gpus 8 --submit PATH", TABLE),
    ("queue simulate", "cluster"): ("queue simulate jobs.csv --cluster PATH", TABLE),
    ("kernels check", "target"): ("kernels check PATH", TABLE),
    ("lesson", "check"): ("lesson coalescing --check PATH", TABLE),
    ("explain", "first"): ("explain PATH estimate.json", TABLE),
    ("explain", "second"): ("explain estimate.json PATH", TABLE),
}
"""(Command, parameter that names a file) → a command line, and what the file should be."""
NO_FILES = {
    ("predict memory", "optimizer"),
    ("predict scaling", "devices"),
    ("serve", "allowed_origins"),
    ("serve", "allowed_media_domains"),
    ("serve", "root_path"),
    ("serve", "reasoning_parser"),
    ("kernels bench", "words"),
    ("predict scaling", "images"),
    *{("predict system", one) for one in ("model", "vehicle", "images", "period")},
    *{("studio", one) for one in ("files", "host", "token")},  # its page tells what is wrong
    ("checklist", "groups"),
    ("drill", "topic"),
    ("predict inference", "batches"),
    *{("predict compression", one) for one in ("scheme", "kind", "max_rise")},
    ("drill", "question"),
    *{(name, "window") for name in (*TRACE_COMMANDS, "doctor")},
    ("trace operators", "by"),
    ("trace compare", "by"),
    ("trace critical-path", "what_if"),
    *{(name, one) for name in ("compress", "evaluate") for one in ("mean", "std", "resize")},
    *{("export", one) for one in ("to", "max_drop")},
    *{
        (f"{verb} {task}", one)
        for verb in ("predict", "plan")
        for task in ("training", "inference")
        for one in ("image", "images", "optimizer", "memory_format", "rate")
    },
    ("roofline", "image"),
    ("validate vision", "calibration"),
    *{("queue share", one) for one in ("allow", "namespace", "price")},
    *{("queue simulate", one) for one in ("autoscale", "column", "placement")},
}
"""Texts of these commands that are no files; elsewhere a `str` is one only where `READS` says."""
WORDS = {
    "accuracies", "adapter_targets", "add", "api", "api_key", "aim", "arch", "arrivals",
    "batching", "change",
    "cluster", "decode",
    "device", "dtype", "engine", "export", "formula", "gpu", "host", "itl", "itl_p99", "kv_bytes",
    "kv_dtype", "kv_layout", "max_loss",
    "libraries", "metric", "name", "nodes", "objective", "offload", "only", "order", "phase",
    "precision",
    "policy", "prefill", "prefill_gpu", "prompt", "queue",
    "recompute", "rendezvous", "replicas", "revision", "router", "scale_on", "schedule", "scheme",
    "served_model_name", "software", "stop", "target", "token_ids", "tokens", "tool_call_parser",
    "ttft", "ttft_p99",
    "use_adapter", "values", "weights", "what_if", "cache", "without",
}  # fmt: skip
"""Parameters that are texts and no files, wherever they are."""
ELSEWHERE = {
    ("doctor", "command"): "a script's own process reads it",
    ("tune", "command"): "a script's own process reads it",
    ("run", "command"): "a script's own process reads it",
    ("bisect", "command"): "a process of its own reads it",
    ("bisect", "good"): "a commit",
    ("bisect", "bad"): "a commit",
    ("bisect", "repo"): "git reads it",
    ("bisect", "link"): "linked, not read",
    ("hardware", "disk"): "a folder; test_hardware.py",
    ("predict training", "disk"): "a folder; tests/plan/test_predict.py",
    ("plan training", "disk"): "a folder; tests/cli/test_plan_training.py",
    ("loadtest", "model"): "a name that a server knows",
    ("loadtest", "url"): "an address",
    **{
        (name, one): "tests/compress/images, tests/image_files"
        for name in ("compress", "evaluate")
        for one in ("images", "labels", "boxes", "checkpoint", "against")
    },
    **{("export", one): "tests/export" for one in ("model", "check", "weights")},
    ("serve", "adapters"): "tests/serve/adapters",
    ("generate", "adapter"): "tests/serve/adapters",
}
FOLDERS = {"out", "cache"}
"""Parameters that are folders which a command fills."""

NESTED = b"[" * 100_000 + b"]" * 100_000
NOT_TEXT: dict[str, bytes] = {
    "empty": b"",
    "binary": b"\x7fELF\x02\x01\x01\x00" + bytes(range(256)) * 64,
    "packed": b"\x1f\x8b\x08\x04 not really \xff\xfe\x80",
    "nul": b"\0" * 4096,
    "utf16": '{"a": [1]}'.encode("utf-16"),
    "utf16-bare": '{"a": [1]}'.encode("utf-16-le"),
    "latin1": "größer: 1, 2\n".encode("latin-1"),
}
NOT_KEYS = {"nested-keys": b"a b c\n" + NESTED}
NOT_A_TABLE: dict[str, bytes] = {
    "nested": NESTED,
    "nested-tables": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "unclosed": b"[" * 100_000,
    "long-line": b"1" * 2_000_000,
    "long-cell": b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + b"1" * 2_000_000 + b",1,1\n",
    "list": b"[1, 2]",
    "number": b"3",
    "large-number": b"9" * 5000,
    "string": b'"a"',
    "null": b"null",
    "nothing": b"{}",
    "lists": b'{"traceEvents": [1, [2]], "model_type": [3], "layout": 4, "profile": 5}',
    "words": b"some words\nand others: [\n",
    "toml": b'[model]\nconfig = "gpt2"\n[data]\n',
    "dotted": b"a" + b".a" * 5000 + b" = 1\n",
}
BAD = {**NOT_TEXT, **NOT_KEYS, **NOT_A_TABLE}
NO_FILE = ["missing", "folder"]
KINDS = {
    TEXT: [*NO_FILE, *NOT_TEXT],
    KEYS: [*NO_FILE, *NOT_TEXT, *NOT_KEYS],
    TABLE: [*NO_FILE, *NOT_TEXT, *NOT_A_TABLE],
}
JUDGED = {
    ("compare", "history", "missing"),
    ("compare", "history", "empty"),
    ("run", "stack", "empty"),
    ("serve", "model", "missing"),
    ("serve", "speculative", "missing"),
    ("launch", "files", "nothing"),
    ("launch", "files", "lists"),
}
"""No faults, or answered on stdout: a history that begins, a stack of nothing, a name that the hub
may know, objects of which `launch --check` says what they lack."""
INSIDE = {"model": "config.json", "adapter": "adapter_config.json", "heads": "heads.json"}
"""A folder for it → the file of that folder which is broken."""


SCRIPTS_AND_FOLDERS = (
    "doctor -- PATH",
    "kernels check PATH",
    "lesson coalescing --check PATH",
    "realtime run PATH",
    "tune -- PATH",
    "run --stack stack.toml -- PATH",
    "launch PATH --on local",
    "compress PATH --scheme w8a16 --out out",
    "evaluate PATH --text text.txt",
    f"evaluate {LIBRARY} --text text.txt --reference PATH",
    "generate PATH --prompt a",
    "bench decode PATH",
    "draft-heads PATH --text text.txt --out out",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with every bad file, and whole ones for the other arguments."""
    from tests.cli.whole_files import write_whole_files

    folder = tmp_path_factory.mktemp("bad")
    write_whole_files(folder)
    for name, content in BAD.items():
        (folder / name).write_bytes(content)
        for kind, file in INSIDE.items():
            (folder / f"{kind}-of-{name}").mkdir()
            (folder / f"{kind}-of-{name}" / file).write_bytes(content)
        (folder / f"folder-of-{name}").mkdir()
        (folder / f"folder-of-{name}" / "result.json").write_bytes(content)
    for kind, file in {**INSIDE, "folder": "result.json"}.items():
        (folder / f"{kind}-of-folder" / file).mkdir(parents=True)
    (folder / "folder").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield folder


def parameters() -> Iterator[tuple[str, str, str, bool]]:
    """Command, parameter, its type as text, and whether its file is written."""
    for name, (module, _) in COMMANDS.items():
        command = getattr(importlib.import_module(module), re.sub(r"\W", "_", name))
        function = with_flat_options(command)
        for parameter, hint in typing.get_type_hints(function, include_extras=True).items():
            base, *infos = typing.get_args(hint) or (hint,)
            written = any(getattr(info, "callback", None) is announce for info in infos)
            yield name, parameter, str(base), written


def test_every_parameter_that_names_a_file_is_read_here() -> None:
    unknown = {
        (command, parameter)
        for command, parameter, kind, written in parameters()
        if not written
        and ("Path" in kind or "str" in kind)
        and (command, parameter) not in {*READS, *ELSEWHERE, *NO_FILES}
        and not (parameter in WORDS and "Path" not in kind)
        and not (parameter in FOLDERS and "Path" in kind)
    }
    assert not unknown, "say in READS how each is given a file, or that it is none"


@pytest.mark.sweep(every=35)
@pytest.mark.parametrize(
    ("command", "parameter", "name"),
    [
        (command, parameter, name)
        for (command, parameter), (_, kind) in READS.items()
        for name in KINDS[kind]
        if (command, parameter, name) not in JUDGED
    ],
)
def test_a_bad_file_is_one_line_that_names_it(
    command: str, parameter: str, name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _one_line(READS[command, parameter][0], name, capsys)


@pytest.mark.parametrize("line", SCRIPTS_AND_FOLDERS)
def test_a_missing_script_or_folder_is_one_line_that_names_it(
    line: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _one_line(line, "nowhere.xyz", capsys)


@pytest.mark.sweep("launch --check PATH-nested")
@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("explain PATH PATH", "nested"),
        ("doctor --trace PATH", "unclosed"),
        ("simulate serving --steps PATH", "long-line"),
        (f"serve {LIBRARY} --api-key-file PATH", "nul"),
        ("launch --check PATH", "nested"),
        ("serve PATH", "nowhere.xyz"),
        (f"draft-heads {LIBRARY} --text PATH --out out", "folder"),
    ],
)
def test_a_process_of_its_own_ends_as_well(line: str, name: str, place: Path) -> None:
    words = [sys.executable, "-m", "ridgeline.cli.main", *line.replace("PATH", name).split()]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert name in done.stderr


def _one_line(line: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(name).read_bytes() if Path(name).is_file() else b""
    code = run(line.replace("PATH", name).split())
    assert (Path(name).read_bytes() if Path(name).is_file() else b"") == before
    out, err = capsys.readouterr()
    # Whoever is the first on a machine to need them says that the kernels are compiled.
    err = "\n".join(line.strip() for line in err.split("\n") if "compiling CPU" not in line)
    assert (code, out, err.count("\n")) == (2, "", 1), err[-800:]
    assert name in err
    assert len(err) < 600
    assert not re.search("Errno|codec|Traceback|Recursion|SafetensorError", err), err
