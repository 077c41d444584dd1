"""`ridgeline bench decode MODEL`: decoding beside the memory's read bandwidth."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec.structs import asdict

from ridgeline.cli import engine_options as options
from ridgeline.cli.show import Json


def bench_decode(
    *,
    model: options.Model,
    batch: Annotated[int, typer.Option(help="Sequences that decode together.")] = 1,
    context: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 64,
    rounds: Annotated[int, typer.Option(help="Rounds, each followed by reads of memory.")] = 8,
    steps: Annotated[int, typer.Option(help="Decoding steps in a round.")] = 16,
    device_options: options.DeviceOptions,
    block_size: options.BlockSize = 16,
    json: Json = False,
) -> None:
    """Measure decoding and, in turns with it, how fast this machine reads its memory."""
    from ridgeline.cli.show import progress, show_answer

    options.check_counts(batch=batch, context=context, rounds=rounds, steps=steps)
    config = options.engine_config(model, block_size=block_size, **asdict(device_options))
    options.require_engine()
    from ridgeline.report.views.served import decode_bench_document
    from ridgeline.serve.engine.decode_bench import bench_decode as run

    with progress() as on_progress:
        found = run(
            config,
            batch=batch,
            context=context,
            rounds=rounds,
            steps=steps,
            on_progress=on_progress,
        )
    show_answer(found, decode_bench_document(found), json=json)
