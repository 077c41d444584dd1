"""Refit the coefficients of serving to a table of published runs, and cross-validate by source.

    python bench/refit_serving.py shared/data/published_serving.csv            only report
    python bench/refit_serving.py shared/data/published_serving.csv --write    and ship it

Writes `src/ridgeline/plan/serving/calibration.toml` and `left_out.toml`, which holds for every
source the coefficients and spreads that the other sources alone suggest.

Each source and metric weighs as much as `SOURCE_ROWS` rows at most. Each source also has an offset
of its own per kind of metric (its version, flags and client): a random effect with spread `OFFSET`,
fitted along and thrown away, so that what differs between sources in common does not pull physics.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from ridgeline.cost.arrays import Bools, Floats
from ridgeline.cost.training.estimate import COVERAGE_80
from ridgeline.models.counts import parameter_count
from ridgeline.plan.fitting import RobustFit
from ridgeline.plan.serving.coefficients import CALIBRATION, LEFT_OUT, Spread, priors
from ridgeline.plan.serving.prepared import (
    PreparedServing,
    family,
    floor_reason,
    in_metric,
    outcome,
    prepare,
)
from ridgeline.plan.serving.published import PublishedServing, read_table

PUBLISHED = Path(__file__).parents[2] / "shared" / "data" / "published_serving.csv"
SOURCE_ROWS = 10
"""Rows that one kind of metric of one source counts for, however many it has."""
EXPERT_WEIGHT = 0.5
"""Weight of a mixture's row: what engines make of experts changes between releases."""
LOSS_SCALE = 0.08
"""Error in log from which the loss grows linearly: about the noise between releases."""
OFFSET = 0.10
"""Standard deviation of what a source's version, flags and client do to all of its rows."""
FAMILIES = ("first_token", "next_token", "throughput")
CAP = 20
"""Rows that one source counts for in a spread."""
LEAST_ROWS = 6
"""Rows of a kind from which its spread is taken; fewer leave what is believed."""
STUDENT = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372, 1.363, 1.356)
"""Where Student's t with 1, 2, … degrees of freedom has a tenth of its mass to the right: a spread
known from few sources is less sure than one known from many (Student, Biometrika 6, 1908)."""
HEAD = """\
# Written by bench/refit_serving.py; change priors.toml or the table, not this file.
# What each number means: cost/serving/coefficients.py. What was believed before: priors.toml.
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("table", type=Path, nargs="?", default=PUBLISHED)
    arguments.add_argument("--write", action="store_true")
    options = arguments.parse_args()
    if options.table == PUBLISHED and not PUBLISHED.exists():
        print(f"{PUBLISHED} is not here: nothing to fit to")
        return
    prepared = prepare(
        [one for one in read_table(options.table) if isinstance(one, PublishedServing)]
    )
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


def log_errors(prepared: PreparedServing, logs: Floats) -> Floats:
    """log(predicted / published) of every row, in its own metric."""
    predicted = in_metric(prepared, outcome(prepared, logs))
    return np.asarray(np.log(predicted / prepared.published))


def usable(prepared: PreparedServing) -> Bools:
    """Rows to fit to: possible, not saturated where that hides the answer, not called noisy."""
    found = outcome(prepared, np.log([one.prior for one in priors()]))
    good = []
    for index, run in enumerate(prepared.runs):
        waiting = family(run) == "first_token" and (found.saturated[index] or run.prompt < 1)
        burst = run.load.kind == "burst"
        impossible = floor_reason(run, prepared.hosted, index)
        good.append(not (run.note.noisy or waiting or burst or impossible or not found.fits[index]))
    return np.array(good)


def problem_of(prepared: PreparedServing, use: Bools) -> RobustFit:
    """Runs to fit to, those where `use` is true, sources weighing alike.

    The coefficients come first, then one offset for each kind of metric of each source.
    """
    keys = [(run.source, family(run)) for run in prepared.runs]
    counts = Counter(key for key, used in zip(keys, use.tolist(), strict=True) if used)
    weights = np.array(
        [
            min(counts[key], SOURCE_ROWS)
            / counts[key]
            * (EXPERT_WEIGHT if run.model.experts else 1.0)
            if used
            else 0.0
            for key, run, used in zip(keys, prepared.runs, use.tolist(), strict=True)
        ]
    )
    names = list(counts)
    groups = np.array([[float(key == name) for name in names] for key in keys])
    free = np.full(len(names), np.inf)  # offsets have no bounds

    def errors(logs: Floats) -> Floats:
        count = len(priors())
        found = log_errors(prepared, logs[:count]) + groups @ logs[count:]
        return np.where(weights > 0.0, found, 0.0)

    return RobustFit(
        errors=errors,
        weights=weights,
        loss_scale=LOSS_SCALE,
        prior=np.concatenate([np.log([one.prior for one in priors()]), np.zeros(len(names))]),
        spread=np.concatenate([[one.spread for one in priors()], np.full(len(names), OFFSET)]),
        low=np.concatenate([np.log([one.low for one in priors()]), -free]),
        high=np.concatenate([np.log([one.high for one in priors()]), free]),
        linear=groups,
    )


def fit(problem: RobustFit, start: Floats | None = None) -> Floats:
    """The most plausible logarithms of the coefficients; offsets are fitted along, thrown away."""
    count = len(priors())
    logs = problem.prior.copy()
    if start is not None:
        logs[:count] = start
    return problem.minimise(logs, rounds=30)[:count]


def fit_without(prepared: PreparedServing, use: Bools, start: Floats) -> dict[str, Floats]:
    """Source → coefficients fitted to all the others."""
    sources = np.array([run.source for run in prepared.runs])
    return {
        str(source): fit(problem_of(prepared, use & (sources != source)), start)
        for source in dict.fromkeys(sources.tolist())
    }


def spread_of(prepared: PreparedServing, errors: Floats, use: Bools) -> Spread:
    """Spreads whose 80 % intervals hold 80 % of these errors of sources left out."""
    believed = Spread()
    kinds = np.array([family(run) for run in prepared.runs])
    experts = np.array([run.model.experts is not None for run in prepared.runs])
    values = {}
    for kind in FAMILIES:
        rows = use & (kinds == kind) & ~experts
        found = width(prepared.runs, errors, rows)
        few = for_few_sources(prepared.runs, rows)
        values[kind] = getattr(believed, kind) if found is None else found * few
    scaled = errors / np.array([values[kind] for kind in kinds])
    found = width(prepared.runs, scaled, use & experts)
    factor = believed.experts if found is None else max(found, 1.0)
    return Spread(**values, experts=factor)


def width(runs: Sequence[PublishedServing], errors: Floats, rows: Bools) -> float | None:
    """Standard deviation whose 80 % interval holds 80 % of the errors, a source `CAP` at most."""
    index = np.flatnonzero(rows)
    if len(index) < LEAST_ROWS:
        return None
    names = [runs[i].source for i in index.tolist()]
    weights = np.array([min(names.count(name), CAP) / names.count(name) for name in names])
    sizes = np.abs(errors[index])
    order = np.argsort(sizes)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(sizes[order][np.searchsorted(share, 0.8)] / COVERAGE_80)


def for_few_sources(runs: Sequence[PublishedServing], rows: Bools) -> float:
    """How much wider a spread is to be taken that so few sources taught."""
    freedom = len({runs[i].source for i in np.flatnonzero(rows).tolist()}) - 1
    return STUDENT[min(max(freedom, 1), len(STUDENT)) - 1] / COVERAGE_80


def features(run: PublishedServing) -> dict[str, float]:
    """What the range is about."""
    return {
        "parameters": float(parameter_count(run.model)),
        "tp": float(run.tp),
        "prompt": run.prompt,
        "completion": run.completion,
    }


def ranges_of(runs: Sequence[PublishedServing]) -> dict[str, list[float]]:
    """Least and most of each feature."""
    columns: dict[str, list[float]] = {}
    for run in runs:
        for name, value in features(run).items():
            columns.setdefault(name, []).append(value)
    return {name: [min(values), max(values)] for name, values in columns.items()}


def document(logs: Floats, spread: Spread) -> dict[str, Any]:
    """A calibration as TOML has it, to four digits."""
    values = {
        one.name: float(f"{value:.4g}")
        for one, value in zip(priors(), np.exp(logs).tolist(), strict=True)
    }
    sigma = {name: round(float(getattr(spread, name)), 4) for name in spread.__struct_fields__}
    return {"values": values, "sigma": sigma}


def rows_seen(prepared: PreparedServing, use: Bools) -> dict[str, dict[str, int]]:
    """Architecture → arithmetic → rows in the fit."""
    seen: dict[str, Counter[str]] = {}
    for run, used in zip(prepared.runs, use.tolist(), strict=True):
        if used:
            seen.setdefault(run.device.architecture, Counter())[run.precision] += 1
    return {name: dict(counts) for name, counts in seen.items()}


if __name__ == "__main__":
    main()
