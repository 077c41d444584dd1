"""The cheapest GPUs, layout and number of replicas for a load and its targets (`plan serving`).

Every device with a known price and published runs behind it, every tp of `TENSOR_RANKS`, every kind
of weights that is allowed is a candidate. For each, the most requests that one replica can have
under way within the targets is read off a grid, less the headroom; replicas follow from the load,
cost from the median price on record. Targets of mean latencies are met by these numbers; those of
99th percentiles by simulating a replica and adding more (`tail.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np

from ridgeline import quantity
from ridgeline.batching.kept_tokens import KeptTokens
from ridgeline.cost.arrays import Floats
from ridgeline.cost.serving.kept_model import keeping
from ridgeline.cost.serving.load import most_running
from ridgeline.cost.serving.matmul_dtypes import matmul_dtype
from ridgeline.cost.serving.mean_steps import prompt_seconds, steady_step
from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.models.counts import parameter_count
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.serving.coefficients import Calibration, read_calibration
from ridgeline.plan.serving.estimate import Arrays, arrays_of, estimate_serving
from ridgeline.plan.serving.guessing import speculation_of
from ridgeline.plan.serving.nearby import nearby
from ridgeline.plan.serving.published import ServedLoad
from ridgeline.plan.serving.question import ServingQuestion, check_range, seen
from ridgeline.plan.serving.split import SplitTask, split_options
from ridgeline.plan.serving.spreads import factor_of
from ridgeline.plan.serving.tail import MOST_TIMES, SharedLoad, TailTarget, within_tail
from ridgeline.plan.simulate.drafting import Drafting
from ridgeline.records.serving_plan import Change, ServingOption, ServingPlan, SplitOption

TENSOR_RANKS = (1, 2, 4, 8)
LEVELS = 48
"""Points of the grid of requests under way, evenly spaced in the logarithm."""
HEADROOM = 0.2
"""The share of what a replica can carry that is left free for bursts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingTask:
    """What is to be served, how well."""

    model: ModelSpec
    prompt: float
    completion: float
    users: float | None = None
    """Requests under way at once."""
    rate: float | None = None
    """Requests that arrive per second."""
    ttft_seconds: float | None = None
    itl_seconds: float | None = None
    ttft_p99_seconds: float | None = None
    itl_p99_seconds: float | None = None
    gpus: tuple[str, ...] = ()
    """The devices that may be bought; empty: every device with a price and published runs."""
    weights: tuple[str, ...] = ("bf16", "fp8")
    engine: str = "python"
    headroom: float = HEADROOM
    split: bool = False
    """Look for replicas that only compute prompts beside others that only decode, too."""
    link_bytes_per_second: float = 25e9
    """Between those, for the cache of a prompt."""
    kept: KeptTokens | None = None
    """The tokens that each one sees; None: all before it."""
    drafting: Drafting | None = None
    """The guesses that steps check; None: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What each candidate's replica can carry within the targets."""

    replicas: list[ServingQuestion]
    arrays: Arrays
    running: Floats
    """Requests under way; 0: the targets cannot be met."""
    requests_per_second: Floats
    reason: list[str]
    """Why not, where it is 0."""


def plan_serving(task: ServingTask, calibration: Calibration | None = None) -> ServingPlan:
    """The cheapest deployment, the others, and what would change the plan.

    Raises:
        InputError: When nothing can serve the load within the targets, or no fit covers it.
    """
    known = calibration or read_calibration()
    _check(task, known)
    options, why_not, searched = _options(task, known)
    if not options:
        reasons = "; ".join(f"{gpu}: {reason}" for gpu, reason in list(why_not.items())[:4])
        raise InputError(f"nothing serves this within the targets: {reasons}")
    best = options[0]
    shown: dict[str, ServingOption] = {}
    for option in options[1:]:
        gpu = option.estimate.deployment.gpu
        if gpu != best.estimate.deployment.gpu:
            shown.setdefault(gpu, option)
    return ServingPlan(
        model=task.model.name,
        prompt_tokens=task.prompt,
        answer_tokens=task.completion,
        users=task.users,
        rate=task.rate,
        ttft_target_seconds=task.ttft_seconds,
        itl_target_seconds=task.itl_seconds,
        ttft_p99_target_seconds=task.ttft_p99_seconds,
        itl_p99_target_seconds=task.itl_p99_seconds,
        best=best,
        others=list(shown.values()),
        why_not=why_not,
        changes=[_change(what, other, best, known) for what, other in nearby(task)],
        searched=searched,
        splits=_splits(task, known) if task.split else [],
    )


