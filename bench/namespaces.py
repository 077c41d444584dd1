"""Hosts of their own on one machine: network namespaces joined by a switch, with shaped links.

    with Hosts(3, rate="100mbit") as hosts:
        hosts.start(0, ["python", "script.py"])

Each host has one interface `eth0` and the address 10.77.0.(i + 1); the switch is a bridge in a
namespace of its own. Both ends of every cable send through a token bucket (`tc tbf`), so each
direction has the rate for itself. Delay and loss are not emulated: that needs netem, which many
kernels are built without, so that links here have a local latency at a remote bandwidth.

Nothing is left behind, whatever ends the block.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from types import TracebackType
from typing import Self

_BURST_SECONDS = 1e-3
"""What may pass at once: short against messages, long against the clock of the token bucket."""
_SMALLEST_BURST_BYTES = 16_384
_QUEUE = "400ms"
"""How long packets may wait before one is dropped; no link is to lose any."""


class NotPermitted(Exception):
    """Namespaces cannot be made here, and why."""


class Hosts:
    """A context: made on entry, removed on exit."""

    def __init__(self, count: int, *, rate: str | None = None) -> None:
        self.count = count
        self._rate = rate
        self._prefix = f"ridgeline-{os.getpid()}"
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def name(self, host: int) -> str:
        """Of its namespace."""
        return f"{self._prefix}-{host}"

    def address(self, host: int) -> str:
        """Of its interface."""
        return f"10.77.0.{host + 1}"

    def start(
        self, host: int, command: list[str], environment: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Run a command on that host."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name(host), *command],
            env=os.environ | {"GLOO_SOCKET_IFNAME": "eth0"} | (environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def _build(self) -> None:
        switch = f"{self._prefix}-switch"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for host in range(self.count):
            name, port = self.name(host), f"port{host}"
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip(
                *("-n", switch, "link", "add", port, "type", "veth"),
                *("peer", "name", "eth0", "netns", name),
            )
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            if self._rate:
                self._shape(name, "eth0")
                self._shape(switch, port)

    def _shape(self, namespace: str, device: str) -> None:
        burst = max(_SMALLEST_BURST_BYTES, int(bytes_per_second(self._rate) * _BURST_SECONDS))
        _run(
            *("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf"),
            *("rate", str(self._rate), "burst", str(burst), "latency", _QUEUE),
        )

    def _remove(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        listed = subprocess.run(
            ["ip", "netns", "list"], capture_output=True, text=True, check=False
        ).stdout
        for line in listed.splitlines():
            name = line.split()[0] if line.split() else ""
            if name.startswith(f"{self._prefix}-"):
                subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def bytes_per_second(rate: str | None) -> float:
    """Of a rate as `tc` writes it.

    >>> bytes_per_second("100mbit")
    12500000.0
    """
    units = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
    for unit, factor in units.items():
        if rate and rate.endswith(unit):
            return float(rate.removesuffix(unit)) * factor / 8.0
    raise ValueError(f"{rate!r} is no rate in {', '.join(units)}")


def why_not() -> str:
    """Why namespaces cannot be made here; empty: they can."""
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"the program {program} is missing (iproute2)"
    try:
        with Hosts(1, rate="1gbit"):
            return ""
    except NotPermitted as error:
        return str(error)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPermitted(f"{' '.join(command)}: {done.stderr.strip()}")
