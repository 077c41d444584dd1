"""`ridgeline export MODEL --to FORMAT…`: written for other runtimes, checked and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ridgeline.cli.durations import duration_option
from ridgeline.cli.interrupts import ErrorsAsInterrupts
from ridgeline.cli.show import Html, Json


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A directory of transformers, script.py:NAME, program.pt2, or timm:NAME.",
        ),
    ],
    to: Annotated[
        list[str],
        typer.Option(
            metavar="FORMAT",
            help="May be repeated: torch-export, aoti, onnx, openvino, executorch, tensorrt.",
        ),
    ],
    check: Annotated[
        Path,
        typer.Option(metavar="INPUTS", help="Real images (folder, .tar), or arrays (.npz)."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where what held is kept.")],
    precision: Annotated[
        Literal["fp32", "bf16", "fp16", "int8"],
        typer.Option(help="With int8, ranges come from every second input of --check."),
    ] = "fp32",
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A state dict for the architecture.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(min=8, help="Height and width, if not what the model says.")
    ] = None,
    fix: Annotated[
        Literal["nothing", "size", "all"],
        typer.Option(help="Leave batch and size free, only the batch, or nothing."),
    ] = "nothing",
    max_drop: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Keep nothing that loses more: 1%, 0.01 of top-1."),
    ] = None,
    period: Annotated[
        float | None, duration_option("Also call at this period, as frames come.")
    ] = None,
    seconds: Annotated[
        float, duration_option("How long the calls of each format are timed.")
    ] = 10.0,
    no_speed: Annotated[bool, typer.Option("--no-speed", help="Do not time calls.")] = False,
    html: Html = None,
    json: Json = False,
) -> None:
    """Write a model for other runtimes; each is loaded in a fresh process, compared and timed.

    A format that does not hold is not kept, the others are. Exit 3 where answers are wrong or fall
    past --max-drop, 2 where a format could not be written or run.
    """
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.errors import InputError, Interrupted
    from ridgeline.export.job import ExportJob
    from ridgeline.export.job import export as run_job
    from ridgeline.export.verdict import failure_of
    from ridgeline.report.views.export import export_document

    for option, value in (("--period", period), ("--seconds", seconds)):
        if value is not None and value <= 0:
            raise InputError(f"{option}: {value:g} s; give a time above zero")
    job = ExportJob(
        model=model,
        targets=tuple(to),
        check=check,
        out=out,
        precision=precision,
        weights=weights,
        image_size=image_size,
        fix=fix,
        max_drop=None if max_drop is None else parse_share("--max-drop", max_drop),
        measure_seconds=0.0 if no_speed else seconds,
        period_seconds=period,
    )
    _note_inputs(model, check, weights)
    with progress() as on_progress:
        try:
            with ErrorsAsInterrupts():
                found = run_job(job, on_progress)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; nothing was left behind") from None
    show_answer(found, export_document(found), json=json, html=html)
    failure = failure_of(found)
    if failure is not None:
        raise failure


def _note_inputs(model: str, check: Path, weights: Path | None) -> None:
    """What the workers read, in processes of their own, is not written."""
    from ridgeline.records.overwriting import note_input

    script = Path(model.rpartition(":")[0] if ".py:" in model else model)
    for given in (script, check, weights):
        if given is not None and given.exists():
            for one in (given, *(part for part in given.rglob("*") if part.is_dir())):
                note_input(one)


def parse_share(option: str, text: str) -> float:
    """A share, as a part of one or in percent.

    >>> parse_share("--max-drop", "1%"), parse_share("--max-drop", "0.005")
    (0.01, 0.005)

    Raises:
        InputError: It is none.
    """
    from ridgeline.errors import InputError

    words = text.strip()
    try:
        value = float(words.removesuffix("%")) / (100 if words.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise InputError(f"{option} {text}: no share; write 1% or 0.01")
    return value
