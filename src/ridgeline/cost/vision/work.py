"""What the operators of a network ask of a device: seconds at its peaks, by kind of work.

Products cost the FLOPs of the tiles that cover them: rows, columns and depth are rounded up to the
tile of a matrix multiplication, and tiles to whole waves over the compute units (NVIDIA, "Matrix
Multiplication Background User's Guide", sections 3 and 4, on tile and wave quantisation); a
convolution is the multiplication of its im2col (Chellapilla et al., 2006). Depthwise ones run on
the vector units. Traffic is every input and output moved once, at the bandwidth of the memory;
what fits the last-level cache is found there by the next operator, and what moves while products
are computed is hidden by them. Autocast casts each weight anew in every pass. Fused attention (Dao
et al., 2205.14135) keeps its scores on the chip: they are a kind of work of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ridgeline.cost.arrays import Bools, Floats
from ridgeline.cost.vision.power import power_slowdown
from ridgeline.cost.vision.setting import ELEMENT_BYTES, VisionSetting
from ridgeline.hardware.facts import Device
from ridgeline.models.vision.network import VisionNetwork, VisionOperator

COMPUTE = ("wide", "pointwise", "grouped", "wide grouped", "depthwise", "linear", "product")
"""The kinds of products are convolutions by their kernel and groups, linear layers, attention."""
NARROW_GROUP = 32
"""Most channels of a group for which libraries have kernels that compute several groups at once;
wider groups are products one after another (R. Wightman's sweep of group widths, pytorch/pytorch
issue 70954)."""
TRAFFIC = (
    *COMPUTE,
    "scores",
    "batch_norm",
    "layer_norm",
    "activation",
    "smooth",
    "elementwise",
    "softmax",
    "pool",
    "copy",
)
"""Kinds of traffic; the norms that need statistics of their input are `layer_norm`; activations
that only compare numbers with constants are `activation`, others `smooth`."""
WORK = (
    *(f"compute {name}" for name in COMPUTE),
    *(f"memory {name}" for name in TRAFFIC),
    "memory weights",
    "memory parameters",
    "kernels",
    "folded kernels",
    "fixed",
    "launches",
    "folded launches",
)
"""The kinds of work, in the order of what `demand` answers. `kernels` and `launches` are a
microsecond an operator, on the device and on its host, those of `FOLDED` operators apart, since
runtimes that fuse have none of them; `fixed` is one for the whole batch. On a processor `kernels`
are where its threads meet after an operator."""
CLAMPS = ("relu", "hardtanh", "leaky_relu")
"""Activations that compare each number with constants: what integers can do as well."""
CAST_BYTES = 8.0
"""Bytes that autocast moves of a weight: 4 read, 2 written, 2 read by the operator."""
FOLDED = ("batch_norm", "activation", "smooth", "elementwise")
"""Kinds of operators that a runtime which fuses writes into the one before."""
HOST = 2
"""How many of the last of `WORK` are time of the host."""
MICROSECOND = 1e-6
LEAST_SECONDS = 1e-30
"""Less than anything takes."""
USUAL_CLOCK = 1.5e9
"""Clock of a GPU at which its `kernels` are a microsecond; also where the clock is not known."""
FASTEST_CLOCK = 3.0e9
"""A clock that no GPU of the catalogue has."""
USUAL_CORE = 110e9
"""fp32 FLOP/s of a server's core, at which a launch is a microsecond of the host."""
USUAL_YEAR = 2019
"""A card's host is taken to be of the card's year; this is the one with the usual core."""
YEARLY_GAIN = 1.15
"""Times as fast is one core a year later."""
CORE_BANDWIDTH = 8e9
"""Bytes per second that one core draws: ten lines of 64 bytes on their way for 80 ns (Little's
law)."""
SERIAL_SHARE = 0.09
"""Share of an operator's work that one core does alone (Amdahl, 1967): the median over 66 runs of
the three largest networks under ncnn on 2 to 16 threads, each beside the same on one thread."""
MEETING_THREADS = 4.0
"""Threads whose meeting is a microsecond of `kernels`: others take as many rounds as a barrier in
which each waits for one at twice the distance (Hensgen, Finkel and Manber, 1988)."""
HALVES = ("tensorrt", "ncnn-vulkan")
"""Software that multiplies 16 bits in 16 bits on vector units too; libraries behind the others
widen them to 32 there (cuDNN's pseudo-half convolutions), and gain traffic alone."""
NARROW = ("tensorrt",)
"""Software that sums products of 16 bits in 16 bits: matrix units then run at half their rate in 8
bits, where GeForce cards halve the rate of sums in 32 (NVIDIA, "Ampere GA102 GPU architecture",
appendix A)."""
WIDENED = 16.0
"""Operations of 8 bits per cycle of a core without an instruction that multiplies them into 32: 16
numbers in a register, two instructions for their products and sums, one unit for integers."""
SHADERS = ("ncnn-vulkan",)
"""Software whose kernels run on the vector units of a GPU, not on its matrix units."""
SHADER_GAIN = 2.0
"""Times the fp32 rate of those units is the one in 16 bits."""
EPILOGUE = 16.0
"""Depth of a product whose multiplications take a core as long as to begin and write a result."""
TILES = ((256, 128, 1.0), (128, 128, 1.05), (128, 64, 1.2), (64, 64, 1.5), (64, 32, 2.0))
"""Rows, columns, and how many times as long a FLOP takes in such a tile: smaller ones read their
operands more often."""
DEPTH = 32
"""Depth of one tile's step."""
SPLIT = 512
"""Depth from which on several units may share one tile (split-K)."""
CACHE_SHARE = 0.5
"""Share of the last-level cache that one operator's output may keep."""
CACHE_GAIN = 0.75
"""Share of the time that traffic saves which the cache answers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperatorArrays:
    """A network's operators as arrays, one entry each: numbers for one image."""

    where: Mapping[str, Bools]
    """Kind of work → where operators are of it; kinds that no operator has are absent."""
    count: Floats
    macs: Floats
    moved: Floats
    """Elements of activations, read and written."""
    written: Floats
    weights: Floats
    rows: Floats
    """Rows of its multiplication for one image: pixels or tokens of the output."""
    columns: Floats
    depth: Floats
    copies: Floats
    """Multiplications side by side for one image: groups, heads."""
    shared: Bools
    """Whether weights are shared by the images of a batch, so that their rows join."""
    parameters: float


