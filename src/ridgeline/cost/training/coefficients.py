"""The efficiencies of real kernels, networks and frameworks: few, physical, each with a meaning.

A coefficient is a property of a class of hardware (architecture and dtype) or of software, never
of a table or a run. The shipped values and where they come from stand in
`plan/training/calibration.toml` and `priors.toml` there; this file only says what they are. A new
coefficient is a field here, a table of `priors.toml`, and its use in a formula.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.cost.arrays import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """The coefficients of one device class, or of many rows as arrays (see `Setting.rates`).

    Shares are of the published dense peak, 0 to 1.
    """

    gemm: dict[str, float]
    """Share of the peak that a large, aligned matmul sustains, by layout precision. It
    includes the clock that the part's power limit leaves."""
    gemm_half_depth: Number = 128.0
    """Depth (elements of K, times bytes per element / 2) at which a tile is half filled."""
    misalignment: Number = 0.12
    """Loss of rate for a dimension that is no multiple of 128 bytes."""
    flash_forward: Number = 0.55
    """Share of the 16-bit peak of a fused attention forward (head size 128, long sequence)."""
    flash_backward: Number = 0.45
    vendor_attention: Number = 1.0
    """Rate of the vendor's own fused attention (cuDNN, Transformer Engine) over that."""
    memory: Number = 0.80
    """Share of the device memory's bandwidth that element-wise kernels reach."""
    eager_traffic: Number = 1.6
    """Bytes of unfused element-wise chains over those of fused ones."""
    domain: Number = 0.75
    """Share of the fast fabric's bandwidth that collectives reach (bus bandwidth)."""
    network: Number = 0.75
    congestion: Number = 0.05
    """Loss of network bandwidth per doubling of the nodes in a collective."""
    bulk_latency: Number = 5.0
    """Latency of a ring step for large messages over the link's least (NCCL's `Simple` protocol
    over `LL`: 14 to 2.7 µs on the network, 3.4 to 0.6 µs on NVLink; src/graph/tuning.cc)."""
    all_to_all: Number = 0.6
    """Share of the bandwidth that an all-to-all reaches."""
    tensor_overlap: Number = 0.3
    """Share of tensor-parallel communication that modern stacks hide under matmuls."""
    data_overlap: Number = 0.8
    """Share of the backward pass that can hide gradient and parameter traffic."""
    shard_copies: Number = 12.0
    """Bytes of device memory moved per parameter and micro-batch to cast, pack and unpack fully
    sharded weights and gradients around their collectives."""
    contention: Number = 0.15
    """Slowdown of compute while a collective runs beside it."""
    host_eager: Number = 8e-6
    """Seconds of host time per operator, eager PyTorch."""
    host_compiled: Number = 5e-6
    host_modules: Number = 65e-6
    """Seconds per operator where layers are modules of Transformer Engine."""
    host_legacy: Number = 40e-6
    """Seconds per operator in the frameworks of 2019 to 2022, recomputation in Python included."""
    host_experts: Number = 2e-3
    """Seconds of host time per pass through a layer of routed experts, beyond a dense one:
    routing, permuting, counts that the host must wait for."""
    routing: Number = 4.0
    """Passes over the routed tokens that dispatching, permuting and combining experts take."""
    expert_gemm: Number = 0.8
    """Rate of grouped matmuls over that of dense ones of the same size."""
    imbalance: Number = 0.0
    """Standard deviation of an expert's share of the tokens over the mean of all experts."""
    step_overhead: Number = 0.01
    """Seconds per step outside the model: loss reading, clipping, logging, data."""
    straggle: Number = 0.0
    """Slowdown per doubling of the nodes: jitter and waiting for the slowest."""
    pace: Number = 1.0
    """Time of this system's steps over what all the others say: its clocks, cooling, host and
    libraries. No published run moves it, only a measured step of the user's own."""
    cast_traffic: Number = 2.0
    """Extra passes over a low-precision matmul's 16-bit operands: casts, scales, transposes."""
    sigma: float = 0.12
    """Standard deviation of log(true / predicted) on sources outside the calibration."""
    sigma_experts: float = 0.25
    """The same for mixtures of experts."""
    wider_software: float = 1.25
    """Times as wide it is for software of which the calibration holds no run: so 79 of 100 runs of
    six such sources are inside the 80 % interval, 73 before (bench/training_found_later.csv)."""
    wider_adapters: float = 1.5
    """Times as wide where adapters are trained, of which it holds none: so 80 to 90 of 100, 59 to
    74 before (bench/adapters_found_later.csv)."""
