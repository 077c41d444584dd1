"""Read a table of published serving runs: what was served, on what, under which load.

Columns are listed in `COLUMNS`. Empty cells are filled by rule, never by looking at the value:

- tp: all devices, where pp is 1; columns and words of other layouts: `layouts.py`.
- A bare `A100` is the 80 GB SXM part (`hardware/names.py` reads what stands behind a name).
- KV cache: 8 bits beside float weights of 8 or 4 bits, else 16 (`setting.default_cache`).
- Lengths of a single stream: `STREAM_TOKENS`; otherwise blank lengths make a row insufficient.
- Load: from `batch_or_concurrency` and the note, see `load_of`.
- Engine: words of source and note (`engines.toml`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ridgeline.cost.serving.matmul_dtypes import is_widened, matmul_dtype
from ridgeline.cost.serving.setting import (
    ServingLayout,
    default_cache,
    host,
)
from ridgeline.cost.serving.weight_formats import WEIGHT_BITS, cache_format, weight_format
from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.hardware.facts import Device
from ridgeline.models.names import ROUNDED
from ridgeline.models.spec import ModelSpec
from ridgeline.models.table import spec_from_table
from ridgeline.plan.notes import ServingNote, read_serving_note, read_watts
from ridgeline.plan.serving.engines import EngineClass, engine_of
from ridgeline.plan.serving.layouts import PoolLayout, layout_of, pools_of
from ridgeline.plan.serving.spreads import Neighbourhood
from ridgeline.plan.table_cells import Unreadable, positive, read_cells, whole

COLUMNS = (
    "source", "model", "gpu", "n_gpus", "weight_dtype", "isl", "osl", "batch_or_concurrency",
    "metric_name", "metric_value",
)  # fmt: skip
"""Columns without which a table cannot be read; cells may be empty."""
LATENCIES = {
    "ttft_ms": 1e-3, "ttft_s": 1.0, "itl_ms": 1e-3, "itl_s": 1.0, "tpot_ms": 1e-3, "tpot_s": 1.0,
    "e2e_ms": 1e-3, "e2e_s": 1.0,
}  # fmt: skip
"""Metric of a time → its unit in seconds."""
SAME_METRIC = {
    "latency_ms": "e2e_ms", "latency_s": "e2e_s", "tokens_per_s_per_user": "tokens_per_s_each",
    "output_tokens_per_s": "output_tokens_per_s_total",
    "total_tokens_per_s_total": "total_tokens_per_s",
}  # fmt: skip
"""Another name of a metric → the one that is meant, without `mean_` and `_latency`."""
RATES = (
    "output_tokens_per_s_total", "output_tokens_per_s_per_gpu", "total_tokens_per_s",
    "tokens_per_s_batch1", "tokens_per_s_each", "requests_per_s", "bandwidth_gbs",
)  # fmt: skip
SPAN = re.compile(r"\s*(\d+)\s*-\s*(\d+)")
STREAM_TOKENS = 512.0
"""Prompt or completion of a single stream whose lengths are not stated."""
Kind = Literal["static", "closed", "open", "saturated", "burst"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLoad:
    """The way in which requests came."""

    kind: Kind
    number: float = math.inf
    """Sequences of a static batch, clients of a closed loop, requests of a burst, or requests per
    second of an open loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPool:
    """Workers that only prefill, and the model on one of them."""

    pool: PoolLayout
    decode: PoolLayout
    hosted: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedServing:
    """One row that can be predicted."""

    row: int
    cells: Mapping[str, str]
    model: ModelSpec
    device: Device
    replicas: int
    """Engines, each as often as groups of sequences are in its stages at once."""
    stages: int
    """Stages of a pipeline, each of `layout.tp` devices; 1: there is none."""
    devices: int
    """All devices, those that only prefill too."""
    layout: ServingLayout
    """The layout of one replica, or of one decode worker of a disaggregated row."""
    prefill: PrefillPool | None
    """The workers that only prefill; None: one engine does both."""
    precision: str
    """The dtype of the linear layers' matmuls."""
    widened: float
    """Bits that weights are widened from; 0 where they are not."""
    engine: EngineClass
    load: ServedLoad
    prompt: float
    completion: float
    most_sequences: float
    chunk: float
    hosted: Mapping[str, float]
    metric: str
    published: float
    note: ServingNote

    @property
    def spans(self) -> bool:
        """Whether completions are stated as a span of lengths, `100-1024`."""
        return SPAN.match(self.cells["osl"]) is not None

    @property
    def source(self) -> str:
        """The name of whoever published it."""
        return self.cells["source"]

    @property
    def campaign(self) -> str:
        """What was measured in one go: a source's runs of one model on one device."""
        return f"{self.source}, {self.model.name}, {self.device.name}"

    @property
    def place(self) -> Neighbourhood:
        """Where the run lies, as far as its error depends on it."""
        return Neighbourhood(
            architecture=self.device.architecture,
            engine=self.engine.name,
            experts=self.model.experts is not None,
            layout=self.layout,
            split=self.prefill is not None,
            burst=self.load.kind == "burst" or self.stages > 1,
        )


