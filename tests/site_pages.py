"""The maker of the generated pages, `docs/site/pages.py`, which lies outside of any package."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


@functools.cache
def site_pages() -> ModuleType:
    """Import it by its place."""
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs/site/pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
