"""Judge the verdict of `ridgeline trace` by the public traces of `tests/public/traces.toml`.

    python -m bench.public_traces FOLDER [--only NAME …]
    python -m bench.public_traces FOLDER --missing

FOLDER holds the files as OWNER/NAME/COMMIT/PATH. The first form prints each label against the first
finding and counts what is right; it ends with exit code 1 below `AT_LEAST`. The second prints the
address and the place of every file that FOLDER lacks, one to a line.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.public.trace_table import PublicTrace, read_trace_table

from ridgeline.cli.main import run

AT_LEAST = 0.97
"""Share of labels that the verdict must meet."""
TOLERANCE = 1e-3
"""How far, as a share, busy time may be from the figure in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What `ridgeline trace summary` said of one trace, and whether its label allows it."""

    trace: PublicTrace
    cause: str
    """First finding; `refused` for exit code 2, empty for none."""
    share: float
    confidence: float
    wrong: str
    """Why the label does not allow it; empty: it does."""
    findings: tuple[str, ...] = ()
    """All causes, in order."""


def judge(trace: PublicTrace, folder: Path) -> Judgement:
    """Run the command on the files of `trace` below `folder` and hold its verdict to the label."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = run(["trace", "summary", "--json", *map(str, trace.located(folder))])
    if code:
        lines = errors.getvalue().strip().splitlines()
        wrong = "" if trace.refused and code == 2 else lines[-1] if lines else "no word"
        return Judgement(trace=trace, cause="refused", share=0, confidence=1, wrong=wrong)
    document = json.loads(out.getvalue())
    findings = document["verdict"]
    first = findings[0] if findings else {"cause": "", "share": 0.0, "confidence": 0.0}
    return Judgement(
        trace=trace,
        cause=first["cause"],
        share=first["share"],
        confidence=first["confidence"],
        wrong=disagreement(trace, first) or wrong_figure(trace, document["ranks"]),
        findings=tuple(finding["cause"] for finding in findings),
    )


def disagreement(trace: PublicTrace, first: dict[str, Any]) -> str:
    """Why the label of `trace` does not allow `first` as the first finding; empty: it does."""
    if not trace.causes:
        return "read as a profiler trace"
    if first["cause"] not in trace.causes:
        return "another cause"
    if first["confidence"] > trace.confidence_at_most:
        return f"surer than {trace.confidence_at_most:g}"
    return ""


def wrong_figure(trace: PublicTrace, ranks: list[dict[str, Any]]) -> str:
    """How far busy time is from the figure of the table; empty: near enough, or not comparable."""
    if trace.busy_ms is None or len(ranks) != 1 or ranks[0]["window"] != "trace":
        return ""
    busy_ms = ranks[0]["busy_us"] / 1e3
    near = abs(busy_ms - trace.busy_ms) <= TOLERANCE * trace.busy_ms + 1e-3
    return "" if near else f"busy {busy_ms:.3f} ms instead of {trace.busy_ms:.3f}"


def row(judgement: Judgement) -> str:
    trace = judgement.trace
    label = "/".join([*trace.causes, *(["refused"] if trace.refused else [])])
    said = judgement.cause or "nothing"
    if judgement.cause != "refused":
        said += f" {judgement.share:.0%} ({judgement.confidence:.2f})"
    mark = f"  WRONG: {judgement.wrong}" if judgement.wrong else ""
    return f"{trace.name:34} {label:42} {said}{mark}"


def absent(traces: list[PublicTrace], folder: Path) -> dict[str, str]:
    """Place below `folder` → address, of every file that is not there."""
    return {
        place: address
        for trace in traces
        for place, address in trace.addresses().items()
        if not (folder / place).is_file()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the files")
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME")
    parser.add_argument("--missing", action="store_true", help="print what to download")
    choice = parser.parse_args()
    table = read_trace_table().trace
    if unknown := set(choice.only or ()) - {trace.name for trace in table}:
        parser.error(f"no trace is called {', '.join(sorted(unknown))}; see traces.toml")
    chosen = [trace for trace in table if choice.only is None or trace.name in choice.only]
    missing = absent(chosen, choice.folder)
    if choice.missing:
        for place, address in missing.items():
            print(address, place)
        return
    judgements = []
    for trace in chosen:
        if any(place in missing for place in trace.addresses()):
            print(f"{trace.name:34} is not in {choice.folder}")
            continue
        if changed := trace.changed(choice.folder):
            parser.error(f"{changed[0]} is not the file that was labelled (SHA-256 differs)")
        judgements.append(judge(trace, choice.folder))
        print(row(judgements[-1]), flush=True)
    right = sum(not judgement.wrong for judgement in judgements)
    print(f"{right} of {len(judgements)} right")
    if right < AT_LEAST * len(judgements):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
