"""Options of `loadtest` and `simulate serving` that say which requests come, and when.

Names and defaults are those of `records.load.Load`'s fields.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from ridgeline.cli.option_groups import OptionGroup
from ridgeline.records.load import Arrivals as Kinds


class LoadOptions(OptionGroup, frozen=True, kw_only=True):
    """Which requests come, and when."""

    arrivals: Annotated[
        Kinds | None,
        typer.Option(help="When requests come. Default: trace with --trace, else poisson."),
    ] = None
    rate: Annotated[float, typer.Option(help="Requests per second.")] = 1.0
    to_rate: Annotated[float | None, typer.Option(help="The rate at the end of a ramp.")] = None
    variation: Annotated[
        float, typer.Option("--cv", help="For gamma: the deviation of a gap over its mean.")
    ] = 2.0
    concurrency: Annotated[int, typer.Option(help="Requests at once in a closed loop.")] = 8
    seconds: Annotated[
        float | None, typer.Option(help="How long to send; in a sweep, per stage. Default: 30.")
    ] = None
    requests: Annotated[int | None, typer.Option(help="Send at most so many.")] = None
    input_tokens: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 256
    output_tokens: Annotated[int, typer.Option(help="Tokens of each completion.")] = 64
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A request trace: Azure CSV or Mooncake JSON lines."),
    ] = None
    trace_speed: Annotated[
        float, typer.Option(help="How fast the trace is replayed; 2 is twice as fast.")
    ] = 1.0
    length_scale: Annotated[float, typer.Option(help="A factor on the trace's lengths.")] = 1.0
    warmup: Annotated[
        float | None, typer.Option(help="Seconds not counted. Default: a tenth, at most 30.")
    ] = None
    slo_ttft: Annotated[
        float | None, typer.Option(help="Seconds to the first token that goodput allows.")
    ] = None
    slo_tpot: Annotated[
        float | None, typer.Option(help="Seconds per token that goodput allows.")
    ] = None
    slo_itl: Annotated[
        float | None,
        typer.Option(help="Seconds between tokens that goodput allows for 99 % of them."),
    ] = None
    slo_e2e: Annotated[
        float | None, typer.Option(help="Seconds for the whole completion that goodput allows.")
    ] = None

    def fields(self) -> dict[str, Any]:
        """The fields of `Load` that these options give."""
        from ridgeline.records.load_test import Slo

        given = msgspec.structs.asdict(self)
        limits = {
            f"{name}_seconds": given.pop(f"slo_{name}") for name in ("ttft", "itl", "tpot", "e2e")
        }
        given["arrivals"] = self.arrivals or ("trace" if self.trace else "poisson")
        warmup = given.pop("warmup")
        return {**given, "warmup_seconds": warmup, "slo": Slo(**limits)}
