"""Run `ridgeline tune` on the public scripts of `tests/public/scripts.toml`, one after the other.

    python -m bench.public_tuned FOLDER [--only NAME …] [--missing | --since DATE] [--first N]
        [--minutes M] [--options="--budget 3m"] [--keep FOLDER] [--page]

FOLDER holds the checkouts and what `python tests/public/prepare.py FOLDER` made. `--first N`
takes the first N of the order in which every repository comes once before any comes twice, so
that nobody chose them. Before and after each run every file of the script's folder is hashed.
What came of a script goes to `docs/results/public_tuned.csv` at once, and the measured rows of
its ledger, with what was foretold of them, to `public_rows.csv`. A table is measured anew in
pieces: with `--since 2026-11-28` scripts whose row is of that day or later are done, with
`--minutes 9` no script is begun after so long. `--page` writes
`public_tuned.md`, the package's `measured_gains.toml` and its `forecast_margins.toml` from the two
(alone: without running anything). A script that could not be tuned counts as 1.0.

What is said to have been foretold of a script on the page has the margins of the other scripts:
no range has seen the gain that it is held against.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from bench.public_corpus import TERMINAL, contents, last_words, one_of_each_first
from tests.public.table import Script, Start, Table, link_inputs, read_table, started

import ridgeline.records
import ridgeline.techniques
from ridgeline.hardware.machine import this_machine
from ridgeline.measure.guard.terminal import own_terminal
from ridgeline.records.technique_card import GainFile, MeasuredGain
from ridgeline.techniques import Gain
from ridgeline.tune.forecast import MARGINS, OTHERS, Margin, MarginFile, fitted, key_of_margin

RESULTS = Path(__file__).parents[1] / "docs/results"
TUNED, MEASURED = RESULTS / "public_tuned.csv", RESULTS / "public_rows.csv"
PAGE = TUNED.with_suffix(".md")
GAINS = Path(ridgeline.records.__file__).with_name("measured_gains.toml")
TUNED_COLUMNS = (
    "script", "kind", "step ms", "tuned", "low", "high", "kept", "first proven s", "seconds",
    "changed files", "new files", "machine", "torch", "date", "said",
)  # fmt: skip
ROW_COLUMNS = (
    "script", "technique", "model low", "model high", "low", "multiplier", "high", "kept",
)  # fmt: skip
AFTER_LOOKING = (
    "Four techniques were made for what four of these scripts showed, and these and `ode-demo`",
    "were measured anew with them: `gathered-slices` (lecture-bigram), `compressed-rows` (pygcn),",
    "`no-argument-checks` (minimalrl-ppo) and `no-adjoint` (torchcde-class). Before them the mean",
    "was 1.56×. On scripts that nobody had looked at, with nothing else tried: `compressed-rows`",
    "1.40× [1.04, 1.89] on LightGCN-PyTorch (lastfm) and 1.11× [1.05, 1.14] on GCNII (16 layers,",
    "Cora); beside other work `no-adjoint` 2.03× [1.58, 2.50] on a training loop around",
    "augmented-neural-odes and `no-argument-checks` 1.19× [1.10, 1.30] on minimalRL's",
    "actor_critic.",
)
"""What the page says of techniques that know its scripts, and what they gained elsewhere."""

HARD_SECONDS = 900.0
"""When a run is killed, whatever its budget."""
Rows = list[dict[str, str]]


def run(start: Start, out: Path, options: list[str]) -> tuple[str, float, float | None]:
    """Standard error, seconds, and seconds until the ledger first held a kept row."""
    began, proven, terminal = time.monotonic(), None, own_terminal(TERMINAL)
    with tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "ridgeline.cli.main", "tune", "--json", "--out", str(out),
                *options, "--", *start.words,
            ],
            cwd=start.folder, env={**os.environ, **start.environment},
            stdin=terminal, stdout=subprocess.DEVNULL, stderr=err, start_new_session=True,
        )  # fmt: skip
        os.close(terminal)
        while process.poll() is None and time.monotonic() - began < HARD_SECONDS:
            if proven is None and (out / "stack.toml").exists():
                proven = time.monotonic() - began
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        seconds = time.monotonic() - began
        err.seek(0)
        return err.read(), seconds, proven


def examine(
    script: Script, table: Table, root: Path, options: list[str], keep: Path | None
) -> tuple[dict[str, str], Rows]:
    """The row of one script, and what was foretold and found of its techniques."""
    (root / script.folder).mkdir(parents=True, exist_ok=True)  # for what runs from a package
    link_inputs(script, root)
    with tempfile.TemporaryDirectory() as temporary:
        out = (keep or Path(temporary)) / script.name
        (Path(temporary) / "scripts").mkdir()
        start = started(script, table, root, Path(temporary) / "scripts", longer=True)
        before = contents(start.folder)
        err, seconds, proven = run(start, out, options)
        after = contents(start.folder)
        ledger = out / "ledger.json"
        document = json.loads(ledger.read_text()) if ledger.exists() else None
    row = dict.fromkeys(TUNED_COLUMNS, "") | {
        "script": script.name,
        "tuned": "1.00",
        "seconds": f"{seconds:.0f}",
        "changed files": str(sum(after.get(name) != text for name, text in before.items())),
        "new files": str(len(after.keys() - before.keys())),
        **where_and_when(),
    }
    if document is None or not document["complete"]:
        return row | {"said": last_words(err) or "killed for its time"}, []
    low, high = document["cumulative_ci"]
    row |= {
        "kind": document["baseline"]["kind"],
        "step ms": f"{document['baseline']['step_seconds']['p50'] * 1e3:.4g}",
        "tuned": f"{document['cumulative']:.3f}",
        "low": f"{low:.3f}",
        "high": f"{high:.3f}",
        "kept": " ".join(document["stack_rows"]),
        "first proven s": f"{proven:.0f}" if proven is not None else "",
        "said": "; ".join(document["notes"]),
    }
    return row, measured(script.name, document["rows"])


def where_and_when() -> dict[str, str]:
    """What belongs beside every measured figure."""
    cpu = this_machine(gpus=[]).cpu
    return {
        "machine": f"{cpu.model}, {cpu.num_usable_cores} cores",
        "torch": metadata.version("torch"),
        "date": time.strftime("%Y-%m-%d"),
    }


def conditions(rows: Rows) -> str:
    """Where and when these rows were measured, each said once."""
    each = (f"{row['machine']}, torch {row['torch']}, {row['date']}" for row in rows)
    return "; ".join(dict.fromkeys(each))


def measured(script: str, rows: list[dict[str, Any]]) -> Rows:
    """Rows of a ledger that were measured as additions, with what the models expected of them."""
    found = []
    for row in rows:
        if not row["rounds"] or row["stage"] != "add":
            continue
        low, high = row["modelled"] or (math.nan, math.nan)
        found.append(
            {
                "script": script,
                "technique": row["technique"],
                "model low": "" if math.isnan(low) else f"{low:.3f}",
                "model high": "" if math.isnan(high) else f"{high:.3f}",
                "low": f"{row['ci_low']:.3f}",
                "multiplier": f"{row['multiplier']:.3f}",
                "high": f"{row['ci_high']:.3f}",
                "kept": "yes" if row["kept"] else "no",
            }
        )
    return found


def read_rows(path: Path) -> Rows:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, columns: tuple[str, ...], rows: Iterable[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def has_row(path: Path, name: str, since: str) -> bool:
    """Has a script a result of this day or a later one?"""
    return any(row["script"] == name and row["date"] >= since for row in read_rows(path))


def remember(name: str, row: dict[str, str], found: Rows) -> None:
    """One script's results in place of its earlier ones."""
    tuned = [old for old in read_rows(TUNED) if old["script"] != name]
    write_rows(TUNED, TUNED_COLUMNS, [*tuned, row])
    rows = [old for old in read_rows(MEASURED) if old["script"] != name]
    write_rows(MEASURED, ROW_COLUMNS, [*rows, *found])


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


