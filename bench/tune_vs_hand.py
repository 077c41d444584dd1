"""The tuned stack against the switches that an engineer sets by hand, script by script.

    python -m bench.tune_vs_hand [--tuned FOLDER [--public FOLDER]] [--only NAME …]
        [--since DATE] [--minutes M] [--page]

"By hand" is what a careful engineer sets on a script without measuring: bfloat16 autocast, a
fused optimizer, loader workers, `torch.compile`, channels-last, gradients set to None, wherever
they apply. A ratio above 1 says that the tuned stack is the faster of the two; it comes from a
A/B run of interleaved blocks of steps, with its interval.

Scripts: every one in examples/, tuned with `ridgeline tune` first unless `--tuned` holds its
finished ledger; and, of the checkouts in `--public`, the scripts of `tests/public/scripts.toml`
whose ledgers are in `--tuned` (as `python -m bench.public_tuned --keep` leaves them). Results go
to `docs/results/tune_vs_hand.csv` at once; `--page` writes `tune_vs_hand.md` from it (alone:
without running anything). What has a row of the day of `--since` or later is done, and after
`--minutes` no script is begun: so a table is measured anew in pieces. A script takes its tuning,
three minutes at most unless its ledger is kept, and two starts and a minute of rounds at most.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from bench.public_tuned import conditions, has_row, read_rows, run, where_and_when, write_rows
from tests.public.table import Start, link_inputs, read_table, started

from ridgeline.measure.probe import ceilings
from ridgeline.measure.wire import Applied, CallsAsSteps
from ridgeline.records import Ledger
from ridgeline.records.store import read_record
from ridgeline.techniques import Context, options_of, technique
from ridgeline.tune.ab_plan import ABPlan
from ridgeline.tune.ab_run import run_ab
from ridgeline.tune.pool import Pool, Variant, VariantFailed
from ridgeline.tune.stack import read_stack

EXAMPLES = Path(__file__).parents[1] / "examples"
RESULTS = Path(__file__).parents[1] / "docs/results/tune_vs_hand.csv"
PAGE = RESULTS.with_suffix(".md")
COLUMNS = (
    "script", "tuned", "ratio", "low", "high", "tuned stack", "by hand",
    "machine", "torch", "date", "said",
)  # fmt: skip
BY_HAND = (
    "bf16-autocast",
    "fused-optimizer",
    "loader-workers",
    "channels-last",
    "set-to-none",
    "compile",
)
BUDGET = ["--budget", "3m"]
AB_SECONDS, WITHIN = 60.0, 1.06
"""The rounds of one A/B run end when a gain's interval is so narrow, or after so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One script, and where its ledger is or will be."""

    name: str
    start: Start
    out: Path


def cases(public: Path | None, tuned: Path, scripts: Path) -> Iterator[Case]:
    """The examples, then the public scripts that were tuned."""
    for path in sorted(EXAMPLES.glob("*.py")):
        start = Start(words=[str(path)], folder=EXAMPLES, environment={})
        yield Case(name=f"examples/{path.name}", start=start, out=tuned / path.stem)
    table = read_table()
    for script in table.script:
        if public is None or not (tuned / script.name / "ledger.json").exists():
            continue
        link_inputs(script, public)
        (scripts / script.name).mkdir()
        start = started(script, table, public, scripts / script.name, longer=True)
        yield Case(name=script.name, start=start, out=tuned / script.name)


def tuned_ledger(case: Case) -> Ledger | None:
    """The ledger of a finished search, kept or made now; None: the script cannot be tuned."""
    path = case.out / "ledger.json"
    if not path.exists() or not json.loads(path.read_text())["complete"]:
        run(case.start, case.out, BUDGET)
    ledger = read_record(path, Ledger) if path.exists() else None
    return ledger if ledger is not None and ledger.complete else None


def stack_by_hand(context: Context) -> tuple[Applied, ...]:
    """The usual switches, with the first of each one's settings."""
    chosen = []
    for name in BY_HAND:
        module = technique(name)
        if module.applies(context).ok:
            chosen.append(Applied(technique=name, options=options_of(module, context)[0]))
    return tuple(chosen)


@contextlib.contextmanager
def pool_of_runs() -> Iterator[Pool]:
    pool = Pool()
    try:
        yield pool
    finally:
        pool.close()