def work_kind(one: VisionOperator) -> str:
    """The kind of work of an operator, one of `TRAFFIC`."""
    if one.kind == "conv":
        if one.groups == 1:
            return "pointwise" if one.kernel == (1, 1) else "wide"
        if one.groups >= one.in_channels:
            return "depthwise"
        return "grouped" if one.in_channels <= NARROW_GROUP * one.groups else "wide grouped"
    if one.kind == "norm":
        return "batch_norm" if one.function == "batch_norm" else "layer_norm"
    if one.kind == "softmax" and one.function == "attention":
        return "scores"
    if one.kind == "activation":
        return "activation" if one.function in CLAMPS else "smooth"
    return str(one.kind)


@lru_cache(maxsize=64)
def operator_arrays(network: VisionNetwork) -> OperatorArrays:
    """The operators of a network, ready for many devices and settings."""
    rows = [_row(one) for one in network.operators]
    kinds = np.array([row[0] for row in rows])
    columns = np.array([row[1:] for row in rows], dtype=float).T
    return OperatorArrays(
        where={kind: kinds == kind for kind in TRAFFIC if kind in kinds},
        count=columns[0],
        macs=columns[1],
        moved=columns[2],
        written=columns[3],
        weights=columns[4],
        rows=columns[5],
        columns=columns[6],
        depth=columns[7],
        copies=columns[8],
        shared=columns[9] > 0,
        parameters=float(network.parameters),
    )


def _row(one: VisionOperator) -> tuple[str, *tuple[float, ...]]:
    kind = work_kind(one)
    moved, written = float(one.input_elements + one.output_elements), float(one.output_elements)
    if one.kind == "product" and one.function == "attention":
        # Q and K are read, or V read and the result written; scores stay on the chip
        moved = 2.0 * one.output_elements if one.after == "attention" else one.input_elements
    pixels = float(one.out_size[0] * one.out_size[1])
    columns = one.out_channels / one.groups if one.kind == "conv" else float(one.out_channels)
    groups = float(one.groups) if one.kind in ("conv", "product") else 1.0
    depth = one.macs / max(pixels * columns * groups, 1.0)
    return (
        kind,
        float(one.count),
        float(one.macs),
        moved,
        written,
        float(one.weight_elements),
        pixels,
        columns,
        depth,
        groups,
        float(one.kind != "product"),
    )


