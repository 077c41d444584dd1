"""What a load test is asked to do; field for field the flags of `ridgeline loadtest`."""

from __future__ import annotations

import math
from typing import Literal

from ridgeline.errors import InputError
from ridgeline.records.load import Load, check_load, require_positive


class LoadSettings(Load, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load, whom it is sent to, and what the load tester may bear."""

    url: str
    model: str | None = None
    """The model to ask for; None: the first that the server names."""
    api: Literal["completions", "chat"] = "completions"
    api_key: str | None = None
    sweep: bool = False
    token_ids: tuple[int, int] | None = None
    """Prompts are ids from the first to below the second; None: words."""
    timeout_seconds: float = 600.0
    max_send_lag_seconds: float = 0.01
    max_cpu_share: float = 0.9

    @property
    def sending_seconds(self) -> float:
        """The end of sending, of each stage of a sweep."""
        found = super().sending_seconds
        return 30.0 if self.sweep and math.isinf(found) else found


def check(settings: LoadSettings) -> None:
    """Refuse what cannot be run, naming the flag."""
    if not settings.url.startswith(("http://", "https://")):
        raise InputError(f"URL {settings.url}: give it with its scheme, as http://host:8000")
    require_positive(
        {
            "--timeout": settings.timeout_seconds,
            "--max-send-lag": settings.max_send_lag_seconds,
            "--max-cpu-share": settings.max_cpu_share,
        }
    )
    check_load(settings)
    if settings.sweep and settings.arrivals not in ("poisson", "constant", "gamma"):
        raise InputError(f"--sweep sends at rates: --arrivals {settings.arrivals} has none")
    if settings.token_ids is not None:
        low, high = settings.token_ids
        if not 0 <= low < high:
            raise InputError(f"--token-ids {low}:{high}: the first has to be below the second")
        if settings.api == "chat":
            raise InputError("--token-ids: the chat API takes text only; use --api completions")
