"""A model's operators under the roofs of devices: what theory allows, and a measured step over it.

The field names are the JSON contract of `ridgeline roofline`.
"""

from __future__ import annotations

from typing import Literal

from ridgeline.records.finite import Computed


class PlacedOperator(Computed, frozen=True, kw_only=True):
    """One operator on one device. FLOPs, bytes and seconds are of one occurrence."""

    name: str
    direction: Literal["forward", "backward"]
    kind: Literal["matmul", "attention", "elementwise"]
    shape: str
    dtype: str
    count: int
    """Occurrences in the whole pass, over all layers."""
    flops: float
    moved_bytes: float
    intensity_flops_per_byte: float
    bound: Literal["compute", "memory"]
    attainable_flops_per_second: float
    seconds: float
    """The least time that peak and bandwidth allow."""
    share: float
    """Share of the whole pass, all occurrences together."""


class DeviceRoofline(Computed, frozen=True, kw_only=True):
    """One device's roof, and the operators under it."""

    device: str
    dtype: str
    peak_flops_per_second: float
    """Dense, of the matrix units."""
    vector_flops_per_second: float | None
    """Rate of the vector units in fp32, where element-wise work runs; None: not published."""
    bandwidth_bytes_per_second: float
    ridge_flops_per_byte: float
    seconds: float
    """The least time of the whole pass, one operator after the other."""
    compute_bound_share: float
    """Share of that time that is compute-bound."""
    operators: list[PlacedOperator]
    assumed: list[str] = []
    """What the device's name leaves open, such as a memory or a power that no part has."""

    @property
    def bound(self) -> Literal["compute", "memory"]:
        """What more than half of the time waits for."""
        return "compute" if self.compute_bound_share > 0.5 else "memory"

    @property
    def bound_share(self) -> float:
        """Share of the time that waits for it."""
        compute = self.compute_bound_share
        return max(compute, 1.0 - compute)


class AttainedOperator(Computed, frozen=True, kw_only=True):
    """One operator of a measured step: all its calls at one set of shapes, together."""

    name: str
    """The dispatcher's name, e.g. `aten::mm`."""
    shapes: str
    dtype: str
    phase: str
    calls: float
    seconds: float
    """Its time in one step, all calls together."""
    share: float
    """Share of the time of these operators."""
    intensity_flops_per_byte: float
    attained_flops_per_second: float
    limit_share: float
    """The least time that its own machine allows, over the time it took; 0 where not known."""
    bound: str
    """`compute`, `memory` or `overhead` on the machine that ran it; empty: not known."""


class AttainedStep(Computed, frozen=True, kw_only=True):
    """A measured step, to be laid over what is allowed."""

    file: str
    device: str
    """What the step ran on."""
    step_seconds: float
    """The median time of its steps."""
    limit_fraction: float
    """The least time that its own machine allows for a step, over the median: 1 is the limit."""
    operators: list[AttainedOperator]
    """The operators that compute and were timed, the longest first."""


class ModelRoofline(Computed, frozen=True, kw_only=True, tag_field="record", tag="roofline"):
    """One pass of a model on several devices."""

    model: str
    phase: Literal["train", "prefill", "decode"]
    batch: int
    seq: int | None
    """Tokens of a sequence (in `decode`: already in the cache); None for images."""
    num_layers: int | None
    weight_bytes: float
    """All weights in the arithmetic of the first device: whether they fit is another question."""
    flops: float
    """FLOPs of the whole pass."""
    moved_bytes: float
    devices: list[DeviceRoofline]
    measured: AttainedStep | None = None
    """A step that was measured; null where none was given."""
