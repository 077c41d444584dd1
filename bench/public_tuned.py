"""Run `ridgeline tune` on the public scripts of `tests/public/scripts.toml`, one after the other.

    python -m bench.public_tuned FOLDER [--only NAME …] [--missing] [--first N]
        [--options="--budget 3m"] [--keep FOLDER] [--page]

FOLDER holds the checkouts and what `python tests/public/prepare.py FOLDER` made. `--first N`
takes the first N of the order in which every repository comes once before any comes twice, so
that nobody chose them. Before and after each run every file of the script's folder is hashed.
What came of a script goes to `docs/results/public_tuned.csv` at once, and the measured rows of
its ledger, with what was foretold of them, to `public_rows.csv`. `--page` writes
`public_tuned.md` and the package's `measured_gains.toml` from the two (alone: without running
anything). A script that could not be tuned counts as 1.0.
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
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from bench.public_corpus import contents, last_words, one_of_each_first
from tests.public.table import Script, Start, Table, link_inputs, read_table, started

import ridgeline.techniques
from ridgeline.hardware.machine import this_machine
from ridgeline.records.technique_card import GainFile, MeasuredGain

RESULTS = Path(__file__).parents[1] / "docs/results"
TUNED, MEASURED = RESULTS / "public_tuned.csv", RESULTS / "public_rows.csv"
PAGE = TUNED.with_suffix(".md")
GAINS = Path(ridgeline.techniques.__file__).with_name("measured_gains.toml")
TUNED_COLUMNS = (
    "script", "kind", "step ms", "tuned", "low", "high", "kept", "first proven s", "seconds",
    "changed files", "new files", "said",
)  # fmt: skip
ROW_COLUMNS = (
    "script", "technique", "foretold low", "foretold high", "low", "multiplier", "high", "kept",
)  # fmt: skip
HARD_SECONDS = 900.0
"""When a run is killed, whatever its budget."""
Rows = list[dict[str, str]]


def run(start: Start, out: Path, options: list[str]) -> tuple[str, float, float | None]:
    """Standard error, seconds, and seconds until the ledger first held a kept row."""
    began, proven = time.monotonic(), None
    with tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "ridgeline.cli.main", "tune", "--json", "--out", str(out),
                *options, "--", *start.words,
            ],
            cwd=start.folder, env={**os.environ, **start.environment},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err,
            start_new_session=True,
        )  # fmt: skip
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


def measured(script: str, rows: list[dict[str, Any]]) -> Rows:
    """Rows of a ledger that were measured as additions, with what was foretold of them."""
    found = []
    for row in rows:
        if not row["rounds"] or row["stage"] != "add":
            continue
        low, high = row["expected"] or (math.nan, math.nan)
        found.append(
            {
                "script": script,
                "technique": row["technique"],
                "foretold low": "" if math.isnan(low) else f"{low:.3f}",
                "foretold high": "" if math.isnan(high) else f"{high:.3f}",
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


def remember(name: str, row: dict[str, str], found: Rows) -> None:
    """One script's results in place of its earlier ones."""
    tuned = [old for old in read_rows(TUNED) if old["script"] != name]
    write_rows(TUNED, TUNED_COLUMNS, [*tuned, row])
    rows = [old for old in read_rows(MEASURED) if old["script"] != name]
    write_rows(MEASURED, ROW_COLUMNS, [*rows, *found])


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def holds(row: dict[str, str]) -> tuple[bool, bool]:
    """Does the foretold range hold the measured gain; does it meet the gain's interval?"""
    low, high = float(row["foretold low"]), float(row["foretold high"])
    inside = low <= float(row["multiplier"]) <= high
    meets = float(row["low"]) <= high and low <= float(row["high"])
    return inside, meets


def page(tuned: Rows, rows: Rows, machine: str, command: str) -> str:
    """`docs/results/public_tuned.md`."""
    values = [float(row["tuned"]) for row in tuned]
    gained = sum(value > 1 for value in values)
    told = [(row, holds(row)) for row in rows if row["foretold low"]]
    firsts = sorted(float(row["first proven s"]) for row in tuned if row["first proven s"])
    counts = (
        ("scripts tuned", str(len(tuned))),
        ("geometric mean, every script counted", f"{geometric_mean(values):.2f}×"),
        ("scripts with a gain", str(gained)),
        ("median seconds to the first proven row", f"{firsts[len(firsts) // 2]:.0f}"),
        ("user's files changed", str(sum(int(row["changed files"]) for row in tuned))),
        ("files left behind", str(sum(int(row["new files"]) for row in tuned))),
        ("rows with a foretold gain", str(len(told))),
        ("foretold range holds the gain", share(sum(inside for _, (inside, _) in told), len(told))),
        (
            "foretold range meets its interval",
            share(sum(meets for _, (_, meets) in told), len(told)),
        ),
    )
    lines = [
        "# `ridgeline tune` on public scripts",
        "",
        "Scripts that none of us wrote, unmodified: the first of each repository in the order of",
        "[`tests/public/scripts.toml`](../../tests/public/scripts.toml), so nobody chose them.",
        f"Each ran once, {machine},",
        f"with `{command}`; written by",
        "`python -m bench.public_tuned FOLDER --page` from [`public_tuned.csv`](public_tuned.csv)",
        "and [`public_rows.csv`](public_rows.csv). A script that could not be tuned counts as 1.",
        "",
        "| what | |",
        "|---|---|",
        *(f"| {what} | {count} |" for what, count in counts),
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
        "| script | technique | foretold | measured | 95 % | kept | held |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, (inside, meets) in told:
        lines.append(
            f"| {row['script']} | {row['technique']} "
            f"| {row['foretold low']}–{row['foretold high']} | {row['multiplier']} "
            f"| {row['low']}–{row['high']} | {row['kept']} "
            f"| {'yes' if inside else 'within error' if meets else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({part / whole:.0%})" if whole else "")


def gains(rows: Rows, machine: str, command: str) -> GainFile:
    """What `ridgeline techniques` shows beside the cards: rows of one technique alone."""
    return GainFile(
        device=machine,
        torch=metadata.version("torch"),
        date=time.strftime("%Y-%m-%d"),
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
    parser.add_argument("--first", type=int, default=None, metavar="N")
    parser.add_argument("--options", default="--budget 3m", help="of tune, in one word")
    parser.add_argument("--keep", type=Path, default=None, help="where ledgers stay")
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    choice = parser.parse_args()
    if choice.page:
        cpu = this_machine(gpus=[]).cpu
        machine = f"{cpu.model}, {cpu.num_usable_cores} cores"
        command = f"ridgeline tune {choice.options} -- SCRIPT"
        rows = read_rows(MEASURED)
        PAGE.write_text(page(read_rows(TUNED), rows, machine, command), encoding="utf-8")
        GAINS.write_bytes(msgspec.toml.encode(gains(rows, machine, command)))
        return
    table = read_table()
    for script in one_of_each_first(table.script)[: choice.first]:
        if choice.only is not None and script.name not in choice.only:
            continue
        if choice.missing and any(row["script"] == script.name for row in read_rows(TUNED)):
            continue
        row, found = examine(
            script, table, choice.folder.resolve(), choice.options.split(), choice.keep
        )
        remember(script.name, row, found)
        print(*(row[name] or "-" for name in TUNED_COLUMNS), sep=" | ", flush=True)
        mean = geometric_mean([float(row["tuned"]) for row in read_rows(TUNED)])
        print(f"geometric mean so far {mean:.3f}", flush=True)


if __name__ == "__main__":
    main()
