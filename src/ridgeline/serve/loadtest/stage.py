"""One run of load against a server that was probed, and whether the load tester kept up with it.

A sweep is several of them. Where the load tester did not keep up, its figures tell of itself, and
none is given. Three signs: requests went out late, the event loop's timers came late (so chunks
were stamped late), or a core was used up (one event loop cannot use more).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ridgeline import quantity
from ridgeline.batching.load.workload import Planned, planned
from ridgeline.errors import RidgelineError
from ridgeline.records.load_test import ClientCheck
from ridgeline.records.request_trace import Traced
from ridgeline.serve.loadtest.client import Client, request_body
from ridgeline.serve.loadtest.drive import Driven, drive
from ridgeline.serve.loadtest.probe import Served
from ridgeline.serve.loadtest.settings import LoadSettings


class LoadTesterTooSlow(RidgelineError):
    """This program was the bottleneck, not the server."""


def client_check(driven: Driven, max_send_lag_seconds: float) -> ClientCheck:
    """Figures about the load tester itself, over the whole run."""
    lags = [lag for one in driven.exchanges if (lag := one.send_lag) is not None] or [0.0]
    p50, p99, most = np.percentile(lags, (50, 99, 100)).tolist()
    return ClientCheck(
        send_lag_p50=p50,
        send_lag_p99=p99,
        send_lag_max=most,
        timer_lag_p99=float(np.percentile(driven.loop_lags or [0.0], 99)),
        cpu_share=driven.cpu_share,
        max_send_lag_seconds=max_send_lag_seconds,
    )


def require_kept_up(check: ClientCheck, max_cpu_share: float) -> None:
    """Refuse figures that tell of the load tester.

    Raises:
        LoadTesterTooSlow: names the sign and the cure.
    """
    signs = []
    limit = check.max_send_lag_seconds
    if check.send_lag_p99 > limit:
        signs.append(
            f"1 % of the requests went out {quantity.seconds(check.send_lag_p99)} late or more"
        )
    if check.timer_lag_p99 > limit:
        signs.append(f"1 % of its timers came {quantity.seconds(check.timer_lag_p99)} late or more")
    if check.cpu_share > max_cpu_share:
        signs.append(f"it used {check.cpu_share:.0%} of a core")
    if signs:
        raise LoadTesterTooSlow(
            f"the load tester was the bottleneck, so there are no figures: {', '.join(signs)}"
            f" (allowed: {quantity.seconds(limit)} and {max_cpu_share:.0%}); send less, run it on a"
            " machine of its own, or say --max-send-lag with what you can bear"
        )


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
    """Numbers of requests over all stages, so that no prompt comes twice."""

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
