"""How torchrun on each of several machines finds the others, to train one recipe together.

`--nodes 2:4 --rendezvous HOST:PORT`, the same on every machine, in a folder that all share. The
machine whose address is HOST leads: it holds torchrun's rendezvous and must stay; any other may be
lost and come back.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Self

from ridgeline.errors import InputError

_ANSWER_SECONDS = 3.0
_CONF = {
    # A machine that has been silent for 3 beats is no longer waited for.
    "keep_alive_interval": 2,
    "keep_alive_max_attempt": 3,
    # With the fewest machines there, others have so long to come.
    "last_call_timeout": 5,
    "join_timeout": 600,
    "read_timeout": 20,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The machines of a run, as `--nnodes` and `--rdzv-endpoint` of torchrun name them."""

    fewest: int
    most: int
    host: str
    port: int

    @classmethod
    def read(cls, count: str, rendezvous: str) -> Self:
        """Read `--nodes` and `--rendezvous` of the command line.

        >>> Nodes.read("2:4", "10.0.0.1:29400").most
        4

        Raises:
            InputError: One of them cannot be read.
        """
        low, _, high = count.partition(":")
        high = high or low
        if not (low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high)):
            raise InputError(f"--nodes {count!r} is not COUNT or FEWEST:MOST, such as 2:4")
        host, _, port = rendezvous.rpartition(":")
        if not host or not port.isdecimal():
            raise InputError(f"--rendezvous {rendezvous!r} is not HOST:PORT, such as node0:29400")
        return cls(fewest=int(low), most=int(high), host=host, port=int(port))

    def address(self) -> str:
        """The address of this machine, as the leading one is reached from it.

        Raises:
            InputError: There is no way there.
        """
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
                way.connect((self.host, self.port))  # sends nothing: it asks for the route
                return str(way.getsockname()[0])
        except OSError as error:
            raise InputError(f"--rendezvous: {self.host} cannot be reached: {error}") from None

    def leads(self) -> bool:
        """Whether this machine is the leading one."""
        found = socket.gethostbyname(self.host)
        return found == self.address() or ipaddress.ip_address(found).is_loopback

    def reachable(self) -> bool:
        """Whether the leading machine answers."""
        try:
            socket.create_connection((self.host, self.port), timeout=_ANSWER_SECONDS).close()
        except OSError:
            return False
        return True

    def arguments(self, identity: str) -> list[str]:
        """The arguments that torchrun is started with.

        Args:
            identity: The same on all machines of one run, another for each run.
        """
        conf = _CONF | {"is_host": int(self.leads())}
        return [
            *("--nnodes", f"{self.fewest}:{self.most}", "--rdzv-backend", "c10d"),
            *("--rdzv-endpoint", f"{self.host}:{self.port}", "--rdzv-id", identity),
            *("--rdzv-conf", ",".join(f"{key}={value}" for key, value in conf.items())),
            *("--local-addr", self.address()),
        ]


_ASK_SECONDS = 3.0
_MISSES = 3
_RETURN_SECONDS = 600.0
"""For so long a machine that lost the others tries to join them again."""


class LeadingMachine:
    """The machine that holds the rendezvous, as another one sees it."""

    def __init__(self, nodes: Nodes | None) -> None:
        """Look at the leading machine; None: it is this one."""
        self._nodes = nodes
        self._asked = monotonic()
        self._misses = 0
        self._met = False
        self.lost = False
        """It has not answered several times in a row."""

    def look(self) -> bool:
        """Whether it is lost; asks now and then."""
        if self._nodes is None or monotonic() - self._asked < _ASK_SECONDS:
            return self.lost
        self._misses = 0 if self._nodes.reachable() else self._misses + 1
        self._asked = monotonic()
        # Before the first answer torchrun waits for it, not we.
        self.lost = self._misses >= _MISSES and self._met
        self._met = self._met or not self._misses
        return self.lost

    def came_back(self) -> bool:
        """Wait for it; False: it stayed away."""
        assert self._nodes is not None
        deadline = monotonic() + _RETURN_SECONDS
        while monotonic() < deadline:
            if self._nodes.reachable():
                self.lost, self._misses, self._asked = False, 0, monotonic()
                return True
            sleep(1.0)
        return False
