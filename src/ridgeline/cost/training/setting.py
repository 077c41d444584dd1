"""All numbers that one estimate needs, as arrays, so that many runs are one computation.

Two uses share the formulas: a search has one model and cluster and very many layouts (fields of
length one broadcast against arrays of layouts); a validation table has a different model, cluster
and software in every row (`arrays.join` makes every field as long as the table).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ridgeline.cost.arrays import Bools, Floats, Ints, as_arrays
from ridgeline.cost.training.coefficients import Coefficients
from ridgeline.cost.training.dimensions import Dimensions, dimensions_of
from ridgeline.cost.training.layouts import FULL, PRECISIONS, SELECTIVE, Layouts
from ridgeline.cost.training.workload import LowRankAdapters, Stack, Workload
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.facts import Device
from ridgeline.models.spec import ModelSpec

ELEMENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "mxfp8": 1.0, "nvfp4": 0.5}
OPERATORS_REPEATED = 0.6
"""Share of a forward pass's time that recomputation by operator repeats: every second matmul and
all that is element-wise."""
ASSUMED_UNITS = 100
"""Compute units of a device whose number is not on record: as the large ones have."""
_FIRST: Ints = np.zeros(1, dtype=np.int64)
_RATES = tuple(one.name for one in fields(Coefficients) if one.name != "gemm")
_PEAKS = {"mxfp8": "fp8", "nvfp4": "fp4", "fp32": "tf32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNumbers:
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
    linked_peers: Floats
    """Peers among which a device's links in the domain are split; 1: a switch joins them."""
    network_bytes_per_second: Floats
    network_latency_seconds: Floats
    host_bytes_per_second: Floats
    disk_read_bytes_per_second: Floats
    disk_write_bytes_per_second: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The numbers of one computation: arrays of one common length, or of length one."""

    dims: Dimensions
    site: ClusterNumbers
    software: Stack
    rates: Coefficients
    """All coefficients as arrays but for `Coefficients.gemm`: each layout has its own, below."""
    layouts: Layouts
    seq: Floats
    document: Floats
    """Tokens that see each other: of a sequence, or of one of the documents packed into it."""
    recompute_share: Floats
    """Share of the layers that recompute where recomputation is full."""
    adapters: LowRankAdapters
    width: Floats
    """Bytes per element of the operands of matmuls."""
    gemm: Floats
    """Share of the peak that matmuls of the layout's precision sustain."""
    gemm_sixteen: Floats
    """The same share for what stays in 16 bits: logits, attention."""

    @property
    def frozen_weights(self) -> Bools:
        """Where adapters are trained and the weights are not."""
        return np.asarray(self.adapters.rank) > 0.0

    @property
    def converts_weights(self) -> Bools:
        """Where frozen weights are kept in another format than they are multiplied in."""
        return np.asarray(self.frozen_weights & (np.asarray(self.adapters.weight_bytes) < 1.0))

    @property
    def selects_operators(self) -> Bools:
        """Where recomputation is by operator: attention and every second matmul are kept."""
        by_operator = self.software.selective_operators
        return np.asarray((self.layouts.recompute == SELECTIVE) & by_operator, dtype=np.bool_)

    @property
    def lists_matmuls(self) -> Bools:
        """Where recomputation by operator knows the matmuls by their operators.

        Those of nvfp4 have operators of their own; published peaks of such runs are those of runs
        that keep attention's output alone.
        """
        return np.asarray(self.layouts.precision != PRECISIONS.index("nvfp4"), dtype=np.bool_)

    @property
    def selects_core(self) -> Bools:
        """Where the attention core alone is recomputed."""
        return np.asarray((self.layouts.recompute == SELECTIVE) & ~self.selects_operators)

    @property
    def repeated_share(self) -> Floats:
        """Share of a forward pass that runs again in backward, attention cores alone left out."""
        full = np.where(self.layouts.recompute == FULL, self.recompute_share, 0.0)
        by_operator = np.where(self.lists_matmuls, OPERATORS_REPEATED, 1.0)
        return np.where(self.selects_operators, by_operator, full)

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
        """Tokens of one micro-batch on one device: its share of a context-parallel sequence."""
        return self.layouts.micro_batch * self.seq / self.layouts.cp


def peak_of(device: Device, precision: str) -> float:
    """Dense peak of a dtype; nan where the device has none (that layout cannot run)."""
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
        "linked_peers": cluster.linked_peers,
        "network_bytes_per_second": cluster.network_bytes_per_second / cluster.oversubscription,
        "network_latency_seconds": cluster.network_latency_seconds,
        "host_bytes_per_second": cluster.host_bytes_per_second,
        "disk_read_bytes_per_second": cluster.disk_read_bytes_per_second,
        "disk_write_bytes_per_second": cluster.disk_write_bytes_per_second,
    }
    return Setting(
        dims=dimensions_of(model, causal=workload.causal),
        site=ClusterNumbers(
            peak=peaks[layouts.precision],
            **{name: np.array([float(value)]) for name, value in site.items()},
        ),
        software=as_arrays(workload.stack),
        layouts=layouts,
        seq=np.array([float(workload.seq)]),
        document=np.array([float(workload.document or workload.seq)]),
        recompute_share=np.array([float(workload.recompute_share)]),
        adapters=as_arrays(workload.adapters),
        width=widths[layouts.precision],
        **rates_of([coefficients], layouts),
    )


def rates_of(
    kinds: Sequence[Coefficients], layouts: Layouts, which: Ints = _FIRST
) -> dict[str, Any]:
    """The fields of `Setting` that coefficients fill.

    Args:
        kinds: One for all layouts, or several.
        layouts: Those of the setting.
        which: For each layout, which of `kinds` holds.
    """
    shares = np.array([[one.gemm.get(name, np.nan) for name in PRECISIONS] for one in kinds])
    columns: dict[str, Any] = {
        name: np.array([float(getattr(one, name)) for one in kinds])[which] for name in _RATES
    }
    return {
        "rates": Coefficients(gemm={}, **columns),
        "gemm": shares[which, layouts.precision],
        "gemm_sixteen": np.array([one.gemm["bf16"] for one in kinds])[which],
    }
