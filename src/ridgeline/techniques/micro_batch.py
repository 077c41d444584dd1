"""Larger micro-batches, and fewer of them: the batch of an optimizer step stays what it is.

A script that accumulates gradients pays for each micro-batch once more what does not depend on
its size: starting operators, reading weights, Python. Where memory allows, two or more of them run
as one. The same samples come in the same order, and the gradient is the same mean, rounded in
another order; with dropout, other elements are dropped.

Where the script states both numbers (micro-batches per step, samples in each) is found by their
values: a statement under a name that speaks of accumulation and holds the micro-batches that were
counted, and one of a batch, or a DataLoader, that holds the samples that were counted
(`measure/child/stated.py`). A script that means something else by them trains otherwise then, and
the comparison of its losses says so.
"""

from __future__ import annotations

from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.measure.child.sites import user_site
from ridgeline.measure.child.stated import Change, restate
from ridgeline.patches import Undo, in_reverse
from ridgeline.records.edits import Edit, SetArgument
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

CARD = Card(
    name="micro-batch",
    title="Larger micro-batches, fewer per step",
    cures=("small-batch",),
    costs="Memory for the activations of the larger micro-batch.",
    source="PyTorch documentation, Automatic Mixed Precision examples, gradient accumulation; "
    "Goyal et al., Accurate, Large Minibatch SGD, 2017, section 3",
    equivalence="rounding",
    stage=Stage.INPUT,
    required={"factor": int, "steps": str, "micro_batches": int, "batch": str, "samples": int},
    optional={"dropout": bool},
    equivalence_with={"dropout": "statistical"},
)

_FULL = 0.8
"""Share of the device's memory that the larger activations may fill."""
_WHOLE = 0.02
"""How far a count per step may be from a whole number: every step is the same then."""
_LOADER = "loader"


def applies(context: Context) -> Applicability:
    """Gradients are accumulated by numbers that the script states, and memory is left."""
    profile = context.profile
    if profile.kind != "training" or profile.settings.backwards_per_step < 2 - _WHOLE:
        return Applicability(False, "each step is one backward")
    count = _micro_batches(context)
    if count is None:
        return Applicability(False, "steps have different numbers of backwards")
    if any(model.has_batch_norm for model in profile.models):
        return Applicability(False, "batch norm would see other batches")
    if _steps(context) is None:
        return Applicability(
            False, f"no number of the script says that {count} micro-batches make a step"
        )
    if _batch(context) is None:
        return Applicability(False, "no number of the script says how large a micro-batch is")
    if not _factors(context):
        return Applicability(False, "a micro-batch of twice the size does not fit in memory")
    return Applicability(True, "")


def _micro_batches(context: Context) -> int | None:
    """Backwards of a step; None unless every step has as many."""
    seen = context.profile.settings.backwards_per_step
    return round(seen) if abs(seen - round(seen)) <= _WHOLE else None


def _samples(context: Context) -> int | None:
    """Samples in a micro-batch; None where they differ or were not seen."""
    profile, count = context.profile, _micro_batches(context)
    if profile.samples_per_second is None or not count:
        return None
    seen = profile.samples_per_second * profile.step_seconds.mean / count
    return round(seen) if abs(seen - round(seen)) <= _WHOLE * seen else None


def _steps(context: Context) -> str | None:
    """The statement of how many micro-batches a step has."""
    return _stated(context, "accum", _micro_batches(context))


def _batch(context: Context) -> str | None:
    """The statement of how many samples a micro-batch has, or else its loader."""
    samples = _samples(context)
    stated = _stated(context, "batch", samples)
    if stated is not None:
        return stated
    sites = [one.site for one in context.profile.loaders if one.batch_size == samples]
    return f"{_LOADER}:{sites[0]}" if len(sites) == 1 and sites[0] is not None else None


