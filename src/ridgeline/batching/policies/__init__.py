"""Who goes first, and when a batch may take someone in: one file for each way.

An order says how those who wait are sorted, and who stays when room runs out. A mode says how many
may be admitted now. Neither touches blocks or tokens: that is `scheduler.py`. Each file says who
can starve under it.
"""

from __future__ import annotations

from typing import get_args

from ridgeline.batching.limits import Batching, Limits, Order
from ridgeline.batching.policies.continuous import Continuous
from ridgeline.batching.policies.dynamic import DynamicBatches
from ridgeline.batching.policies.fcfs import FirstCome
from ridgeline.batching.policies.longest_prefix import LongestPrefix
from ridgeline.batching.policies.priority import Priority
from ridgeline.batching.policies.shortest_prompt import ShortestPrompt
from ridgeline.batching.policies.static import StaticBatches
from ridgeline.batching.policies.ways import Mode, Ordering

ORDERS: dict[Order, Ordering] = {
    "fcfs": FirstCome(),
    "priority": Priority(),
    "shortest-prompt": ShortestPrompt(),
    "longest-prefix": LongestPrefix(),
}


def ordering(name: Order) -> Ordering:
    """The order of that name.

    Raises:
        ValueError: There is none.
    """
    if name not in ORDERS:
        raise ValueError(f"no order is called {name!r}; there are {', '.join(get_args(Order))}")
    return ORDERS[name]


def mode(limits: Limits, most_running: int) -> Mode:
    """The batching mode of these limits, with a state of its own.

    Raises:
        ValueError: There is none of that name.
    """
    if limits.batching == "continuous":
        return Continuous(most_running)
    if limits.batching == "static":
        return StaticBatches(most_running)
    if limits.batching == "dynamic":
        return DynamicBatches(most_running, limits.dynamic_delay_seconds)
    raise ValueError(
        f"no batching is called {limits.batching!r}; there are {', '.join(get_args(Batching))}"
    )
