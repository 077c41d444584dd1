"""Kernels are chosen as on a machine where Ridgeline's are the faster ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_clock_chooses_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a busy moment measured must not stay in the user's cache and decide what tests see."""
    from ridgeline.serve.weights import choice

    folder = tmp_path_factory.mktemp("choices")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "cache_folder", lambda: folder)
        patch.setattr(choice, "_seconds", lambda _layer, _x: 1.0)
        choice._kernel_for.cache_clear()
        yield
    choice._kernel_for.cache_clear()
