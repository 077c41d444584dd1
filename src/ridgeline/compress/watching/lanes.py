"""Chunks of calibration side by side, each lane a thread that computes by itself.

A block's products are large enough for several threads, what lies between them is not: norms,
activations, pages that the system clears. Two chunks through a block side by side, one thread each,
take little more than half the time of the same two one after the other with two threads each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")

MOST = 4
"""The largest number of lanes: each has sums of its own."""


def num_lanes() -> int:
    """Lanes that torch's threads make; each has an equal share of them."""
    return max(1, min(MOST, torch.get_num_threads()))


def side_by_side(work: Callable[[int, Item], None], items: Sequence[Item]) -> None:
    """Call `work(lane, item)` for all items: those of one lane in order, one after the other.

    Every `num_lanes`-th item is a lane's, so that what a lane sums does not hang on who is faster.
    After an error no lane begins another item; the first one's is raised.
    """
    lanes = min(num_lanes(), len(items))
    if lanes <= 1:
        for item in items:
            work(0, item)
        return
    threads = torch.get_num_threads()
    ended = threading.Event()

    def run(lane: int) -> None:
        torch.set_num_threads(max(1, threads // lanes))
        try:
            for item in items[lane::lanes]:
                if ended.is_set():
                    return
                work(lane, item)
        except BaseException:
            ended.set()
            raise

    try:
        with ThreadPoolExecutor(lanes, "lane") as pool:
            running = [pool.submit(run, lane) for lane in range(lanes)]
            try:
                for one in running:
                    one.result()
            finally:
                ended.set()
    finally:
        torch.set_num_threads(threads)  # a lane's number counts for threads that are new
