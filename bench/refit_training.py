"""Refit the training cost model to a table of published runs, and cross-validate by source.

    python bench/refit_training.py shared/data/published_training.csv            only report
    python bench/refit_training.py shared/data/published_training.csv --write    and ship it

Writes `src/ridgeline/plan/training/calibration.toml` and, with the errors of every source
predicted by coefficients that never saw it, `docs/results/accuracy_training_cv.json`.

Every source weighs as much as `SOURCE_ROWS` rows at most, so that a long table does not outvote a
short one.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tomli_w

from ridgeline.cost.arrays import Bools, Floats
from ridgeline.cost.training.estimate import COVERAGE_80
from ridgeline.plan.training.coefficients import (
    CALIBRATION,
    TEXTBOOK_SHARES,
    Calibration,
    Parameter,
    calibration_with,
    prior_coefficients,
    priors,
)
from ridgeline.plan.training.measured import Observed, fit, predict_logs
from ridgeline.plan.training.prepared import PreparedTraining, prepare
from ridgeline.plan.training.published import PublishedTraining, read_table

PUBLISHED = Path(__file__).parents[2] / "shared" / "data" / "published_training.csv"
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "accuracy_training_cv.json"
RANGES = {2: 1.128, 3: 1.693, 4: 2.059, 5: 2.326, 6: 2.534, 7: 2.704, 8: 2.847}
"""Mean range of so many normal samples in standard deviations (d2 of control charts; Tippett,
"On the extreme individuals and the range of samples", Biometrika 17, 1925)."""
SOURCE_ROWS = 6
"""Rows that one source counts for, however many it has."""
EXPERT_WEIGHT = 0.3
"""Weight of a mixture-of-experts row: the same layout moves by a factor of two between releases."""
REFILLS = 2
"""Times that empty cells are filled again with the coefficients just fitted."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("table", type=Path, nargs="?", default=PUBLISHED)
    arguments.add_argument("--write", action="store_true")
    options = arguments.parse_args()
    if options.table == PUBLISHED and not PUBLISHED.exists():
        print(f"{PUBLISHED} is not here: nothing to fit to")
        return
    runs = [one for one in read_table(options.table) if isinstance(one, PublishedTraining)]
    parameters = priors()
    logs = np.log([one.prior for one in parameters])
    prepared = prepare(runs, prior_coefficients)
    for _ in range(REFILLS):
        seen = observed(prepared, np.ones(len(runs), dtype=bool))
        logs = fit(seen, parameters, logs, base=prior_coefficients)
        prepared = prepare(runs, calibration_with(parameters, logs, prior_coefficients))
    for parameter, value in zip(parameters, np.exp(logs), strict=True):
        print(f"{parameter.name:34s} {parameter.prior:10.4g} -> {value:10.4g}")
    calibration = calibration_with(parameters, logs, prior_coefficients)
    fitted = predict_logs([run.cluster.device for run in runs], prepared.setting, calibration)
    inside = np.where(usable(prepared), fitted - np.log(prepared.published_seconds), np.nan)
    outside = leave_one_source_out(prepared, parameters, logs, prior_coefficients)
    outside = np.where(usable(prepared), outside, np.nan)
    experts = np.array([run.model.experts is not None for run in runs])
    sigma = sigma_of(prepared, outside, ~experts)
    sigma_experts = sigma_of_experts(prepared, outside, experts, sigma)
    report = {
        "calibrated": by_source(prepared, inside, experts),
        "source left out": by_source(prepared, outside, experts),
        "coverage": coverage(prepared, outside, experts),
        "sigma": sigma,
        "sigma_experts": sigma_experts,
        "between releases": between_releases(runs),
    }
    print(json.dumps(report, indent=1))
    if options.write:
        rows = rows_seen(prepared)
        write_calibration(parameters, logs, (sigma, sigma_experts), rows, options.table.name)
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")


