"""What a run will take and cost, before it is started: device-hours, money, and of what.

Steps come from the recipe, their length from the prediction that the planner wrote into it
(`recipe.prediction`); the price is the median of those on record for the device. What is not
known is named, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.cost import money
from ridgeline.hardware import catalogue
from ridgeline.records.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrice:
    """What one run will cost. None where something is not known, which `unknown` names."""

    steps: int | None
    seconds: float | None
    device_hours: float | None
    usd: float | None
    usd_per_device_hour: float | None
    unknown: tuple[str, ...]


def price_of(recipe: Recipe, device: str) -> RunPrice:
    """The price of a whole run on this device.

    Args:
        recipe: The run.
        device: A name of the catalogue; empty: the one that the recipe was planned for.
    """
    unknown: list[str] = []
    if not device and recipe.cluster is not None:
        device = recipe.cluster.devices.partition("x")[2]
    steps = recipe.steps
    if steps is None:
        unknown.append("the number of steps (run.steps or data.tokens)")
    if recipe.prediction is None:
        unknown.append("the length of a step (`ridgeline plan training --write` predicts it)")
    rate = catalogue.typical_usd_per_device_hour(device) if device else None
    if rate is None:
        unknown.append(
            f"a price of {device}" if device else "the device (nodes.device of the cluster)"
        )
    if steps is None or recipe.prediction is None:
        return RunPrice(
            steps=steps,
            seconds=None,
            device_hours=None,
            usd=None,
            usd_per_device_hour=rate,
            unknown=tuple(unknown),
        )
    seconds = steps * recipe.prediction.step_seconds
    spent = money.bill(recipe.layout.num_devices, seconds, money.Tariff(usd_per_device_hour=rate))
    return RunPrice(
        steps=steps,
        seconds=seconds,
        device_hours=spent.device_hours,
        usd=spent.usd,
        usd_per_device_hour=rate,
        unknown=tuple(unknown),
    )
