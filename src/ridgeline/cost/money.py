"""What a run costs: device-hours, money, energy, carbon.

    energy    = device-hours · watts · share of full power · PUE
    carbon    = energy · the grid's intensity                     Patterson et al., 2104.10350, s. 2

PUE (power usage effectiveness) is what the building draws over what the machines draw. Prices,
powers and intensities are the caller's: they differ by place and day.

A slower start (compilation) has paid for itself in faster steps after

    steps = extra start-up / (step before - step after)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What one run costs. None: its rate was not given."""

    device_hours: float
    usd: float | None
    energy_joules: float | None
    co2_kilograms: float | None

    @property
    def energy_kilowatt_hours(self) -> float | None:
        """Energy as bills have it."""
        return None if self.energy_joules is None else self.energy_joules / 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """Rates of one device in one place; None: unknown, and so is what depends on it."""

    usd_per_device_hour: float | None = None
    watts: float | None = None
    """Power of one device at full load (its share of the host included, where that is wanted)."""
    power_share: float = 1.0
    """Mean power over full power."""
    pue: float = 1.0
    co2_grams_per_kilowatt_hour: float | None = None


def bill(num_devices: int, seconds: float, tariff: Tariff) -> Spending:
    """What `num_devices` cost for this long.

    >>> spent = bill(64, 86400.0, Tariff(usd_per_device_hour=2.5, watts=700.0, pue=1.2))
    >>> spent.device_hours, spent.usd, round(spent.energy_kilowatt_hours, 1)
    (1536.0, 3840.0, 1290.2)
    """
    if num_devices < 1 or seconds < 0.0:
        raise ValueError(f"{num_devices} devices for {seconds} s: nothing to bill")
    hours = num_devices * seconds / 3600.0
    usd = None if tariff.usd_per_device_hour is None else hours * tariff.usd_per_device_hour
    joules = None
    if tariff.watts is not None:
        joules = hours * 3600.0 * tariff.watts * tariff.power_share * tariff.pue
    carbon = None
    if joules is not None and tariff.co2_grams_per_kilowatt_hour is not None:
        carbon = joules / 3.6e6 * tariff.co2_grams_per_kilowatt_hour / 1e3
    return Spending(device_hours=hours, usd=usd, energy_joules=joules, co2_kilograms=carbon)


def run_seconds(num_tokens: float, tokens_per_step: float, step_seconds: float) -> float:
    """Time of a training run over `num_tokens`, checkpoints and failures aside.

    >>> run_seconds(1e12, 4e6, 10.0) / 86400
    28.935185185185187
    """
    if min(num_tokens, tokens_per_step, step_seconds) <= 0.0:
        raise ValueError("tokens and seconds must be above 0")
    return num_tokens / tokens_per_step * step_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """A run of so many steps at one pace."""

    cumulative: float
    """How many times faster than the run as it stood."""
    step_seconds: float
    run_seconds: float
    usd: float | None


def run_cost(
    steps: float, step_seconds: float, usd_per_hour: float | None, cumulative: float = 1.0
) -> RunCost:
    """What a run takes and costs when its step is `cumulative` times faster than it stood.

    >>> spent = run_cost(1e6, 3.6, 50.0, cumulative=1.4 * 1.7 * 1.15 * 1.12)
    >>> round(spent.step_seconds, 2), round(spent.run_seconds / 3600), round(spent.usd, -2)
    (1.17, 326, 16300.0)
    """
    if min(steps, step_seconds, cumulative) <= 0.0:
        raise ValueError("steps, seconds and multiplier must be above 0")
    seconds = step_seconds / cumulative
    usd = None if usd_per_hour is None else steps * seconds / 3600.0 * usd_per_hour
    return RunCost(
        cumulative=cumulative, step_seconds=seconds, run_seconds=steps * seconds, usd=usd
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedCure:
    """One cure on top of those before it."""

    name: str
    applied: bool
    factor: float
    """Speed-up over the row above, as it was measured there."""
    cost: RunCost
    """The run with this cure and all applied ones above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CureStack:
    """A run as it stood, and with one cure after another."""

    start: RunCost
    cures: tuple[StackedCure, ...]
    final: RunCost
    saved_usd: float | None
    largest: str
    """The applied cure with the largest factor; empty where none is applied."""


def cure_stack(
    steps: float,
    step_seconds: float,
    usd_per_hour: float | None,
    names: Sequence[str],
    factors: Sequence[float],
    applied: Sequence[bool],
) -> CureStack:
    """What each of a stack of cures leaves of a run's time and cost.

    A factor was measured on top of the cures above it; with one of these left out it is an
    estimate, for cures that touch the same time share their gain.

    >>> stack = cure_stack(
    ...     1e6, 3.6, 50.0, ["a", "b", "c", "d"], [1.4, 1.7, 1.15, 1.12], [True] * 4
    ... )
    >>> round(stack.final.cumulative, 2), round(stack.final.usd, -2)
    (3.07, 16300.0)
    """
    if not len(names) == len(factors) == len(applied):
        raise ValueError(f"{len(names)} names, {len(factors)} factors, {len(applied)} switches")
    start = run_cost(steps, step_seconds, usd_per_hour)
    cures: list[StackedCure] = []
    cumulative = 1.0
    for name, factor, on in zip(names, factors, applied, strict=True):
        cumulative *= factor if on else 1.0
        spent = run_cost(steps, step_seconds, usd_per_hour, cumulative)
        cures.append(StackedCure(name=name, applied=on, factor=factor, cost=spent))
    final = cures[-1].cost if cures else start
    kept = [one for one in cures if one.applied]
    return CureStack(
        start=start,
        cures=tuple(cures),
        final=final,
        saved_usd=None if start.usd is None or final.usd is None else start.usd - final.usd,
        largest=max(kept, key=lambda one: one.factor).name if kept else "",
    )


def steps_to_pay(
    extra_startup_seconds: float, before_seconds: float, after_seconds: float
) -> float | None:
    """Steps after which the faster step has earned the slower start; None: never.

    >>> steps_to_pay(30.0, 0.5, 0.2), steps_to_pay(-1.0, 0.5, 0.2), steps_to_pay(30.0, 0.5, 0.5)
    (100.0, 0.0, None)
    """
    saved = before_seconds - after_seconds
    if extra_startup_seconds <= 0.0:
        return 0.0
    return extra_startup_seconds / saved if saved > 0.0 else None
