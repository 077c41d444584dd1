"""Text becomes shards once, whole, whatever it lies in and whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.train.data.corpus import recipe, with_data, write_texts
from tokenizers import Tokenizer

from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe, RecipeSource
from ridgeline.train.data import sources as sources_module
from ridgeline.train.data.preparation import PreparedData, prepare, verify
from ridgeline.train.data.shards import TokenStream
from ridgeline.train.data.sources import cut, find_files, read
from ridgeline.train.data.tokenizer import keep, train_tokenizer

END = "<|end|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer") / "small"
    texts = [path.read_text() for path in sorted(write_texts(folder.parent / "texts").iterdir())]
    train_tokenizer(texts, 300, folder)
    return folder


def made(wanted: Recipe, folder: Path) -> tuple[PreparedData, list[str]]:
    said: list[str] = []
    return prepare(wanted, folder, said.append), said


def expected(tokenizer: Path, texts: list[str]) -> list[int]:
    fast = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    end = fast.token_to_id(END)
    return [token for text in texts for token in [*fast.encode(text).ids, end]]


def tokens(stream: TokenStream) -> list[int]:
    return stream.read(0, stream.num_tokens).tolist()


TEXTS = [f"row {i}: " + "words and more, é ü 漢字\n" * (i % 7 + 1) for i in range(1500)]


def as_jsonl(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": text, "id": 1}) + "\n" for text in TEXTS))
    return path


def as_parquet(folder: Path) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": TEXTS}), folder / "rows.parquet", row_group_size=200)
    return folder


def as_dataset(folder: Path) -> Path:
    from datasets import Dataset

    Dataset.from_dict({"text": TEXTS}).save_to_disk(str(folder / "saved"))
    return folder / "saved"


def as_text(folder: Path) -> Path:
    for number, text in enumerate(TEXTS[:200]):
        (folder / f"{number:04d}.py").write_text(text)
    (folder / "other.bin").write_bytes(b"\xff\xfe")
    return folder


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(
    ("write", "pattern", "count"),
    [(as_jsonl, "", 1500), (as_parquet, "", 1500), (as_dataset, "", 1500), (as_text, "*.py", 200)],
)
def test_every_kind_of_source_gives_the_same_tokens_as_the_tokenizer(
    write: Callable[[Path], Path], pattern: str, count: int, tokenizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    path = write(tmp_path / "source")
    wanted = recipe(path=str(path), pattern=pattern, tokenizer=str(tokenizer))
    found, _ = made(wanted, tmp_path / "shards")
    assert tokens(found.sources[0]) == expected(tokenizer, TEXTS[:count])
    assert found.sources[0].num_documents == count
    assert found.vocabulary == 300
    verify(found)


@pytest.mark.parametrize("kind", ["jsonl", "text"])
def test_pieces_of_one_large_file_join_without_a_seam(
    kind: str, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (
        ("_SMALLEST_PIECE_BYTES", 1000),
        ("_BLOCK_BYTES", 300),
        ("_LINE_BYTES", 400),
    ):
        monkeypatch.setattr(sources_module, name, size)
    path = tmp_path / f"large.{'jsonl' if kind == 'jsonl' else 'txt'}"
    texts = TEXTS[:100] if kind == "jsonl" else ["".join(TEXTS[:100]) + "漢" * 3000]
    path.write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts)
        if kind == "jsonl"
        else texts[0]
    )
    pieces = cut(find_files(path, ""))
    assert len(pieces) > 10
    parts = [part for piece in pieces for span in piece for part in read(span, "text")]
    assert "".join(part.text for part in parts) == "".join(texts)
    assert sum(part.first for part in parts) == sum(part.last for part in parts) == len(texts)
    monkeypatch.setattr("ridgeline.train.data.workers.num_processes", lambda: 1)
    found, _ = made(recipe(path=str(path), tokenizer=str(tokenizer)), tmp_path / "shards")
    fast = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    again = fast.decode(tokens(found.sources[0]), skip_special_tokens=True)
    assert again == "".join(texts)
    assert found.sources[0].num_documents == len(texts)


def test_unchanged_text_is_not_read_again_and_changed_text_is(
    tokenizer: Path, tmp_path: Path
) -> None:
    folder = write_texts(tmp_path / "texts")
    wanted = recipe(path=str(folder), tokenizer=str(tokenizer))
    first, said = made(wanted, tmp_path / "shards")
    assert said
    second, said = made(wanted, tmp_path / "shards")
    assert second.identity == first.identity
    assert not said
    (folder / "part03.txt").write_text("something else")
    third, said = made(wanted, tmp_path / "shards")
    assert said
    assert third.identity != first.identity
    other, said = made(with_data(wanted, holdout=3), tmp_path / "shards")
    assert said
    assert other.validation is not None


def test_two_callers_that_want_the_same_shards_make_them_once(
    tokenizer: Path, tmp_path: Path
) -> None:
    folder = write_texts(tmp_path / "texts")
    wanted = recipe(path=str(folder), tokenizer=str(tokenizer))
    said: list[str] = []
    both = [
        threading.Thread(target=prepare, args=(wanted, tmp_path / "shards", said.append))
        for _ in range(2)
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert len([line for line in said if "documents" in line]) == 1


def test_held_out_documents_are_all_others_and_never_both(tokenizer: Path, tmp_path: Path) -> None:
    path = as_jsonl(tmp_path)
    wanted = recipe(path=str(path), tokenizer=str(tokenizer), holdout=10)
    found, _ = made(wanted, tmp_path / "shards")
    assert found.validation is not None
    held, kept = found.validation.num_documents, found.sources[0].num_documents
    assert held + kept == len(TEXTS)
    assert 0.05 < held / len(TEXTS) < 0.2
    whole, _ = made(with_data(wanted, holdout=0), tmp_path / "shards")
    assert sorted(tokens(found.validation) + tokens(found.sources[0])) == sorted(
        tokens(whole.sources[0])
    )


def test_validation_text_of_its_own_is_prepared_with_the_same_tokenizer(
    tokenizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "held.txt").write_text("a text of its own")
    wanted = recipe(
        path=str(write_texts(tmp_path / "texts")),
        tokenizer=str(tokenizer),
        validation=str(tmp_path / "held.txt"),
    )
    found, _ = made(wanted, tmp_path / "shards")
    assert found.validation is not None
    assert tokens(found.validation) == expected(tokenizer, ["a text of its own"])
    (found.validation.folder / "train-00000.tokens").write_bytes(b"")
    with pytest.raises(InputError, match=r"has 0 bytes and should have"):
        verify(found)


def test_a_tokenizer_is_learnt_once_and_saved_with_the_shards(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    wanted = recipe(path=str(write_texts(tmp_path / "texts")), tokenizer="bpe:290")
    found, said = made(wanted, tmp_path / "shards")
    assert any("learning a tokenizer of 290" in line for line in said)
    _, said = made(wanted, tmp_path / "shards")
    assert not said
    saved = AutoTokenizer.from_pretrained(found.tokenizer)
    assert len(saved) == found.vocabulary == 290
    assert saved.eos_token_id == found.end_of_document
    assert saved.bos_token_id is not None
    assert saved.pad_token_id is not None
    text = (tmp_path / "texts" / "part00.txt").read_text()
    start = tokens(found.sources[0])[: len(saved.encode(text))]
    assert saved.decode(start) == text


def test_a_mixture_has_each_source_and_prepared_shards_are_a_source(
    tokenizer: Path, tmp_path: Path
) -> None:
    one, _ = made(recipe(path=str(as_jsonl(tmp_path)), tokenizer=str(tokenizer)), tmp_path / "s")
    texts = write_texts(tmp_path / "texts")
    mixed = (
        RecipeSource(path=str(one.sources[0].folder), weight=3.0),
        RecipeSource(path=str(texts), weight=1.0),
    )
    found, _ = made(recipe(sources=mixed, tokenizer=str(tokenizer)), tmp_path / "s")
    assert found.weights == (3.0, 1.0)
    assert found.sources[0].folder == one.sources[0].folder
    assert found.sources[1].num_documents == 12
    alone, said = made(recipe(path=str(one.sources[0].folder)), tmp_path / "s")
    assert alone.identity == one.identity
    assert not said


@pytest.mark.parametrize("suffix", ["tokens", "documents"])
def test_a_damaged_shard_is_found(suffix: str, tokenizer: Path, tmp_path: Path) -> None:
    wanted = recipe(path=str(write_texts(tmp_path / "texts")), tokenizer=str(tokenizer))
    found, _ = made(wanted, tmp_path / "shards")
    path = found.sources[0].folder / f"train-00000.{suffix}"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"train-00000.{suffix} is damaged"):
        verify(found)
    path.write_bytes(content[:-1])
    with pytest.raises(InputError, match=f"train-00000.{suffix} has"):
        made(wanted, tmp_path / "shards")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            ("index.json", "shard.00000.mds"),
            "of MosaicML Streaming (shard.00000.mds); write",
        ),
        (("index.json", "chunk-0-0.bin"), "(Megatron-LM, LitData, nanoGPT) (chunk-0-0.bin); write"),
        (("train.tfrecord",), "TensorFlow's records (train.tfrecord); write their documents as"),
        (("a.jsonl.zst",), "compressed files (a.jsonl.zst); unpack them first"),
        (("strange.xyz",), "set data.pattern"),
    ],
)
def test_a_folder_of_another_librarys_format_is_refused_by_name(
    files: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(InputError, match="no file under") as refused:
        find_files(tmp_path)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("none.txt", None, {}, r"none.txt does not exist"),
        ("empty", "folder", {}, r"no file under .*empty ends in .txt, .md, .jsonl"),
        ("empty", "folder", {"pattern": "*.py"}, r"matches '\*.py'; set data.pattern"),
        ("blank.txt", "", {}, r"blank.txt holds no text"),
        ("bad.jsonl", '{"text": "a"}\n\n{"text": }\n', {}, r"bad.jsonl:3: JSON is malformed"),
        ("odd.jsonl", '{"text": "a"}\n[1]\n', {}, r"odd.jsonl:2: no text under 'text', but \[1\]"),
        ("key.jsonl", '{"body": "a"}\n', {}, r"key.jsonl:1: no text under 'text', but \['body'\]"),
        ("not.parquet", "text", {}, r"not.parquet: "),
        ("one.txt", "a text", {"holdout": 1}, r"leaves none for training"),
        ("one.txt", "a text", {"holdout": 10**6}, r"leaves none for validation"),
        ("one.txt", "a text", {"tokenizer": ""}, r"data.tokenizer is empty"),
        ("one.txt", "a text", {"tokenizer": "bpe:10"}, r"bpe:SIZE with a size of 260"),
        ("one.txt", "a text", {"tokenizer": "/nowhere/at all"}, r"cannot be loaded"),
        ("one.txt", "a text", {"sources": (RecipeSource(path="x"),)}, r"both path and sources"),
        ("", "", {"path": ""}, r"data.path is empty"),
    ],
)
def test_bad_input_is_one_line_that_says_where(
    name: str, content: str | None, options: dict[str, Any], message: str, tokenizer: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    path = tmp_path / (name or "unused")
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_text(content)
    wanted = recipe(**({"path": str(path), "tokenizer": str(tokenizer)} | options))
    with pytest.raises(InputError, match=message) as caught:
        made(wanted, tmp_path / "shards")
    assert "\n" not in str(caught.value)


def test_files_to_leave_out_are_left_out(tmp_path: Path) -> None:
    for name in ("a.py", "test/b.py", "x/test/y/c.py", "x/tests.py", "x/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")

    def names(*exclude: str) -> list[str]:
        return [file.name for file in find_files(tmp_path, "**/*.*", exclude)]

    assert names() == ["a.py", "test/b.py", "x/d.txt", "x/test/y/c.py", "x/tests.py"]
    assert names("**/test/**") == ["a.py", "x/d.txt", "x/tests.py"]
    assert names("test/**") == ["a.py", "x/d.txt", "x/test/y/c.py", "x/tests.py"]
    assert names("*.py", "**/*.txt") == ["test/b.py", "x/test/y/c.py", "x/tests.py"]
    with pytest.raises(InputError, match=r"is not in \['\*\*'\]"):
        names("**")


def test_a_missing_column_names_those_that_are_there(tokenizer: Path, tmp_path: Path) -> None:
    for write in (as_parquet, as_dataset):
        (tmp_path / write.__name__).mkdir()
        path = write(tmp_path / write.__name__)
        wanted = recipe(path=str(path), column="body", tokenizer=str(tokenizer))
        with pytest.raises(InputError, match=r"no column 'body', but text; set data\.column"):
            made(wanted, tmp_path / "shards")


def test_files_that_are_not_text_are_passed_over_by_name(tokenizer: Path, tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 3)
    (folder / "latin.txt").write_bytes("é".encode("latin-1"))
    found, said = made(recipe(path=str(folder), tokenizer=str(tokenizer)), tmp_path / "shards")
    assert found.sources[0].num_documents == 3
    assert "1 files are not UTF-8 and were passed over (latin.txt)" in said[-1]


KILLED = """
import os, signal, sys
from pathlib import Path
import msgspec
from ridgeline.records.recipe import Recipe
from ridgeline.train.data import preparation