def demand(arrays: OperatorArrays, device: Device, setting: VisionSetting) -> Floats:
    """Seconds at the device's peaks of one forward pass of a batch, in the order of `WORK`."""
    batch, dtype = float(setting.batch), setting.dtype
    size = ELEMENT_BYTES[dtype]
    units = device.chip.num_units or 1
    processor = is_processor(device)
    cores = float(min(setting.threads or units, units))
    share = cores / units / (1.0 + SERIAL_SHARE * (cores - 1.0)) if processor else 1.0
    bandwidth = device.memory.bandwidth_bytes_per_second
    if processor:
        bandwidth = min(bandwidth, cores * CORE_BANDWIDTH)
    if processor:
        compute = arrays.macs * batch * (1.0 + EPILOGUE / np.maximum(arrays.depth, 1.0))
    else:
        compute = _covered_macs(arrays, batch, units)
    peak, vector = _product_rates(device, setting, share)
    cache = (device.chip.l3_bytes or device.chip.l2_bytes or 0) * CACHE_SHARE
    written = np.maximum(arrays.written * batch * size, 1.0)
    kept = np.minimum(1.0, cache / written)
    traffic = arrays.moved * batch * size / bandwidth * (1.0 - CACHE_GAIN * kept)
    counts = _by_kind(arrays, arrays.count)
    folded = sum(counts.get(kind, 0.0) for kind in FOLDED)
    own = sum(counts.values()) - folded
    casts = setting.precision.startswith("amp_")
    if casts:  # one more kernel for each operator with weights
        own += float(arrays.count[(arrays.weights > 0.0) & (arrays.macs > 0.0)].sum())
    if not processor:
        busy = float(((2.0 * compute / peak + traffic) * arrays.count).sum())
        matrix = device.peaks.get("fp16", 0.0) if on_matrix_units(device, dtype) else 0.0
        slower, drained = power_slowdown(device, matrix, busy, own)
        peak, traffic = peak / slower, traffic * drained
    rates = {kind: vector if kind == "depthwise" else peak for kind in COMPUTE}
    macs = _by_kind(arrays, compute * arrays.count)
    found = [2.0 * macs.get(kind, 0.0) / rate for kind, rate in rates.items()]
    rate = np.where(arrays.where.get("depthwise", np.False_), vector, peak)
    moved = _by_kind(arrays, _exposed(traffic, 2.0 * compute / rate) * arrays.count)
    found += [moved.get(kind, 0.0) for kind in TRAFFIC]
    weight_bytes = CAST_BYTES if casts else size
    found.append(float((arrays.weights * arrays.count).sum()) * weight_bytes / bandwidth)
    found.append(4.0 * arrays.parameters / bandwidth)
    own, folded = own * MICROSECOND, folded * MICROSECOND
    if processor:
        pace = float(np.log2(cores) / np.log2(MEETING_THREADS))
    else:
        pace = USUAL_CLOCK / clock_of(device)
    host = slowness_of_host(device)
    return np.array(
        [*found, own * pace, folded * pace, MICROSECOND * host, own * host, folded * host]
    )


def _product_rates(device: Device, setting: VisionSetting, share: float) -> tuple[float, float]:
    """FLOP/s of products, and of those on vector units, by this share of a processor's cores."""
    dtype = setting.dtype
    peak = matrix_peak(device, dtype) * share
    widened = (
        setting.software not in HALVES and not is_processor(device) and not has_matrix_units(device)
    )
    if widened and dtype in ("fp16", "bf16"):
        peak = device.peaks["fp32"]
    if dtype == "fp16" and setting.software in NARROW and on_matrix_units(device, dtype):
        peak = max(peak, device.peaks.get("int8", 0.0) / 2.0)
    if setting.software in SHADERS:
        peak = min(peak, SHADER_GAIN * device.peaks["fp32"])
    return peak, device.peaks.get("fp32", peak) * share


def _exposed(traffic: Floats, products: Floats) -> Floats:
    """Seconds of an operator's traffic that its products do not hide.

    While a tile is multiplied, the next one is on its way: an operator takes the longer of both,
    and half of the shorter where they are equal.
    """
    return np.asarray(traffic * traffic / np.maximum(traffic + products, LEAST_SECONDS))


