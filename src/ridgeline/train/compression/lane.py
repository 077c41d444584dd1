"""Where exchanges of several collectives run: one after another, beside the backward pass.

Collectives match by the order in which ranks start them. A hook that starts its second collective
when the first is done would start it before or after the next bucket's, as it happens on each
rank: with gloo they then meet the wrong partner. Here a bucket's exchange is whole before the next
begins, in a thread on the host, and in a stream of its own on a CUDA device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

_Job = tuple[Callable[[], Tensor], "torch.futures.Future[Tensor]"]


class Lane:
    """Opened once for each model."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
        else:
            # A daemon: a rank whose peer is gone must still be able to leave.
            threading.Thread(target=self._work, name="gradient exchange", daemon=True).start()

    def submit(self, exchange: Callable[[], Tensor]) -> torch.futures.Future[Tensor]:
        """Run it after those submitted before; the future holds its result."""
        if self._stream is None:
            future: torch.futures.Future[Tensor] = torch.futures.Future()
            self._jobs.put((exchange, future))
            return future
        future = torch.futures.Future(devices=[self._device])
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream), torch.no_grad():
            future.set_result(exchange())
        return future

    def _work(self) -> None:
        while True:
            exchange, future = self._jobs.get()
            try:
                with torch.no_grad():
                    result = exchange()
            except Exception as error:  # it belongs to whoever waits for the future
                future.set_exception(error)
            else:
                future.set_result(result)
