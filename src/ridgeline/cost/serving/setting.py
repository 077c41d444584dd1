"""A model on the devices of one replica, as the numbers that the formulas of a step work on.

Everything is an array over cases, one number a case; a case alone is an array of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ridgeline.cost.arrays import Cases, Floats
from ridgeline.cost.operator import WIDTHS
from ridgeline.cost.serving.expert_balance import expert_imbalance
from ridgeline.cost.serving.kv_cache import (
    index_bytes_per_token,
    layer_bytes_per_token,
    num_choosers,
    num_keeping_layers,
)
from ridgeline.cost.serving.matmul_dtypes import matmul_dtype, most_peak
from ridgeline.cost.serving.replica_links import link_bytes_per_second
from ridgeline.cost.serving.tile_waves import wave_products
from ridgeline.cost.serving.weight_formats import (
    BESIDE_EXPERTS_BITS,
    CACHE_BYTES,
    GGUF_BITS,
    MULTIPLIED_AS,
    WEIGHT_BITS,
    known_width,
)
from ridgeline.cost.state_scan import scan_products, state_bytes, vector_products
from ridgeline.errors import InputError
from ridgeline.hardware.facts import Device
from ridgeline.models.counts import (
    active_routed_parameters,
    embedding_parameters,
    num_routed_layers,
    parameter_parts,
)
from ridgeline.models.spec import (
    ModelSpec,
    as_windowed,
    is_windowed,
    num_attention_layers,
    num_parts,
    num_state_layers,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted(Cases):
    """A model on the devices of one replica. Bytes, FLOPs and matmuls are those of one device."""

    layers: Floats
    """Layers of a mixer of tokens and an MLP each; one of the two alone counts for half."""
    hidden: Floats
    shared_bytes: Floats
    """Weights that every step reads: all but the embedding's rows and the routed experts."""
    expert_bytes: Floats
    """Weights of all routed experts."""
    expert_share: Floats
    """The share of the routed experts that one token is sent to; 1 for dense models."""
    shared_products: Floats
    """Multiplications of one token in linear layers, routed experts and head aside."""
    wave_products: Floats
    """Multiplications of a row of one tile in each of those matmuls, times the compute units."""
    expert_products: Floats
    """Multiplications of one token in the routed experts that it is sent to."""
    expert_depth_bytes: Floats
    """Depth of an expert's second matmul on one device, in bytes of its dtype; infinite for dense
    models."""
    head_products: Floats
    """The same in the head, which only sampled tokens pass."""
    pair_products: Floats
    """Multiplications of one query with one key and value, over all layers of full attention; of
    sparse attention, of its chooser alone."""
    window_pair_products: Floats
    """The same over the layers that see a window, or chosen tokens."""
    decode_pair_products: Floats
    """Multiplications of one decode's query with one cached token, over the layers of full
    attention; latent attention stays in the latent width."""
    window_decode_pair_products: Floats
    """The same over the layers that see a window, or chosen tokens."""
    cache_bytes: Floats
    """Kept per token by the layers of full attention."""
    window_cache_bytes: Floats
    """The same by the layers that see a window."""
    read_bytes: Floats
    """What a decode reads of each token's cache: all of it, or the chooser's keys alone."""
    window_read_bytes: Floats
    """The same of each token that a window, or the chooser, leaves."""
    window: Floats
    """Tokens that a window or a chooser leaves; infinite without such layers."""
    state_bytes: Floats
    """Kept by one sequence's layers with a state, whatever its length."""
    scan_products: Floats
    """Multiplications of one prompt token in the scans of all layers with a state."""
    resident_bytes: Floats
    """Bytes of all weights."""
    memory_bytes: Floats
    """Memory of the device, as programs see it."""
    cache_room_bytes: Floats
    """What the engine itself says that it keeps for the cache; not a number where it does not."""
    peak: Floats
    """Dense FLOP/s of the linear layers' dtype."""
    peak_sixteen: Floats
    """Dense FLOP/s in 16 bits: attention and head."""
    most_peak: Floats
    """The same whatever sums are kept in, which GeForce parts have faster in 16 bits than in 32."""
    bandwidth: Floats
    """Bytes per second of the device's memory."""
    unit_bytes: Floats
    """What its memory brings to each lane of a compute unit in a cycle, over an A100's: the more
    that is, the longer widening takes beside reading."""
    ranks: Floats
    """Devices that share each layer's attention."""
    groups: Floats
    """Groups of such devices that take whole sequences each (attention data parallelism); all of
    them together share the routed experts."""
    link: Floats
    """Bytes per second and direction between them."""
    routed_layers: Floats
    """Layers with routed experts."""
    expert_slots: Floats
    """Copies that a routed layer makes of each token on one device, one for each of its experts."""
    expert_imbalance: Floats
    """By how many standard deviations of one expert the busiest group of whole experts exceeds the
    mean of all groups; 0 where each expert is cut into pieces."""

    @property
    def routed(self) -> Floats:
        """1 for a mixture of experts, else 0."""
        return np.asarray((self.expert_bytes > 0).astype(np.float64))


