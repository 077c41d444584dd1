"""What makes a number a measurement: how it spread, and where and with what it was taken."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Distribution(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Moments and percentiles of one quantity, in the unit that its owner's name states."""

    mean: float
    std: float
    min: float
    max: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Summarise `values` (at least one); `std` is that of the population.

        >>> Distribution.of([1.0, 2.0, 3.0]).p50
        2.0
        """
        import numpy as np  # commands must start at once

        array = np.asarray(values, dtype=np.float64)
        p50, p95, p99 = np.percentile(array, (50, 95, 99))
        return cls(
            mean=float(array.mean()),
            std=float(array.std()),
            min=float(array.min()),
            max=float(array.max()),
            p50=float(p50),
            p95=float(p95),
            p99=float(p99),
        )


def script_of(command: list[str]) -> str | None:
    """The first `.py` file in a command, as it was typed; what stands behind `-c` is code.

    >>> script_of(["sh", "-c", "cd src && python train.py"])
    >>> script_of(["torchrun", "--nproc-per-node", "2", "src/train.py", "other.py"])
    'src/train.py'
    """
    words = zip(["", *command], command, strict=False)
    return next((word for flag, word in words if word.endswith(".py") and flag != "-c"), None)


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine, the versions and the command behind a measurement."""

    command: list[str]
    """The user's command line, as given after `--`."""
    cwd: str
    date: str
    """The date as ISO 8601, in UTC."""
    host_cpu: str
    cpu_count: int
    device: str
    """What the step ran on: a GPU's marketing name, or the CPU's."""
    python: str
    torch: str
    ridgeline: str
    variables: dict[str, str] = {}
    """Environment variables that change speed and were set (OMP_NUM_THREADS, …)."""
