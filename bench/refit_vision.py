"""Refit the coefficients of vision models to a table of published runs, and leave out what judges.

    python bench/refit_vision.py shared/data/published_vision.csv.gz            only report
    python bench/refit_vision.py shared/data/published_vision.csv.gz --write    and ship it

`vision_runtimes.csv` joins the table: runtimes on processors of which it has no run.

Writes `src/ridgeline/plan/vision/coefficients.toml` and `left_out.csv`, which holds the
coefficients of fits without one device, and without one family of models, for each of them.
Intervals are conformal: the 80 % quantile of the absolute errors of rows whose device (or family)
was left out (Vovk et al., "Algorithmic Learning in a Random World", 2005; Barber et al.,
"Predictive inference with the jackknife+", 2021).
"""

from __future__ import annotations

import argparse
import csv
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from ridgeline.cost.arrays import Bools, Floats
from ridgeline.cost.vision.coefficients import kind_of_time, place_of
from ridgeline.cost.vision.work import WORK
from ridgeline.plan.vision.coefficients import COEFFICIENTS, LEFT_OUT, trait_priors
from ridgeline.plan.vision.fit import (
    PreparedTimes,
    fit,
    fit_without,
    predicted_logs,
    prepare,
    usable_rows,
)
from ridgeline.plan.vision.published import PublishedVision, read_table

PUBLISHED = Path(__file__).parents[2] / "shared" / "data" / "published_vision.csv.gz"
RUNTIMES = Path(__file__).with_name("vision_runtimes.csv")
ROUNDS = {"device": 8, "family": 3}
"""Rounds of a fit that starts at the one to all rows: a family is a smaller part than a device."""
INSIDE = 0.82
"""Share of errors that an interval is made to hold: a little more than it promises."""
LEAST_ROWS = 20
"""Rows of a kind of time from which its own spread is taken."""
HEAD = """\
# Written by bench/refit_vision.py; change priors.toml or the table, not this file.
# What each number means: cost/vision/work.py. What was believed before: priors.toml.
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("table", type=Path, nargs="?", default=PUBLISHED)
    arguments.add_argument("--write", action="store_true")
    options = arguments.parse_args()
    if options.table == PUBLISHED and not PUBLISHED.exists():
        print(f"{PUBLISHED} is not here: nothing to fit to")
        return
    began = time.perf_counter()
    read = [*read_table(options.table), *read_table(RUNTIMES)]
    prepared = prepare([one for one in read if isinstance(one, PublishedVision)])
    use = usable_rows(prepared)
    logs = fit(prepared, use, None, rounds=30)
    names = {
        "device": [run.device.name for run in prepared.runs],
        "family": [run.family for run in prepared.runs],
    }
    without = {
        kind: fit_without(prepared, use, of, logs, rounds=ROUNDS[kind])
        for kind, of in names.items()
    }
    errors = {kind: unseen_errors(prepared, names[kind], without[kind]) for kind in names}
    kinds = [kind_of_time(run.device, run.setting) for run in prepared.runs]
    spread = spreads(kinds, [run.setting.software for run in prepared.runs], errors)
    times = np.array([run.metric == "latency_ms" for run in prepared.runs])
    report(kinds, times, errors, spread)
    print(f"{time.perf_counter() - began:.0f} s for {len(prepared.runs)} rows")
    if options.write:
        found = document(prepared, logs, spread) | {
            "table": options.table.name,
            "rows": int(use.sum()),
        }
        COEFFICIENTS.write_text(HEAD + "\n" + tomli_w.dumps(found))
        LEFT_OUT.write_text(left_out_text(without))


def unseen_errors(
    prepared: PreparedTimes, names: Sequence[str], without: dict[str, Floats]
) -> Floats:
    """log(predicted / published) of every row by the fit that has not seen its name."""
    of = np.array(names)
    errors = np.zeros(len(of))
    for name, logs in without.items():
        mine = np.flatnonzero(of == name)
        part = prepared.of(mine)
        errors[mine] = predicted_logs(part, logs) - part.logs
    return errors


def spreads(
    kinds: Sequence[str], software: Sequence[str], errors: dict[str, Floats]
) -> dict[str, float]:
    """Kind of time, also with its software, seen or unseen → half the interval's width in log."""
    of, by = np.array(kinds), np.array(software)
    found = {}
    for kind in ("cpu latency", "cpu throughput", "gpu latency", "gpu throughput", "training"):
        mine = of == kind
        if mine.sum() < LEAST_ROWS:
            place = kind.partition(" ")[0]
            mine = np.array([one.startswith(place) for one in kinds])
        parts = {kind: mine}
        for name in sorted(set(software)):
            part = (of == kind) & (by == name)
            if part.sum() >= LEAST_ROWS:
                parts[f"{kind} {name}"] = part
        for name, part in parts.items():
            sizes = {way: np.abs(one[part]) for way, one in errors.items()}
            # what nobody has measured is never the surer: the worse of both ways, row by row
            widths = {"unseen": np.maximum(*sizes.values()), "seen": sizes["family"]}
            for end, errors_of in widths.items():
                found[f"{name} {end}"] = round(float(np.quantile(errors_of, INSIDE)), 4)
    return found


def document(prepared: PreparedTimes, logs: Floats, spread: dict[str, float]) -> dict[str, Any]:
    """The content of `coefficients.toml`, to four digits."""
    runs = prepared.runs
    factors = {
        prior.name: dict(zip(WORK, (float(f"{x:.4g}") for x in np.exp(row)), strict=True))
        for prior, row in zip(trait_priors(), logs, strict=True)
    }
    return {
        "software": sorted({f"{place_of(run.device)} {run.setting.software}" for run in runs}),
        "architectures": sorted({run.device.architecture for run in runs}),
        "spread": spread,
        "factors": factors,
    }


def left_out_text(without: dict[str, dict[str, Floats]]) -> str:
    """Every fit as a line: what was left out, its name, the logarithms."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    for kind, fits in without.items():
        for name, logs in fits.items():
            table.writerow([kind, name, *(f"{value:.3f}" for value in logs.ravel())])
    return text.getvalue()


def report(
    kinds: Sequence[str], times: Bools, errors: dict[str, Floats], spread: dict[str, float]
) -> None:
    """What the errors are, by kind of time: |predicted / published - 1| in each row's own metric.

    Args:
        kinds: Of every row.
        times: Whether a row's metric is a time; else it is a rate, whose error has the other sign.
        errors: Without each device or family → log(predicted / published) of every row's time.
        spread: As `spreads` makes it.
    """
    of = np.array(kinds)
    signs = np.where(times, 1.0, -1.0)
    for kind in sorted(set(kinds)):
        for way, found in errors.items():
            sizes = np.abs(np.expm1((signs * found)[of == kind]))
            end = "unseen" if way == "device" else "seen"
            print(
                f"{kind:16s} without {way:6s} {len(sizes):6d} rows  median {np.median(sizes):6.1%}"
                f"  p90 {np.quantile(sizes, 0.9):6.1%}"
                f"  interval x{np.exp(spread[f'{kind} {end}']):.2f}"
            )


if __name__ == "__main__":
    main()