def busiest(hosted: Hosted, sequences: Floats) -> Floats:
    """Sequences of the group that has the most: an even share, but no less than one.

    >>> from types import SimpleNamespace
    >>> busiest(SimpleNamespace(groups=np.array([4.0])), np.array([1.0, 2.0, 16.0]))
    array([1., 1., 4.])
    """
    return np.asarray(np.maximum(sequences / hosted.groups, np.minimum(sequences, 1.0)))


def cached_bytes(hosted: Hosted, context: Floats) -> Floats:
    """Bytes of cache and states that one sequence of so many tokens keeps."""
    windowed = hosted.window_cache_bytes * np.minimum(context, hosted.window)
    return np.asarray(hosted.cache_bytes * context + windowed + hosted.state_bytes)


def moved_cache_bytes(hosted: Hosted, context: Floats) -> Floats:
    """What one decode reads of its cache, and of its state, which it also writes."""
    windowed = hosted.window_read_bytes * np.minimum(context, hosted.window)
    return np.asarray(hosted.read_bytes * context + windowed + 2.0 * hosted.state_bytes)


def check_generates(model: ModelSpec) -> None:
    """Refuse a model that generates no text."""
    if not model.is_causal_language_model:
        raise InputError(f"{model.name} is no causal language model; only those generate tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLayout:
    """The devices of one replica: what they share."""

    tp: int = 1
    """Devices that share each sequence's attention."""
    attention_dp: int = 1
    """Groups of `tp` devices that take whole sequences; all share the routed experts."""
    ep: int = 1
    """Groups among which whole experts are dealt out; 1: each expert is cut into pieces."""

    @property
    def devices(self) -> int:
        """The devices of the replica."""
        return self.tp * self.attention_dp


def host(
    model: ModelSpec,
    device: Device,
    layout: ServingLayout,
    *,
    weights: str,
    cache: str,
    power: float = 1.0,
) -> dict[str, float]:
    """The fields of `Hosted` for one replica.

    Args:
        model: A decoder.
        device: What each rank runs on.
        layout: What the replica's devices share.
        weights: Of linear layers: a key of `WEIGHT_BITS`. Embedding and head stay in 16 bits, but
            in GGUF's formats.
        cache: A key of `CACHE_BYTES`.
        power: Watts over those of the data sheet; clocks follow its square root.
    """
    check_generates(model)
    check_layout(model, layout)
    tp, devices = layout.tp, layout.devices
    bits = known_width(weights, WEIGHT_BITS, "weights")
    parts = parameter_parts(model)
    head = float(model.vocab * model.hidden)
    linear = parts.total - parts.embedding - parts.head
    shared = linear - parts.routed_experts
    shared_bits = BESIDE_EXPERTS_BITS.get(weights, bits) if model.experts else bits
    width = min(bits, 16.0) / 8.0
    head_bits = BESIDE_EXPERTS_BITS.get(weights, bits) if weights in GGUF_BITS else 16.0
    head_bytes = head * head_bits / 8.0
    clock = math.sqrt(power)
    embedding = float(embedding_parameters(model)) * head_bits / 8.0
    shared_bytes = (shared * shared_bits / 8.0 + head_bytes) / tp
    expert_bytes = parts.routed_experts * width / devices
    experts = model.experts
    slots = experts.top_k / layout.ep if experts else 0.0
    tied = head_bytes if model.tied_embeddings else 0.0
    return {
        "layers": num_parts(model) / 2.0,
        "hidden": float(model.hidden),
        "shared_bytes": shared_bytes,
        "expert_bytes": expert_bytes,
        "expert_share": experts.top_k / experts.num_experts if experts else 1.0,
        "shared_products": shared / tp,
        "wave_products": wave_products(model, device, tp),
        "expert_products": active_routed_parameters(model) / devices,
        "expert_depth_bytes": expert_depth_bytes(model, device, layout, weights),
        "head_products": head / tp,
        **_attention(model, tp, known_width(cache, CACHE_BYTES, "cache")),
        **_states(model, device, tp),
        "resident_bytes": shared_bytes + expert_bytes + (embedding - tied) / tp,
        "memory_bytes": float(device.memory.usable_bytes),
        "cache_room_bytes": math.nan,
        "peak": device.peak(matmul_dtype(device, weights)) * clock,
        "peak_sixteen": device.peak(device.training_dtype) * clock,
        "most_peak": most_peak(device, weights) * clock,
        "bandwidth": device.memory.bandwidth_bytes_per_second,
        "unit_bytes": unit_bytes(device),
        "ranks": float(tp),
        "groups": float(layout.attention_dp),
        "link": link_bytes_per_second(device, devices),
        "routed_layers": float(num_routed_layers(model)),
        "expert_slots": slots,
        "expert_imbalance": expert_imbalance(model, layout.ep),
    }


A100_BYTES_PER_UNIT_CYCLE = 2.039e12 / (108 * 1.41e9)
"""The memory's bytes per cycle and compute unit of an A100 SXM (80 GB), where kernels for rounded
weights were timed."""
FLOATS_PER_UNIT = {"7.0": 64, "7.5": 64, "8.0": 64}
"""Target → fp32 lanes of one SM; later parts have 128, of which integers may use half."""


def unit_bytes(device: Device) -> float:
    """Bytes per cycle and compute unit, over an A100's; 1 where the clock is not known.

    Widening a weight takes a few integer instructions, of which an SM issues 64 in a cycle from
    Volta to Hopper. The clock is that of the fp32 peak.

    >>> from ridgeline.hardware import device
    >>> round(unit_bytes(device("rtx-4090")), 2), round(unit_bytes(device("h200")), 2)
    (0.23, 1.37)
    """
    units, peak = device.chip.num_units, device.peaks.get("fp32")
    if device.vendor != "NVIDIA" or not units or not peak:
        return 1.0
    cycles = peak / (2.0 * FLOATS_PER_UNIT.get(device.target, 128))
    return device.memory.bandwidth_bytes_per_second / cycles / A100_BYTES_PER_UNIT_CYCLE


def expert_depth_bytes(
    model: ModelSpec, device: Device, layout: ServingLayout, weights: str
) -> float:
    """How deep the second matmul of an expert is on one device, in bytes of its dtype."""
    if model.experts is None:
        return math.inf
    pieces = layout.devices / layout.ep
    return model.experts.ffn / pieces * WIDTHS[matmul_dtype(device, weights)]


def _attention(model: ModelSpec, tp: int, element_bytes: float) -> dict[str, float]:
    """Work and cache of the layers that attend."""
    windowed = sum(is_windowed(model, layer) for layer in range(model.layers))
    full = num_attention_layers(model) - windowed
    each = layer_bytes_per_token(model, element_bytes, tp)
    decode = decode_pair_products(model) / tp
    if model.indexer is not None:
        # Every query meets the chooser's keys, in 8 bits, and of the latent cache those it chooses.
        choosers, kept = num_choosers(model), index_bytes_per_token(model)
        met = model.indexer.heads * model.indexer.dim / 2.0 * choosers / tp
        return {
            "pair_products": met,
            "window_pair_products": decode * full,
            "decode_pair_products": met,
            "window_decode_pair_products": decode * full,
            "cache_bytes": each * full + kept * choosers,
            "window_cache_bytes": 0.0,
            "read_bytes": kept * choosers,
            "window_read_bytes": each * full,
            "window": float(model.indexer.top_k),
        }
    near = as_windowed(model)
    near_each = layer_bytes_per_token(near, element_bytes, tp)
    keeping, near_keeping = num_keeping_layers(model)
    return {
        "pair_products": _pair_products(model) / tp * full,
        "window_pair_products": _pair_products(near) / tp * windowed,
        "decode_pair_products": decode * full,
        "window_decode_pair_products": decode_pair_products(near) / tp * windowed,
        "cache_bytes": each * keeping,
        "window_cache_bytes": near_each * near_keeping,
        "read_bytes": each * full,
        "window_read_bytes": near_each * windowed,
        "window": float(model.sliding_window) if windowed else math.inf,
    }


def _states(model: ModelSpec, device: Device, tp: int) -> dict[str, float]:
    """Work and size of the layers that keep a state."""
    if model.state is None:
        return {"state_bytes": 0.0, "scan_products": 0.0}
    # What vector units multiply counts as so many times the matmuls that take as long.
    slower = device.peak(device.training_dtype) / device.peaks.get("fp32", math.inf)
    one = scan_products(model.state) + slower * vector_products(model.state)
    return {
        "state_bytes": state_bytes(model, tp),
        "scan_products": num_state_layers(model) * one / tp,
    }


def _pair_products(model: ModelSpec) -> float:
    """Multiplications of one query with one token of its prompt, over all heads of one layer."""
    return float(model.heads * (model.head_dim + (model.value_dim or model.head_dim)))


def decode_pair_products(model: ModelSpec) -> float:
    """Multiplications of one decode with one cached token, over all heads of one layer."""
    latent = model.latent
    if latent is None:
        return _pair_products(model)
    return float(model.heads * (2 * latent.kv_rank + latent.rope_dim))


def check_layout(model: ModelSpec, layout: ServingLayout) -> None:
    """Refuse what cannot be split so."""
    if layout.tp < 1 or model.heads % layout.tp:
        raise InputError(f"tp {layout.tp} does not divide the {model.heads} heads of {model.name}")
    if model.state is not None and model.state.heads % layout.tp:
        raise InputError(
            f"tp {layout.tp} does not divide the {model.state.heads} heads of {model.name}'s states"
        )
    if layout.attention_dp < 1 or layout.ep < 1:
        raise InputError("attention_dp and ep must be whole numbers of 1 or more")
    if layout.ep == 1:
        return
    experts = model.experts
    if experts is None:
        raise InputError(f"ep is {layout.ep}, but {model.name} has no experts")
    if layout.devices % layout.ep or experts.num_experts % layout.ep:
        raise InputError(
            f"ep {layout.ep} must divide the {layout.devices} devices of a replica and the"
            f" {experts.num_experts} experts of {model.name}"
        )


def default_cache(weights: str) -> str:
    """What the makers of such checkpoints keep the cache in: 8 bits beside floats of 8 or 4."""
    return "fp8" if weights in MULTIPLIED_AS and weights != "w8a8" else "bf16"


HOSTED_FIELDS = tuple(Hosted.__dataclass_fields__)
