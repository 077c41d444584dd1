"""`ridgeline explain A.json B.json`: why one estimate beats another, term by term."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.show import Json


def explain(
    first: Annotated[
        Path,
        typer.Argument(
            metavar="A.json", help="What `predict training` or `plan training` printed."
        ),
    ],
    second: Annotated[
        Path, typer.Argument(metavar="B.json", help="The one that it is compared with.")
    ],
    json: Json = False,
) -> None:
    """Why one predicted training step is faster than another: which terms, and which knobs.

    The files are what `--json` prints; of a plan its best layout is taken.
    """
    from ridgeline.cli.show import show_answer
    from ridgeline.plan.explain import explain as compare
    from ridgeline.plan.explain import read_estimate
    from ridgeline.report.views.explain import explanation_document

    names = _names(first, second)
    explanation = compare(read_estimate(first), read_estimate(second), names)
    show_answer(explanation, explanation_document(explanation), json=json)


def _names(first: Path, second: Path) -> tuple[str, str]:
    """The files' names without endings where they differ."""
    if first.stem != second.stem:
        return first.stem, second.stem
    return "A", "B"