def observed(prepared: PreparedTraining, use: Bools) -> Observed:
    """Published runs, those where `use` is true, sources weighing alike."""
    use = use & usable(prepared)
    keys = [(run.source, run.model.experts is not None) for run in prepared.runs]
    counts = Counter(key for key, used in zip(keys, use.tolist(), strict=True) if used)
    weights = [
        min(counts[key], SOURCE_ROWS) / counts[key] * (EXPERT_WEIGHT if key[1] else 1.0)
        if counts[key]
        else 0.0
        for key in keys
    ]
    return Observed(
        devices=[run.cluster.device for run in prepared.runs],
        setting=prepared.setting,
        log_seconds=np.log(np.where(use, prepared.published_seconds, 1.0)),
        weights=np.where(use, weights, 0.0),
    )


def leave_one_source_out(
    prepared: PreparedTraining, parameters: Sequence[Parameter], start: Floats, base: Calibration
) -> Floats:
    """Log error of every row under coefficients fitted without its source."""
    sources = np.array([run.source for run in prepared.runs])
    errors = np.full(len(sources), np.nan)
    for source in sorted(set(sources)):
        held = sources == source
        seen = observed(prepared, ~held)
        found = fit(seen, parameters, start, base=base, rounds=12)
        calibration = calibration_with(parameters, found, base)
        predicted = predict_logs(seen.devices, prepared.setting, calibration)
        errors[held] = (predicted - np.log(prepared.published_seconds))[held]
    return errors


def usable(prepared: PreparedTraining) -> Bools:
    """Rows to fit: those with a time that their source does not call an outlier."""
    marked = np.array([run.note.outlier for run in prepared.runs])
    return np.asarray(np.isfinite(prepared.published_seconds) & ~marked)


def sigma_of(prepared: PreparedTraining, errors: Floats, rows: Bools) -> float:
    """The spread whose 80 % interval holds 80 % of the errors, sources weighing alike."""
    use = rows & np.isfinite(errors)
    sources = np.array([run.source for run in prepared.runs])[use]
    weights = np.array([1.0 / np.sum(sources == source) for source in sources])
    sizes = np.abs(errors[use])
    order = np.argsort(sizes)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(sizes[order][np.searchsorted(share, 0.8)] / COVERAGE_80)


def sigma_of_experts(
    prepared: PreparedTraining, errors: Floats, rows: Bools, dense: float
) -> float:
    """The same where few sources are known: their mean square with what is believed without them.

    That is the spread of dense models, and beside it the spread of one configuration between
    releases of its software, which the model cannot know.
    """
    sources = np.array([run.source for run in prepared.runs])
    releases = release_spread([run for run in prepared.runs if run.model.experts is not None])
    squares = [dense**2 + releases**2]
    for source in sorted(set(sources[rows & np.isfinite(errors)])):
        squares.append(sigma_of(prepared, errors, rows & (sources == source)) ** 2)
    return float(np.sqrt(np.mean(squares)))


def release_ratios(runs: Sequence[PublishedTraining]) -> list[tuple[int, float]]:
    """(releases, best over worst) of every configuration whose note states both."""
    found = []
    for run in runs:
        if run.note.releases:
            found.append((run.note.releases.count, run.note.releases.ratio))
    return found


def release_spread(runs: Sequence[PublishedTraining]) -> float:
    """Standard deviation of log throughput between releases, by the range of normal samples."""
    squares = [(np.log(ratio) / RANGES[count]) ** 2 for count, ratio in release_ratios(runs)]
    return float(np.sqrt(np.mean(squares))) if squares else 0.0


def between_releases(runs: Sequence[PublishedTraining]) -> dict[str, dict[str, float]]:
    """How far the same configuration moved between releases of its publisher's software."""
    report = {}
    for kind, experts in (("dense", False), ("experts", True)):
        alike = [run for run in runs if (run.model.experts is not None) is experts]
        ratios = np.array([ratio for _, ratio in release_ratios(alike)])
        if len(ratios):
            report[kind] = {
                "configurations": len(ratios),
                "median": round(float(np.median(ratios)) - 1.0, 4),
                "most": round(float(ratios.max()) - 1.0, 4),
                "moved by a third": int(np.sum(ratios > 4.0 / 3.0)),
                "sigma": round(release_spread(alike), 4),
            }
    return report