def _splits(task: ServingTask, calibration: Calibration) -> list[SplitOption]:
    """Deployments on two kinds of replicas, cheapest first."""
    replicas, _ = _candidates(task, calibration)
    asked = SplitTask(
        completion=task.completion,
        users=task.users,
        rate=task.rate,
        ttft_seconds=task.ttft_seconds or math.inf,
        itl_seconds=task.itl_seconds or math.inf,
        headroom=task.headroom,
        link_bytes_per_second=task.link_bytes_per_second,
        yielded=1.0 if task.drafting is None else task.drafting.tokens_per_round,
    )
    return split_options(replicas, asked, calibration)


def _check(task: ServingTask, calibration: Calibration) -> None:
    if (task.users is None) == (task.rate is None):
        raise InputError("give either users (requests under way) or rate (requests per second)")
    if not 0.0 <= task.headroom < 1.0:
        raise InputError(f"headroom is {task.headroom:g}; it must be from 0 to below 1")
    asked = {
        "parameters": float(parameter_count(task.model)),
        "prompt": task.prompt,
        "completion": task.completion,
    }
    check_range(calibration, asked)
    if task.kept is not None:
        if task.split:
            raise InputError("--kv-recent: what it keeps is not handed over; leave out --split")
        keeping(task.model, task.kept.recent, task.kept.first)
    if task.split and (task.ttft_p99_seconds is not None or task.itl_p99_seconds is not None):
        raise InputError(
            "--split is planned for mean latencies; ridgeline simulate serving --prefill-replicas N"
            " --prefill-gpu DEVICE says the 99th percentiles"
        )


def _options(
    task: ServingTask, calibration: Calibration
) -> tuple[list[ServingOption], dict[str, str], int]:
    """Every candidate's best deployment, cheapest first; device → why none of it can."""
    replicas, why_not = _candidates(task, calibration)
    if not replicas:
        return [], why_not, 0
    capacity = capacity_of(task, replicas, calibration)
    ranked: list[tuple[float, int, int]] = []
    for index, one in enumerate(replicas):
        name = one.device.name
        if capacity.running[index] <= 0.0:
            why_not.setdefault(name, capacity.reason[index])
            continue
        count = needed(task, capacity, index)
        price = catalogue.typical_usd_per_device_hour(name)
        cost = count * one.tp * price if price is not None else math.inf
        ranked.append((cost, count * one.tp, index))
    target = TailTarget(ttft_seconds=task.ttft_p99_seconds, itl_seconds=task.itl_p99_seconds)
    if target.asked:
        options = _within_tail(task, capacity, sorted(ranked), calibration, target, why_not)
    else:
        firsts: dict[str, int] = {}
        for _, _, index in sorted(ranked):
            firsts.setdefault(replicas[index].device.name, index)
        options = [_option(task, capacity, index, calibration) for index in firsts.values()]
    served = {option.estimate.deployment.gpu for option in options}
    return options, {gpu: why for gpu, why in why_not.items() if gpu not in served}, len(replicas)


