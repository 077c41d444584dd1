"""`ridgeline serve MODEL` starts an OpenAI-compatible server."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from msgspec.structs import asdict

from ridgeline.cli import cluster_options as cluster
from ridgeline.cli import engine_options as options
from ridgeline.cli import server_options as naming
from ridgeline.cli.option_groups import OptionGroup, with_flat_options
from ridgeline.cli.scaling_options import ScalingOptions
from ridgeline.cli.serve_ready import say_ready
from ridgeline.cli.served_models import is_file_of_models, refuse_beside_several, served_models
from ridgeline.cli.show import output_file
from ridgeline.errors import InputError, MissingExtra
from ridgeline.records.input_file import read_text

if TYPE_CHECKING:
    from types import ModuleType


HOST, PORT = "127.0.0.1", 8000
MAX_BODY_BYTES = 8 * 2**20
SHUTDOWN_TIMEOUT_SECONDS = 30.0
_NOT_VLLMS = (
    "replicas",
    "disaggregated",
    "max_body_bytes",
    "request_timeout",
    "shutdown_timeout",
    "chat_template",
    "reasoning_parser",
    "tool_call_parser",
    "generation_config",
    "unknown_fields",
    "allowed_origins",
    "ssl_certfile",
    "root_path",
    "json",
)
"""Options of the server that vLLM's has not."""


