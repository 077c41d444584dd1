"""The page on pipelines in Python, and the example of overload: what they show runs."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from ridgeline.realtime import read_pipeline
from ridgeline.realtime.execute import execute

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "realtime-pipeline.md"
OVERLOAD = ROOT / "examples" / "realtime" / "overload.py"


def test_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        pipeline = read_pipeline(str(script))
    assert pipeline.shape.sinks == ("plan",)
    assert re.fullmatch(r"camera plan \d+ of 3\d\nsonar plan \d+ of 1\d\n", said.getvalue())


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("drop_oldest", {"", "oldest"}),
        ("latest_only", {"", "oldest"}),
        ("unbounded", {""}),
        ("block", {"", "full"}),
    ],
)
def test_the_example_of_overload_loses_frames_by_its_policy_alone(
    name: str, reasons: set[str]
) -> None:
    run = execute(read_pipeline(f"{OVERLOAD}:{name}"), executor="threads", frames=30, warmup=0)
    (fates,) = run.fates
    lost = {
        reason
        for reason, kind in zip(fates.reasons, fates.kinds, strict=True)
        if kind in ("dropped", "failed")
    }
    assert lost <= reasons - {""}
    assert len(fates.frames) == 30
    assert "unfinished" not in fates.kinds
