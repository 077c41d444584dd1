"""All numbers that one estimate needs, as arrays, so that many runs are one computation.

Two uses share the formulas: a search has one model and cluster and very many layouts (fields of
length one broadcast against arrays of layouts); a validation table has a different model, cluster
and software in every row (`join_settings` makes every field as long as the table).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from ridgeline.cost.coefficients import Coefficients, Rates, rates_of
from ridgeline.cost.dimensions import Dimensions, dimensions_of
from ridgeline.cost.layouts import PRECISIONS, Bools, Floats, Layouts
from ridgeline.cost.workload import Stack, Workload
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.facts import Device
from ridgeline.models.spec import ModelSpec

T = TypeVar("T")

ELEMENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "mxfp8": 1.0, "nvfp4": 0.5}
ASSUMED_UNITS = 100
"""Compute units of a device whose number is not on record: as the large ones have."""
_PEAKS = {"mxfp8": "fp8", "nvfp4": "fp4", "fp32": "tf32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The cluster as numbers."""

    peak: Floats
    """FLOP/s of the layout's precision, dense."""
    peak_sixteen: Floats
    """FLOP/s in 16 bits."""
    memory_bytes_per_second: Floats
    capacity_bytes: Floats
    units: Floats
    """Compute units (SMs, CUs)."""
    domain_size: Floats
    domain_bytes_per_second: Floats
    domain_latency_seconds: Floats
    network_bytes_per_second: Floats
    network_latency_seconds: Floats
    host_bytes_per_second: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The workload and its stack as numbers."""

    seq: Floats
    document: Floats
    recompute_share: Floats
    fused_attention: Bools
    attention_rate: Floats
    vendor_attention: Bools
    sink_attention: Bools
    fused_elementwise: Bools
    modules: Bools
    legacy: Bools
    overlap_tensor: Bools
    overlap_data: Bools
    expert_rate: Floats
    hierarchical_dispatch: Bools
    overlap_experts: Bools
    interleave_experts: Bools
    dropout: Bools
    frozen_weights: Bools
    chunked_logits: Bools
    weight_bytes: Floats
    gradient_bytes: Floats
    reduce_bytes: Floats
    step_gradient_bytes: Floats
    bucket_bytes: Floats
    master_bytes: Floats
    optimizer_bytes: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One computation: arrays of one common length, or of length one."""

    dims: Dimensions
    site: Site
    software: Software
    rates: Rates
    layouts: Layouts
    width: Floats
    """Bytes per element of the operands of matrix products."""

    @property
    def num_devices(self) -> Floats:
        """Devices that each layout fills."""
        layouts = self.layouts
        return np.asarray(layouts.dp * layouts.tp * layouts.pp * layouts.cp, dtype=np.float64)

    @property
    def routed_tokens(self) -> Floats:
        """Tokens that one device sends to experts.

        Those of a tensor-parallel group are split between its ranks, unless experts are cut by
        tensor parallelism too.
        """
        return self.tokens * self.layouts.etp / self.layouts.tp

    @property
    def tokens(self) -> Floats:
        """Of one micro-batch on one device, its share of a context-parallel sequence."""
        return self.layouts.micro_batch * self.software.seq / self.layouts.cp


def peak_of(device: Device, precision: str) -> float:
    """Dense peak of an arithmetic; nan where the device has none (that layout cannot run)."""
    peaks = device.peaks
    wanted = _PEAKS.get(precision, precision)
    if wanted not in peaks and precision in ("bf16", "fp16"):
        wanted = device.training_dtype
    if wanted not in peaks and precision == "fp32":
        wanted = "fp32"
    return peaks.get(wanted, float("nan"))


def setting_of(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    layouts: Layouts,
    coefficients: Coefficients,
) -> Setting:
    """The numbers of one model on one cluster under many layouts."""
    device = cluster.device
    peaks = np.array([peak_of(device, name) for name in PRECISIONS])
    widths = np.array([ELEMENT_BYTES[name] for name in PRECISIONS])
    site = {
        "peak_sixteen": peak_of(device, "bf16"),
        "memory_bytes_per_second": device.memory.bandwidth_bytes_per_second,
        "capacity_bytes": device.memory.usable_bytes,
        "units": device.chip.num_units or ASSUMED_UNITS,
        "domain_size": cluster.domain_size,
        "domain_bytes_per_second": cluster.domain_bytes_per_second,
        "domain_latency_seconds": cluster.domain_latency_seconds,
        "network_bytes_per_second": cluster.network_bytes_per_second / cluster.oversubscription,
        "network_latency_seconds": cluster.network_latency_seconds,
        "host_bytes_per_second": cluster.host_bytes_per_second,
    }
    return Setting(
        dims=dimensions_of(model, causal=workload.causal),
        site=Site(
            peak=peaks[layouts.precision],
            **{name: np.array([float(value)]) for name, value in site.items()},
        ),
        software=_software(workload),
        rates=rates_of(coefficients, layouts),
        layouts=layouts,
        width=widths[layouts.precision],
    )


def _software(workload: Workload) -> Software:
    stack: Stack = workload.stack
    values: dict[str, Any] = {
        "seq": np.array([float(workload.seq)]),
        "document": np.array([float(workload.document or workload.seq)]),
        "recompute_share": np.array([float(workload.recompute_share)]),
        "frozen_weights": np.array([workload.frozen_weights]),
    }
    for field in fields(Software):
        if field.name not in values:
            value = getattr(stack, field.name)
            values[field.name] = np.array([value if isinstance(value, bool) else float(value)])
    return Software(**values)


def join_settings(settings: Sequence[Setting]) -> Setting:
    """Settings of one layout each as one setting of as many rows."""
    joined: Setting = _join(list(settings))
    return joined


def _join(parts: list[Any]) -> Any:
    first = parts[0]
    if is_dataclass(first):
        names = [field.name for field in fields(first)]
        joined = {name: _join([getattr(part, name) for part in parts]) for name in names}
        return type(first)(**joined)  # type: ignore[misc]
    return np.concatenate(parts)
