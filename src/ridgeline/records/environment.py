"""Where and with what a number was measured: without it, a number is not a measurement."""

from __future__ import annotations

import msgspec


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