@dataclass(frozen=True, slots=True)
class Told:
    """A measured row, and what would be foretold of it without having seen its script."""

    row: dict[str, str]
    low: float
    high: float

    @property
    def inside(self) -> bool:
        """Does the foretold range hold the measured gain?"""
        return self.low <= float(self.row["multiplier"]) <= self.high

    @property
    def meets(self) -> bool:
        """Does it meet the gain's interval?"""
        return float(self.row["low"]) <= self.high and self.low <= float(self.row["high"])


def told(rows: Rows) -> list[Told]:
    """Rows of which something was foretold, each with margins from the other scripts."""
    found = []
    for script in dict.fromkeys(row["script"] for row in rows):
        margins = {m.technique: m for m in margins_of(r for r in rows if r["script"] != script)}
        for row in rows:
            if row["script"] != script or not row["model low"]:
                continue
            margin = margins.get(key_of(row), margins[OTHERS])
            model = model_of(row)
            found.append(Told(row, model.low / margin.below, model.high * margin.above))
    return found


def margins_of(rows: Iterable[dict[str, str]]) -> list[Margin]:
    """How far the models were off."""
    usable = (row for row in rows if row["model low"])
    return fitted((key_of(row), model_of(row), float(row["multiplier"])) for row in usable)


def key_of(row: dict[str, str]) -> str:
    return key_of_margin(row["technique"].split(" + "))