def _stated(context: Context, word: str, value: int | None) -> str | None:
    """The one statement with this word in its name and this value; a command's word comes first."""
    found = [
        name
        for name, size in context.profile.settings.stated_sizes.items()
        if size == value and word in name.partition(":")[2].lower()
    ]
    if word == "batch":
        found = [name for name in found if "accum" not in name.lower() and "eval" not in name]
    given = [name for name in found if name.startswith("arguments:")]
    return next(iter(given or found), None)


def _factors(context: Context) -> list[int]:
    """How many micro-batches may become one, where there is memory; the largest first."""
    profile, count = context.profile, _micro_batches(context) or 1
    room = _FULL * profile.device_memory_bytes - profile.peak_memory_bytes
    more = profile.memory.activations_bytes
    fits = [
        factor for factor in (count, 4, 2) if count % factor == 0 and (factor - 1) * more <= room
    ]
    return sorted(set(fits), reverse=True)


def options(context: Context) -> list[Options]:
    """All micro-batches as one where they fit, and two as one."""
    factors, count, samples = _factors(context), _micro_batches(context), _samples(context)
    steps, batch = _steps(context), _batch(context)
    assert count is not None
    assert samples is not None
    assert steps is not None
    assert batch is not None
    dropout: Options = {"dropout": True} if _drops(context) else {}
    found: list[Options] = []
    for factor in dict.fromkeys((factors[0], factors[-1])):
        found.append({
            "factor": factor, "steps": steps, "micro_batches": count, "batch": batch,
            "samples": samples, **dropout,
        })  # fmt: skip
    return found


def _drops(context: Context) -> bool:
    return any(model.has_dropout for model in context.profile.models)


def predict(context: Context, options: Options) -> Gain:
    """What does not grow with the batch is paid for less often; caches may be lost."""
    saved = 1 - 1 / int(options["factor"])
    computing = context.phase_share("data", "forward", "backward")
    small = min(computing, context.profile.small_operator_share)
    return Gain(0.97 / (1 - 0.5 * small * saved), amdahl((computing + small) / 2, 1.0, 2.0).high)


def apply(points: Points, options: Options) -> Undo:
    """State both numbers anew; say so once both are in force."""
    factor, count = int(options["factor"]), int(options["micro_batches"])
    samples, steps, batch = int(options["samples"]), str(options["steps"]), str(options["batch"])
    done: set[str] = set()

    def told(statement: str) -> None:
        done.add(statement)
        if {steps, batch} <= done:
            points.changed(
                CARD.name,
                f"{count // factor} micro-batch(es) of {samples * factor} samples in place of "
                f"{count} of {samples}: {steps.partition(':')[2]} = {count // factor}",
            )

    def enlarge(arguments: dict[str, Any]) -> None:
        if arguments.get("batch_size") == samples and f"{_LOADER}:{user_site()}" == batch:
            arguments["batch_size"] = samples * factor
            told(batch)

    changes: dict[str, Change] = {steps: (count, count // factor)}
    undos: list[Undo] = []
    if batch.startswith(f"{_LOADER}:"):
        points.on_loader.append(enlarge)
        undos.append(lambda: points.on_loader.remove(enlarge))
    else:
        changes[batch] = (samples, samples * factor)
    return in_reverse([*undos, restate(points, changes, told)])


def edits(context: Context, options: Options) -> list[Edit]:
    """Both arguments, where they are of calls in the script; else they are a person's to give."""
    factor, steps = int(options["factor"]), str(options["steps"])
    loaders = [
        one for one in context.profile.loaders if f"{_LOADER}:{one.site}" == options["batch"]
    ]
    owner, _, keyword = steps.partition(":")
    if not loaders or owner in ("arguments", "constants"):
        return []
    fewer, more = int(options["micro_batches"]) // factor, int(options["samples"]) * factor
    return [
        SetArgument(files=context.files, callee=owner, keyword=keyword, value=str(fewer)),
        SetArgument(
            site=loaders[0].site, callee="DataLoader", keyword="batch_size", value=str(more)
        ),
    ]
