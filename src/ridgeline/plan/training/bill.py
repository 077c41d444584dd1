"""What a whole run takes in days, device-hours, money and energy, by the predicted step.

Days are those of the steps alone: failures, restarts, evaluation and data waits come on top. Money
is the median price on record; energy the devices' rated power, nothing else in the room.
"""

from __future__ import annotations

import math

from ridgeline.cost import money
from ridgeline.hardware import catalogue
from ridgeline.hardware.cluster import Cluster
from ridgeline.records.plan import Bill

SECONDS_PER_DAY = 86_400.0


def bill_of(cluster: Cluster, step_seconds: float, tokens: float, tokens_per_step: int) -> Bill:
    """The bill of training on `tokens` tokens."""
    steps = math.ceil(tokens / tokens_per_step)
    seconds = steps * step_seconds
    price = catalogue.typical_usd_per_device_hour(cluster.device.name)
    power = cluster.device.power
    watts = None if power is None else power.watts
    spent = money.bill(
        cluster.num_devices, seconds, money.Tariff(usd_per_device_hour=price, watts=watts)
    )
    notes = ["days count the predicted steps alone: no failures, no evaluation"]
    if price is None:
        notes.append(f"no price of {cluster.device.name} is on record")
    else:
        notes.append(f"${price:.2f} per device-hour is the median of the prices on record")
    if watts is None:
        notes.append(f"the power of {cluster.device.name} is not published")
    else:
        notes.append(f"energy is {watts:g} W per device, without hosts and cooling")
    return Bill(
        tokens=tokens,
        steps=steps,
        days=seconds / SECONDS_PER_DAY,
        device_hours=spent.device_hours,
        usd=spent.usd,
        usd_per_device_hour=price,
        kilowatt_hours=spent.energy_kilowatt_hours,
        notes=notes,
    )
