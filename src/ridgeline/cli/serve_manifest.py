"""`ridgeline serve … --manifest CLUSTER.toml`: the same flags, as objects for Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from ridgeline.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Container

    from ridgeline.batching.scaling.settings import Scaling
    from ridgeline.serve.config import EngineConfig

_NOT_OF_MANIFESTS = (
    "host",
    "port",
    "disaggregated",
    "engine",
    "chat_template",
    "ssl_certfile",
    "tp",
    "pp",
)


def print_manifests(
    config: EngineConfig,
    server_words: list[str],
    cluster: Path,
    *,
    name: str,
    replicas: int,
    scaling: Scaling | None,
    shutdown_seconds: float,
    autoscaler: Literal["hpa", "keda"],
    json: bool,
) -> None:
    """Write a server's manifests to stdout.

    Raises:
        InputError: The cluster file lacks a key, or what is asked for has no counterpart there.
    """
    import sys

    from ridgeline.cli.show import print_json
    from ridgeline.launch.cluster_file import read_cluster_file
    from ridgeline.launch.job import run_name
    from ridgeline.launch.kube.manifest import as_yaml
    from ridgeline.launch.kube.serving import ServerToDeploy, serving_manifests

    server = ServerToDeploy(
        name=run_name(name),
        words=["serve", config.model, *engine_words(config), *server_words],
        cluster=read_cluster_file(cluster),
        replicas=replicas,
        scaling=scaling,
        shutdown_seconds=shutdown_seconds,
    )
    documents = serving_manifests(server, autoscaler, cluster)
    if json:
        print_json({"name": server.name, "manifests": documents})
    else:
        sys.stdout.write(as_yaml(documents))


def engine_words(config: EngineConfig) -> list[str]:
    """The flags that make this configuration; those at their defaults are left out.

    >>> from ridgeline.serve.config import EngineConfig
    >>> engine_words(EngineConfig(model="m", max_sequences=64, prefix_cache=False))
    ['--max-sequences', '64', '--no-prefix-cache']
    """
    from ridgeline.serve.config import EngineConfig

    plain, words = EngineConfig(model=config.model), list[str]()
    for field in msgspec.structs.fields(EngineConfig):
        value = getattr(config, field.name)
        option = "--" + field.name.replace("_", "-")
        if value == getattr(plain, field.name) or field.name == "speculation":
            continue
        if field.name == "adapters":
            for one, path in value.items():
                words += [option, f"{one}={path}"]
        elif isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        else:
            words += [option, str(value)]
    return words + _speculation_words(config)


def _speculation_words(config: EngineConfig) -> list[str]:
    wanted = config.speculation
    if wanted is None:
        return []
    plain = type(wanted)(kind=wanted.kind)
    words = ["--speculative", wanted.kind + (f":{wanted.path}" if wanted.path else "")]
    if wanted.num_drafts != plain.num_drafts:
        words += ["--num-drafts", str(wanted.num_drafts)]
    if wanted.tree is not None:
        words += ["--draft-tree", str(wanted.tree)]
    if wanted.longest_match != plain.longest_match:
        words += ["--longest-match", str(wanted.longest_match)]
    return [*words, "--speculate-always"] if wanted.always else words


def server_words(**given: object) -> list[str]:
    """The flags of the server itself; None: left out.

    >>> server_words(request_timeout=None, shutdown_timeout=45.0)
    ['--shutdown-timeout', '45']
    """
    words = []
    for name, value in given.items():
        if value is not None:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            words += ["--" + name.replace("_", "-"), text]
    return words


def refuse_together(given: Container[str]) -> None:
    """Raise InputError for an option that has no place in a manifest."""
    for name in _NOT_OF_MANIFESTS:
        if name in given:
            option = "--" + name.replace("_", "-")
            raise InputError(f"--manifest has no {option}: leave it out")
