"""Prepared shards behind an address: fetched as they are read, checked, kept, and gone on with."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.data.corpus import place, recipe

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe
from ridgeline.train.batch import Batch
from ridgeline.train.data import remote
from ridgeline.train.data.loader import Loader
from ridgeline.train.data.preparation import PreparedData, prepare
from ridgeline.train.data.shards import FORMAT, ShardManifest, ShardWriter

LAYOUT = Layout(micro_batch=2, global_batch=2)


class Server:
    """A plain web server over a folder, which notes what it is asked and fails when told to."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        self.failures = 0
        outer = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path.removeprefix("/prepared/"))
                if outer.failures:
                    outer.failures -= 1
                    self.send_error(503)
                else:
                    super().do_GET()

            def log_message(self, *_: object) -> None:
                pass

        handler = functools.partial(Handler, directory=str(folder))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/prepared"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def shards(self) -> list[str]:
        """Files of tokens that were asked for."""
        return [name for name in self.asked if name.endswith(".tokens")]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """Six shards of 32 tokens, and a tokenizer."""
    folder = tmp_path / "served" / "prepared"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    shards = []
    for number in range(6):
        writer = ShardWriter(folder, f"train-{number:05d}", 2)
        for document in torch.arange(32).add(32 * number).split(8):
            writer.add(document.numpy(), starts_document=True)
        shards.append(writer.close())
    manifest = ShardManifest(
        format=FORMAT, source="x", fingerprint="x", tokenizer="x", vocabulary=500,
        end_of_document=1, token_bytes=2, train=tuple(shards), validation=(),
    )  # fmt: skip
    remote.write_record(folder / "manifest.json", manifest)
    return folder


@pytest.fixture
def server(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(remote, "FIRST_WAIT_SECONDS", 0.0)
    made = Server(prepared.parent)
    yield made
    made.close()


def asked(path: str, **data: object) -> Recipe:
    return recipe(LAYOUT, path=path, **data)


def read(
    found: PreparedData, wanted: Recipe, steps: int, state: dict[str, Any] | None = None
) -> list[torch.Tensor]:
    """What the next steps see; a state is gone on from, and is that of the end afterwards."""
    loader = Loader(found, wanted, place(LAYOUT))
    if state:
        loader.load_state_dict(state)
    batches = []
    for _ in range(steps):
        for batch in next(loader):
            assert isinstance(batch, Batch)
            batches.append(batch.input_ids)
    if state is not None:
        state |= loader.state_dict()
    loader.close()
    return batches


def test_shards_come_as_they_are_read_and_a_run_goes_on_with_an_empty_cache(
    prepared: Path, server: Server, tmp_path: Path
) -> None:
    local = asked(str(prepared), shuffle=False)
    here = prepare(local, tmp_path / "here", print)
    wanted = asked(server.url, shuffle=False)
    found = prepare(wanted, tmp_path / "cache", print)
    assert found.identity == here.identity
    assert server.shards == []
    expected = read(here, local, 10)
    state: dict[str, Any] = {}
    assert all(map(torch.equal, read(found, wanted, 4, state), expected[:4]))
    fetched = server.shards
    assert fetched == [f"train-{number:05d}.tokens" for number in range(len(fetched))]
    assert len(fetched) < 6
    again = prepare(wanted, tmp_path / "another", print)
    assert all(map(torch.equal, read(again, wanted, 6, state), expected[4:]))
    assert server.shards[-1] == "train-00005.tokens"
    assert len(set(server.shards[len(fetched) :])) == len(server.shards) - len(fetched)
    server.close()
    kept = prepare(wanted, tmp_path / "cache", print)
    assert all(map(torch.equal, read(kept, wanted, 4), expected[:4]))


def test_a_shuffled_order_is_that_of_the_local_folder(
    prepared: Path, server: Server, tmp_path: Path
) -> None:
    local, wanted = asked(str(prepared)), asked(server.url)
    one = read(prepare(local, tmp_path / "here", print), local, 6)
    other = read(prepare(wanted, tmp_path / "cache", print), wanted, 6)
    assert all(map(torch.equal, one, other))


def test_a_failure_in_between_is_tried_again(server: Server, tmp_path: Path) -> None:
    server.failures = 2
    wanted = asked(server.url, shuffle=False)
    found = prepare(wanted, tmp_path / "cache", print)
    server.failures = 2
    assert len(read(found, wanted, 1)) == 1


def test_keys_that_a_store_refuses_are_not_tried_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for = []

    def refused(address: str, target: Path) -> None:
        asked_for.append(address)
        raise PermissionError("Access Denied")

    monkeypatch.setattr(remote, "_get", refused)
    with pytest.raises(InputError, match=r"Access Denied; check the store's keys"):
        prepare(asked(server.url), tmp_path / "cache", print)
    assert len(asked_for) == 1


def test_a_bounded_cache_keeps_the_newest_shards(server: Server, tmp_path: Path) -> None:
    wanted = asked(server.url, shuffle=False, cache_bytes=130.0)
    found = prepare(wanted, tmp_path / "cache", print)
    read(found, wanted, 10)
    left = sorted(path.name for path in (tmp_path / "cache").rglob("*.tokens"))
    assert left == ["train-00004.tokens", "train-00005.tokens"]
    assert len(server.shards) == 6


def test_a_damaged_shard_is_named_and_not_kept(
    prepared: Path, server: Server, tmp_path: Path
) -> None:
    (prepared / "train-00000.tokens").write_bytes(b"\0" * 64)
    wanted = asked(server.url, shuffle=False)
    found = prepare(wanted, tmp_path / "cache", print)
    with pytest.raises(InputError, match=r"train-00000\.tokens is not what its manifest says"):
        read(found, wanted, 1)
    assert not list((tmp_path / "cache").rglob("*.tokens"))


def test_what_is_no_prepared_folder_is_one_line(
    prepared: Path, server: Server, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"nowhere has no manifest\.json; give the address of"):
        prepare(asked(f"{server.url}/nowhere"), tmp_path / "a", print)
    (prepared / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"prepared has no tokenizer/; upload the whole folder"):
        prepare(asked(server.url), tmp_path / "b", print)
    with pytest.raises(InputError, match=r"data\.path: s3://x/y/.*s3fs"):
        prepare(asked("s3://x/y"), tmp_path / "c", print)
    server.failures = 1000
    with pytest.raises(InputError, match=r"503.*; check the address and the network"):
        prepare(asked(server.url), tmp_path / "d", print)


@pytest.mark.parametrize(
    ("value", "said"), [("1e9", "data.cache_bytes with shuffle"), ("0", "give more than 0")]
)
def test_a_bound_that_cannot_be_kept_is_refused(
    value: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.toml").write_text(
        f"""model.config = "gpt2"
data = {{path = "https://x/y", seq = 8, cache_bytes = {value}}}
optimizer = {{learning_rate = 1e-3, final_learning_rate = 1e-4}}
run.steps = 1
"""
    )
    assert run(["train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
