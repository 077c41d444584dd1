"""What stood behind a measurement: this machine, the versions installed, the command."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Collection
from datetime import UTC, datetime
from importlib import metadata

from ridgeline.hardware.machine import this_machine
from ridgeline.records.measurement import Environment

FROM_SOURCE = "from source"
"""Ridgeline's version where it was not installed: a checkout on PYTHONPATH, a bundle."""


def environment(
    *,
    device: str = "",
    torch: str | None = None,
    python: str | None = None,
    command: list[str] | None = None,
    variables: Collection[str] = (),
) -> Environment:
    """What this process can say of itself and its machine.

    Args:
        device: The name of what was measured; empty: the CPU.
        torch: Its version; None: of the one that is installed.
        python: Its version; None: of the one that runs this.
        command: What was run; None: this process.
        variables: Names of environment variables to be told where they are set.
    """
    cpu = this_machine(gpus=[]).cpu.model
    return Environment(
        command=sys.argv if command is None else command,
        cwd=os.getcwd(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        host_cpu=cpu,
        cpu_count=os.cpu_count() or 1,
        device=device or cpu,
        python=python or platform.python_version(),
        torch=installed("torch") if torch is None else torch,
        ridgeline=installed_ridgeline(),
        variables={name: os.environ[name] for name in variables if name in os.environ},
    )


def installed_ridgeline() -> str:
    """The version that runs; `FROM_SOURCE` where no package of it is installed."""
    return installed("ridgeline") or FROM_SOURCE


def installed(package: str) -> str:
    """A package's version, without importing it; empty: it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
