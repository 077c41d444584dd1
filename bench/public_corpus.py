"""Run `ridgeline doctor` on the public scripts of `tests/public/scripts.toml`, as a stranger would.

    python -m bench.public_corpus FOLDER [--only NAME …] [--options="--budget 25"] [--page]

FOLDER holds the checkouts and what `python tests/public/prepare.py FOLDER` made. Scripts run one
after the other; before and after each, every file of its folder is hashed. What came of each goes
to `docs/results/public_scripts.csv` at once, in place of its earlier row; `--page` writes
`docs/results/public_scripts.md` from it (alone: without running anything).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.public.table import Script, Start, Table, link_inputs, read_table, started

from ridgeline.measure.guard.terminal import own_terminal

RESULTS = Path(__file__).parents[1] / "docs/results/public_scripts.csv"
PAGE = RESULTS.with_suffix(".md")
COLUMNS = (
    "script", "outcome", "kind", "verdict", "steps", "step ms", "first finding",
    "gain", "findings", "exit", "seconds", "changed files", "new files", "said",
)  # fmt: skip
TERMINAL = (80, 24)
"""A stranger sits at one; some scripts ask it."""
HARD_SECONDS = 300.0
"""When a run is killed, whatever its budget."""
_OURS = re.compile(r'File "[^"]*/ridgeline/(?!cli/main)[^"]*", line')
_OUR_DEFECT = "this is our defect"
_SCRIPT_FAILED = "failed (exit code"


def contents(folder: Path) -> dict[str, str]:
    """Every file below `folder` → the hash of what is in it; bytecode and links are left out."""
    return {
        str(path.relative_to(folder)): hashlib.blake2b(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts
    }


def run(start: Start, options: list[str]) -> tuple[int | None, str, str, float]:
    """Exit code (None: killed for time), both streams and seconds of one `ridgeline doctor`."""
    began = time.monotonic()
    terminal = own_terminal(TERMINAL)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "ridgeline.cli.main", "doctor", "--json",
                *options, "--", *start.words,
            ],
            cwd=start.folder, env={**os.environ, **start.environment},
            stdin=terminal, stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip
        os.close(terminal)
        code: int | None
        try:
            code = process.wait(HARD_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        seconds = time.monotonic() - began
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read(), seconds


def outcome(code: int | None, out: str, err: str) -> str:
    """What came of a run, in a word: `profile` is the only good one."""
    if code is None:
        return "hangs"
    if code == 0 and out.lstrip().startswith("{"):
        return "profile"
    if _OURS.search(err) or _OUR_DEFECT in err:
        return "our traceback"
    if code == 2:
        return "script fails" if _SCRIPT_FAILED in err else "one line"
    return "dies" if code == 1 else f"exit {code}"


def as_reasoned(script: Script, row: dict[str, str]) -> str:
    """Is what came of a run what reasoning about the script allows?"""
    if row["outcome"] != "profile":
        right = script.refused and row["outcome"] == "one line" and script.refused in row["said"]
        return "yes" if right else ""
    if row["kind"] != script.kind:
        return f"no: {row['kind']}"
    return "yes" if row["verdict"] in script.bounds else "no"


def examine(script: Script, table: Table, root: Path, options: list[str]) -> dict[str, str]:
    """The row of one script."""
    (root / script.folder).mkdir(parents=True, exist_ok=True)  # for what runs from a package
    link_inputs(script, root)
    with tempfile.TemporaryDirectory() as out_folder:
        start = started(script, table, root, Path(out_folder))
        before = contents(start.folder)
        code, out, err, seconds = run(start, options)
        after = contents(start.folder)
    row = dict.fromkeys(COLUMNS, "") | {
        "script": script.name,
        "outcome": outcome(code, out, err),
        "exit": "killed" if code is None else str(code),
        "seconds": f"{seconds:.0f}",
        "changed files": str(sum(after.get(name) != text for name, text in before.items())),
        "new files": str(len(after.keys() - before.keys())),
    }
    if row["outcome"] != "profile":
        row["said"] = last_words(err)
        return row
    document = json.loads(out)
    findings = document["findings"]
    first = findings[0] if findings else None
    warnings = document["profile"].get("warnings", ())
    return row | {
        "kind": document["profile"]["kind"],
        "verdict": document["verdict"],
        "steps": str(document["profile"]["steps"]),
        "step ms": f"{document['profile']['step_seconds']['p50'] * 1e3:.4g}",
        "first finding": first["cause"] if first else "",
        "gain": f"{first['gain_low']:.2f}–{first['gain_high']:.2f}×" if first else "",
        "findings": str(len(findings)),
        "said": last_words("\n".join(map(str, warnings))),
    }


def last_words(text: str) -> str:
    """The last line that says something, shortened to fit a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" \t─╭╮╰╯│^~")]
    if not lines:
        return ""
    return lines[-1] if len(lines[-1]) <= 300 else f"{lines[-1][:60]} … {lines[-1][-230:]}"