def clock_of(device: Device) -> float:
    """The clock at which a GPU has its peaks.

    A unit has 64 or 128 lanes of 32 bits, by its generation: those that give a clock that is below
    `FASTEST_CLOCK`, the fewer where both do.
    """
    if device.chip.clock_hz is not None:
        return device.chip.clock_hz
    lanes = 64.0 * (device.chip.num_units or 1)
    clocks = [device.peaks.get("fp32", 0.0) / (2.0 * one) for one in (lanes, 2.0 * lanes)]
    return next((one for one in clocks if 0.0 < one < FASTEST_CLOCK), USUAL_CLOCK)


def slowness_of_host(device: Device) -> float:
    """Times the usual time that the device's host takes for the same instructions.

    A core that does more FLOPs a second is also faster at other work, by the square root (Pollack's
    rule: Borkar, "Thousand core chips", 2007). A card's host is not known: its year stands for it.
    """
    if is_processor(device):
        core = device.peaks["fp32"] / (device.chip.num_units or 1)
        return float(np.sqrt(USUAL_CORE / core))
    if device.chip.host_core_flops_per_second:
        return float(np.sqrt(USUAL_CORE / device.chip.host_core_flops_per_second))
    return float(YEARLY_GAIN ** (USUAL_YEAR - device.year))


def _by_kind(arrays: OperatorArrays, amounts: Floats) -> dict[str, float]:
    """The sum over the operators of each kind."""
    return {kind: float(amounts[here].sum()) for kind, here in arrays.where.items()}


def is_processor(device: Device) -> bool:
    """Whether the device is a processor: its compute units are cores."""
    return device.chip.unit == "core"


def has_matrix_units(device: Device) -> bool:
    """Whether a GPU multiplies on more than vector units.

    Those hold two numbers of 16 bits where one of 32 was, and know no format of matrix units alone.
    """
    peaks = device.peaks
    if "tf32" in peaks or "bf16" in peaks:
        return True
    return peaks.get("fp16", 0.0) > 2.0 * peaks.get("fp32", 0.0)


def on_matrix_units(device: Device, dtype: str) -> bool:
    """Whether products in `dtype` run on a GPU's matrix units: they are no faster elsewhere."""
    vector = device.peaks.get("fp32", 0.0)
    return has_matrix_units(device) and matrix_peak(device, dtype) > 1.05 * vector


def matrix_peak(device: Device, dtype: str) -> float:
    """FLOP/s of products in `dtype`: a device without units for it uses those of the next wider."""
    if dtype == "int8" and "int8" not in device.peaks and is_processor(device):
        widened = WIDENED * (device.chip.clock_hz or 0.0) * (device.chip.num_units or 0)
        return max(widened, device.peaks["fp32"])
    wider = {"tf32": ("tf32", "fp32"), "bf16": ("bf16", "fp32"), "fp16": ("fp16", "fp32")}
    for name in wider.get(dtype, (dtype, "fp16", "fp32")):
        if name in device.peaks:
            return device.peaks[name]
    return device.peak(dtype)


@lru_cache(maxsize=256)
def _covered_macs(arrays: OperatorArrays, batch: float, units: int) -> Floats:
    """MACs of the tiles that cover each product of a batch, over whole waves of the units."""
    rows = np.where(arrays.shared, arrays.rows * batch, arrays.rows)
    copies = np.where(arrays.shared, arrays.copies, arrays.copies * batch)
    depth = np.ceil(np.maximum(arrays.depth, 1.0) / DEPTH) * DEPTH
    best = np.full(len(rows), np.inf)
    for high, wide, slower in TILES:
        tiles = np.ceil(rows / high) * np.ceil(arrays.columns / wide) * copies
        split = np.clip(
            np.floor(depth / SPLIT), 1.0, np.maximum(1.0, np.floor(units / np.maximum(tiles, 1.0)))
        )
        waves = np.ceil(tiles * split / units) * units / split
        best = np.minimum(best, waves * high * wide * depth * slower)
    found = np.where(arrays.macs > 0, best, 0.0)
    if "depthwise" in arrays.where:
        found = np.where(arrays.where["depthwise"], arrays.macs * batch, found)
    found.flags.writeable = False  # every question about this batch shares it
    return found
