"""docs/reference/models.md: its code runs, its lists are those of the package."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from ridgeline.models.config import ALIKE
from ridgeline.models.families import readers
from ridgeline.models.presets import preset_names

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
def test_the_page_s_code_runs(code: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(code)
    runpy.run_path(str(script))


def test_the_page_lists_every_preset() -> None:
    listed = re.search(r"<!-- presets -->\n(.*?)\n<!-- /presets -->", PAGE.read_text(), re.DOTALL)
    assert listed is not None
    names = re.split(r",\s+|\.\s+|\.$", listed.group(1).replace("\n", " ").strip())
    assert sorted(name for name in names if name) == sorted(preset_names())


def test_the_page_lists_every_model_type() -> None:
    text = PAGE.read_text().partition("## config.json")[2].partition("\n- ")[0]
    kinds = set(re.findall(r"[\w-]+", text))
    assert set(readers()) <= kinds
    assert {kind for kind in ALIKE if not kind.endswith(("_text", "Model"))} <= kinds