def one_of_each_first(scripts: Iterable[Script]) -> list[Script]:
    """The first script of each repository, then the second of each: a run cut short saw most."""
    seen: Counter[str] = Counter()
    turns: list[tuple[int, int, Script]] = []
    for script in scripts:
        seen[script.repository] += 1
        turns.append((seen[script.repository], len(turns), script))
    return [script for _, _, script in sorted(turns, key=lambda turn: turn[:2])]


def read_results() -> dict[str, dict[str, str]]:
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return {row["script"]: row for row in csv.DictReader(file)}


def write_results(rows: Iterable[dict[str, str]]) -> None:
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def page(table: Table, rows: dict[str, dict[str, str]]) -> str:
    """`docs/results/public_scripts.md`: the counts, then every script."""
    ran = [(script, rows[script.name]) for script in table.script if script.name in rows]
    outcomes = Counter(row["outcome"] for _, row in ran)
    right = sum(as_reasoned(script, row) == "yes" for script, row in ran)
    refused = sum(row["outcome"] == "one line" for _, row in ran)
    counts = (
        ("scripts in the table", len(table.script)),
        ("scripts run", len(ran)),
        ("repositories of these", len({script.repository for script, _ in ran})),
        ("profiles with a verdict", outcomes["profile"]),
        ("as reasoning allows", right),
        ("refused in one clear line", refused),
        ("refused with the script's own failure", outcomes["script fails"]),
        ("hang past the hard limit", outcomes["hangs"]),
        ("tracebacks of ours", outcomes["our traceback"]),
        ("user's files changed", sum(int(row["changed files"]) for _, row in ran)),
        ("files left behind", sum(int(row["new files"]) for _, row in ran)),
    )
    lines = [
        "# `ridgeline doctor` on public scripts",
        "",
        "Scripts that none of us wrote, unmodified. Which they are, at which commit, with which",
        "arguments and what is expected of each stands in",
        "[`tests/public/scripts.toml`](../../tests/public/scripts.toml); this page is written by",
        "`python -m bench.public_corpus FOLDER --page` from",
        "[`public_scripts.csv`](public_scripts.csv). What reasoning allows was written down from",
        "reading each script, of some rows after their first run. Other programs used the two",
        "cores of the machine for most rows, with few steps timed (`--steps 8` to `12`, one",
        "thread): times mean little. Rows come from several states of the code, on an AMD and an",
        "Intel machine. Scripts that could not run here by themselves (a download, an old API, no",
        "CUDA) left the table.",
        "",
        "| what | count |",
        "|---|---|",
        *(f"| {what} | {count} |" for what, count in counts),
        "",
        "| script | sort | outcome | verdict | as reasoned | steps | step | first finding | s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for script, row in ran:
        step = f"{row['step ms']} ms" if row["step ms"] else ""
        kind = "" if row["kind"] in ("", "training") else f" ({row['kind']})"
        finding = f"{row['first finding']} {row['gain']}".strip()
        if row["outcome"] == "profile" and not finding:
            finding = "nothing worth doing"
        lines.append(
            f"| {script.name} | {script.sort} | {row['outcome']} | {row['verdict']}{kind} "
            f"| {as_reasoned(script, row)} | {row['steps']} | {step} | {finding} "
            f"| {row['seconds']} |"
        )
    silent = [(script, row) for script, row in ran if row["outcome"] != "profile"]
    if silent:
        lines += ["", "What those without a profile said last:", ""]
        lines += [f"- `{script.name}`: {row['said']}" for script, row in silent]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of checkouts")
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME")
    parser.add_argument("--missing", action="store_true", help="only those without a result")
    parser.add_argument("--options", default="--budget 60", help="of doctor, in one word")
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    choice = parser.parse_args()
    table = read_table()
    rows = read_results()
    if choice.page:
        PAGE.write_text(page(table, rows), encoding="utf-8")
        return
    for script in one_of_each_first(table.script):
        if choice.only is not None and script.name not in choice.only:
            continue
        if choice.missing and script.name in read_results():
            continue
        row = examine(script, table, choice.folder.resolve(), choice.options.split())
        rows = read_results() | {script.name: row}  # another run may have written meanwhile
        write_results(rows[known.name] for known in read_table().script if known.name in rows)
        print(*(row[name] or "-" for name in COLUMNS), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