def model_of(row: dict[str, str]) -> Gain:
    return Gain(float(row["model low"]), float(row["model high"]))


def page(tuned: Rows, rows: Rows, command: str) -> str:
    """`docs/results/public_tuned.md`."""
    values = [float(row["tuned"]) for row in tuned]
    gained = sum(value > 1 for value in values)
    foretold = told(rows)
    own = [Told(one.row, *model_of(one.row)) for one in foretold]
    firsts = sorted(float(row["first proven s"]) for row in tuned if row["first proven s"])
    counts = (
        ("scripts tuned", str(len(tuned))),
        ("geometric mean, every script counted", f"{geometric_mean(values):.2f}×"),
        ("scripts with a gain", str(gained)),
        ("median seconds to the first proven row", f"{firsts[len(firsts) // 2]:.0f}"),
        ("user's files changed", str(sum(int(row["changed files"]) for row in tuned))),
        ("files left behind", str(sum(int(row["new files"]) for row in tuned))),
        ("rows with a foretold gain", str(len(foretold))),
        ("foretold range holds the gain", share([one.inside for one in foretold])),
        ("foretold range meets its interval", share([one.meets for one in foretold])),
        ("width of the foretold range, high / low", width(foretold)),
        ("the models' own range holds the gain", share([one.inside for one in own])),
        ("width of the models' own range", width(own)),
    )
    lines = [
        "# `ridgeline tune` on public scripts",
        "",
        "Scripts that none of us wrote, unmodified: the first of each repository in the order of",
        "[`tests/public/scripts.toml`](../../tests/public/scripts.toml), so nobody chose them.",
        f"Each row is one run of `{command}`",
        f"({conditions(tuned)}); written by",
        "`python -m bench.public_tuned FOLDER --page` from [`public_tuned.csv`](public_tuned.csv)",
        "and [`public_rows.csv`](public_rows.csv). A script that could not be tuned counts as 1.",
        "",
        "| what | |",
        "|---|---|",
        *(f"| {what} | {count} |" for what, count in counts),
        "",
        *AFTER_LOOKING,
        "",
        "| script | step | tuned | 95 % | kept | first proven | all | said |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in tuned:
        interval = f"{row['low']}–{row['high']}" if row["kept"] else ""
        step = f"{row['step ms']} ms" if row["step ms"] else ""
        first = f"{row['first proven s']} s" if row["first proven s"] else ""
        lines.append(
            f"| {row['script']} | {step} | {float(row['tuned']):.2f}× | {interval} "
            f"| {row['kept'].replace(' ', ', ')} | {first} | {row['seconds']} s | {row['said']} |"
        )
    lines += [
        "",
        "## What was foretold, and what was measured",
        "",
        "The range of the technique's own model, and that range with the margins that the *other*",
        "scripts ask for: no range has seen the gain that it is held against. A technique with",
        "few rows leans on those of the others. The margins in the package come from all scripts:",
        "",
        "| margin of | rows | lower end divided by | upper end multiplied by |",
        "|---|---|---|---|",
        *(f"| {m.technique} | {m.rows} | {m.below:g} | {m.above:g} |" for m in margins_of(rows)),
        "",
        "| script | technique | model | foretold | measured | 95 % | kept | held |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in foretold:
        row = one.row
        lines.append(
            f"| {row['script']} | {row['technique']} | {row['model low']}–{row['model high']} "
            f"| {one.low:.3f}–{one.high:.3f} | {row['multiplier']} "
            f"| {row['low']}–{row['high']} | {row['kept']} "
            f"| {'yes' if one.inside else 'within error' if one.meets else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def width(foretold: list[Told]) -> str:
    """How wide such ranges are, in the geometric mean."""
    if not foretold:
        return ""
    return f"{geometric_mean([one.high / one.low for one in foretold]):.2f}×"


def share(held: list[bool]) -> str:
    part, whole = sum(held), len(held)
    return f"{part} of {whole}" + (f" ({part / whole:.0%})" if whole else "")


def gains(tuned: Rows, rows: Rows, command: str) -> GainFile:
    """What `ridgeline techniques` shows beside the cards: rows of one technique alone."""
    return GainFile(
        measured_on=conditions(tuned),
        command=command,
        gain=[
            MeasuredGain(
                technique=row["technique"],
                script=row["script"],
                multiplier=float(row["multiplier"]),
                ci_low=float(row["low"]),
                ci_high=float(row["high"]),
                kept=row["kept"] == "yes",
            )
            for row in rows
            if " + " not in row["technique"]
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of checkouts")
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME")
    parser.add_argument("--missing", action="store_true", help="only those without a result")
    parser.add_argument("--since", default="", metavar="DATE", help="or with one from before it")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin none after so long")
    parser.add_argument("--first", type=int, default=None, metavar="N")
    parser.add_argument("--options", default="--budget 3m", help="of tune, in one word")
    parser.add_argument("--keep", type=Path, default=None, help="where ledgers stay")
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    choice = parser.parse_args()
    if choice.page:
        command = f"ridgeline tune {choice.options} -- SCRIPT"
        tuned, rows = read_rows(TUNED), read_rows(MEASURED)
        PAGE.write_text(page(tuned, rows, command), encoding="utf-8")
        GAINS.write_bytes(msgspec.toml.encode(gains(tuned, rows, command)))
        margins = MarginFile(measured_on=conditions(tuned), margin=margins_of(rows))
        MARGINS.write_bytes(msgspec.toml.encode(margins))
        return
    table, began = read_table(), time.monotonic()
    for script in one_of_each_first(table.script)[: choice.first]:
        if choice.only is not None and script.name not in choice.only:
            continue
        if (choice.missing or choice.since) and has_row(TUNED, script.name, choice.since):
            continue
        if time.monotonic() - began > 60 * choice.minutes:
            print(f"{script.name} and what follows: not begun, run the same command again")
            break
        row, found = examine(
            script, table, choice.folder.resolve(), choice.options.split(), choice.keep
        )
        remember(script.name, row, found)
        print(*(row[name] or "-" for name in TUNED_COLUMNS), sep=" | ", flush=True)
        mean = geometric_mean([float(row["tuned"]) for row in read_rows(TUNED)])
        print(f"geometric mean so far {mean:.3f}", flush=True)


if __name__ == "__main__":
    main()
