"""Images decoded by worker threads a few ahead of who takes them, in the order asked for."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

from numpy.typing import NDArray

from ridgeline.image_files.source import ImageSource

AHEAD = 4
"""Images that wait for each thread."""


def read_ahead(
    source: ImageSource,
    places: Iterable[int],
    change: Callable[[NDArray[Any]], NDArray[Any]] = lambda image: image,
    *,
    threads: int | None = None,
) -> Iterator[NDArray[Any]]:
    """Images at these places, in this order; Pillow and numpy let other threads run.

    Args:
        source: Of images.
        places: Which; may be endless.
        change: Done in the threads too, such as resizing.
        threads: That decode; None: one for each core this process may use.

    Raises:
        InputError: An image cannot be read.
    """
    workers = threads or len(os.sched_getaffinity(0))

    def one(place: int) -> NDArray[Any]:
        return change(source.read(place))

    rest = iter(places)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    try:
        waiting: deque[Future[NDArray[Any]]] = deque(
            pool.submit(one, place) for place in islice(rest, workers * AHEAD)
        )
        while waiting:
            ready = waiting.popleft().result()
            for place in islice(rest, 1):
                waiting.append(pool.submit(one, place))
            yield ready
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
