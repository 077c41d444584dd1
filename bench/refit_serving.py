"""Refit the coefficients of serving to a table of published runs, and cross-validate by source.

    python bench/refit_serving.py shared/data/published_serving*.csv            only report
    python bench/refit_serving.py shared/data/published_serving*.csv --write    and ship it

Writes `src/ridgeline/plan/serving/calibration.toml` and `left_out.toml`, which holds for every
source the coefficients and spreads that the other sources alone suggest.

A campaign is what one source measured of one model on one device. Each weighs as much as
`CAMPAIGN_ROWS` rows of a kind of metric at most, and has an offset of its own per kind (its
version, flags and client): a random effect with spread `OFFSET`, fitted along and thrown away, so
that what differs between campaigns in common does not pull physics.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import tomli_w

from ridgeline.cost.arrays import Bools, Floats
from ridgeline.cost.training.estimate import COVERAGE_80
from ridgeline.models.counts import parameter_count
from ridgeline.plan.fitting import STEP, RobustFit
from ridgeline.plan.serving.coefficients import CALIBRATION, LEFT_OUT, priors
from ridgeline.plan.serving.prepared import (
    PreparedServing,
    family,
    floor_reason,
    in_metric,
    outcome,
    prepare,
)
from ridgeline.plan.serving.published import LATENCIES, PublishedServing, read_table
from ridgeline.plan.serving.spreads import (
    BELIEVED,
    KINDS,
    KNOWN_EXPERTS,
    Spread,
    believed,
    class_of,
    crowd_factor,
    far_factor,
)
from ridgeline.plan.serving.validate import is_expressed

DATA = Path(__file__).parents[2] / "shared" / "data"
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "accuracy_serving_cv.json"
PUBLISHED = [DATA / "published_serving.csv", DATA / "published_serving_more.csv"]
CAMPAIGN_ROWS = 10
"""Rows that one kind of metric counts for in one campaign, however many it has; all campaigns of a
source together count for the root of their number."""
WARMING_SECONDS = 3.0
WARMING_CLIENTS = 16
"""A first token that took longer beside no more clients than these tells of the engine's start (the
README of `published_serving_more.csv`)."""
EXPERT_WEIGHT = 0.5
"""Weight of a mixture's row: what engines make of experts changes between releases."""
LOSS_SCALE = 0.08
"""Error in log from which the loss grows linearly: about the noise between releases."""
STRANGE = 2.5
"""Error of the priors, as a factor, beyond which a row is judged but not fitted to: a queue, a
cache of prefixes or a kernel that fell back, which no column states."""
OFFSET = 0.10
"""Standard deviation of what a campaign's version, flags and client do to all of its rows."""
BELIEF_GROUPS = 1.0
"""Groups of errors that what is believed of a spread counts for; a source counts for the root of
the number of its campaigns."""
BELIEF = np.array([NormalDist().inv_cdf(0.5 + (at + 0.5) / 100.0) for at in range(50)])
"""The sizes of errors of one standard deviation, evenly likely."""
HEAD = """\
# Written by bench/refit_serving.py; change priors.toml or the table, not this file.
# What each number means: cost/serving/coefficients.py. What was believed before: priors.toml.
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("tables", type=Path, nargs="*", default=PUBLISHED)
    arguments.add_argument("--write", action="store_true")
    options = arguments.parse_args()
    if options.tables == PUBLISHED and not PUBLISHED[0].exists():
        print(f"{PUBLISHED[0]} is not here: nothing to fit to")
        return
    read = [one for table in options.tables for one in read_table(table)]
    prepared = prepare([one for one in read if isinstance(one, PublishedServing)])
    judged_rows = usable(prepared)
    # States and chosen tokens are predicted, not fitted to: one source has two models of them.
    told_apart = np.array([is_expressed(run.model) for run in prepared.runs])
    use = judged_rows & ~off_by_far(prepared) & ~told_apart
    logs = fit(problem_of(prepared, use))
    for parameter, value in zip(priors(), np.exp(logs), strict=True):
        print(f"{parameter.name:34s} {parameter.prior:10.4g} -> {value:10.4g}")
    sources = [run.source for run in prepared.runs]
    campaigns = [run.campaign for run in prepared.runs]
    by_source = left_out(prepared, use, logs, sources)
    by_campaign = left_out(prepared, use, logs, campaigns)
    new = judgements(prepared, use, judged_rows, campaigns, by_campaign)
    judged = [*judgements(prepared, use, judged_rows, sources, by_source), *new]
    spread = spread_of(judged)
    print(spread)
    if options.write:
        whole = document(logs, spread) | {
            "table": ", ".join(table.name for table in options.tables),
            "rows": rows_seen(prepared, use),
            "seen": seen_by(prepared, use),
            "campaigns": sorted({run.campaign for run in prepared.runs}),
            "ranges": ranges_of(
                [run for run, used in zip(prepared.runs, use, strict=True) if used]
            ),
        }
        CALIBRATION.write_text(HEAD + "\n" + tomli_w.dumps(whole))
        left = {
            source: document(found, spread_of([one for one in judged if one.source != source]))
            | {"seen": seen_by(prepared, use & (np.array(sources) != source))}
            for source, found in by_source.items()
        }
        RESULTS.write_text(json.dumps(report(new, spread), indent=1) + "\n")
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
        unlike = run.note.other_attention and not is_expressed(run.model)
        strange = run.note.noisy or unlike or is_warming(run)
        good.append(not (strange or waiting or burst or impossible or not found.fits[index]))
    return np.array(good)


def off_by_far(prepared: PreparedServing) -> Bools:
    """Rows that the priors miss by more than a factor of `STRANGE`: something else decided."""
    return np.abs(log_errors(prepared, np.log([one.prior for one in priors()]))) > np.log(STRANGE)


def is_warming(run: PublishedServing) -> bool:
    """Whether a first token took so long beside so few clients that the engine was starting."""
    slow = run.metric in LATENCIES and run.published * LATENCIES[run.metric] > WARMING_SECONDS
    return family(run) == "first_token" and slow and run.load.number <= WARMING_CLIENTS


def problem_of(prepared: PreparedServing, use: Bools, known: Floats | None = None) -> RobustFit:
    """Runs to fit to, those where `use` is true, campaigns weighing alike.

    The coefficients come first, then one offset for each kind of metric of each campaign.

    Args:
        prepared: All runs.
        use: Those to fit to.
        known: Slopes of all runs' errors, one column a coefficient, where they are known well
            enough; None: they are taken anew in each round.
    """
    keys = [(run.source, run.campaign, family(run)) for run in prepared.runs]
    counts = Counter(key for key, used in zip(keys, use.tolist(), strict=True) if used)
    campaigns = Counter((source, kind) for source, _, kind in counts)
    weights = np.zeros(len(keys))
    for index in np.flatnonzero(use).tolist():
        source, _, kind = key = keys[index]
        share = min(counts[key], CAMPAIGN_ROWS) / counts[key] / campaigns[source, kind] ** 0.5
        weights[index] = share * (EXPERT_WEIGHT if prepared.runs[index].model.experts else 1.0)
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
        slopes=None
        if known is None
        else lambda _: np.where(weights[:, None] > 0.0, np.hstack([known, groups]), 0.0),
    )


def fit(problem: RobustFit, start: Floats | None = None) -> Floats:
    """The most plausible logarithms of the coefficients; offsets are fitted along, thrown away."""
    count = len(priors())
    logs = problem.prior.copy()
    if start is not None:
        logs[:count] = start
    return problem.minimise(logs, rounds=30)[:count]


def left_out(
    prepared: PreparedServing, use: Bools, start: Floats, keys: Sequence[str]
) -> dict[str, Floats]:
    """Key → coefficients fitted to all runs but those with this key.

    Slopes are those of the whole fit: errors are nearly linear between the two, and taking slopes
    anew would cost as much as the whole fit, each time.
    """
    slopes = slopes_at(prepared, start)
    names = np.array(keys)
    return {
        key: fit(problem_of(prepared, use & (names != key), slopes), start)
        for key in dict.fromkeys(keys)
        if (use & (names == key)).any()
    }


def slopes_at(prepared: PreparedServing, logs: Floats) -> Floats:
    """Slopes of every run's error, one column a coefficient."""
    now = log_errors(prepared, logs)
    columns = []
    for index in range(len(logs)):
        moved = logs.copy()
        moved[index] += STEP
        columns.append((log_errors(prepared, moved) - now) / STEP)
    return np.stack(columns, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One run predicted by a fit that did not see it."""

    source: str
    campaign: str
    name: str
    """The class of its error."""
    error: float
    far: bool
    """Whether it lies far from what that fit has seen."""
    requests: float
    """Those that run at once."""


def judgements(
    prepared: PreparedServing,
    use: Bools,
    judged: Bools,
    keys: Sequence[str],
    fits: dict[str, Floats],
) -> list[Judgement]:
    """Every run that can be judged, predicted without the runs that share its key."""
    names = np.array(keys)
    found = []
    for key, logs in fits.items():
        errors, running = log_errors(prepared, logs), outcome(prepared, logs).running
        seen = set(seen_by(prepared, use & (names != key)))
        for index in np.flatnonzero(judged & (names == key)).tolist():
            run = prepared.runs[index]
            found.append(
                Judgement(
                    source=run.source,
                    campaign=run.campaign,
                    name=class_of(family(run), experts=run.place.experts),
                    error=float(errors[index]),
                    far=run.place.key not in seen,
                    requests=float(running[index]),
                )
            )
    return found


def seen_by(prepared: PreparedServing, use: Bools) -> list[str]:
    """The keys of the places of these runs."""
    used = zip(prepared.runs, use.tolist(), strict=True)
    return sorted({run.place.key for run, yes in used if yes})


def spread_of(judged: Sequence[Judgement]) -> Spread:
    """Spreads whose 80 % intervals hold 80 % of these errors, sources counting as groups."""
    near: dict[str, float] = {}
    far: dict[str, float] = {}
    for kind in KINDS:
        dense, mixture = (class_of(kind, experts=experts) for experts in (False, True))
        close = [one for one in judged if one.name == dense and not one.far]
        whatever = width([replace(one, requests=1.0) for one in close], BELIEVED[kind])
        for name, belief in ((dense, believed(dense)), (mixture, KNOWN_EXPERTS[kind] * whatever)):
            mine = [one for one in judged if one.name == name]
            near[name] = width([one for one in mine if not one.far], belief)
            distant = width([one for one in mine if one.far], near[name] * far_factor(name))
            far[name] = max(distant, near[name])
    return Spread(near=near, far=far)


def report(judged: Sequence[Judgement], spread: Spread) -> dict[str, dict[str, float]]:
    """Class of error, near and far → errors of campaigns left out, and how many intervals hold."""
    found = {}
    for name in sorted({one.name for one in judged}):
        for far in (False, True):
            alike = [one for one in judged if one.name == name and one.far is far]
            if not alike:
                continue
            errors = [abs(one.error) / crowd_factor(name, one.requests) for one in alike]
            sizes = np.abs(np.expm1([one.error for one in alike]))
            owners = np.array([one.campaign for one in alike])
            parts = [sizes[owners == one] for one in sorted(set(owners.tolist()))]
            sigma = getattr(spread, "far" if far else "near")[name]
            found[f"{name}, far" if far else name] = {
                "rows": len(alike),
                "campaigns": len(parts),
                "median": round(float(np.median(sizes)), 4),
                "p90": round(float(np.quantile(sizes, 0.9)), 4),
                "mean_median": round(float(np.mean([np.median(one) for one in parts])), 4),
                "mean_p90": round(float(np.mean([np.quantile(one, 0.9) for one in parts])), 4),
                "coverage": round(float(np.mean(np.array(errors) <= COVERAGE_80 * sigma)), 4),
            }
    return found


def width(judged: Sequence[Judgement], belief: float) -> float:
    """Standard deviation, of a request alone, whose 80 % interval holds 80 % of the errors.

    Sources count for the root of the number of their campaigns, and what is believed for
    `BELIEF_GROUPS`: where nothing is known, it is the answer.
    """
    rows = Counter((one.source, one.campaign) for one in judged)
    campaigns = Counter(source for source, _ in rows)
    weights = [campaigns[one.source] ** -0.5 / rows[one.source, one.campaign] for one in judged]
    weights += [BELIEF_GROUPS / len(BELIEF)] * len(BELIEF)
    sizes = [abs(one.error) / crowd_factor(one.name, one.requests) for one in judged]
    sizes += (belief * BELIEF).tolist()
    order = np.argsort(sizes)
    share = np.cumsum(np.array(weights)[order]) / np.sum(weights)
    return float(np.array(sizes)[order][np.searchsorted(share, 0.8)] / COVERAGE_80)


def features(run: PublishedServing) -> dict[str, float]:
    """What the range is about."""
    return {
        "parameters": float(parameter_count(run.model)),
        "tp": float(run.layout.tp),
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
    sigma = {
        side: {name: round(value, 4) for name, value in getattr(spread, side).items()}
        for side in spread.__struct_fields__
    }
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
