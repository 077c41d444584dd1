"""Training kernels compile for six architectures without spills, as the committed table says."""

from __future__ import annotations

import pytest
import triton
from tests.kernels.triton.compiling import SHARED_BYTES, TARGETS, measure, table
from tests.kernels.triton.conftest import INTERPRETED
from tests.kernels.triton.launches import CASES

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
MORE_REGISTERS = 8
"""From this many on, a kernel has become worse."""
QUICK = {
    ("rms-norm-4096", "sm_90"), ("swiglu", "gfx942"), ("rotary", "sm_80"),
    ("linear-cross-entropy", "sm_90"), ("adamw", "sm_80"), ("grouped-matmul", "sm_86"),
    ("flash-attention-64", "sm_90"),
}  # fmt: skip

OF_TRITON_3_6 = {"flash-attention-64": 8, "flash-attention-64-all": 16,
                 "flash-attention-128": 112, "flash-attention-128-window": 112,
                 "flash-attention-128-blocks": 32}  # fmt: skip
"""Bytes of stack of the key kernel under Triton 3.6, with which it was timed on an H200."""


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(
    ("case", "target"),
    [
        pytest.param(case, target, marks=() if (case, target) in QUICK else pytest.mark.slow)
        for case in CASES
        for target in TARGETS
    ],
)
def test_machine_code_needs_no_more_than_the_table_says(case: str, target: str) -> None:
    known = table()
    for kernel, needs in measure(case, target).items():
        allowed = OF_TRITON_3_6.get(case, 0) if triton.__version__ == "3.6.0" else 0
        assert needs.stack_bytes <= allowed, kernel
        assert needs.spilled == 0, kernel
        assert needs.shared_bytes <= SHARED_BYTES[target], kernel
        wanted = known.get((triton.__version__, case, kernel, target))
        if wanted is not None:
            assert needs.registers < wanted.registers + MORE_REGISTERS, kernel
            assert needs.shared_bytes <= wanted.shared_bytes, kernel


def test_the_table_has_every_kernel_and_no_spill() -> None:
    known = table()
    assert {(case, target) for _, case, _, target in known} == {
        (case, target) for case in CASES for target in TARGETS
    }
    assert not any(needs.spilled for needs in known.values())
    stacks = {key[:3]: needs.stack_bytes for key, needs in known.items() if needs.stack_bytes}
    assert stacks == {
        ("3.6.0", case, "key_kernel"): bytes_ for case, bytes_ in OF_TRITON_3_6.items()
    }
    assert all(needs.shared_bytes <= SHARED_BYTES[key[3]] for key, needs in known.items())
