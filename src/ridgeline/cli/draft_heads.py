"""`ridgeline draft-heads MODEL --text FILE --out DIR`: heads that guess tokens ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ridgeline.cli.show import Json


def draft_heads(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Directory or hub id.")],
    text: Annotated[
        Path, typer.Option(metavar="FILE", help="Text like the model's answers; its own is best.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the heads go.")],
    form: Annotated[
        Literal["heads", "eagle"],
        typer.Option(help="Heads that each look further ahead, or one that goes on by itself."),
    ] = "heads",
    heads: Annotated[int, typer.Option(min=1, help="Tokens guessed ahead at most.")] = 4,
    blocks: Annotated[int, typer.Option(min=1, help="Layers of each head.")] = 1,
    widening: Annotated[
        int, typer.Option(min=1, help="Width inside a layer over the model's.")
    ] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 500,
    batch: Annotated[int, typer.Option(min=1, help="Rows of a step.")] = 8,
    seq: Annotated[int, typer.Option(min=8, help="Tokens of a row.")] = 256,
    learning_rate: Annotated[float, typer.Option(min=0.0, help="The step size of AdamW.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="The seed of the training.")] = 0,
    json: Json = False,
) -> None:
    """Train draft heads for speculative decoding; the model itself stays as it is."""
    from ridgeline.cli.show import print_json, progress, say
    from ridgeline.serve.speculation.train_heads import HeadTraining, Progress, train_heads

    settings = HeadTraining(
        model=model,
        text=str(text),
        form=form,
        num_heads=heads,
        num_blocks=blocks,
        widening=widening,
        steps=steps,
        batch=batch,
        seq=seq,
        learning_rate=learning_rate,
        seed=seed,
    )
    with progress() as report_progress:

        def after(one: Progress) -> None:
            if one.step % max(1, one.steps // 20) == 0:
                report_progress(f"step {one.step} of {one.steps}  loss {one.loss:.3f}")

        facts = train_heads(settings, out, after)
    if json:
        print_json(facts)
        return
    shares = ", ".join(f"{share:.0%}" for share in facts.held_out_accuracy)
    what = f"{heads} heads; agree" if form == "heads" else "an EAGLE head; agrees"
    say(f"{out}: {what} with the model on held-out text: {shares}")
    say(f"serve them: ridgeline serve {model} --speculative {form}:{out}")
