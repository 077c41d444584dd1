"""A whole forecast of a fleet: how sure it is, and what other fleets would do."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from ridgeline import quantity
from ridgeline.batching.load.stamps import RunStamps
from ridgeline.batching.load.summary import DEFINITIONS, request_seconds, summarise, timeline
from ridgeline.batching.load.workload import describe, planned
from ridgeline.batching.scaling.policies import Policy
from ridgeline.batching.scaling.settings import Scaling
from ridgeline.cost.training.estimate import COVERAGE_80
from ridgeline.errors import InputError, Interrupted
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.simulate.deployment import Deployment, Setup
from ridgeline.plan.simulate.fit import Fitted
from ridgeline.plan.simulate.fleet import Fleet, Simulation
from ridgeline.plan.simulate.setup import SimulationQuestion, Unsure, setup_of
from ridgeline.plan.simulate.what_if import changed_by
from ridgeline.records.load import Load, check_load, trace_of
from ridgeline.records.load_test import ClientCheck, Figures, Percentiles
from ridgeline.records.request_trace import block_tokens
from ridgeline.records.simulated import (
    Alternative,
    FleetUse,
    Interval,
    LatencyInterval,
    Range,
    Simulated,
)

OnProgress = Callable[[str], None]
LATENCIES = ("ttft_seconds", "tpot_seconds", "itl_seconds", "e2e_seconds")


def simulate_serving(
    load: Load,
    deployment: Deployment,
    *,
    model: ModelSpec | None = None,
    measured: Fitted | None = None,
    scaling: Scaling | None = None,
    policy: Callable[[], Policy] | None = None,
    what_if: Sequence[str] = (),
    interval: bool = True,
    on_progress: OnProgress = lambda _: None,
) -> Simulated:
    """Simulate a load on a fleet.

    Args:
        load: Which requests come, and when.
        deployment: What they come to.
        model: Of a deployment on a GPU; of a measured engine, only where prompts are handed over.
        measured: Times of an engine's steps, instead of those of a GPU.
        scaling: Of a fleet that scales; begins with `deployment.replicas`.
        policy: Makes what decides instead of `scaling`, whose bounds and limits count all the same;
            another fleet that scales otherwise has none.
        what_if: Other fleets, each as `key=value,…` (`what_if.py`).
        interval: Also simulate a slower and a faster engine.
        on_progress: Told what is under way.

    Raises:
        InputError: What was asked cannot be, or lies outside what the times were fitted to.
        Interrupted: Before any request was answered.
    """
    check_load(load)
    seed = load.seed if load.seed is not None else random.SystemRandom().getrandbits(32)
    load = msgspec.structs.replace(load, seed=seed)
    trace = trace_of(load)
    question = SimulationQuestion(
        load=load, trace=trace, seed=seed, model=model, measured=measured, policy=policy
    )
    asked = _Asked(question, on_progress)
    setup, unsure = setup_of(question, deployment, scaling)
    changed = [(change, _changed(question, deployment, scaling, change)) for change in what_if]
    on_progress(f"{describe(load)}; Ctrl-C ends it early")
    found = asked.simulation(setup)
    figures = asked.figures(found)
    if found.run.interrupted and not figures.requests.ok:
        raise Interrupted("interrupted before any request was answered: there are no figures")
    band = asked.interval(setup, unsure, figures) if interval else None
    others = [one for change, other in changed if (one := asked.alternative(change, other))]
    exchanges = found.run.exchanges
    return Simulated(
        **msgspec.structs.asdict(figures),
        url="simulation",
        model=model.name if model is not None else "measured engine",
        arrivals=describe(load),
        seed=seed,
        interrupted=asked.interrupted,
        slo=load.slo,
        client=_no_client(),
        timeline=timeline(found.run),
        notes=tuple(_notes(found, figures, cut=asked.interrupted)),
        definitions=DEFINITIONS,
        interval=band,
        request_seconds=request_seconds(found.run, figures.window_seconds),
        fleet=_use(found),
        simulated_seconds=max((one.ended for one in exchanges), default=0.0),
        quantiles=_quantiles(found.run, figures.window_seconds),
        deployment=_written(setup),
        what_if=tuple(others),
        assumed=setup.assumed,
    )


def _changed(
    question: SimulationQuestion, deployment: Deployment, scaling: Scaling | None, change: str
) -> Setup:
    """Another fleet that is asked for; what cannot be is said before anything is simulated."""
    other, scaled = changed_by(deployment, scaling, change)
    if scaled != scaling:
        question = replace(question, policy=None)
    try:
        return setup_of(question, other, scaled)[0]
    except InputError as error:
        raise InputError(f"--what-if {change}: {error}") from None


@dataclass(slots=True)
class _Asked:
    """What all simulations of one question have in common.

    Ctrl-C ends the one under way and all that would follow.
    """

    question: SimulationQuestion
    on_progress: OnProgress
    interrupted: bool = False

    def simulation(self, setup: Setup) -> Simulation:
        """Simulate one fleet under the load.

        A load whose prompts share nothing can find only its own blocks again, after a preemption.
        So it is first run without looking for any, and again in full where someone was preempted.
        """
        if any(one.prefix_ids for one in self.question.trace):
            return self._once(setup)
        found = self._once(replace(setup, named=False))
        return self._once(setup) if found.preemptions and not found.run.interrupted else found

    def _once(self, setup: Setup) -> Simulation:
        load, asked = self.question.load, self.question
        fleet = Fleet(
            setup=setup,
            requests=planned(load, asked.trace, asked.seed),
            concurrency=load.concurrency if load.arrivals == "closed" else None,
            seconds=load.sending_seconds,
            prefix_tokens=block_tokens(load.length_scale),
            on_progress=lambda sent: self.on_progress(f"{sent} requests sent"),
        )
        found = fleet.simulate()
        self.interrupted = self.interrupted or found.run.interrupted
        return found

    def alternative(self, change: str, setup: Setup) -> Alternative | None:
        """The same load on another deployment; None: interrupted."""
        if self.interrupted:
            return None
        self.on_progress(f"what if {change}")
        found = self.simulation(setup)
        if found.run.interrupted:
            return None
        return Alternative(
            change=change, figures=self.figures(found), fleet=_use(found), assumed=setup.assumed
        )

    def figures(self, found: Simulation) -> Figures:
        """By the definitions of `loadtest`."""
        load = self.question.load
        return summarise(found.run, load.warmup(found.run.sent_seconds), load.slo)

    def interval(self, setup: Setup, unsure: Unsure, figures: Figures) -> Interval | None:
        """From a slower and a faster engine; None: interrupted."""
        step = math.exp(COVERAGE_80 * unsure.step)
        others = []
        for word, factor in (("slower", step), ("faster", 1.0 / step)):
            if self.interrupted:
                return None
            self.on_progress(f"the same with an engine {step - 1.0:.0%} {word}")
            time = replace(setup.time, factor=factor, most=None)  # what was asked is in range
            prefill = setup.prefill
            if prefill is not None:
                prefill = replace(prefill, time=replace(prefill.time, factor=factor))
            changed = replace(setup, time=time, prefill=prefill)
            others.append(self.figures(self.simulation(changed)))
        if self.interrupted:
            return None
        runs = [figures, *others]
        among = figures.in_flight / max(setup.deployment.replicas, 1)
        first = math.exp(COVERAGE_80 * unsure.first_token_among(among))
        tokens = [one.output_tokens_per_second for one in runs]
        goodputs = [one.goodput for one in runs]
        return Interval(
            **{
                name: _latency(
                    [getattr(one, name) for one in runs], first if name == "ttft_seconds" else 1.0
                )
                for name in LATENCIES
            },
            output_tokens_per_second=_range([one for one in tokens if one is not None]),
            goodput=(min(goodputs), max(goodputs)),
        )


def _latency(values: Sequence[Percentiles | None], widened: float) -> LatencyInterval | None:
    known = [one for one in values if one is not None]
    if not known or values[0] is None:
        return None
    middle = values[0]

    def range_of(name: str) -> Range:
        found = [getattr(one, name) for one in known]
        value = getattr(middle, name)
        return min(*found, value / widened), max(*found, value * widened)

    return LatencyInterval(
        mean=range_of("mean"), p50=range_of("p50"), p90=range_of("p90"), p99=range_of("p99")
    )


def _range(values: Sequence[float]) -> Range | None:
    return (min(values), max(values)) if values else None


def _quantiles(run: RunStamps, window: tuple[float, float]) -> dict[str, tuple[float, ...]]:
    begin, end = window
    ok = [one for one in run.exchanges if one.ok and begin <= one.planned <= end]
    values = {
        "ttft_seconds": [one.ttft for one in ok],
        "tpot_seconds": [tpot for one in ok if (tpot := one.tpot) is not None],
        "e2e_seconds": [one.e2e for one in ok],
    }
    return {
        name: tuple(np.percentile(found, range(101)).tolist())
        for name, found in values.items()
        if found
    }


def _use(found: Simulation) -> FleetUse:
    return FleetUse(
        replica_seconds=found.replica_seconds,
        most_replicas=found.most_replicas,
        replicas=tuple(found.replicas),
        steps=found.steps,
        preemptions=found.preemptions,
    )


def _written(setup: Setup) -> dict[str, object]:
    fields: dict[str, object] = msgspec.structs.asdict(setup.deployment)
    fields["kv_blocks"] = setup.kv_blocks
    return fields


def _notes(found: Simulation, figures: Figures, *, cut: bool) -> list[str]:
    notes = []
    if found.run.interrupted:
        notes.append(f"interrupted after {quantity.seconds(found.run.sent_seconds)} of sending")
    elif cut:
        notes.append("interrupted: the interval or some other fleets were not simulated")
    if figures.window_seconds[1] > found.run.sent_seconds:
        notes.append("short run: the window reaches to the last answer, so rates include the drain")
    if figures.lengths.cached_share:
        notes.append(f"{figures.lengths.cached_share:.0%} of the input was found in prefix caches")
    if found.preemptions:
        notes.append(f"requests were preempted {found.preemptions} times: the KV cache is small")
    return notes


def _no_client() -> ClientCheck:
    return ClientCheck(
        send_lag_p50=0.0,
        send_lag_p99=0.0,
        send_lag_max=0.0,
        timer_lag_p99=0.0,
        cpu_share=0.0,
        max_send_lag_seconds=0.0,
    )
