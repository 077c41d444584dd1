"""Hosts far from each other on one machine: namespaces joined by a relay with rate and delay.

    with DistantHosts(4, rate="100mbit", delay_seconds=0.01) as hosts:
        hosts.start(0, ["python", "script.py"])

Many kernels lack netem. Here each host's only interface is a TUN device whose packets one process
reads, holds back for their time on the cable (bytes over rate, one packet after another) and the
delay, and hands to the host that they are for. Packets are large (60 kB), so that the relay costs
a few hundred wake-ups a second; what it adds is part of the latency that is measured through it.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
from typing import Any

from namespaces import Hosts, NotPermitted, _ip, bytes_per_second

MTU = 60_000
_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET, sched.h"""
_SET_INTERFACE = 0x400454CA
"""TUNSETIFF, linux/if_tun.h"""
_TUN, _NO_HEADER = 0x0001, 0x1000
_START_SECONDS = 10.0


class DistantHosts(Hosts):
    """As `Hosts`, with delay."""

    def __init__(self, count: int, *, rate: str, delay_seconds: float) -> None:
        super().__init__(count)
        self._cable = {"bytes_per_second": bytes_per_second(rate), "delay_seconds": delay_seconds}

    def _build(self) -> None:
        for host in range(self.count):
            _ip("netns", "add", self.name(host))
            _ip("-n", self.name(host), "link", "set", "lo", "up")
        names = [self.name(host) for host in range(self.count)]
        relay = subprocess.Popen(
            [sys.executable, __file__, json.dumps(self._cable | {"hosts": names})],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes.append(relay)
        assert relay.stdout is not None
        if relay.stdout.readline().strip() != "joined":
            raise NotPermitted(f"the relay did not start: {relay.communicate()[1].strip()[-300:]}")
        for host, name in enumerate(names):
            _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "mtu", str(MTU), "up")
            # A pause between two collectives must not begin TCP anew.
            settings = "/proc/sys/net/ipv4/tcp_slow_start_after_idle"
            _ip("netns", "exec", name, "sh", "-c", f"echo 0 > {settings}")


def _join(namespace: str) -> int:
    """The file of a new TUN device `eth0` in that namespace."""
    with open(f"/var/run/netns/{namespace}") as place:
        if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _SET_INTERFACE, struct.pack("16sH22x", b"eth0", _TUN | _NO_HEADER))
    return device


def relay(cable: dict[str, Any]) -> None:
    """Carry packets until killed."""
    devices = [_join(name) for name in cable["hosts"]]
    print("joined", flush=True)
    rate, delay = cable["bytes_per_second"], cable["delay_seconds"]
    free_at = dict.fromkeys(devices, 0.0)
    under_way: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        pause = max(0.0, under_way[0][0] - time.perf_counter()) if under_way else None
        for device in select.select(devices, [], [], pause)[0]:
            packet = os.read(device, MTU + 1)
            if packet[0] >> 4 != 4 or packet[16:19] != b"\x0a\x4d\x00":
                continue  # neighbours' chatter, not from 10.77.0.x to 10.77.0.x
            now = time.perf_counter()
            free_at[device] = max(now, free_at[device]) + len(packet) / rate
            count += 1
            target = devices[packet[19] - 1]
            heapq.heappush(under_way, (free_at[device] + delay, count, target, packet))
        while under_way and under_way[0][0] <= time.perf_counter():
            _, _, target, packet = heapq.heappop(under_way)
            os.write(target, packet)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(-19)
    relay(json.loads(sys.argv[1]))
