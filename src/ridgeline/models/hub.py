"""Whether the hub of models can be reached, asked once.

Where it cannot, its library asks again for half a minute about each file of a model; told that it
is offline, it looks into its cache and says so.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module

from ridgeline.patches import patch

_PATIENCE_SECONDS = 5.0


@cache
def stay_offline_without_hub() -> None:
    """Leave this process and those that it starts to the cache if the hub does not answer."""
    try:
        from huggingface_hub import constants, get_session, is_offline_mode
    except ModuleNotFoundError:  # without the library nothing asks the hub
        return
    if is_offline_mode():
        return
    session = get_session()
    client = import_module(type(session).__module__.partition(".")[0])  # httpx, or its successor
    try:
        session.head(constants.ENDPOINT, timeout=_PATIENCE_SECONDS)
    except client.HTTPError:
        patch("huggingface_hub.constants:HF_HUB_OFFLINE", lambda _: True)
        os.environ["HF_HUB_OFFLINE"] = "1"