def coverage(prepared: PreparedTraining, errors: Floats, experts: Bools) -> dict[str, float]:
    """Mean over sources of the share of rows inside the interval that the others suggest."""
    sources = np.array([run.source for run in prepared.runs])
    found = {}
    for kind, rows in (("dense", ~experts), ("experts", experts)):
        shares = []
        for source in sorted(set(sources[rows & np.isfinite(errors)])):
            others = sigma_of(prepared, errors, rows & (sources != source))
            if kind == "experts":
                dense = sigma_of(prepared, errors, ~experts & (sources != source))
                others = sigma_of_experts(prepared, errors, rows & (sources != source), dense)
            own = np.abs(errors[rows & (sources == source) & np.isfinite(errors)])
            shares.append(np.mean(own <= COVERAGE_80 * others))
        found[kind] = round(float(np.mean(shares)), 4)
    return found


def by_source(prepared: PreparedTraining, errors: Floats, experts: Bools) -> dict[str, object]:
    """Median, 90th percentile and bias of the errors by source, and their means."""
    sources = np.array([run.source for run in prepared.runs])
    report: dict[str, object] = {}
    for kind, rows in (("dense", ~experts), ("experts", experts)):
        lines = {}
        for source in dict.fromkeys(sources):
            found = np.expm1(errors[rows & (sources == source) & np.isfinite(errors)])
            if len(found):
                lines[str(source)] = figures(found)
        means = np.mean([[line["median"], line["p90"]] for line in lines.values()], axis=0)
        report[kind] = {"median": float(means[0]), "p90": float(means[1]), "sources": lines}
    return report


def figures(errors: Floats) -> dict[str, float]:
    sizes = np.abs(errors)
    return {
        "rows": len(errors),
        "median": round(float(np.median(sizes)), 4),
        "p90": round(float(np.quantile(sizes, 0.9)), 4),
        "bias": round(float(np.median(errors)), 4),
    }


def rows_seen(prepared: PreparedTraining) -> dict[str, dict[str, int]]:
    """Architecture → precision → rows in the fit."""
    seen: dict[str, dict[str, int]] = {}
    for run, one, used in zip(prepared.runs, prepared.chosen, usable(prepared), strict=True):
        if used:
            counts = seen.setdefault(run.cluster.device.architecture, {})
            counts[one.layout.precision] = counts.get(one.layout.precision, 0) + 1
    return seen


def write_calibration(
    parameters: Sequence[Parameter],
    logs: Floats,
    sigmas: tuple[float, float],
    rows: dict[str, dict[str, int]],
    table: str,
) -> None:
    """The coefficients as `calibration.toml`, all devices and overrides by architecture."""
    common: dict[str, object] = {"gemm": TEXTBOOK_SHARES}
    special: dict[str, dict[str, object]] = {}
    for parameter, value in zip(parameters, np.exp(logs).tolist(), strict=True):
        rounded = float(f"{value:.4g}")
        owners = [name for name in ARCHITECTURES if name.startswith(parameter.architecture)]
        targets = [special.setdefault(name, {}) for name in owners]
        for target in targets if parameter.architecture else [common]:
            if parameter.key == "gemm":
                gemm = target.setdefault("gemm", {})
                assert isinstance(gemm, dict)
                gemm |= dict.fromkeys(parameter.precisions, rounded)
            else:
                target[parameter.key] = rounded
    common |= {"sigma": round(sigmas[0], 4), "sigma_experts": round(sigmas[1], 4)}
    head = (
        "# Written by bench/refit_training.py; change priors.toml or the table, not this file.\n"
        "# What each number means: cost/training/coefficients.py; what was believed: priors.toml.\n"
        f"# Fitted to {table}; the spreads sigma are those of sources left out of the fit.\n\n"
    )
    CALIBRATION.write_text(
        head + tomli_w.dumps({"all": common, "architecture": special, "rows": rows})
    )


ARCHITECTURES = (
    "Volta", "Ampere", "Hopper", "Blackwell", "Blackwell Ultra", "CDNA 2", "CDNA 3", "CDNA 4",
    "Gaudi 3", "TPU v5e", "TPU v5p", "TPU v6e",
)  # fmt: skip
"""Those that some prior names."""

if __name__ == "__main__":
    main()
