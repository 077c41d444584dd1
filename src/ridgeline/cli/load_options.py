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
ToRate = Annotated[float | None, typer.Option(help="Of a ramp, at its end.")]
Variation = Annotated[
    float, typer.Option("--cv", help="Of gamma: deviation of a gap over its mean.")
]
Concurrency = Annotated[int, typer.Option(help="Requests at once in a closed loop.")]
Seconds = Annotated[
    float | None, typer.Option(help="Of sending; of a sweep, per stage. Default: 30.")
]
Requests = Annotated[int | None, typer.Option(help="At most so many.")]
InputTokens = Annotated[int, typer.Option(help="Of each prompt.")]
OutputTokens = Annotated[int, typer.Option(help="Of each answer.")]
Trace = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Azure CSV or Mooncake JSON lines.")
]
TraceSpeed = Annotated[float, typer.Option(help="2: twice as fast as it was.")]
LengthScale = Annotated[float, typer.Option(help="Of the trace's lengths.")]
Warmup = Annotated[
    float | None, typer.Option(help="Seconds not counted. Default: a tenth, at most 30.")
]
SloTtft = Annotated[float | None, typer.Option(help="Seconds; for goodput.")]
SloTpot = Annotated[float | None, typer.Option(help="Seconds.")]
SloItl = Annotated[float | None, typer.Option(help="Seconds, for 99 % of tokens.")]
SloE2e = Annotated[float | None, typer.Option(help="Seconds.")]


def arrivals_of(asked: Kinds | None, trace: Path | None) -> Kinds:
    """The kind of arrivals that the options describe."""
    return asked or ("trace" if trace else "poisson")


def slo_of(ttft: float | None, tpot: float | None, itl: float | None, e2e: float | None) -> Slo:
    """The objectives that the options ask for."""
    from ridgeline.records.load_test import Slo

    return Slo(ttft_seconds=ttft, itl_seconds=itl, tpot_seconds=tpot, e2e_seconds=e2e)
