"""Options of `ridgeline serve` for engines on several hosts: each engine's, and their front's."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ridgeline.serve.cluster.remote import RemoteHosts
    from ridgeline.serve.config import EngineConfig
    from ridgeline.serve.messages import Ready

Role = Annotated[
    Literal["prefill", "decode"] | None,
    typer.Option(help="Serve an engine to the front of a cluster: prompts, or the rest."),
]
Prefill = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL", help="An engine of another host that computes prompts; repeatable."
    ),
]
Decode = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL", help="An engine of another host that computes the rest; repeatable."
    ),
]
ClusterKeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A file with one line, the secret that all hosts share."),
]
LEAST_KEY = 16
"""Characters of a cluster's key."""
OF_ENGINES_HOST = frozenset(
    {"role", "cluster_key_file", "host", "port", "shutdown_timeout", "revision", "json"}
)
"""Options, beside an engine's, that go with --role."""
OF_FRONT = frozenset({"tokenizer", "trust_remote_code"})
"""An engine's options that a front heeds, too."""
NOT_OF_FRONT = frozenset(
    {"role", "replicas", "disaggregated", "manifest", "autoscaler", "engine", "step_log"}
)


def refuse_beside_role(given: Iterable[str], engine_options: Iterable[str]) -> None:
    """Raise InputError for an option that is not of an engine and its host."""
    for name in sorted(set(given) - set(engine_options) - OF_ENGINES_HOST):
        raise InputError(f"{_flag(name)}: is the front's; leave it out beside --role")


def refuse_at_front(given: Iterable[str], engine_options: Iterable[str]) -> None:
    """Raise InputError for an option that is not of a front without an engine."""
    engines = set(engine_options) - OF_FRONT
    for name in sorted(set(given)):
        if name in engines:
            raise InputError(
                f"{_flag(name)}: is an engine's; give it where the engines are started, with --role"
            )
        if name in NOT_OF_FRONT or name.startswith("scale_"):
            raise InputError(
                f"{_flag(name)}: does not go with --prefill and --decode; leave it out"
            )


def remote_hosts(
    prefill: list[str] | None,
    decode: list[str] | None,
    key: str,
    config: EngineConfig,
) -> RemoteHosts:
    """Which engines a front is for, and what their files are compared with.

    Raises:
        InputError: An address is none.
    """
    from ridgeline.checkpoints.digest import config_digest, tokenizer_digest
    from ridgeline.serve.cluster.remote import RemoteHosts

    folder = Path(config.model)
    comparable = folder.is_dir() and (folder / "config.json").is_file()
    return RemoteHosts(
        prefill=tuple(prefill or ()),
        decode=tuple(decode or ()),
        cluster_key=key,
        config=config_digest(folder) if comparable else None,
        tokenizer=tokenizer_digest(folder) if comparable and config.tokenizer is None else None,
    )


def key_of(
    path: Path | None, role: str | None, prefill: list[str] | None, decode: list[str] | None
) -> str:
    """The key by which engines of several hosts know each other; empty where there are none.

    Raises:
        InputError: It is missing or none, is given for nothing, or one kind of engine is missing.
    """
    if prefill or decode:
        if not (prefill and decode):
            missing = "--decode" if prefill else "--prefill"
            raise InputError(f"{missing} URL: give the address of one at least of each kind")
    elif role is None:
        if path is not None:
            raise InputError(
                f"--cluster-key-file {path}: it goes with --role, or with --prefill and --decode"
            )
        return ""
    return cluster_key(path)


def cluster_key(path: Path | None) -> str:
    """The key in the only line of a file. Raises InputError."""
    option, cure = "--cluster-key-file", "write one line of it, as `openssl rand -hex 32` prints"
    if path is None:
        raise InputError(f"{option} FILE: engines on a network need a key; {cure}")
    key = read_text(path, option=option, cure=cure).strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InputError(f"{option} {path}: a key is of letters, digits and signs; {cure}")
    if len(key) < LEAST_KEY:
        raise InputError(f"{option} {path}: a key has {LEAST_KEY} characters at least; {cure}")
    return key


def serve_role(
    config: EngineConfig,
    role: Literal["prefill", "decode"],
    *,
    host: str,
    port: int,
    key: str,
    shutdown_timeout: float,
    json: bool,
) -> None:
    """Let fronts use an engine until a signal comes; one line on stdout says when it is ready."""
    from ridgeline.serve.cluster.node_server import run_node

    run_node(
        config,
        role,
        host=host,
        port=port,
        cluster_key=key,
        shutdown_timeout_seconds=shutdown_timeout,
        on_ready=functools.partial(_say_ready, role, json=json),
    )


def _say_ready(role: str, address: str, ready: Ready, *, json: bool) -> None:
    import msgspec

    from ridgeline.cli.show import say

    if json:
        document = {"address": address, "role": role, "engine": ready}
        say(msgspec.json.encode(document).decode())
        return
    ledger = ready.ledger
    say(
        f"ready: {role} engine at {address} · {ledger.num_blocks} blocks of {ledger.block_size}"
        f" = {ledger.tokens} tokens"
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
