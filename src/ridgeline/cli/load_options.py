"""Options of `loadtest` and `simulate serving` that say which requests come, and when.

Names and defaults are those of `records.load.Load`'s fields.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.records.load import Arrivals as Kinds

if TYPE_CHECKING:
    from ridgeline.records.load_test import Slo

Arrivals = Annotated[
    Kinds | None,
    typer.Option(help="When requests come. Default: trace with --trace, else poisson."),
]
Rate = Annotated[float, typer.Option(help="Requests per second.")]
ToRate = Annotated[float | None, typer.Option(help="The rate at the end of a ramp.")]
Variation = Annotated[
    float, typer.Option("--cv", help="For gamma: the deviation of a gap over its mean.")
]
Concurrency = Annotated[int, typer.Option(help="Requests at once in a closed loop.")]
Seconds = Annotated[
    float | None, typer.Option(help="How long to send; in a sweep, per stage. Default: 30.")
]
Requests = Annotated[int | None, typer.Option(help="Send at most so many.")]
InputTokens = Annotated[int, typer.Option(help="Tokens of each prompt.")]
OutputTokens = Annotated[int, typer.Option(help="Tokens of each completion.")]
Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A request trace: Azure CSV or Mooncake JSON lines."),
]
TraceSpeed = Annotated[
    float, typer.Option(help="How fast the trace is replayed; 2 is twice as fast.")
]
LengthScale = Annotated[float, typer.Option(help="A factor on the trace's lengths.")]
Warmup = Annotated[
    float | None, typer.Option(help="Seconds not counted. Default: a tenth, at most 30.")
]
SloTtft = Annotated[
    float | None, typer.Option(help="Seconds to the first token that goodput allows.")
]
SloTpot = Annotated[float | None, typer.Option(help="Seconds per token that goodput allows.")]
SloItl = Annotated[
    float | None, typer.Option(help="Seconds between tokens that goodput allows for 99 % of them.")
]
SloE2e = Annotated[
    float | None, typer.Option(help="Seconds for the whole completion that goodput allows.")
]


def arrivals_of(asked: Kinds | None, trace: Path | None) -> Kinds:
    """The kind of arrivals that the options describe."""
    return asked or ("trace" if trace else "poisson")


def slo_of(ttft: float | None, tpot: float | None, itl: float | None, e2e: float | None) -> Slo:
    """The objectives that the options ask for."""
    from ridgeline.records.load_test import Slo

    return Slo(ttft_seconds=ttft, itl_seconds=itl, tpot_seconds=tpot, e2e_seconds=e2e)