class Insufficient(Exception):
    """Too little is stated."""


def read_table(path: Path) -> list[PublishedServing | Unreadable]:
    """Every row of a table, in order."""
    return [read_row(number, row) for number, row in enumerate(read_cells(path, COLUMNS), 1)]


def read_row(number: int, cells: Mapping[str, str]) -> PublishedServing | Unreadable:
    """The run of one row, or why it cannot be predicted."""
    try:
        return _run(number, cells)
    except Insufficient as lack:
        return Unreadable(row=number, cells=cells, status="insufficient", reason=str(lack))
    except InputError as error:
        return Unreadable(row=number, cells=cells, status="refused", reason=str(error))


def _run(number: int, cells: Mapping[str, str]) -> PublishedServing:
    note = read_serving_note(cells.get("note", ""))
    metric, published = _value(cells)
    if note.speculative:
        raise Insufficient("speculative decoding: its acceptance is not stated")
    device, power = device_of(cells["gpu"], note.watts)
    try:
        model = spec_from_table(cells)
    except InputError as error:
        raise Insufficient(str(error)) from None
    pp = whole(cells, "pp") or 1
    pools = pools_of(cells, note)
    if pp > 1 and pools:
        raise Insufficient(f"pp is {pp}: which pool has stages is not stated")
    count = whole(cells, "n_gpus") or (sum(one.devices for one in pools) if pools else pp)
    layout = pools[1].layout if pools else layout_of(cells, note, count // pp)
    if layout.attention_dp > 1 and pp > 1:
        raise Insufficient(f"pp is {pp} and attention_dp {layout.attention_dp}: not both")
    check_count(count, layout, pools, pp)
    weights = _weights(cells)
    stated = cells.get("kv_dtype", "")
    cache = cache_format(stated) if stated else default_cache(weights)
    engine = engine_of(f"{cells['source']} {cells.get('source_path', '')} {cells.get('note', '')}")
    load = load_of(cells["batch_or_concurrency"], note, waited=engine.in_python)
    load, busy = staged(load, pp)
    single = metric in ("tokens_per_s_batch1", "bandwidth_gbs")
    prompt, completion = _length(cells, "isl", single=single), _length(cells, "osl", single=single)
    hosted, *prefill = (
        host(model, device, one, weights=weights, cache=cache, power=power)
        for one in (layout, *((pools[0].layout,) if pools else ()))
    )
    if note.cache_tokens is not None:
        kept = hosted["cache_bytes"] + hosted["window_cache_bytes"]
        hosted |= {"cache_room_bytes": note.cache_tokens * kept / pp}
    # Each group of sequences has its caches in all stages, but no stage has all weights.
    hosted |= {"resident_bytes": hosted["resident_bytes"] / pp}
    return PublishedServing(
        row=number,
        cells=cells,
        model=model,
        device=device,
        replicas=pools[1].workers if pools else count // layout.devices // pp * busy,
        stages=pp,
        devices=count,
        layout=layout,
        prefill=PrefillPool(pool=pools[0], decode=pools[1], hosted=prefill[0]) if pools else None,
        precision=matmul_dtype(device, weights),
        widened=WEIGHT_BITS[weights] if is_widened(device, weights) else 0.0,
        engine=engine,
        load=load,
        prompt=prompt,
        completion=max(completion, 1.0),
        most_sequences=(note.most_sequences or engine.most_on(device)) / pp,
        chunk=note.chunk or engine.chunk_on(device),
        hosted=hosted,
        metric=metric,
        published=published,
        note=note,
    )


def staged(load: ServedLoad, stages: int) -> tuple[ServedLoad, int]:
    """The load of one group of sequences, and how many groups are in a pipeline at once.

    A pipeline of p stages works on p groups, each of which goes through all layers in turn: it is
    as slow as on one stage's devices that hold all layers, and there are p of them (Huang et al.,
    arXiv 1811.06965, without the bubble of a first and last group).

    >>> staged(ServedLoad(kind="static", number=128.0), 4)
    (ServedLoad(kind='static', number=32.0), 4)
    >>> staged(ServedLoad(kind="closed", number=1.0), 4)
    (ServedLoad(kind='closed', number=1.0), 1)
    """
    busy = stages if load.kind in ("open", "saturated") else min(stages, max(int(load.number), 1))
    return replace(load, number=load.number / busy), busy


def check_count(
    count: int, layout: ServingLayout, pools: tuple[PoolLayout, PoolLayout] | None, stages: int = 1
) -> None:
    """Refuse a number of devices that the layout does not come to."""
    if pools is None and (not count // stages or count % (layout.devices * stages)):
        pipeline = f" x pp {stages}" if stages > 1 else ""
        raise InputError(
            f"tp {layout.tp} x attention_dp {layout.attention_dp}{pipeline} does not divide n_gpus"
            f" {count}"
        )
    needed = sum(one.devices for one in pools) if pools else count
    if needed != count:
        raise InputError(f"n_gpus is {count}, but the workers of both pools have {needed}")


def device_of(text: str, watts: float | None = None) -> tuple[Device, float]:
    """The device of a cell, and its power over the data sheet's (`A100-SXM4-80GB@330W`)."""
    name, _, limit = text.partition("@")
    try:
        device = catalogue.device(name)
    except InputError as error:
        part = _counted_part(name)
        if part:
            raise InputError(f"gpu {text!r}: give {part}, and how many in n_gpus") from None
        raise InputError(f"gpu {text!r}: {error}") from None
    stated = read_watts(limit) if limit else watts
    if stated and device.power:
        return device, min(stated / device.power.watts, 1.0)
    return device, 1.0


def _counted_part(name: str) -> str:
    """The part of which a name says how many there are; empty: it says no such thing."""
    counted = re.match(r"\d+\s*x\s*(\S.*)|(\S.*?)\s*x\s*\d+$", name, re.IGNORECASE)
    part = (counted[1] or counted[2]) if counted else ""
    try:
        catalogue.device(part)
    except InputError:  # the x belongs to the name, as that of an RTX
        return ""
    return part


def load_of(text: str, note: ServingNote, *, waited: bool = False) -> ServedLoad:
    """How requests came, from the words of a row.

    Args:
        text: A number of requests, or a rate.
        note: What else the row says.
        waited: Whether the requests of one client, too, wait for an engine in Python.

    >>> plain = read_serving_note("")
    >>> load_of("16", plain), load_of("rate 31.4/s", plain)
    (ServedLoad(kind='closed', number=16.0), ServedLoad(kind='open', number=31.4))
    """
    folded = text.lower()
    rate = re.search(r"([\d.]+) ?(?:/s\b|req(?:uests)?/s|rps|qps)|rate ([\d.]+)", folded)
    if rate:
        return ServedLoad(kind="open", number=float(rate[1] or rate[2]))
    number = re.search(r"\d+(?:\.\d+)?", folded)
    if re.search(r"max load|infinite|inf\b|saturat", folded) or "open loop" in folded:
        return ServedLoad(kind="saturated")
    if number is None:
        raise Insufficient(f"batch_or_concurrency is {text!r}; give a number, a rate, or max load")
    value = float(number[0])
    if "burst" in folded or note.burst:
        return ServedLoad(kind="burst", number=value)
    if note.static or (value == 1 and not (note.served and waited)):
        return ServedLoad(kind="static", number=value)
    return ServedLoad(kind="closed", number=value)


def _weights(cells: Mapping[str, str]) -> str:
    """The format of the weights: 16 bits where nothing is stated, in the model's name either."""
    if not cells["weight_dtype"] and ROUNDED.search(cells["model"]):
        raise Insufficient(
            f"weight_dtype is blank, but {cells['model']} has rounded weights; fill it in"
        )
    return weight_format(cells["weight_dtype"] or "bf16")


def _value(cells: Mapping[str, str]) -> tuple[str, float]:
    stated, text = cells["metric_name"], cells["metric_value"]
    bare = stated.removeprefix("mean_").replace("e2e_latency", "e2e")
    metric = SAME_METRIC.get(bare, bare)
    if metric not in LATENCIES and metric not in RATES:
        raise InputError(f"metric_name {stated!r}: use {', '.join((*LATENCIES, *RATES))}")
    value = positive(text)
    if value is None:
        raise InputError(f"metric_value is {text!r}; it must be a number above 0")
    return metric, value


def _length(cells: Mapping[str, str], name: str, *, single: bool) -> float:
    text = cells[name]
    if not text:
        if single:
            return STREAM_TOKENS
        raise Insufficient(f"{name} is blank; fill it in")
    span = SPAN.match(text)
    if span:
        return (float(span[1]) + float(span[2])) / 2.0
    found = re.match(r"\s*(\d+(?:\.\d+)?)", text)
    if not found:
        raise InputError(f"{name} is {text!r}; it must be a number of tokens")
    return float(found[1])