def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Directory of a Hugging Face model, a hub id, or a .toml with several models.",
        ),
    ],
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = HOST,
    port: Annotated[
        int, typer.Option(help="The port to listen on; 0 is any free one.", min=0, max=65535)
    ] = PORT,
    served_model_name: naming.ServedModelName = None,
    tokenizer: naming.TokenizerFolder = None,
    revision: naming.Revision = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One key a line; without, anyone may ask.")
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|TEXT",
            help="The Jinja template of conversations. Default: the tokenizer's, else a plain one.",
        ),
    ] = None,
    reasoning_parser: Annotated[
        str,
        typer.Option(
            metavar="FAMILY", help="How the model marks its thoughts; auto: as its template does."
        ),
    ] = "auto",
    tool_call_parser: naming.ToolCallParser = "auto",
    generation_config: Annotated[
        Literal["auto", "none"],
        typer.Option(help="Whether generation_config.json gives defaults of sampling."),
    ] = "auto",
    unknown_fields: Annotated[
        Literal["refuse", "ignore"],
        typer.Option(help="What becomes of a request's fields that nobody here reads."),
    ] = "refuse",
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN", help="A page's origin that may ask from a browser, or *; repeatable."
        ),
    ] = None,
    allowed_media_domains: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST", help="A host that images may be fetched from by https; repeatable."
        ),
    ] = None,
    ssl_certfile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve https with this certificate (PEM).")
    ] = None,
    ssl_keyfile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its private key (PEM).")
    ] = None,
    root_path: Annotated[
        str, typer.Option(metavar="/PREFIX", help="The prefix that a proxy takes off.")
    ] = "",
    max_body_bytes: Annotated[
        int, typer.Option(help="The largest request; a larger one gets 413.", min=1)
    ] = MAX_BODY_BYTES,
    request_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="The time for a whole completion; beyond it: 504."),
    ] = None,
    shutdown_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="The time for open requests after SIGTERM.", min=0),
    ] = SHUTDOWN_TIMEOUT_SECONDS,
    scale: ScalingOptions,
    disaggregated: Annotated[
        bool, typer.Option("--disaggregated", help="One engine for prompts, one for the rest.")
    ] = False,
    role: cluster.Role = None,
    prefill: cluster.Prefill = None,
    decode: cluster.Decode = None,
    cluster_key_file: cluster.ClusterKeyFile = None,
    manifest: Annotated[
        Path | None,
        typer.Option(metavar="CLUSTER.toml", help="Print this server as objects for Kubernetes."),
    ] = None,
    autoscaler: Annotated[
        Literal["hpa", "keda"] | None,
        typer.Option(help="With --manifest: what scales its pods. Default: hpa."),
    ] = None,
    engine: Annotated[
        Literal["ridgeline", "vllm"],
        typer.Option(help="Which engine serves; vllm hands the model over to vLLM."),
    ] = "ridgeline",
    device_options: options.DeviceOptions,
    engine_options: options.EngineOptions,
    batch_options: options.AdmissionOptions,
    itl_target_seconds: options.ItlTargetSeconds = None,
    batching: Annotated[
        Literal["continuous", "static", "dynamic"],
        typer.Option(help="How requests share steps; all but continuous are for comparison."),
    ] = "continuous",
    longest_match: Annotated[
        int, typer.Option(help="Tokens that --speculative ngram looks up.", min=1)
    ] = 4,
    adapters: Annotated[
        list[str] | None,
        typer.Option("--adapters", metavar="NAME=DIR", help="A LoRA adapter; repeatable."),
    ] = None,
    max_adapters: Annotated[
        int, typer.Option(help="Adapters in memory; the least recently used goes.", min=1)
    ] = 8,
    graphs: Annotated[bool, typer.Option(help="Decode through CUDA graphs (CUDA).")] = True,
    seed: Annotated[int, typer.Option(help="The seed of requests that bring none.")] = 0,
    step_log: Annotated[
        str | None, output_file("FILE", "A line per step, for simulate serving --steps.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
) -> None:
    """Serve a model until a signal comes; one line on stdout says when it is ready."""
    given = _given(locals())
    if request_timeout is not None and request_timeout <= 0:
        raise InputError(f"--request-timeout {request_timeout:g}: give seconds above 0")
    engine_fields = {
        **asdict(device_options),
        **asdict(engine_options),
        **asdict(batch_options),
        "tokenizer": tokenizer,
        "longest_match": longest_match,
        "adapters": adapters,
        "itl_target_seconds": itl_target_seconds,
        "batching": batching,
        "max_adapters": max_adapters,
        "graphs": graphs,
        "seed": seed,
        "step_log": step_log,
    }
    if is_file_of_models(model):
        refuse_beside_several(
            manifest=manifest is not None,
            engine=engine != "ridgeline",
            replicas=scale.replicas != "1",
            disaggregated=disaggregated,
            served_model_name=bool(served_model_name),
            revision=revision is not None,
            tokenizer=tokenizer is not None,
            adapters=bool(adapters),
            step_log=step_log is not None,
            role=role is not None,
            prefill=bool(prefill),
            decode=bool(decode),
        )
    is_front = bool(prefill or decode)
    if is_front:
        cluster.refuse_at_front(given, engine_fields)
    elif role is not None:
        cluster.refuse_beside_role(given, engine_fields)
    key = cluster.key_of(cluster_key_file, role, prefill, decode)
    models = served_models(model, engine_fields, served_model_name)
    config, names = models.first.config, models.first.names
    if role is not None:
        cluster.serve_role(
            models.fetched(revision).first.config,
            role,
            host=host,
            port=port,
            key=key,
            shutdown_timeout=shutdown_timeout,
            json=json,
        )
        return
    scaling = scale.scaling()
    if step_log is not None and (scale.replicas != "1" or disaggregated):
        raise InputError("--step-log: takes the steps of one engine; leave out --replicas and such")
    if manifest is not None:
        from ridgeline.cli.serve_manifest import print_manifests, refuse_together, server_words

        refuse_together(given)
        words = server_words(
            revision=revision,
            api_key_file=api_key_file,
            max_body_bytes=max_body_bytes if max_body_bytes != MAX_BODY_BYTES else None,
            request_timeout=request_timeout,
            shutdown_timeout=shutdown_timeout,
            reasoning_parser=None if reasoning_parser == "auto" else reasoning_parser,
            tool_call_parser=None if tool_call_parser == "auto" else tool_call_parser,
            generation_config=None if generation_config == "auto" else generation_config,
            root_path=root_path or None,
            unknown_fields=None if unknown_fields == "refuse" else unknown_fields,
        )
        words += [
            *_each("--served-model-name", served_model_name),
            *_each("--allowed-origins", allowed_origins),
            *_each("--allowed-media-domains", allowed_media_domains),
        ]
        print_manifests(
            config,
            words,
            manifest,
            name=names[0] if served_model_name else Path(model).name,
            replicas=scale.least,
            scaling=scaling,
            shutdown_seconds=shutdown_timeout,
            autoscaler=autoscaler or "hpa",
            json=json,
        )
        return
    if autoscaler is not None:
        raise InputError(f"--autoscaler {autoscaler}: it goes with --manifest CLUSTER.toml")
    keys = read_api_keys(api_key_file) if api_key_file else ()
    if engine == "vllm":
        ours = next((name for name in _NOT_VLLMS if name in given), None)
        if ours is not None:
            raise InputError(f"--engine vllm has no --{ours.replace('_', '-')}; leave it out")
        from ridgeline.serve.cluster import vllm

        vllm.run(
            config,
            host=host,
            port=port,
            names=names,
            revision=revision,
            api_keys=keys,
            media_domains=allowed_media_domains or (),
        )
        return
    server = _server()
    from ridgeline.serve.http.browsers import check_origins
    from ridgeline.serve.http.image_fetch import check_domains
    from ridgeline.serve.http.tls import check_tls

    front: dict[str, Any] = {
        "allowed_origins": check_origins(allowed_origins or []),
        "allowed_media_domains": check_domains(allowed_media_domains or []),
        "tls": check_tls(ssl_certfile, ssl_keyfile),
        "root_path": root_path.rstrip("/"),
        "unknown_fields": unknown_fields,
        "reasoning_parser": reasoning_parser,
        "tool_call_parser": tool_call_parser,
        "chat_template": chat_template,
        "host": host,
        "port": port,
        "api_keys": keys,
        "max_body_bytes": max_body_bytes,
        "request_timeout_seconds": request_timeout,
        "shutdown_timeout_seconds": shutdown_timeout,
        "generation_defaults": generation_config == "auto",
    }
    models.check(front)
    models = models.fetched(revision, weights=not is_front)
    settings, *others = models.settings(front)
    config = models.first.config
    hosts = cluster.remote_hosts(prefill, decode, key, config) if is_front else None
    called = [settings.model_name, *(one.model_name for one in others)]
    server.run_server(
        config,
        settings,
        on_ready=functools.partial(say_ready, called, json=json),
        replicas=scale.least,
        scaling=scaling,
        disaggregated=disaggregated,
        hosts=hosts,
        beside=[
            server.ModelBeside(config=one.config, settings=its)
            for one, its in zip(models.models[1:], others, strict=True)
        ],
        pipelines=models.pipelines,
    )


def _given(values: dict[str, Any]) -> set[str]:
    """Names of the options with another value than their default."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= asdict(value) if isinstance(value, OptionGroup) else {name: value}
    options = inspect.signature(with_flat_options(serve)).parameters
    return {name for name, value in flat.items() if value != options[name].default} - {"model"}


def _server() -> ModuleType:
    for needed in ("fastapi", "uvicorn", "prometheus_client"):  # imported once engines start
        if importlib.util.find_spec(needed) is None:
            raise MissingExtra(needed, "serve")
    from ridgeline.serve.http import server

    return server


def _each(option: str, values: list[str] | None) -> list[str]:
    """An option once for each value."""
    return [word for value in values or () for word in (option, value)]


def read_api_keys(path: Path) -> tuple[str, ...]:
    """The keys of a file, one a line; blank lines and those that begin with # are left out.

    Raises:
        InputError: It cannot be read, has no key, or one that a header cannot carry.
    """
    option, cure = "--api-key-file", "write one key a line"
    lines = read_text(path, option=option, cure=cure).splitlines()
    keys = []
    for number, line in enumerate(lines, start=1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise InputError(
                f"{option} {path}, line {number}: a key is of letters, digits and signs that a"
                f" header can carry; {cure}"
            )
        keys.append(key)
    if not keys:
        raise InputError(f"{option} {path}: no key in it; {cure}")
    return tuple(keys)
