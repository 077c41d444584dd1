"""`ridgeline serve`: flags that fit the engine's configuration, one line for every mistake."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest

from ridgeline.cli.main import run
from ridgeline.cli.option_groups import with_flat_options
from ridgeline.cli.serve import _NOT_VLLMS, read_api_keys, serve
from ridgeline.cli.serve_manifest import _NOT_OF_MANIFESTS
from ridgeline.cli.serve_ready import ledger_table, ready_line
from ridgeline.errors import InputError
from ridgeline.serve.config import EngineConfig, SpeculationConfig
from ridgeline.serve.http.settings import ServerSettings
from ridgeline.serve.messages import MemoryLedger, MemoryRow

FLAT = with_flat_options(serve)
LIBRARY = "examples/models/library"
COMPOSED = {"speculation": {"speculative", "num_drafts", "longest_match", "speculate_always"}}


def test_every_field_of_the_configuration_is_a_flag_with_its_default() -> None:
    flags, types = inspect.signature(FLAT).parameters, get_type_hints(FLAT)
    for field in msgspec.structs.fields(EngineConfig):
        if get_origin(field.type) is Literal:
            assert {*get_args(types[field.name])} == {*get_args(field.type)}, field.name
        if field.name in COMPOSED:
            assert COMPOSED[field.name] <= set(flags)
        elif field.name == "adapters":
            assert flags["adapters"].default is None
        elif field.name != "model":
            assert flags[field.name].default == field.default, field.name
    plain = SpeculationConfig(kind="ngram")
    assert flags["num_drafts"].default == plain.num_drafts
    assert flags["longest_match"].default == plain.longest_match


def test_the_servers_flags_have_the_settings_defaults() -> None:
    flags = inspect.signature(FLAT).parameters
    settings = ServerSettings(model_name="x")
    for name in ("host", "port", "max_body_bytes"):
        assert flags[name].default == getattr(settings, name)
    assert flags["shutdown_timeout"].default == settings.shutdown_timeout_seconds
    assert flags["request_timeout"].default == settings.request_timeout_seconds


def test_options_that_others_have_not_are_options_of_the_server() -> None:
    assert {*_NOT_VLLMS, *_NOT_OF_MANIFESTS} <= {*inspect.signature(FLAT).parameters}


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "MODEL"),
        (["m", "--dtype", "fp7"], "--dtype"),
        (["m", "--kv-bytes", "lots"], "--kv-bytes lots"),
        (["m", "--block-size", "0"], "--block-size 0"),
        (["m", "--port", "99999"], "--port"),
        (["m", "--replicas", "0"], "--replicas"),
        (["m", "--speculative", "magic"], "--speculative magic"),
        (["m", "--speculative", "draft"], "--speculative draft"),
        (["m", "--adapters", "nameless"], "NAME=DIR"),
        (["m", "--request-timeout", "0"], "--request-timeout 0"),
        (["m", "--api-key-file", "/nowhere"], "--api-key-file /nowhere: no such file"),
        (["m", "--engine", "vllm", "--replicas", "2"], "--engine vllm has no --replicas"),
        (["m", "--max-waitin", "2"], "--max-waitin"),
        (["m", "--tp", "0"], "--tp"),
        (["m", "--pp", "0"], "--pp"),
        (["m", "--pp", "2", "--manifest", "c.toml"], "--manifest has no --pp"),
        (["m", "--itl-target-seconds", "0"], "--itl-target-seconds 0: give seconds above 0"),
        (["m", "--itl-target-seconds", "1", "--no-chunked-prefill"], "needs chunks"),
        (["m", "--tp", "2", "--manifest", "c.toml"], "--manifest has no --tp"),
        ([LIBRARY, "--tool-call-parser", "nobody"], "--tool-call-parser nobody: unknown"),
        ([LIBRARY, "--revision", "v1"], f"--revision v1: {LIBRARY} is a folder, which has one"),
        (["m", "--served-model-name", "a", "--served-model-name", "a"], "give each name once"),
        (["m", "--engine", "vllm", "--tool-call-parser", "mistral"], "has no --tool-call-parser"),
        (["m", "--chat-template", "/nowhere"], "--chat-template /nowhere: no such file"),
        (["m", "--chat-template", "{% for x in messages"], "the text given, line 1"),
        (["m", "--chat-template", "{{ messages }}", "--engine", "vllm"], "has no --chat-template"),
        (["m", "--allowed-origins", "localhost"], "--allowed-origins localhost: give scheme"),
        (["m", "--allowed-media-domains", "https://a.b"], "give the name of a host"),
        (["m", "--ssl-certfile", "c.pem"], "--ssl-certfile and --ssl-keyfile go together"),
        (["m", "--role", "prefill"], "--cluster-key-file FILE: engines on a network need a key"),
        (["m", "--role", "prefill", "--replicas", "2"], "--replicas: is the front's"),
        (["m", "--prefill", "a"], "--decode URL: give the address of one at least"),
        (["m", "--prefill", "a", "--decode", "b", "--tp", "2"], "--tp: is an engine's"),
        (["m", "--prefill", "a", "--decode", "b", "--replicas", "2"], "--replicas: does not go"),
        (["m", "--cluster-key-file", "k"], "--cluster-key-file k: it goes with --role"),
        (["m", "--ssl-certfile", "c", "--ssl-keyfile", "k"], "--ssl-certfile c: no such file"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert message in captured.err


def test_help_needs_neither_torch_nor_fastapi() -> None:
    code = (
        "import sys; from ridgeline.cli.main import run; run(['serve', '--help'])\n"
        "assert not {'torch', 'fastapi', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_keys_are_lines_that_are_no_comment(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# team a\none\n\n  two \n")
    assert read_api_keys(path) == ("one", "two")
    path.write_text("# none\n")
    with pytest.raises(InputError, match="no key in it"):
        read_api_keys(path)


def test_the_ready_line_and_the_ledger_say_what_fits() -> None:
    ledger = MemoryLedger(
        rows=(MemoryRow(what="weights", bytes=2**20, note="bf16"),),
        total_bytes=2**20, limit_bytes=2**21, num_blocks=64, block_size=16, bytes_per_token=4,
        tokens=1024, max_length=256, largest_concurrency=4.0, layers="all in one operator",
    )  # fmt: skip
    line = ready_line("http://h:1", "m", ledger)
    assert line == (
        "ready: m at http://h:1/v1 · 64 blocks of 16 = 1024 tokens"
        " · 4.0 requests of 256 tokens at once"
    )
    assert "weights        1.0 MiB  bf16" in ledger_table(ledger)
    assert ledger_table(ledger).endswith("layers computed all in one operator")
