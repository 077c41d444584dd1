"""A host that takes the question for a picture and says nothing."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from tests.serve.vision.picture_host import picture_host

from ridgeline.serve.http import image_fetch
from ridgeline.serve.http.protocol.errors import ApiError


def test_a_host_that_says_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_fetch, "FETCH_SECONDS", 0.5)
    with picture_host(tmp_path) as (host, cert):
        trusted = ssl.create_default_context(cafile=cert)
        monkeypatch.setattr(image_fetch, "_certificates", lambda: trusted)
        with pytest.raises(ApiError, match="did not come within") as found:
            asyncio.run(image_fetch.fetch(host + "/silent", ("localhost",)))
    assert found.value.status == 400
