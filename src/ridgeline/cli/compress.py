"""`ridgeline compress MODEL --scheme NAME… --out DIR`: smaller and faster, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.evaluate import Context, Device, NoSpeed, Stride
from ridgeline.errors import InputError, Interrupted, Regression

if TYPE_CHECKING:
    from ridgeline.compress.evaluate.judge import Bench, Say
    from ridgeline.compress.material import Material
    from ridgeline.records.compression import CompressionLedger
    from ridgeline.records.scheme import Scheme

LEDGER, REPORT = "ledger.json", "report.html"


def compress(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Directory of a Hugging Face causal LM.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the model, ledger and report go.")
    ],
    scheme: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Such as w4a16-gptq-g128; repeated: one after the other. With --target: choices.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Text that shows what flows through.")
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Held-out text to judge on. Default: a tenth of --calibration."
        ),
    ] = None,
    max_loss: Annotated[
        str | None,
        typer.Option(metavar="LOSS", help="Save nothing above it: ppl+1%, ppl+0.2 or kl+0.01."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="LOSS", help="Choose a scheme for each layer within this loss."),
    ] = None,
    aim: Annotated[
        str, typer.Option("--for", metavar="AIM", help="With --target: size or latency.")
    ] = "size",
    merge_adapter: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Add a PEFT LoRA adapter to the weights first."),
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FORMAT",
            help="Also write gguf-q8_0, gguf-q4_0, onnx, onnx-int8 or torch-export; repeatable.",
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
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compress a model, measure every step against the one above it, and save what held.

    Exit 3 where the model lost more than --max-loss or --target: nothing is saved then.
    """
    from ridgeline.cli.decode_turns import bench_on
    from ridgeline.cli.show import print_json, print_view, progress
    from ridgeline.compress.saved.exports import check_formats
    from ridgeline.records.scheme_names import parse
    from ridgeline.report.compression_terminal import ledger_view

    wanted = [parse(name) for name in scheme or []]
    check_formats(export or [])
    if target is not None and max_loss is not None:
        raise InputError("--target says what may be lost already; leave --max-loss away")
    if unjudged and (target or max_loss):
        raise InputError("--unjudged: without judging, nothing can be said of a loss")
    changes = bool(wanted or target or merge_adapter)
    if not changes and not export:
        raise InputError("say what to do: --scheme NAME, --target LOSS, --merge-adapter, --export")
    from ridgeline.compress.material import Material

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
    with progress() as say:
        try:
            ledger = _run(material, wanted, (target, aim, max_loss), merge_adapter, bench, say)
            if ledger.saved is not None:
                ledger = _written(ledger, out if changes else model, export or [], say)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted; what was done is in {material.work}, and the same command with"
                " --resume goes on from it"
            ) from None
    if json:
        print_json(ledger)
    else:
        print_view(ledger_view(ledger))
    if ledger.refused:
        worst = ", ".join(one.layer for one in ledger.sensitive)
        named = f"; most sensitive: {worst}" if worst else ""
        raise Regression(f"nothing was saved: {ledger.refused}{named}")


def _run(
    material: Material,
    schemes: Sequence[Scheme],
    losses: tuple[str | None, str, str | None],
    adapter: Path | None,
    bench: Bench | None,
    say: Say,
) -> CompressionLedger:
    from ridgeline.compress.evaluate.allowance import allowance
    from ridgeline.compress.judged import compress as run
    from ridgeline.compress.search.search import AIMS, search

    target, aim, max_loss = losses
    if aim not in AIMS:
        raise InputError(f"--for {aim}: give {' or '.join(AIMS)}")
    if target is not None:
        if adapter is not None:
            raise InputError("--merge-adapter: merge first, then search in a second command")
        return search(material, allowance("--target", target), aim, schemes, bench=bench, say=say)
    bound = None if max_loss is None else allowance("--max-loss", max_loss)
    return run(material, schemes, adapter=adapter, max_loss=bound, bench=bench, say=say)


def _written(
    ledger: CompressionLedger, source: Path, formats: Sequence[str], say: Say
) -> CompressionLedger:
    """Exports of the model in `source`, ledger and report; all where the ledger says."""
    from msgspec.structs import replace

    from ridgeline.cli.show import write_text
    from ridgeline.compress.saved.exports import export
    from ridgeline.records.store import write_record
    from ridgeline.report.compression_page import compression_page

    assert ledger.saved is not None
    out = Path(ledger.saved)
    ledger = replace(ledger, report=str(out / REPORT))
    write_text("--out", out / REPORT, compression_page(ledger))
    write_record(out / LEDGER, ledger)  # what is saved has its ledger, even if an export fails
    exports = {}
    for name in formats:
        say(f"exporting {name}")
        exports[name] = str(export(name, source, out))
    ledger = replace(ledger, exports=exports)
    write_record(out / LEDGER, ledger)
    return ledger
