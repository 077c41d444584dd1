"""Prefill and decode of a served model, by roofline: step time, tokens per second, what fits.

A step is the sum of its operators' least times (`operators.py`), slowed by what kernels reach of
peak and bandwidth, plus two all-reduces per layer under tensor parallelism (Shoeybi et al.,
1909.08053, section 3) and a fixed cost. Decoding reads all weights once per step, whatever the
batch, and each sequence's cache: memory-bound until the batch nears the ridge (Pope et al.,
"Efficiently scaling transformer inference", 2211.05102, section 2).
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.cost.collective_volume import Fabric, all_reduce_seconds
from ridgeline.cost.operator import WIDTHS, ModelOperator
from ridgeline.cost.operators import Phase, model_operators
from ridgeline.cost.serving.kept_model import keeping
from ridgeline.cost.serving.kv_cache import kv_cache_bytes
from ridgeline.errors import InputError
from ridgeline.hardware.facts import Device
from ridgeline.models.counts import parameter_count
from ridgeline.models.spec import ModelSpec, num_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The device that serves, and what software makes of it. Shares are 0 to 1."""

    device: Device
    tp: int = 1
    dtype: str = "bf16"
    """The dtype of weights and matmuls; the KV cache has 16 bits unless `cache_bytes` says
    otherwise."""
    cache_bytes: float = 2.0
    """Per element of the KV cache."""
    compute_share: float = 1.0
    """Share of the peak that matmuls and attention reach; 1 is the limit."""
    bandwidth_share: float = 1.0
    fixed_seconds: float = 0.0
    """Time per step that nothing hides: scheduling, sampling, launches."""
    fabric: Fabric | None = None
    """Joins the tensor-parallel devices; None: communication is not counted."""

    def __post_init__(self) -> None:
        if self.dtype not in WIDTHS:
            raise InputError(f"{self.dtype}: not a known dtype; use one of {', '.join(WIDTHS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingStep:
    """One forward pass of `batch` sequences."""

    seconds: float
    compute_seconds: float
    """Time of matmuls and attention at the peak they reach, traffic aside."""
    memory_seconds: float
    """Time of all traffic at the bandwidth it reaches, arithmetic aside."""
    communication_seconds: float
    tokens_per_second: float
    """Rate of all sequences together: prompt tokens in prefill, new ones in decode."""


def prefill(model: ModelSpec, server: Server, seq: int, batch: int = 1) -> ServingStep:
    """The pass over prompts of `seq` tokens; its time is the least time to the first token.

    >>> from ridgeline.hardware import device
    >>> from ridgeline.models import load_model
    >>> step = prefill(load_model("llama-3-8b"), Server(device=device("h100")), 2048)
    >>> round(step.seconds, 3)
    0.034
    """
    return _step(model, server, seq, batch, "prefill")


def decode(
    model: ModelSpec,
    server: Server,
    seq: int,
    batch: int = 1,
    recent: int | None = None,
    first: int = 0,
) -> ServingStep:
    """One new token for each of `batch` sequences that have `seq` tokens in the cache.

    With `recent`, of so many last and the `first` tokens alone (`kept_model.py`).

    >>> from ridgeline.hardware import device
    >>> from ridgeline.models import load_model
    >>> llama, server = load_model("llama-3-8b"), Server(device=device("h100"))
    >>> [round(decode(llama, server, 2048, batch).tokens_per_second) for batch in (1, 64)]
    [219, 6513]
    """
    seen = model if recent is None else keeping(model, recent, first)
    return _step(seen, server, seq, batch, "decode")


def weight_bytes(model: ModelSpec, server: Server) -> float:
    """Weights on one device."""
    return parameter_count(model) * WIDTHS[server.dtype] / server.tp


def most_sequences(
    model: ModelSpec,
    server: Server,
    seq: int,
    *,
    memory_share: float = 0.9,
    recent: int | None = None,
    first: int = 0,
) -> int:
    """Sequences of `seq` tokens whose caches fit beside the weights; 0: the weights do not fit.

    `memory_share` is what a server takes of the device (0.9 is vLLM's default). With `recent`, each
    sequence keeps so many last and the `first` tokens alone (`kept_model.py`).

    >>> from ridgeline.hardware import device
    >>> from ridgeline.models import load_model
    >>> most_sequences(load_model("llama-3-8b"), Server(device=device("h100")), 8192)
    56
    """
    room = memory_share * server.device.memory.usable_bytes - weight_bytes(model, server)
    seen = model if recent is None else keeping(model, recent, first)
    each = kv_cache_bytes(seen, seq, 1, server.cache_bytes, server.tp)
    return max(0, int(room // each))


def _step(model: ModelSpec, server: Server, seq: int, batch: int, phase: Phase) -> ServingStep:
    operators = model_operators(model, seq, batch, server.tp, phase, server.dtype)
    device = server.device
    bandwidth = device.memory.bandwidth_bytes_per_second * server.bandwidth_share
    total = compute = memory = 0.0
    for one in operators:
        arithmetic = _arithmetic_seconds(one, server)
        traffic = _moved_bytes(one, server, phase) / bandwidth
        total += one.count * max(arithmetic, traffic)
        compute += one.count * arithmetic
        memory += one.count * traffic
    tokens = batch if phase == "decode" else batch * seq
    sent = _communication_seconds(model, server, tokens)
    seconds = total + sent + server.fixed_seconds
    return ServingStep(
        seconds=seconds,
        compute_seconds=compute,
        memory_seconds=memory,
        communication_seconds=sent,
        tokens_per_second=tokens / seconds,
    )


def _arithmetic_seconds(one: ModelOperator, server: Server) -> float:
    if one.kind == "elementwise":
        vector = server.device.peaks.get("fp32")
        return one.flops / vector if vector else 0.0
    return one.flops / (server.device.peak(one.dtype) * server.compute_share)


def _moved_bytes(one: ModelOperator, server: Server, phase: Phase) -> float:
    """A cache of fewer bits shrinks the traffic of decoding's attention in proportion."""
    cached = one.kind == "attention" and phase == "decode"
    return one.moved_bytes * server.cache_bytes / 2.0 if cached else one.moved_bytes


def _communication_seconds(model: ModelSpec, server: Server, tokens: int) -> float:
    if server.tp == 1 or server.fabric is None:
        return 0.0
    buffer = tokens * model.hidden * max(2.0, WIDTHS[server.dtype])
    layers = model.decoder_layers or num_layers(model)
    return 2.0 * layers * all_reduce_seconds(server.tp, buffer, server.fabric)