def judge(case: Case) -> dict[str, str]:
    """The row of one script."""
    row = dict.fromkeys(COLUMNS, "") | {"script": case.name} | where_and_when()
    ledger = tuned_ledger(case)
    if ledger is None:
        return row | {"said": "could not be tuned"}
    stack = case.out / "stack.toml"
    tuned = tuple(read_stack(stack).applied()) if stack.exists() else ()
    hand = stack_by_hand(Context(profile=ledger.baseline, ceilings=ceilings(quick=True)))
    row |= {
        "tuned": f"{ledger.cumulative:.3f}",
        "tuned stack": " ".join(member.technique for member in tuned),
        "by hand": " ".join(member.technique for member in hand),
    }
    if sorted(map(repr, hand)) == sorted(map(repr, tuned)):
        return row | {"ratio": "1.000", "low": "1.000", "high": "1.000", "said": "the same"}
    sides = (Variant(command=case.start.words, stack=each) for each in (hand, tuned))
    plan = ABPlan(threshold=0.0, seconds=AB_SECONDS, within=WITHIN)
    with (
        mock.patch.dict(os.environ, case.start.environment),
        contextlib.chdir(case.start.folder),
        pool_of_runs() as pool,
    ):
        pool.calls = CallsAsSteps(assumed=ledger.baseline.kind == "inference")
        try:
            interval = run_ab(pool, *sides, plan).interval
        except VariantFailed as failure:
            side = "by hand" if failure.side == "a" else "tuned"
            return row | {"said": f"{side} fails: {str(failure).splitlines()[0]}"}
    return row | {
        "ratio": f"{interval.ratio:.3f}",
        "low": f"{interval.low:.3f}",
        "high": f"{interval.high:.3f}",
        "said": f"{interval.rounds} rounds",
    }


def page(rows: list[dict[str, str]]) -> str:
    """`docs/results/tune_vs_hand.md`."""
    met = [row for row in rows if row["low"]]
    never_below = sum(float(row["low"]) >= 0.98 for row in met)
    clearly_below = sum(float(row["high"]) < 1 for row in met)
    count = (
        f"Of {len(met)} scripts where both ran, the interval lies wholly below 1 for "
        f"{clearly_below}, and its lower end is at least 0.98 for {never_below}."
    )
    lines = [
        "# The tuned stack against switches set by hand",
        "",
        "By hand: " + ", ".join(f"`{name}`" for name in BY_HAND) + ", wherever they apply, with",
        "the first of their settings. The ratio is time by hand over time tuned, from interleaved",
        "blocks of steps, with its 95 % interval: above 1 the tuned stack is faster.",
        f"{conditions(rows)}; written by `python -m bench.tune_vs_hand --page` from",
        "[`tune_vs_hand.csv`](tune_vs_hand.csv).",
        "",
        count,
        "",
        "| script | tuned | by hand / tuned | 95 % | tuned stack | by hand | said |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratio = f"{row['ratio']} | {row['low']}–{row['high']}" if row["low"] else "|"
        lines.append(
            f"| {row['script']} | {row['tuned']}× | {ratio} "
            f"| {row['tuned stack'].replace(' ', ', ')} | {row['by hand'].replace(' ', ', ')} "
            f"| {row['said']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--public", type=Path, default=None, help="folder of public checkouts")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of these alone")
    parser.add_argument("--tuned", type=Path, default=None, help="folder of finished ledgers")
    parser.add_argument("--since", default="", metavar="DATE", help="done from this day on")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin none after so long")
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    choice, began = parser.parse_args(), time.monotonic()
    if choice.page:
        PAGE.write_text(page(read_rows(RESULTS)), encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as folder:
        tuned = choice.tuned or Path(folder)
        public = choice.public.resolve() if choice.public else None
        scripts = Path(folder) / "scripts"
        scripts.mkdir()
        for case in cases(public, tuned.resolve(), scripts):
            if choice.only and case.name not in choice.only:
                continue
            if choice.since and has_row(RESULTS, case.name, choice.since):
                continue
            if time.monotonic() - began > 60 * choice.minutes:
                print(f"{case.name} and what follows: not begun, run the same command again")
                break
            row = judge(case)
            others = [old for old in read_rows(RESULTS) if old["script"] != case.name]
            write_rows(RESULTS, COLUMNS, [*others, row])
            print(*(row[name] or "-" for name in COLUMNS), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
