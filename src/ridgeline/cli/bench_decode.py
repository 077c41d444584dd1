"""`ridgeline bench decode MODEL`: decoding beside the memory's read bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli import engine_options as options
from ridgeline.cli.output_options import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ridgeline.records.served import DecodeBench


def bench_decode(
    model: options.Model,
    batch: Annotated[int, typer.Option(help="Sequences that decode together.")] = 1,
    context: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 64,
    rounds: Annotated[int, typer.Option(help="Each followed by reads of memory.")] = 8,
    steps: Annotated[int, typer.Option(help="Of decoding in a round.")] = 16,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    weights: options.Weights = "model",
    group_size: options.GroupSize = 128,
    kv_dtype: options.KvDtype = "model",
    kv_bytes: options.KvBytes = None,
    block_size: options.BlockSize = 16,
    compiled: options.Compiled = False,
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
    json: Json = False,
) -> None:
    """Measure decoding and, in turns with it, how fast this machine reads its memory."""
    from ridgeline.cli.show import print_json, print_view, progress

    options.check_counts(batch=batch, context=context, rounds=rounds, steps=steps)
    config = options.engine_config(
        model,
        device=device,
        dtype=dtype,
        weights=weights,
        group_size=group_size,
        kv_dtype=kv_dtype,
        kv_bytes=kv_bytes,
        block_size=block_size,
        compiled=compiled,
        threads=threads,
        trust_remote_code=trust_remote_code,
    )
    options.require_engine()
    from ridgeline.serve.engine.decode_bench import bench_decode as run

    with progress() as say:
        found = run(config, batch=batch, context=context, rounds=rounds, steps=steps, say=say)
    if json:
        print_json(found)
    else:
        print_view(_view(found))


def _view(found: DecodeBench) -> RenderableType:
    from rich.text import Text

    from ridgeline import quantity

    read = quantity.memory(found.weight_bytes + found.kv_bytes)
    first = (
        f"{found.tokens_per_second:.1f} tokens/s: {found.step_seconds * 1e3:.2f} ms a step of"
        f" {found.batch} (fastest {found.fastest_step_seconds * 1e3:.2f} ms),"
        f" {found.outside_model_seconds * 1e3:.2f} ms of it outside the model"
    )
    second = (
        f"{read} read a step = {found.read_bytes_per_second / 1e9:.1f} GB/s,"
        f" {found.share:.0%} of the {found.machine_bytes_per_second / 1e9:.1f} GB/s that this"
        f" machine read in the same {found.rounds} rounds"
    )
    third = f"{found.dtype}, weights {found.weights}, {found.threads} threads on {found.device}"
    kernels = [f"kernel of {kernel}" for kernel in found.kernels]
    return Text("\n".join([first, second, third, *kernels]))