def _within_tail(
    task: ServingTask,
    capacity: Capacity,
    ranked: list[tuple[float, int, int]],
    calibration: Calibration,
    target: TailTarget,
    why_not: dict[str, str],
) -> list[ServingOption]:
    """Options whose 99th percentiles are within the targets, cheapest first.

    Candidates come by what they cost for the means alone, which a tail only adds to: the first that
    would cost more than the best that was found ends the search.
    """
    load = SharedLoad(users=task.users, rate=task.rate, calibration=calibration)
    found: list[tuple[float, int, ServingOption]] = []
    for cost, gpus, index in ranked:
        least = min((one[:2] for one in found), default=(math.inf, math.inf))
        if (cost, gpus) >= least:
            break
        replica, by_mean = capacity.replicas[index], needed(task, capacity, index)
        room = least[0] / cost if math.isfinite(cost) else math.inf
        most = math.floor(min(room, MOST_TIMES) * by_mean)
        try:
            count, tail = within_tail(replica, load, target, by_mean, most)
        except InputError as error:
            why_not.setdefault(replica.device.name, str(error))
            continue
        option = _option(task, capacity, index, calibration, count=count)
        option = msgspec.structs.replace(option, tail=tail)
        dear = cost / by_mean * count
        found.append((dear, option.num_gpus, option))
    firsts: dict[str, ServingOption] = {}
    for _, _, option in sorted(found, key=lambda one: one[:2]):
        firsts.setdefault(option.estimate.deployment.gpu, option)
    return list(firsts.values())


def _candidates(
    task: ServingTask, calibration: Calibration
) -> tuple[list[ServingQuestion], dict[str, str]]:
    named = [catalogue.device(name) for name in task.gpus]
    devices = named or [one for one in catalogue.devices() if catalogue.prices(one.name)]
    found, why_not = [], {}
    for device in devices:
        for weights in task.weights:
            kind = matmul_dtype(device, weights)
            if not named and not seen(calibration, device, kind):
                why_not[device.name] = (
                    f"no published run of {device.architecture} with {kind} matmuls is on record"
                )
                continue
            found += [
                ServingQuestion(
                    model=task.model,
                    device=device,
                    tp=tp,
                    weights=weights,
                    engine=task.engine,
                    prompt=task.prompt,
                    completion=task.completion,
                    kept=task.kept,
                    drafting=task.drafting,
                )
                for tp in TENSOR_RANKS
                if not task.model.heads % tp
            ]
    kept = {one.device.name for one in found}
    return found, {gpu: why for gpu, why in why_not.items() if gpu not in kept}


def capacity_of(
    task: ServingTask, replicas: list[ServingQuestion], calibration: Calibration
) -> Capacity:
    """The most requests under way that each candidate's replica can have within the targets."""
    arrays = arrays_of(replicas, calibration)
    most = most_running(arrays.hosted, arrays.rates, arrays.lengths) * (1.0 - task.headroom)
    index = np.repeat(np.arange(len(replicas)), LEVELS)
    shares = np.tile(np.linspace(0.0, 1.0, LEVELS), len(replicas))
    running = np.maximum(most[index], 1.0) ** shares
    grid = arrays.take(index)
    step = steady_step(grid.hosted, grid.rates, grid.lengths, running).total
    each = step / grid.lengths.yielded
    one = np.ones_like(running)
    first = prompt_seconds(grid.hosted, grid.rates, grid.lengths, one, running)
    first = first + grid.rates.request_seconds + 0.5 * step
    rate = running / (first + (task.completion - 1.0) * each)
    # No 99th percentile lies below its mean.
    soon = first <= min(task.ttft_seconds or math.inf, task.ttft_p99_seconds or math.inf)
    quick = each <= min(task.itl_seconds or math.inf, task.itl_p99_seconds or math.inf)
    good = (soon & quick & (most[index] >= 1.0)).reshape(len(replicas), LEVELS)
    last = np.where(good.any(axis=1), LEVELS - 1 - np.argmax(good[:, ::-1], axis=1), -1)
    at = np.arange(len(replicas)) * LEVELS + np.maximum(last, 0)
    reasons = []
    for number, position in enumerate(np.arange(len(replicas)) * LEVELS):
        if most[number] < 1.0:
            reasons.append("weights and one request do not fit")
        elif not soon[position]:
            reasons.append(f"alone, the first token takes {quantity.seconds(first[position])}")
        else:
            reasons.append(f"alone, a token takes {quantity.seconds(each[position])}")
    return Capacity(
        replicas=replicas,
        arrays=arrays,
        running=np.where(last >= 0, running[at], 0.0),
        requests_per_second=np.where(last >= 0, rate[at], 0.0),
        reason=reasons,
    )


