"""The lines above a patch: what it gains, what each technique costs, what the run costs after it.

`git apply` and `patch` skip everything before the first file's `---` line, so a patch may explain
itself; every line begins with `#`, so that none of them looks like a diff to either.
"""

from __future__ import annotations

from pathlib import Path

from ridgeline import quantity
from ridgeline.records import Ledger
from ridgeline.records.store import write_atomically
from ridgeline.report import wording
from ridgeline.report.run_bill import COLUMNS, bill_result, bill_rows, bill_title


def head_patch(path: Path, ledger: Ledger) -> None:
    """Put the header above the diff in `path`."""
    write_atomically(path, patch_header(ledger).encode() + path.read_bytes())


def patch_header(ledger: Ledger) -> str:
    """The header, ending with an empty comment."""
    environment = ledger.environment
    before, after = wording.ledger_steps(ledger)
    gained = f"{wording.claim(ledger)} {quantity.interval(*ledger.cumulative_ci)}"
    steps = f"median step {quantity.seconds(before)} → {quantity.seconds(after)}"
    lines = [
        f"{wording.script_name(environment)}: {gained}, {wording.proven(ledger)}; {steps}",
        f"on {wording.machine(environment)}, torch {environment.torch}, {environment.date}",
        *_patched(ledger),
        "",
    ]
    for row in ledger.final_rows:
        options = f" ({wording.options(row)})" if row.options else ""
        gained = f"{quantity.ratio(row.multiplier)} {quantity.interval(row.ci_low, row.ci_high)}"
        lines.append(f"{wording.row_name(row)}{options}: {gained}, {row.verification}")
        lines += [f"    costs: {row.costs}"] if row.costs else []
        earned = wording.break_even(row, ledger)
        lines += [f"    {earned}"] if earned else []
    if ledger.bill is not None:
        lines += ["", bill_title(ledger.bill), *_aligned(bill_rows(ledger, ledger.bill))]
        lines.append(bill_result(ledger.bill))
    lines.append("")
    return "".join(f"# {' '.join(line.splitlines())}".rstrip() + "\n" for line in lines)


def _patched(ledger: Ledger) -> list[str]:
    """What the patched script itself gained."""
    return [
        f"as patched: {quantity.ratio(row.multiplier)} "
        f"{quantity.interval(row.ci_low, row.ci_high)}, {row.verification}"
        for row in ledger.rows
        if row.stage == "patch" and row.kept
    ]


def _aligned(rows: list[list[str]]) -> list[str]:
    """Columns of equal width, the first to the left and figures to the right."""
    table = [list(COLUMNS), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]
