"""The efficiencies of real kernels, networks and frameworks: few, physical, each with a meaning.

A coefficient is a property of a class of hardware (architecture and arithmetic) or of software,
never of a table or a run. The shipped values and where they come from stand in
`plan/calibration.toml`; this file only says what they are.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ridgeline.cost.layouts import PRECISIONS, Floats, Layouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Of one device class. Shares are of the published dense peak, 0 to 1."""

    gemm: dict[str, float]
    """Share of the peak that a large, aligned matrix product sustains, by layout precision. It
    includes the clock that the part's power limit leaves."""
    gemm_half_depth: float = 128.0
    """Depth (elements of K, times bytes per element / 2) at which a tile is half filled."""
    misalignment: float = 0.12
    """Loss of rate for a dimension that is no multiple of 128 bytes."""
    flash_forward: float = 0.55
    """Share of the 16-bit peak of a fused attention forward (head size 128, long sequence)."""
    flash_backward: float = 0.45
    vendor_attention: float = 1.0
    """Rate of the vendor's own fused attention (cuDNN, Transformer Engine) over that."""
    memory: float = 0.80
    """Share of the device memory's bandwidth that element-wise kernels reach."""
    eager_traffic: float = 1.6
    """Bytes of unfused element-wise chains over those of fused ones."""
    domain: float = 0.75
    """Share of the fast fabric's bandwidth that collectives reach (bus bandwidth)."""
    network: float = 0.75
    congestion: float = 0.05
    """Loss of network bandwidth per doubling of the nodes in a collective."""
    bulk_latency: float = 5.0
    """Latency of a ring step for large messages over the link's least (NCCL's `Simple` protocol
    over `LL`: 14 to 2.7 µs on the network, 3.4 to 0.6 µs on NVLink; src/graph/tuning.cc)."""
    all_to_all: float = 0.6
    """Share of the bandwidth that an all-to-all reaches."""
    tensor_overlap: float = 0.3
    """Share of tensor-parallel communication that modern stacks hide under products."""
    data_overlap: float = 0.8
    """Share of the backward pass that can hide gradient and parameter traffic."""
    shard_copies: float = 12.0
    """Bytes of device memory moved per parameter and micro-batch to cast, pack and unpack fully
    sharded weights and gradients around their collectives."""
    contention: float = 0.15
    """Slowdown of compute while a collective runs beside it."""
    host_eager: float = 8e-6
    """Seconds of host time per operator, eager PyTorch."""
    host_compiled: float = 5e-6
    host_modules: float = 65e-6
    """Seconds per operator where layers are modules of Transformer Engine."""
    host_legacy: float = 40e-6
    """Seconds per operator in the frameworks of 2019 to 2022, recomputation in Python included."""
    host_experts: float = 2e-3
    """Seconds of host time per pass through a layer of routed experts, beyond a dense one:
    routing, permuting, counts that the host must wait for."""
    routing: float = 4.0
    """Passes over the routed tokens that dispatching, permuting and combining experts take."""
    expert_gemm: float = 0.8
    """Rate of grouped products over that of dense ones of the same size."""
    step_overhead: float = 0.01
    """Seconds per step outside the model: loss reading, clipping, logging, data."""
    straggle: float = 0.0
    """Slowdown per doubling of the nodes: jitter and waiting for the slowest."""
    cast_traffic: float = 2.0
    """Extra passes over a low-precision product's 16-bit operands: casts, scales, transposes."""
    sigma: float = 0.12
    """Standard deviation of log(true / predicted) on sources outside the calibration."""
    sigma_experts: float = 0.25
    """The same for mixtures of experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Coefficients as numbers for an array of layouts."""

    gemm: Floats
    gemm_sixteen: Floats
    """The same for what stays in 16 bits: logits, attention."""
    gemm_half_depth: Floats
    misalignment: Floats
    flash_forward: Floats
    flash_backward: Floats
    vendor_attention: Floats
    memory: Floats
    eager_traffic: Floats
    domain: Floats
    network: Floats
    congestion: Floats
    bulk_latency: Floats
    all_to_all: Floats
    tensor_overlap: Floats
    data_overlap: Floats
    shard_copies: Floats
    contention: Floats
    host_eager: Floats
    host_compiled: Floats
    host_modules: Floats
    host_legacy: Floats
    host_experts: Floats
    routing: Floats
    expert_gemm: Floats
    step_overhead: Floats
    straggle: Floats
    cast_traffic: Floats


def rates_of(coefficients: Coefficients, layouts: Layouts) -> Rates:
    """Coefficients as arrays; the matrix products' follow each layout's precision."""
    gemm = coefficients.gemm
    sixteen = gemm["bf16"]
    by_precision = np.array([gemm.get(name, np.nan) for name in PRECISIONS])
    values: dict[str, Floats] = {
        "gemm": by_precision[layouts.precision],
        "gemm_sixteen": np.array([sixteen]),
    }
    for field in fields(Rates):
        if field.name not in values:
            values[field.name] = np.array([float(getattr(coefficients, field.name))])
    return Rates(**values)
