"""One stub server for all tests that do not break it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serve.http.servers import Server, chat_model, stub_server


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def stub(model: Path) -> Iterator[Server]:
    with stub_server(model) as server:
        yield server
