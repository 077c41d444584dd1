"""Refit the coefficients of serving to a table of published runs, and cross-validate by source.

    python bench/refit_serving.py shared/data/published_serving.csv            only report
    python bench/refit_serving.py shared/data/published_serving.csv --write    and ship it

Writes `src/ridgeline/plan/serving/calibration.toml` and `left_out.toml`, which holds for every
source the coefficients and spreads that the other sources alone suggest.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from ridgeline.cost.layouts import Bools, Floats
from ridgeline.plan.serving.coefficients import CALIBRATION, LEFT_OUT, Spread, priors
from ridgeline.plan.serving.coverage import ranges_of, spread_of
from ridgeline.plan.serving.fit import fit, fit_without, log_errors, problem_of, usable
from ridgeline.plan.serving.outcome import Prepared, prepare
from ridgeline.plan.serving.published import Run, read_table

PUBLISHED = Path(__file__).parents[2] / "shared" / "data" / "published_serving.csv"
HEAD = """\
# Written by bench/refit_serving.py; change priors.toml or the table, not this file.
# What each number means: cost/inference.py. What was believed before: priors.toml.
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("table", type=Path, nargs="?", default=PUBLISHED)
    arguments.add_argument("--write", action="store_true")
    options = arguments.parse_args()
    if options.table == PUBLISHED and not PUBLISHED.exists():
        print(f"{PUBLISHED} is not here: nothing to fit to")
        return
    prepared = prepare([one for one in read_table(options.table) if isinstance(one, Run)])
    use = usable(prepared)
    logs = fit(problem_of(prepared, use))
    for parameter, value in zip(priors(), np.exp(logs), strict=True):
        print(f"{parameter.name:34s} {parameter.prior:10.4g} -> {value:10.4g}")
    without = fit_without(prepared, use, logs)
    sources = np.array([run.source for run in prepared.runs])
    errors = np.zeros(len(sources))
    for source, found in without.items():
        errors[sources == source] = log_errors(prepared, found)[sources == source]
    spread = spread_of(prepared, errors, use)
    print(spread)
    if options.write:
        whole = document(logs, spread) | {
            "table": options.table.name,
            "rows": rows_seen(prepared, use),
            "ranges": ranges_of(
                [run for run, used in zip(prepared.runs, use, strict=True) if used]
            ),
        }
        CALIBRATION.write_text(HEAD + "\n" + tomli_w.dumps(whole))
        left = {
            source: document(found, spread_of(prepared, errors, use & (sources != source)))
            for source, found in without.items()
        }
        LEFT_OUT.write_text(HEAD + "\n" + tomli_w.dumps({"source": left}))


def document(logs: Floats, spread: Spread) -> dict[str, Any]:
    """A calibration as TOML has it, to four digits."""
    values = {
        one.name: float(f"{value:.4g}")
        for one, value in zip(priors(), np.exp(logs).tolist(), strict=True)
    }
    sigma = {name: round(float(getattr(spread, name)), 4) for name in spread.__struct_fields__}
    return {"values": values, "sigma": sigma}


def rows_seen(prepared: Prepared, use: Bools) -> dict[str, dict[str, int]]:
    """Architecture → arithmetic → rows in the fit."""
    seen: dict[str, Counter[str]] = {}
    for run, used in zip(prepared.runs, use.tolist(), strict=True):
        if used:
            seen.setdefault(run.device.architecture, Counter())[run.precision] += 1
    return {name: dict(counts) for name, counts in seen.items()}


if __name__ == "__main__":
    main()