def needed(task: ServingTask, capacity: Capacity, index: int, factor: float = 1.0) -> int:
    """Replicas for the load, when they are `factor` times as fast as predicted."""
    if task.users is not None:
        share = task.users / (float(capacity.running[index]) * factor)
    else:
        share = (task.rate or 0.0) / (float(capacity.requests_per_second[index]) * factor)
    return max(math.ceil(share - 1e-9), 1)


def _option(
    task: ServingTask,
    capacity: Capacity,
    index: int,
    calibration: Calibration,
    count: int | None = None,
) -> ServingOption:
    replica = capacity.replicas[index]
    factor = factor_of(calibration.sigma_of("throughput", replica.place))
    by_mean = needed(task, capacity, index)
    count = count or by_mean
    if task.users is not None:
        load = ServedLoad(kind="closed", number=task.users / count)
        full = float(capacity.running[index]) * count
        headroom = 1.0 - (1.0 - task.headroom) * task.users / full
    else:
        load = ServedLoad(kind="open", number=(task.rate or 0.0) / count)
        full = float(capacity.requests_per_second[index]) * count
        headroom = 1.0 - (1.0 - task.headroom) * (task.rate or 0.0) / full
    estimate = estimate_serving(replica, load, calibration)
    if task.drafting is not None:
        gain = speculation_of(
            replica, task.drafting, running=estimate.running, calibration=calibration
        )
        estimate = msgspec.structs.replace(estimate, speculation=gain)
    price = catalogue.typical_usd_per_device_hour(replica.device.name)
    hourly = None if price is None else price * count * replica.tp
    tokens = estimate.output_tokens_per_second.value * count
    million = None if hourly is None else hourly / 3600.0 / tokens * 1e6
    few, many = (
        max(needed(task, capacity, index, speed) * count / by_mean, 1.0)
        for speed in (factor, 1.0 / factor)
    )
    return ServingOption(
        estimate=estimate,
        replicas=count,
        replicas_interval=(math.ceil(few - 1e-9), math.ceil(many - 1e-9)),
        num_gpus=count * replica.tp,
        usd_per_hour=hourly,
        usd_per_million_output_tokens=million,
        usd_per_million_interval=(
            None if million is None else (million * few / count, million * many / count)
        ),
        headroom=headroom,
        replicas_by_mean=by_mean,
        meets_at_worst=(
            estimate.ttft_seconds.interval[1] <= (task.ttft_seconds or math.inf)
            and estimate.tpot_seconds.interval[1] <= (task.itl_seconds or math.inf)
        ),
    )


def _change(what: str, task: ServingTask, best: ServingOption, calibration: Calibration) -> Change:
    options, _, _ = _options(task, calibration)
    if not options:
        return Change(what=what, answer="nothing serves it", usd_per_hour=None, different=True)
    option = options[0]
    return Change(
        what=what,
        answer=answer_text(option),
        usd_per_hour=option.usd_per_hour,
        different=answer_text(option) != answer_text(best),
    )


def answer_text(option: ServingOption) -> str:
    """What to buy, in few words."""
    one = option.estimate.deployment
    return f"{option.replicas} x ({one.tp} x {one.gpu}), {one.weights}"
