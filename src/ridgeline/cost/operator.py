"""One operator as the roofline sees it, and the two kinds that most operators are.

See `operators.py` for the conventions behind FLOPs and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ridgeline.errors import InputError

Kind = Literal["matmul", "attention", "elementwise"]
Direction = Literal["forward", "backward"]

WIDTHS = {
    "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5,
}  # fmt: skip
"""Bytes of an operand's element by dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOperator:
    """FLOPs and bytes are of one occurrence; `count` says how often it occurs."""

    name: str
    direction: Direction
    kind: Kind
    shape: str
    dtype: str
    """The dtype of its operands; results are in 16 bits or more."""
    flops: float
    moved_bytes: float
    count: int = 1
    backward: tuple[ModelOperator, ...] = ()
    """What the backward pass does for it."""

    @property
    def intensity(self) -> float:
        """FLOPs per byte moved."""
        return self.flops / self.moved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The work of one pass: one step's tokens on one device."""

    phase: Literal["train", "prefill", "decode"]
    seq: int
    batch: int
    tp: int
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in WIDTHS:
            raise InputError(f"{self.dtype}: not a known dtype; use one of {', '.join(WIDTHS)}")

    @property
    def tokens(self) -> int:
        """Tokens that pass through every layer."""
        return self.batch if self.phase == "decode" else self.batch * self.seq

    @property
    def trains(self) -> bool:
        """Whether there is a backward pass."""
        return self.phase == "train"

    @property
    def operand_bytes(self) -> float:
        """Per element of what matmuls read."""
        return WIDTHS[self.dtype]

    @property
    def activation_bytes(self) -> float:
        """Per element of everything else."""
        return max(2.0, self.operand_bytes)


def matmul(
    name: str, rows: float, inner: float, outer: float, *, step: Pass, groups: float = 1
) -> ModelOperator:
    """`groups` independent matmuls (rows x inner) · (inner x outer) in one launch.

    >>> step = Pass(phase="prefill", seq=1, batch=1, tp=1, dtype="bf16")
    >>> one = matmul("up", 4, 2, 3, step=step)
    >>> one.flops, one.moved_bytes
    (48.0, 52.0)
    """

    def one_way(suffix: str, direction: Direction, m: float, k: float, n: float) -> ModelOperator:
        read = step.operand_bytes * k * (m + n)
        written = step.activation_bytes * m * n
        many = f"{groups:.4g} x " if groups > 1 else ""
        return ModelOperator(
            name=f"{name}{suffix}",
            direction=direction,
            kind="matmul",
            shape=f"{many}{m:.10g} x {k:.10g} · {k:.10g} x {n:.10g}",
            dtype=step.dtype,
            flops=2.0 * m * k * n * groups,
            moved_bytes=groups * (read + written),
        )

    forward = one_way("", "forward", rows, inner, outer)
    if not step.trains:
        return forward
    inputs = one_way(", input gradient", "backward", rows, outer, inner)
    weights = one_way(", weight gradient", "backward", inner, rows, outer)
    return replace(forward, backward=(inputs, weights))


def elementwise(
    name: str, rows: float, columns: float, *, passes: tuple[int, int], flops: float, step: Pass
) -> ModelOperator:
    """A fused chain over rows x columns elements.

    `passes`: how many such arrays it reads or writes, and how many its backward does; the
    backward counts twice the FLOPs.
    """
    forward = ModelOperator(
        name=name,
        direction="forward",
        kind="elementwise",
        shape=f"{rows:.10g} x {columns:.10g}",
        dtype=step.dtype,
        flops=flops * rows * columns,
        moved_bytes=passes[0] * rows * columns * step.activation_bytes,
    )
    if not step.trains:
        return forward
    backward = replace(
        forward,
        name=f"{name}, gradient",
        direction="backward",
        flops=2.0 * forward.flops,
        moved_bytes=passes[1] * rows * columns * step.activation_bytes,
    )
    return replace(forward, backward=(backward,))
