"""What `ridgeline queue simulate` is asked beside its policies: autoscaling, one more run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.queue.cluster import QueuedCluster
    from ridgeline.queue.jobs import Jobs
    from ridgeline.queue.scaling_search import ScalingAsked

_NUMBERS = ("gpus", "max", "min")
_TIMES = ("delay", "idle")
_KEYS = (*_NUMBERS, *_TIMES, "price")


def show_autoscaling(
    jobs: Jobs,
    given: str,
    objective: float | None,
    *,
    trace: str,
    skip_unfit: bool,
    notes: Sequence[str],
    html: Path | None,
    json: bool,
) -> None:
    """Search the settings of a node autoscaler and print what was found."""
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.queue.scaling_search import search_scaling
    from ridgeline.report.views.queue_questions import autoscaling_document

    asked = _scaling(given, objective)
    with progress() as on_progress:
        found = search_scaling(
            jobs, asked, trace=trace, skip_unfit=skip_unfit, notes=notes, on_progress=on_progress
        )
    show_answer(found, autoscaling_document(found), json=json, html=html)


def _scaling(given: str, objective: float | None) -> ScalingAsked:
    import math

    from ridgeline.queue.scaling_search import ScalingAsked
    from ridgeline.records.durations import parse_duration

    words: dict[str, str] = {}
    for part in given.split(","):
        key, _, value = (one.strip() for one in part.partition("="))
        if key not in _KEYS:
            raise InputError(f"--autoscale: no {key!r}; known are {', '.join(_KEYS)}")
        words[key] = value
    for key in ("gpus", "max", "delay"):
        if key not in words:
            raise InputError(f"--autoscale {given}: {key} is missing, as in gpus=8,max=20,delay=5m")
    for key in _NUMBERS:
        if key in words and not (words[key].isdigit() and len(words[key]) < 7):
            raise InputError(f"--autoscale: {key} is {words[key]!r}; give a whole number")
    price = None
    if "price" in words:
        try:
            price = float(words["price"])
        except ValueError:
            price = math.nan
        if not 0.0 <= price < math.inf:
            raise InputError(f"--autoscale: price is {words['price']!r}; give USD, 0 or more")
    times = {key: parse_duration(words[key], f"--autoscale {key}")
             for key in _TIMES if key in words}  # fmt: skip
    for key, seconds in times.items():
        if seconds < 0.0:
            raise InputError(f"--autoscale {key} is {words[key]}; give 0 or more")
    return ScalingAsked(
        gpus_per_node=int(words["gpus"]),
        delay_seconds=times["delay"],
        most_nodes=int(words["max"]),
        min_nodes=int(words["min"]) if "min" in words else None,
        idle_seconds=times.get("idle"),
        node_hour_price=price,
        objective_seconds=objective,
    )


def show_submission(
    jobs: Jobs,
    cluster: QueuedCluster,
    policies: Sequence[str],
    path: Path,
    *,
    trace: str,
    skip_unfit: bool,
    seed: int,
    html: Path | None,
    json: bool,
) -> None:
    """Say how long a recipe's run would wait, and who would wait longer for it."""
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.launch.price import price_of
    from ridgeline.queue.submission import submitted
    from ridgeline.records.recipe_file import read_recipe
    from ridgeline.report.views.queue_questions import submission_document

    recipe = read_recipe(path)
    price = price_of(recipe, "")
    if price.seconds is None:
        raise InputError(f"--submit {path}: how long it runs is not known: {price.unknown[0]}")
    with progress() as on_progress:
        found = submitted(
            jobs,
            cluster,
            policies,
            num_gpus=recipe.layout.num_devices,
            duration_seconds=price.seconds,
            trace=trace,
            skip_unfit=skip_unfit,
            seed=seed,
            on_progress=on_progress,
        )
    show_answer(found, submission_document(found, path.name), json=json, html=html)
