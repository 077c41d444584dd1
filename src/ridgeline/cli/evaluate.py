"""`ridgeline evaluate MODEL --text FILE`: how good a model is, how large, how fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ridgeline.cli.engine_options import KeptTokensOptions
from ridgeline.cli.image_options import ImageOptions
from ridgeline.cli.show import Json
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.cli.tune_progress import OnProgress
    from ridgeline.compress.evaluate.judge import Bench
    from ridgeline.records.compression import Decoding, Evaluation

Context = Annotated[
    int | None, typer.Option(help="Tokens of a window. Default: 2,048, or the model's positions.")
]
Stride = Annotated[
    int | None, typer.Option(help="Tokens from window to window. Default: as --context.")
]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where it runs.")]
NoSpeed = Annotated[bool, typer.Option("--no-speed", help="Do not measure decoding.")]


def evaluate(
    *,
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Directory of a model, dense or compressed.")
    ],
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Held-out text to judge on.")
    ] = None,
    images: Annotated[
        Path | None, typer.Option(metavar="FILE|DIR", help="Images to judge a vision model on.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Images: the model whose answers it shall give."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="Images: a function of the model, your own measure such as mAP; more is better.",
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The model that it was made from: KL, speed beside it."),
    ] = None,
    context: Context = None,
    stride: Stride = None,
    device: Device = "auto",
    kept_tokens: KeptTokensOptions,
    no_speed: NoSpeed = False,
    seen: ImageOptions,
    json: Json = False,
) -> None:
    """Perplexity, accuracy, KL to a reference, size, zeros, outliers, decode speed of a model.

    With --images: top-1 accuracy of a vision model and its agreement with --against, or, of a
    detector, a segmentation and the like, each output beside that of --against, mAP with --boxes,
    and --metric.
    """
    if (text is None) == (images is None):
        raise InputError("say what to judge on: --text FILE, or --images PATH for a vision model")
    if images is not None:
        _on_images(model, images, against, device, seen, metric, json=json)
        return
    assert text is not None
    recent, first = kept_tokens.kv_recent, kept_tokens.kv_first
    if recent is not None and (recent < 1 or first < 0):
        raise InputError(f"--kv-recent {recent} --kv-first {first}: at least 1 and 0")
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.compress.evaluate.evaluate import evaluate as run
    from ridgeline.models.quiet import quiet_libraries
    from ridgeline.report.views.evaluate import evaluation_document

    with quiet_libraries(), progress() as on_progress:
        found = run(
            model,
            text,
            reference=reference,
            context=context,
            stride=stride,
            device=device,
            kv_recent=recent,
            kv_first=first,
            on_progress=on_progress,
        )
        if not no_speed and recent is None:
            found = _with_decoding(found, device, on_progress)
    show_answer(found, evaluation_document(found), json=json)


def _on_images(
    model: Path,
    images: Path,
    against: Path | None,
    device: str,
    seen: ImageOptions,
    metric: str | None,
    *,
    json: bool,
) -> None:
    from dataclasses import replace

    from ridgeline.cli.show import progress, show_answer
    from ridgeline.compress.images.evaluate import evaluate_images
    from ridgeline.compress.images.material import ImageMaterial
    from ridgeline.models.quiet import quiet_libraries
    from ridgeline.report.views.compress_images import image_evaluation_document

    material = ImageMaterial(
        model,
        model,
        held=images,
        device=device,
        checkpoint=None if model.is_dir() else seen.checkpoint,
        labels=seen.labels,
        pixels=seen.pixels(),
        metric=metric,
        boxes=seen.boxes,
    )
    other = (
        None
        if against is None
        else replace(
            material, model=against, checkpoint=seen.checkpoint if model.is_dir() else None
        )
    )
    with quiet_libraries(), progress() as on_progress:
        found = evaluate_images(material, other, on_progress=on_progress)
    show_answer(found, image_evaluation_document(found), json=json)


def _with_decoding(
    found: Evaluation, device: str, on_progress: Callable[[str], None]
) -> Evaluation:
    from msgspec.structs import replace

    from ridgeline.compress.evaluate.judge import speedup

    places = [Path(one) for one in (found.reference, found.model) if one is not None]
    *before, own = bench_on(device)(places, on_progress)
    if isinstance(own, str):
        return replace(found, no_decoding=own)
    found = replace(found, decoding=own)
    if not before or isinstance(before[0], str):
        return replace(found, no_decoding=f"of the reference: {before[0]}") if before else found
    return replace(found, reference_decoding=before[0], speedup=speedup(before[0], own))


KV_BYTES = 256 * 2**20
"""The cache of each model: enough for one sequence of a few hundred tokens."""


def bench_on(device: str) -> Bench:
    """A function that decodes with `ridgeline serve`'s engine on that device."""

    def bench(directories: Sequence[Path], on_progress: OnProgress) -> list[Decoding | str]:
        from ridgeline.cli.engine_options import engine_config
        from ridgeline.serve.engine.decode_bench import decode_in_turns

        configs = [
            engine_config(str(directory), device=device, kv_bytes=str(KV_BYTES))
            for directory in directories
        ]
        return decode_in_turns(configs, on_progress=on_progress)

    return bench
