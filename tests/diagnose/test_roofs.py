"""The roof that a verdict says bounds the kernels: of arithmetic, of memory, or nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trace.written import call, host, kernel, write

from ridgeline.diagnose.trace_verdict import trace_verdict
from ridgeline.trace.load import load_traces

H100 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]


@pytest.mark.parametrize(("side", "cause"), [(4096, "memory-bound"), (64, "gpu-bound")])
def test_a_roof_that_kernels_are_nowhere_near_does_not_bound_them(
    tmp_path: Path, side: int, cause: str
) -> None:
    """Products with one row, of 30 µs: a third of the roof of memory, or a ten-thousandth."""
    args = {"Input Dims": [[1, side], [side, side]], "Input type": ["c10::BFloat16"] * 2}
    events = []
    for number in range(1, 41):
        events += [
            host(8.0 * number, 7, "aten::mm", **args),
            call(8.0 * number + 2, 4, number),
            kernel(100 + 30.0 * number, 30, correlation=number, name="gemvx"),
        ]
    path = write(tmp_path / "trace.json", events, deviceProperties=H100)
    first = trace_verdict(load_traces([path], details=True))[0]
    assert first.cause == cause
    assert first.worth_us > 0
