"""The formulas behind `ridgeline calc`: those of the textbook, in `cost/`, by name.

A formula is one row of `FORMULAS`: its arguments, their kinds and their defaults are those of the
function. A record among the arguments is given by its fields, a model or a device by its name.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import MappingProxyType
from typing import Any, TypeVar, get_origin, get_type_hints

import msgspec

from ridgeline.cost import (
    all_reduce_steps,
    amdahl,
    asynchronous,
    backbone_sharing,
    checkpoint_interval,
    collective_volume,
    data_loading,
    deadline,
    disk_state,
    flash_attention,
    format_limits,
    gradient_compression,
    learning_rate,
    money,
    number_line,
    pipeline_schedule,
    precision_memory,
    roofline,
    rounding_loss,
    scaling,
    schedule_comparison,
    static_memory,
    step_timeline,
    utilisation,
)
from ridgeline.cost.serving import decode, draft_trees, kv_cache, kv_layouts, speculation
from ridgeline.errors import InputError, in_words
from ridgeline.hardware.catalogue import device
from ridgeline.hardware.cluster import ambiguity
from ridgeline.hardware.facts import Device
from ridgeline.models.load import load_model
from ridgeline.models.spec import ModelSpec, is_windowed, num_layers
from ridgeline.quantity import unit_of

FORMULAS: dict[str, Callable[..., object]] = {
    "acceptance-rate": speculation.acceptance_rate,
    "activations": static_memory.activation_bytes,
    "all-gather": collective_volume.exchange_seconds,
    "all-gather-bytes": collective_volume.all_gather_bytes,
    "all-reduce": collective_volume.all_reduce_seconds,
    "all-reduce-bytes": collective_volume.all_reduce_bytes,
    "all-reduce-steps": all_reduce_steps.all_reduce_steps,
    "amdahl": amdahl.speedup,
    "amdahl-devices": scaling.amdahl_speedup,
    "amdahl-saved": amdahl.speedup_without,
    "asynchronous": asynchronous.asynchronous_forecast,
    "attainable": roofline.attainable_flops_per_second,
    "best-gradient-exchange": gradient_compression.best_compression,
    "bill": money.bill,
    "bound": roofline.bound,
    "break-even": money.steps_to_pay,
    "bubble": pipeline_schedule.bubble_fraction,
    "daly": checkpoint_interval.daly_interval_seconds,
    "daly-first-order": checkpoint_interval.daly_first_order_seconds,
    "data-loading": data_loading.loading_forecast,
    "deadline-slack": deadline.slack_seconds,
    "decode": decode.decode,
    "disk-state": disk_state.disk_state_seconds,
    "doubling-all-reduce": collective_volume.doubling_all_reduce_seconds,
    "draft-tree": draft_trees.best_draft_tree,
    "draft-gain": speculation.forecast,
    "drafts": speculation.best_num_drafts,
    "examples": learning_rate.examples_at,
    "expected-tokens": speculation.expected_tokens,
    "flash-attention": flash_attention.flash_attention,
    "format": format_limits.format_limits,
    "formats": format_limits.format_table,
    "frame": deadline.frame_table,
    "goodput": checkpoint_interval.goodput,
    "gradient-exchange": gradient_compression.exchange,
    "gradient-noise": learning_rate.gradient_noise,
    "gustafson": scaling.gustafson_speedup,
    "kv-cache": kv_cache.kv_cache_bytes,
    "kv-cache-per-token": kv_cache.bytes_per_token,
    "kv-layouts": kv_layouts.compare_kv_layouts,
    "least-time": roofline.least_seconds,
    "linear-rate": learning_rate.linear_scaling,
    "local-sgd-step": gradient_compression.local_step_seconds,
    "local-sgd": gradient_compression.local_sgd_speedup,
    "matmul-intensity": roofline.matmul_intensity,
    "mfu": utilisation.model_flops_utilisation,
    "mtbf": checkpoint_interval.cluster_mtbf_seconds,
    "needed-speedup": deadline.needed_speedup,
    "noise-scale-rate": learning_rate.noise_scale_rate,
    "number-line": number_line.number_line,
    "pipeline": schedule_comparison.compare_schedules,
    "precision": roofline.precision_speedup,
    "precision-memory": precision_memory.precision_memory,
    "prefill": decode.prefill,
    "ridge": roofline.ridge_point,
    "resized": rounding_loss.resized_bytes,
    "ring-all-reduce": collective_volume.ring_all_reduce_seconds,
    "ring-from": collective_volume.ring_from_bytes,
    "rounding-error": format_limits.rounding_error,
    "rounding-noise": rounding_loss.noise_ratio,
    "run-cost": money.run_cost,
    "run-flops": utilisation.training_flops,
    "run-time": utilisation.training_seconds,
    "run-length": money.run_seconds,
    "scaling": scaling.scaling_curve,
    "sequences": decode.most_sequences,
    "sharing": backbone_sharing.work_of_totals,
    "speculation": speculation.speculative_speedup,
    "sqrt-rate": learning_rate.sqrt_scaling,
    "stable-rate": asynchronous.stable_rate,
    "stack": money.cure_stack,
    "states": static_memory.static_bytes,
    "step-timeline": step_timeline.step_timeline,
    "steps": learning_rate.steps_at,
    "sync-interval": gradient_compression.sync_interval_for,
    "tree-speedup": draft_trees.tree_speedup,
    "warmup": learning_rate.warmup,
    "young": checkpoint_interval.young_interval_seconds,
    "zero-saving": static_memory.zero_saving,
    "zero": static_memory.zero_bytes,
}
"""Name on the command line → function."""
MEASURES = {
    "acceptance-rate": "share",
    "break-even": "steps",
    "drafts": "drafted tokens",
    "examples": "ratio",
    "expected-tokens": "tokens",
    "goodput": "share",
    "kv-cache-per-token": "bytes_per_token",
    "linear-rate": "learning rate",
    "matmul-intensity": "flops_per_byte",
    "mfu": "share",
    "noise-scale-rate": "learning rate",
    "ridge": "flops_per_byte",
    "rounding-noise": "ratio",
    "sequences": "sequences",
    "sqrt-rate": "learning rate",
    "stable-rate": "ratio",
    "steps": "ratio",
    "sync-interval": "steps",
    "warmup": "learning rate",
    "zero-saving": "ratio",
}
"""Formula → what its number is, where the name of its function does not end with that."""
_NAMED: dict[type, Callable[[str], object]] = {
    ModelSpec: load_model,
    Device: device,
    static_memory.StateBytes: static_memory.recipe,
}
"""Arguments that are given by a name → what finds them."""
_WORD = re.compile(r"[a-z0-9]+")
_ANY_SIGN = {"value"}
"""Arguments that may lie below 0; all others are counts, amounts, times, rates or shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One value that a formula needs."""

    name: str
    kind: Any
    required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Calculation:
    """A formula with what it was given and what it gave."""

    formula: str
    given: dict[str, str]
    result: object
    measure: str = ""
    """The unit, or the thing, that a single number counts."""
    assumed: tuple[str, ...] = ()
    """What was taken for granted of a model or a device that was given by its name."""


def calculate(formula: str, given: Sequence[str]) -> Calculation:
    """The result of a formula for `name=value` texts.

    >>> calculate("young", ["checkpoint_seconds=50", "mtbf_seconds=10000"]).result
    1000.0

    Raises:
        InputError: There is no such formula or argument, or a value is none.
    """
    function = _function(formula)
    values: dict[str, str] = {}
    for pair in given:
        name, sign, value = pair.partition("=")
        if not sign:
            raise InputError(f"calc {formula}: {pair!r} is no NAME=VALUE; {usage(formula)}")
        values[name.replace("-", "_")] = value
    known = {one.name: one for one in arguments(function)}
    strange = [name for name in values if name not in known]
    missing = [name for name, one in known.items() if one.required and name not in values]
    if strange or missing:
        what = f"no argument {strange[0]!r}" if strange else f"{', '.join(missing)} missing"
        raise InputError(f"calc {formula}: {what}; {usage(formula)}")
    try:
        result = _call(function, values)
        assumed = tuple(_assumed(function, values, result))
    except OverflowError:
        raise InputError(f"calc {formula}: the numbers are too large for it") from None
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(f"calc {formula}: {in_words(error)}") from None
    if isinstance(result, float) and not math.isfinite(result):
        raise InputError(f"calc {formula}: there is no finite number for these ({about(formula)})")
    return Calculation(
        formula=formula, given=values, result=result, measure=measure(formula), assumed=assumed
    )


def _assumed(
    function: Callable[..., object], values: Mapping[str, str], result: object
) -> Iterator[str]:
    """What a device's name left open, and a window of attention where the result hangs on it."""
    for one in arguments(function):
        if one.kind is Device and one.name in values:
            part = device(values[one.name])
            yield from (*part.assumed, *ambiguity(values[one.name], part))
        if one.kind is ModelSpec and one.name in values:
            model = load_model(values[one.name])
            seeing_all = {one.name: msgspec.structs.replace(model, sliding_window=0)}
            if model.sliding_window and _call(function, values, seeing_all) != result:
                windowed = sum(is_windowed(model, layer) for layer in range(num_layers(model)))
                yield (
                    f"{model.name}: {windowed} of {num_layers(model)} layers see, and keep, the "
                    f"last {model.sliding_window:,} tokens only"
                )


