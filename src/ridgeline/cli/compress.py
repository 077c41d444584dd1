"""`ridgeline compress MODEL --scheme NAME… --out DIR`: smaller and faster, and what it cost."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from msgspec.structs import asdict

from ridgeline.cli.evaluate import Context, Device, NoSpeed, Stride, bench_on
from ridgeline.cli.image_options import ImageOptions
from ridgeline.cli.interrupts import ErrorsAsInterrupts
from ridgeline.cli.show import Json
from ridgeline.errors import InputError, Interrupted, Regression, RidgelineError
from ridgeline.records.input_file import without_collection

if TYPE_CHECKING:
    from ridgeline.compress.evaluate.judge import Bench, OnProgress
    from ridgeline.compress.material import Material
    from ridgeline.records.compression import CompressionLedger
    from ridgeline.records.scheme import Scheme

REPORT = "report.html"


def compress(
    *,
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="Directory of a causal LM or image classifier, script.py:function, or .pt2.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where model, ledger and report go.")],
    scheme: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A scheme such as w4a16-gptq-g128; several in turn. With --target: choices.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE|DIR", help="Text, or images, that show what flows through."),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Held-out text to judge on. Default: a tenth of --calibration."
        ),
    ] = None,
    max_loss: Annotated[
        str | None,
        typer.Option(
            metavar="LOSS",
            help="Save nothing above it: ppl+1%, kl+0.01; images: agreement-0.93, top1-1%,"
            " map-1%, sqnr-20dB, metric-0.01.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="LOSS", help="Choose a scheme for each layer within this loss."),
    ] = None,
    aim: Annotated[
        Literal["size", "latency"],
        typer.Option("--for", help="What --target, or pruning channels, shall make small."),
    ] = "size",
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR", help="Images to judge on. Default: a tenth of --calibration."
        ),
    ] = None,
    seen: ImageOptions,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="Images: your own measure, a function of the model; higher is better.",
        ),
    ] = None,
    mixed: Annotated[
        bool,
        typer.Option("--mixed", help="Images: rank layers, leave the worst of them in float."),
    ] = False,
    faster: Annotated[
        float | None,
        typer.Option(metavar="RATIO", help="Images, with --for latency: refuse less at batch 1."),
    ] = None,
    merge_adapter: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Add a PEFT LoRA adapter to the weights first."),
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FORMAT",
            help="Also gguf-q8_0, gguf-q4_0, gguf-f16, onnx, onnx-int8, torch-export or 2:4.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from what an interruption left.")
    ] = False,
    context: Context = None,
    stride: Stride = None,
    device: Device = "auto",
    no_speed: NoSpeed = False,
    unjudged: Annotated[
        bool,
        typer.Option("--unjudged", help="Measure nothing: for models larger than memory."),
    ] = False,
    json: Json = False,
) -> None:
    """Compress a model, measure every step against the one above it, and save what held.

    Exit 3 where the model lost more than --max-loss or --target: nothing is saved then.
    """
    from ridgeline.cli.show import progress, show_answer

    _let_threads_sleep()
    with without_collection():  # of what libraries make as they are loaded nothing goes
        from ridgeline.compress.images.recognised import is_image_model
        from ridgeline.compress.material import Material
        from ridgeline.compress.saved.exports import check_formats
    from ridgeline.models.quiet import quiet_libraries
    from ridgeline.records.scheme_names import parse
    from ridgeline.report.views.compress import compression_document

    wanted = [parse(name) for name in scheme or []]
    image_options = {
        "--images": images is not None,
        **{f"--{name}": value is not None for name, value in asdict(seen).items()},
        "--mixed": mixed,
        "--metric": metric is not None,
        "--faster": faster is not None,
    }
    if is_image_model(model, seen.checkpoint):
        from ridgeline.cli.compress_images import run_on_images
        from ridgeline.compress.images.material import ImageMaterial

        if images is not None and text is not None:
            raise InputError("--text and --images both say what to judge on; give --images alone")
        run_on_images(
            ImageMaterial(
                model,
                out,
                calibration,
                images or text,
                device,
                speed=not no_speed,
                checkpoint=seen.checkpoint,
                labels=seen.labels,
                pixels=seen.pixels(),
                mixed=mixed,
                metric=metric,
                boxes=seen.boxes,
                latency=aim == "latency",
                faster=faster,
            ),
            wanted,
            max_loss=max_loss,
            exports=export or [],
            refused={
                "--target": target is not None,
                "--merge-adapter": merge_adapter is not None,
                "--context": context is not None,
                "--stride": stride is not None,
                "--resume": resume,
                "--unjudged": unjudged,
            },
            json=json,
        )
        return
    for option, given in image_options.items():
        if given:
            raise InputError(f"{option}: {model} is a language model; leave it out")
    check_formats(export or [])
    if target is not None and max_loss is not None:
        raise InputError("--target says what may be lost already; leave --max-loss away")
    if unjudged and (target or max_loss):
        raise InputError("--unjudged: without judging, nothing can be said of a loss")
    changes = bool(wanted or target or merge_adapter)
    if not changes and not export:
        if str(model).endswith(".toml"):
            chain = f"ridgeline compress chain {model} --out {out}"
            raise InputError(f"{model} is no model; stages in a file: {chain}")
        raise InputError("say what to do: --scheme NAME, --target LOSS, --merge-adapter, --export")
    material = Material(
        model=model,
        out=out,
        calibration=calibration,
        text=text,
        context=context,
        stride=stride,
        device=device,
        resume=resume,
        judged=changes and not unjudged,
    )
    bench = bench_on(device) if material.judged and not no_speed else None
    refused: list[RidgelineError] = []
    with quiet_libraries(), progress() as on_progress, _told(material):
        if changes:
            losses = (target, aim, max_loss)
            ledger = _run(material, wanted, losses, merge_adapter, bench, on_progress)
            if ledger.saved is not None:
                ledger, refused = save_beside(ledger, out, out, export or [], on_progress)
        else:
            ledger = _exported(material, export or [], on_progress)
    show_answer(ledger, compression_document(ledger), json=json)
    if ledger.refused:
        worst = ", ".join(one.layer for one in ledger.sensitive)
        named = f"; most sensitive: {worst}" if worst else ""
        raise Regression(f"nothing was saved: {ledger.refused}{named}")
    for error in refused:
        raise error


def _let_threads_sleep() -> None:
    """Have torch's threads sleep instead of spin where others want the cores, and say so.

    They read it when torch is loaded; in a process that has it nothing would change.
    """
    from ridgeline.cli.show import progress
    from ridgeline.hardware.core_pressure import sleeping_threads

    if "torch" in sys.modules:
        return
    waiting, told = sleeping_threads(os.environ)
    os.environ.update(waiting)
    if told:
        with progress() as on_progress:
            on_progress(told)


def _run(
    material: Material,
    schemes: Sequence[Scheme],
    losses: tuple[str | None, str, str | None],
    adapter: Path | None,
    bench: Bench | None,
    on_progress: OnProgress,
) -> CompressionLedger:
    from ridgeline.compress.apply import compress as run
    from ridgeline.compress.evaluate.allowance import allowance
    from ridgeline.compress.search.search import search

    target, aim, max_loss = losses
    if target is not None:
        if adapter is not None:
            raise InputError("--merge-adapter: merge first, then search in a second command")
        return search(
            material,
            allowance("--target", target),
            aim,
            schemes,
            bench=bench,
            on_progress=on_progress,
        )
    bound = None if max_loss is None else allowance("--max-loss", max_loss)
    return run(
        material, schemes, adapter=adapter, max_loss=bound, bench=bench, on_progress=on_progress
    )


def _exported(
    material: Material, formats: Sequence[str], on_progress: OnProgress
) -> CompressionLedger:
    """Exports of a model as it is; their folder is whole or not there."""
    from ridgeline.compress.apply import as_given

    ledger = as_given(material)
    aside = material.out.with_name(f".{material.out.name}.saving")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        ledger, refused = save_beside(ledger, material.model, aside, formats, on_progress)
        for error in refused:
            raise error
        aside.rename(material.out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return ledger


def save_beside(
    ledger: CompressionLedger,
    source: Path,
    folder: Path,
    formats: Sequence[str],
    on_progress: OnProgress,
) -> tuple[CompressionLedger, list[RidgelineError]]:
    """Report, exports of the model in `source`, and the ledger that names them, in a folder.

    Returns:
        The ledger, and why exports are missing; they do not take the model away.
    """
    from msgspec.structs import replace

    from ridgeline.compress.apply import LEDGER
    from ridgeline.compress.saved.exports import export
    from ridgeline.records.store import write_atomically, write_record
    from ridgeline.report.page import draw_page
    from ridgeline.report.views.compress import compression_document

    assert ledger.saved is not None
    out = Path(ledger.saved)
    ledger = replace(ledger, report=str(out / REPORT))
    write_atomically(folder / REPORT, draw_page(compression_document(ledger)).encode())
    write_record(folder / LEDGER, ledger)
    exports, refused = {}, []
    for name in formats:
        on_progress(f"exporting {name}")
        try:
            exports[name] = str(out / export(name, source, folder).name)
        except RidgelineError as error:
            refused.append(error)
    ledger = replace(ledger, exports=exports)
    write_record(folder / LEDGER, ledger)
    return ledger, refused


@contextmanager
def _told(material: Material) -> Iterator[None]:
    """One line for what ends the work early, with what is left and how to go on."""
    try:
        with ErrorsAsInterrupts():
            yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted{_left(material)}") from None
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        raise RidgelineError(f"{reason or error}{_left(material)}") from None


def _left(material: Material) -> str:
    if material.out.exists():
        return f"; the model in {material.out} is whole, exports may be missing"
    if material.work.exists():
        return (
            f"; what was done is in {material.work}, and the same command with --resume goes on"
            " from it"
        )
    return "; nothing was left behind"
