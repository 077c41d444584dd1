"""What the hardware is: facts about devices, links and prices, and what this machine has.

Facts are TOML (`devices/`, `links.toml`, `nodes.toml`, `prices.toml`), each number with its source
and date; `catalogue.py` looks them up, `cluster.py` makes clusters of them. `machine.py` reads
what this machine is, `accelerators.py` its GPUs, `environment.py` writes down what a measurement
was made with. `ceilings.py` holds the limits that a probe has
measured; the probe itself needs torch and lives in `measure/`. Neither torch nor any timing may
enter here. Start reading at `facts.py`.
"""

from ridgeline.hardware.accelerators import Gpu
from ridgeline.hardware.catalogue import (
    device,
    devices,
    link,
    links,
    match_reported_name,
    peer_bandwidth_bytes_per_second,
    prices,
    typical_usd_per_device_hour,
)
from ridgeline.hardware.ceilings import Ceilings, cached_ceilings
from ridgeline.hardware.facts import DTYPES, Device, Link, Price
from ridgeline.hardware.machine import Cpu, Machine, this_machine

__all__ = [
    "DTYPES",
    "Ceilings",
    "Cpu",
    "Device",
    "Gpu",
    "Link",
    "Machine",
    "Price",
    "cached_ceilings",
    "device",
    "devices",
    "link",
    "links",
    "match_reported_name",
    "peer_bandwidth_bytes_per_second",
    "prices",
    "this_machine",
    "typical_usd_per_device_hour",
]