def measure(formula: str) -> str:
    """What a formula's single number is.

    >>> measure("daly"), measure("amdahl"), measure("break-even")
    ('seconds', 'ratio', 'steps')
    """
    name = _function(formula).__name__
    if "speedup" in name:
        return "ratio"
    return MEASURES.get(formula, "") or unit_of(name)


def usage(formula: str) -> str:
    """The arguments of a formula as one types them, those with a default in brackets."""
    words = [
        f"{one.name}=…" if one.required else f"[{one.name}=…]"
        for one in arguments(_function(formula))
    ]
    return " ".join(["ridgeline calc", formula, *words])


def about(formula: str) -> str:
    """What a formula gives: the first line of its function's documentation."""
    return (inspect.getdoc(_function(formula)) or "").splitlines()[0]


def arguments(function: Callable[..., object]) -> list[Argument]:
    """Every value that a function needs, records taken apart into their fields."""
    hints = get_type_hints(function)
    found: list[Argument] = []
    for one in inspect.signature(function).parameters.values():
        kind = hints[one.name]
        if _is_record(kind):
            found += _fields_of(kind)
        else:
            found.append(Argument(name=one.name, kind=kind, required=one.default is one.empty))
    return found


def _fields_of(record: type) -> list[Argument]:
    hints = get_type_hints(record)
    return [
        Argument(
            name=one.name,
            kind=hints[one.name],
            required=one.default is MISSING and one.default_factory is MISSING,
        )
        for one in fields(record)
        if not _holds_record(hints[one.name])
    ]


