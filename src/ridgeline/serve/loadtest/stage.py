"""One run of load against a server that was probed; a sweep is several of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.batching.load.workload import Planned, planned
from ridgeline.records.load_test import ClientCheck
from ridgeline.records.request_trace import Traced
from ridgeline.serve.loadtest.client import Client, request_body
from ridgeline.serve.loadtest.drive import Driven, drive
from ridgeline.serve.loadtest.probe import Served
from ridgeline.serve.loadtest.self_check import client_check, require_kept_up
from ridgeline.serve.loadtest.settings import LoadSettings


@dataclass(slots=True, kw_only=True)
class Bench:
    """All that a stage needs."""

    client: Client
    served: Served
    settings: LoadSettings
    trace: list[Traced]
    seed: int
    stop: asyncio.Event
    own_ids: Iterator[int]
    """One per request, over all stages: no prompt comes twice."""

    async def stage(self, rate: float | None) -> tuple[Driven, ClientCheck]:
        """Send a stage's load.

        Args:
            rate: of a sweep's stage; None: as the settings say.

        Raises:
            LoadTesterTooSlow: the load tester was the bottleneck.
        """
        settings = self.settings
        seconds = settings.sending_seconds
        driven = await drive(
            self.client,
            planned(settings, self.trace, self.seed, rate),
            self._body,
            concurrency=settings.concurrency if settings.arrivals == "closed" else None,
            seconds=seconds,
            drain_seconds=math.inf if rate is None else seconds,
            stop=self.stop,
        )
        check = client_check(driven, settings.max_send_lag_seconds)
        require_kept_up(check, settings.max_cpu_share)
        return driven, check

    def _body(self, request: Planned) -> bytes:
        served = self.served
        prompt = served.prompts.make(
            request.input_tokens, request.prefix_ids, own_id=next(self.own_ids)
        )
        length = request.output_tokens
        return request_body(
            self.client.api, served.model, prompt, length, served.length_fields(length)
        )