ask = msgspec.json.decode(sys.argv[1], type=Recipe)
real, seen = preparation.run_pieces, 0

def cut_short(job, pieces):
    global seen
    for event in real(job, pieces):
        yield event
        seen += event.done is not None
        if seen == 2:
            print("now", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

preparation.run_pieces = cut_short
preparation.prepare(ask, Path(sys.argv[2]), print)
"""


@pytest.mark.slow
@pytest.mark.multiprocess
def test_killed_in_the_middle_it_goes_on_with_the_pieces_that_are_left(
    tokenizer: Path, tmp_path: Path
) -> None:
    rows = [json.dumps({"text": text * 8}) + "\n" for text in TEXTS]
    for number in range(6):
        (tmp_path / f"{number}.jsonl").write_text("".join(rows[number::3]))
    wanted = recipe(path=str(tmp_path), pattern="*.jsonl", tokenizer=str(tokenizer))
    child = subprocess.run(
        [sys.executable, "-c", KILLED, msgspec.json.encode(wanted), str(tmp_path / "shards")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    folder = next(path for path in (tmp_path / "shards").iterdir() if path.is_dir())
    assert not (folder / "manifest.json").exists()
    left = {path.name: path.stat().st_mtime_ns for path in folder.glob("piece-*.json")}
    assert len(left) >= 2
    (folder / ".train-00005.tokens.1.tmp").write_bytes(b"half")
    resumed, said = made(wanted, tmp_path / "shards")
    assert any("pieces were tokenised before" in line for line in said)
    assert all((folder / name).stat().st_mtime_ns == at for name, at in left.items())
    assert not list(folder.glob("*.tmp"))
    whole, _ = made(wanted, tmp_path / "elsewhere")
    assert resumed.identity == whole.identity
    assert tokens(resumed.sources[0]) == tokens(whole.sources[0])


@pytest.mark.multiprocess
def test_tokenising_processes_end_with_the_one_that_started_them(
    tokenizer: Path, tmp_path: Path
) -> None:
    from ridgeline.train.data.tokenise import TokeniseJob

    job = TokeniseJob(
        folder=str(tmp_path), tokenizer=str(tokenizer), column="text", holdout=0,
        end_of_document=1, token_bytes=2,
    )  # fmt: skip
    source = str(Path(sources_module.__file__).parents[3])
    child = subprocess.Popen(
        [sys.executable, "-m", "ridgeline.train.data.tokenise"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert child.stdin is not None
    child.stdin.write(msgspec.json.encode(job) + b"\n")
    child.stdin.flush()
    child.stdin.close()
    assert child.wait(timeout=30) == 0
    assert child.stdout is not None
    child.stdout.close()


def test_what_is_kept_of_a_tokenizer_is_what_transformers_keeps(
    tokenizer: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    changes: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, True),
        ({"unk_token": "<|one more|>"}, False),
        ({"add_prefix_space": True}, False),
        ({"tokenizer_class": "GPT2Tokenizer"}, False),
    ]
    settings = json.loads((tokenizer / "tokenizer_config.json").read_text())
    for number, (change, is_copied) in enumerate(changes):
        source, folder = tmp_path / f"source{number}", tmp_path / f"kept{number}"
        shutil.copytree(tokenizer, source)
        (source / "tokenizer_config.json").write_text(json.dumps(settings | change))
        found = keep(str(source), folder)
        known = AutoTokenizer.from_pretrained(source)
        known.save_pretrained(tmp_path / f"saved{number}")
        assert found.vocabulary == len(known)
        assert found.end_of_document == known.eos_token_id
        saved, kept = (
            json.loads((place / "tokenizer.json").read_text())
            for place in (tmp_path / f"saved{number}", folder)
        )
        # Where there is none, transformers writes one that adds nothing.
        assert kept.pop("post_processor") in (saved.pop("post_processor"), None)
        assert kept == saved
        assert (
            AutoTokenizer.from_pretrained(folder)("a text").input_ids == known("a text").input_ids
        )
        written = (source / "tokenizer_config.json").read_text()
        assert (written == (folder / "tokenizer_config.json").read_text()) == is_copied


@pytest.mark.parametrize(
    ("change", "message"),
    [({"eos_token": None}, "has no end-of-text token"), ("no JSON", r"cannot be loaded")],
)
def test_a_tokenizer_without_an_end_or_a_broken_one_is_refused(
    change: dict[str, Any] | str, message: str, tokenizer: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(tokenizer, source)
    if isinstance(change, str):
        (source / "tokenizer.json").write_text(change)
    else:
        settings = json.loads((tokenizer / "tokenizer_config.json").read_text())
        (source / "tokenizer_config.json").write_text(json.dumps(settings | change))
    with pytest.raises(InputError, match=message):
        keep(str(source), tmp_path / "kept")


def test_preparing_with_a_learnt_tokenizer_needs_no_transformers(
    tokenizer: Path, tmp_path: Path
) -> None:
    code = (
        "import sys, msgspec; from pathlib import Path\n"
        "from ridgeline.records.recipe import Recipe\n"
        "from ridgeline.train.data.preparation import prepare\n"
        "ask = msgspec.json.decode(sys.argv[1], type=Recipe)\n"
        "prepare(ask, Path(sys.argv[2]), print)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    wanted = recipe(path=str(write_texts(tmp_path / "texts")), tokenizer="bpe:290")
    asked = msgspec.json.encode(wanted).decode()
    subprocess.run([sys.executable, "-c", code, asked, str(tmp_path / "shards")], check=True)


@pytest.mark.slow
def test_threads_and_processes_make_the_same_shards(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources_module, "_SMALLEST_PIECE_BYTES", 10_000)
    monkeypatch.setattr(sources_module, "_BLOCK_BYTES", 10_000)
    wanted = recipe(path=str(as_jsonl(tmp_path)), tokenizer=str(tokenizer), holdout=7)
    threads, _ = made(wanted, tmp_path / "threads")
    started: list[int] = []
    monkeypatch.setattr("ridgeline.train.data.workers._LITTLE_BYTES", 0)
    monkeypatch.setattr("ridgeline.train.data.workers.num_processes", lambda: 2)
    real = subprocess.Popen
    monkeypatch.setattr(
        "ridgeline.train.data.workers.subprocess.Popen",
        lambda *args, **kwargs: started.append(1) or real(*args, **kwargs),
    )
    processes, _ = made(wanted, tmp_path / "processes")
    assert len(started) == 2
    assert len(processes.sources[0].shards) > 2
    assert processes.sources[0].shards == threads.sources[0].shards
    assert processes.validation is not None
    assert threads.validation is not None
    assert tokens(processes.validation) == tokens(threads.validation)


def test_tokenising_needs_no_torch() -> None:
    code = (
        "import sys, ridgeline.train.data.tokenise, ridgeline.train.data.workers\n"
        "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