def _function(formula: str) -> Callable[..., object]:
    if formula not in FORMULAS:
        near = _nearest(formula)
        hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(FORMULAS)}"
        raise InputError(f"calc: no formula {formula!r}; {hint}")
    return FORMULAS[formula]


def _nearest(asked: str) -> list[str]:
    """Formulas by a name mistyped, or else by words that stand in what they are about."""
    mistyped = difflib.get_close_matches(asked, FORMULAS, n=3, cutoff=0.75)
    if mistyped:
        return mistyped
    words = set(_WORD.findall(asked.lower()))
    shared = {
        name: sum(
            any(own.startswith(word) for own in _WORD.findall(text.lower())) for word in words
        )
        for name, function in FORMULAS.items()
        for text in [" ".join([name, _subject(function), function.__name__, about(name)])]
    }
    most = max(shared.values())
    if most:
        return [name for name, count in shared.items() if count == most][:6]
    return difflib.get_close_matches(asked, FORMULAS, n=3, cutoff=0.5)


def _subject(function: Callable[..., object]) -> str:
    return function.__module__.rpartition(".")[2]


def _call(
    function: Callable[..., object],
    values: Mapping[str, str],
    instead: Mapping[str, object] = MappingProxyType({}),
) -> object:
    """The function's result for texts, with some arguments replaced by what they are to be."""

    def read(name: str, kind: Any) -> object:
        return instead[name] if name in instead else _read(name, values[name], kind)

    hints = get_type_hints(function)
    given: dict[str, object] = {}
    for name in inspect.signature(function).parameters:
        kind = hints[name]
        if _is_record(kind):
            own = {one.name: one.kind for one in _fields_of(kind) if one.name in values}
            given[name] = kind(**{field: read(field, own[field]) for field in own})
        elif name in values:
            given[name] = read(name, kind)
    return function(**given)


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind) and kind not in _NAMED


def _holds_record(kind: Any) -> bool:
    """Whether a field is an optional record: such a field keeps its default."""
    return any(_is_record(one) for one in getattr(kind, "__args__", ()))


def _read(name: str, text: str, kind: Any) -> object:
    if kind in _NAMED:
        return _NAMED[kind](text)
    if isinstance(kind, TypeVar):  # a number, or an array of them
        kind = kind.__constraints__[0]
    origin = get_origin(kind)
    if origin is Sequence and _is_record(kind.__args__[0]):
        return [_record_of(name, part, kind.__args__[0]) for part in text.split(",")]
    plain: object = text
    if origin is tuple:  # shapes: 4096x4096,1024x4096
        plain = [part.split("x") for part in text.split(",")]
    elif origin is Sequence:
        plain = text.split(",")
    try:
        read = msgspec.convert(plain, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"{name} is {text!r}: {error}") from None
    for number in _numbers(read):
        if not math.isfinite(number):
            raise InputError(f"{name} is {text!r}: give a number that is finite")
        if number < 0 and name not in _ANY_SIGN:
            raise InputError(f"{name} is {text!r}: it cannot be below 0")
    return read


def _record_of(name: str, text: str, record: type) -> object:
    """One of several records: its first field, then others by name (`top-k:density=0.1`)."""
    kinds = {one.name: one.kind for one in _fields_of(record)}
    first, *others = text.split(":")
    given = {next(iter(kinds)): first}
    for other in others:
        field, equals, value = other.partition("=")
        if not equals or field not in kinds:
            raise InputError(f"{name} has {other!r}; after a colon stand {', '.join(kinds)} as F=V")
        given[field] = value
    read = {
        field: _read(f"{name}'s {field}", value, kinds[field]) for field, value in given.items()
    }
    return record(**read)


def _numbers(read: object) -> Iterator[float]:
    if isinstance(read, (int, float)):
        yield read
    elif isinstance(read, (list, tuple)):
        for one in read:
            yield from _numbers(one)
