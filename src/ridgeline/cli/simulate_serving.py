"""`ridgeline simulate serving` says what a fleet would do, by the very scheduler that serves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from msgspec.structs import asdict

from ridgeline.cli import engine_options as options
from ridgeline.cli import forecast_options as forecast
from ridgeline.cli.load_options import LoadOptions
from ridgeline.cli.scaling_options import ScalingOptions, scaled_by
from ridgeline.cli.show import Html, Json
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.plan.simulate.deployment import Deployment
    from ridgeline.plan.simulate.fit import Fitted


def simulate_serving(
    *,
    model: forecast.OptionalModel = None,
    gpu: forecast.Gpu = "",
    tp: forecast.TensorParallel = 1,
    weights: forecast.Weights = "bf16",
    cache: forecast.Cache = "",
    engine: forecast.EngineClass = "python",
    steps: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A log of `serve --step-log`: that engine instead of a GPU."
        ),
    ] = None,
    alone: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="JSON of a load test of one client, for what HTTP takes."
        ),
    ] = None,
    kv_blocks: Annotated[
        int | None, typer.Option(help="KV blocks of one replica. Default: what memory holds.")
    ] = None,
    batch_options: options.AdmissionOptions,
    batching: Annotated[
        Literal["continuous", "static", "dynamic"], typer.Option(help="How batches are made up.")
    ] = "continuous",
    dynamic_delay: Annotated[
        float, typer.Option(help="Seconds that a dynamic batch waits to be full.")
    ] = 0.05,
    guesses: forecast.ChainOptions,
    kept_tokens: options.KeptTokensOptions,
    scale: ScalingOptions,
    autoscaler_manifest: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.yaml",
            help="A HorizontalPodAutoscaler or ScaledObject that decides.",
        ),
    ] = None,
    router: Annotated[
        Literal["prefix", "least-open", "round-robin"],
        typer.Option(help="How requests are routed."),
    ] = "prefix",
    prefill_replicas: Annotated[
        int, typer.Option(help="How many of --replicas only compute prompts.")
    ] = 0,
    prefill_gpu: Annotated[
        str, typer.Option(metavar="DEVICE", help="The device of those; empty: that of --gpu.")
    ] = "",
    prefill_tp: Annotated[int, typer.Option(help="Devices of one of those; 0: as --tp.")] = 0,
    link: Annotated[
        float, typer.Option(help="GB/s between replicas, for prompts that are handed over.")
    ] = 25.0,
    startup: Annotated[
        float, typer.Option(help="Seconds until a started replica takes requests.")
    ] = 60.0,
    load: LoadOptions,
    seed: Annotated[int, typer.Option(help="The seed of arrivals and of accepted drafts.")] = 0,
    what_if: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE,…", help="Another fleet beside this one; repeatable."),
    ] = None,
    interval: Annotated[
        bool, typer.Option(help="Also simulate a slower and a faster engine.")
    ] = True,
    html: Html = None,
    json: Json = False,
) -> None:
    """Simulate a load on a fleet: latencies, throughput, how sure, and what would change."""
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.models import load_model
    from ridgeline.plan.simulate.run import simulate_serving as simulate
    from ridgeline.records.load import Load
    from ridgeline.report.views.simulate import simulation_document

    scaling, policy = scale.scaling(), None
    if autoscaler_manifest is not None:
        scaling, policy = scaled_by(autoscaler_manifest, scale)
    deployment = _deployment(
        {
            "gpu": gpu,
            "tp": tp,
            "weights": weights,
            "cache": cache,
            "engine": engine,
            "replicas": scale.least if scaling is None else scaling.minimum,
            "router": router,
            "kv_blocks": kv_blocks,
            "batching": batching,
            "dynamic_delay_seconds": dynamic_delay,
            **asdict(batch_options),
            **asdict(guesses),
            **asdict(kept_tokens),
            "prefill_replicas": prefill_replicas,
            "prefill_gpu": prefill_gpu,
            "prefill_tp": prefill_tp,
            "link_gigabytes_per_second": link,
            "startup_seconds": startup,
        }
    )
    asked = Load(**load.fields(), seed=seed)
    with progress() as on_progress:
        found = simulate(
            asked,
            deployment,
            model=None if model is None else load_model(model),
            measured=_measured(steps, alone, batch_options.max_tokens_per_step),
            scaling=scaling,
            policy=policy,
            what_if=what_if or (),
            interval=interval,
            on_progress=on_progress,
        )
    document = simulation_document(found)
    show_answer(found, document, json=json, html=html)
    if found.interrupted:
        raise typer.Exit(130)


def _deployment(fields: dict[str, Any]) -> Deployment:
    """The flags as a typed value; a word that is none of those allowed names its flag."""
    from typing import get_args

    from ridgeline.batching.policies import Batching, Order
    from ridgeline.plan.simulate.deployment import Deployment, RouterName

    for name, known in (
        ("batching", get_args(Batching)),
        ("order", get_args(Order)),
        ("router", get_args(RouterName)),
    ):
        if fields[name] not in known:
            raise InputError(f"--{name} {fields[name]}: has to be one of {', '.join(known)}")
    return Deployment(**fields)


def _measured(steps: Path | None, alone: Path | None, chunk: int) -> Fitted | None:
    """The engine that wrote the step log."""
    if steps is None:
        if alone is not None:
            raise InputError("--alone belongs to --steps")
        return None
    from ridgeline.plan.simulate.fit import fit_steps, outside_of
    from ridgeline.records.step_log import read_step_log

    fitted = fit_steps(read_step_log(steps))
    return fitted if alone is None else outside_of(fitted, alone, chunk)
