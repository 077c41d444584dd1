"""`ridgeline simulate batching` plays static, dynamic and continuous batching side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli import forecast_options as forecast
from ridgeline.cli.show import Html, Json


def simulate_batching(
    model: forecast.Model,
    gpu: forecast.Gpu,
    tp: forecast.TensorParallel = 1,
    rate: Annotated[float, typer.Option(help="Requests that arrive per second.")] = 4.0,
    requests: Annotated[int, typer.Option(help="How many requests are played.")] = 60,
    input_tokens: Annotated[int, typer.Option(help="Tokens of a prompt.")] = 512,
    output_tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = 128,
    max_sequences: Annotated[int, typer.Option(help="Seats of a batch.")] = 8,
    dynamic_delay: Annotated[
        float, typer.Option(help="Seconds that a dynamic batch waits to be full.")
    ] = 0.5,
    at: Annotated[
        float, typer.Option(help="The moment to look at, as a share of the arrivals' time.")
    ] = 0.5,
    seed: Annotated[int, typer.Option(help="The seed of the arrivals.")] = 0,
    html: Html = None,
    json: Json = False,
) -> None:
    """Play one load under every way of batching: who waits, and for how long."""
    from ridgeline.cli.show import show_answer
    from ridgeline.models import load_model
    from ridgeline.plan.simulate.deployment import Deployment
    from ridgeline.plan.simulate.playback import play_batching
    from ridgeline.records.load import Load
    from ridgeline.report.views.batching_playback import batching_playback_document

    found = play_batching(
        load_model(model),
        Load(
            arrivals="poisson",
            rate=rate,
            requests=requests,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            seed=seed,
        ),
        Deployment(
            gpu=gpu, tp=tp, max_sequences=max_sequences, dynamic_delay_seconds=dynamic_delay
        ),
        moment_share=at,
    )
    show_answer(found, batching_playback_document(found), json=json, html=html)
