"""Columns sorted, counted and looked up: the same as numpy says, without its masked arrays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from ridgeline.trace.sorting import among, counted, distinct, first_places


@pytest.mark.parametrize(
    ("kind", "low", "high", "size"),
    [
        (np.int8, -128, 127, 1000),  # further apart than the type can say
        (np.int32, -1, 40, 500),
        (np.int64, 2**40, 2**40 + 3, 50),
        (np.int64, -(2**62), 2**62, 50),
        (np.int32, 5, 6, 1),
        (np.int32, 0, 1, 0),
    ],
)
def test_values_are_told_apart_as_numpy_tells_them(
    kind: type, low: int, high: int, size: int
) -> None:
    values = np.random.default_rng(7).integers(low, high, size).astype(kind)
    if size > 1:
        values[:2] = low, high
    unique, firsts, counts = np.unique(values, return_index=True, return_counts=True)
    assert distinct(values).dtype == values.dtype
    np.testing.assert_array_equal(distinct(values), unique)
    np.testing.assert_array_equal(counted(values)[0], unique)
    np.testing.assert_array_equal(counted(values)[1], counts)
    np.testing.assert_array_equal(first_places(values), firsts)
    np.testing.assert_array_equal(among(values, unique[::2]), np.isin(values, unique[::2]))


def test_looking_columns_up_loads_no_masked_arrays() -> None:
    asked = (
        "import sys, numpy as np\n"
        "from ridgeline.trace.sorting import among, counted, distinct, first_places\n"
        "far = np.array([0, 2**60, 0])\n"
        "distinct(far), counted(far), first_places(far), among(far, far)\n"
        "print('numpy.ma' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
