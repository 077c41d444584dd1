"""The page of a trace in a real browser: it draws, zooms to single events, and fits a phone."""

from __future__ import annotations

import gzip
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.report.test_trace_page import a_page
from tests.trace.conftest import SHARED

from ridgeline.cli.main import run

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--virtual-time-budget=9000",
    "--window-size=1400,900",
    "--dump-dom",
)
WATCH = "<script>window.failures = []; onerror = (text) => { failures.push(text); };</script>"
ACT = """<script>
addEventListener("load", () => setTimeout(() => {
  let told = {};
  try { told = (function () { %s })(); } catch (error) { failures.push(error.stack); }
  told.failures = failures;
  parent.postMessage(JSON.stringify(told), "*");
}, 500));
const canvas = document.querySelector("canvas.timeline");
const box = canvas.parentElement;
canvas.setPointerCapture = () => {};  // of a pointer that no hand holds
function point(kind, x, y, id = 1, pointerType = "mouse") {
  const frame = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new PointerEvent(kind, { pointerId: id, pointerType, button: 0,
    clientX: frame.left + x, clientY: frame.top + y, bubbles: true, cancelable: true }));
}
function press(key) { canvas.dispatchEvent(new KeyboardEvent("keydown", { key })); }
function tool(text) {
  const all = [...box.querySelectorAll("button")];
  all.find((one) => one.textContent === text).click();
}
// Everything that hovering says about slices anywhere on the canvas.
function hovered() {
  const said = new Set(), tip = box.querySelector(".tip");
  for (let y = 50; y < canvas.clientHeight; y += 8) {
    for (let x = 4; x < canvas.clientWidth - 3; x += 3) {
      point("pointermove", x, y);
      if (!tip.hidden) said.add([...tip.children].map((one) => one.textContent).join(" | "));
    }
  }
  return [...said];
}
</script>"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs chromium or google-chrome"),
]


def acted(folder: Path, page: str, script: str, width: int = 1280) -> dict[str, Any]:
    """What a script that runs in the page returns; the page stands in a frame of this width."""
    page = page.replace("<style>", f"{WATCH}<style>", 1)
    (folder / "page.html").write_text(page.replace("</body>", f"{ACT % script}</body>"))
    # The frame is what is narrow: a headless window is never below 500 pixels.
    (folder / "frame.html").write_text(
        f'<iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe>'
        "<pre></pre><script>onmessage = (event) => {"
        ' document.querySelector("pre").textContent = event.data; };</script>'
    )
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}"]
    command.append((folder / "frame.html").as_uri())
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = re.search(r"<pre>(\{.*?\})</pre>", shown.stdout, re.DOTALL)
    assert told is not None, shown.stdout[:2000]
    found: dict[str, Any] = json.loads(html.unescape(told.group(1)))
    assert found["failures"] == []
    return found


@pytest.fixture(scope="module")
def real_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of six steps, with more events than a page holds."""
    file = SHARED / "data" / "traces" / "ddp_compare" / "a100_8rank_rank3.control.json.gz"
    if not file.exists():
        pytest.skip("the real traces are not here (shared/data/traces)")
    page = tmp_path_factory.mktemp("page") / "page.html"
    assert run(["trace", "report", str(file), "--html", str(page)]) == 0
    return page.read_text()


def test_it_draws_sorts_filters_and_runs_nothing_of_the_trace(tmp_path: Path) -> None:
    seen = acted(tmp_path, a_page(tmp_path), """
      const pixels = (one) => {
        const data = one.getContext("2d").getImageData(0, 0, one.width, one.height).data;
        const found = new Set();
        for (let at = 0; at < data.length; at += 4) {
          found.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
        }
        return found.size;
      };
      const table = [...document.querySelectorAll("table.sortable")].find((one) =>
        one.tBodies[0].rows.length > 15);
      const filter = table.closest(".searched").querySelector(".filter");
      const visible = () => [...table.tBodies[0].rows].filter((row) => !row.hidden);
      const folded = visible().length;
      table.closest(".searched").querySelector("button").click();
      const open = visible().length;
      const head = [...table.tHead.rows[0].cells].find((one) => one.className === "number");
      head.click();
      const values = visible().map((row) => Number(row.cells[head.cellIndex].dataset.value));
      filter.value = "nothing has this name";
      filter.dispatchEvent(new Event("input"));
      return { colours: pixels(canvas), flame: pixels(document.querySelector("canvas.flame")),
        folded, open, rows: table.tBodies[0].rows.length, left: visible().length,
        sorted: values.every((value, at) => at === 0 || values[at - 1] >= value),
        broken: window.broken === 1 };
    """)  # fmt: skip
    assert seen["colours"] > 5
    assert seen["flame"] > 5
    assert seen["folded"] == 12
    assert seen["open"] == seen["rows"]
    assert seen["sorted"]
    assert seen["left"] == 0
    assert not seen["broken"]


def test_outside_the_median_step_events_are_joined_and_inside_each_is_itself(
    tmp_path: Path, real_page: str
) -> None:
    seen = acted(tmp_path, real_page, """
      const all = hovered();
      tool("Show the median step");
      return { all, step: hovered(), keys: box.querySelector(".keys").textContent };
    """)  # fmt: skip
    joined = [said for said in seen["all"] if said.startswith("joined: ")]
    assert len(joined) > 10
    assert all(re.match(r"joined: [\d,]+ events? here \| starts at", said) for said in joined)
    assert len(seen["step"]) > 500
    assert not any(said.startswith("joined") for said in seen["step"])
    kernels = [said for said in seen["step"] if "stream 7" in said]
    assert all("correlation" in said for said in kernels)
    assert any("launched by aten::" in said for said in kernels)
    assert any("on the critical path" in said for said in kernels)
    for word in ("communication", "annotation", "events joined", "on the critical path"):
        assert word in seen["keys"]


def test_zooming_in_inside_the_median_step_resolves_single_kernels(
    tmp_path: Path, real_page: str
) -> None:
    seen = acted(tmp_path, real_page, """
      const lengths = () => hovered().filter((said) => said.includes("stream 7"))
        .map((said) => said.match(/lasts ([\\d.]+) (..)/))
        .map(([, size, unit]) => size * (unit === "ms" ? 1000 : 1));
      tool("Show the median step");
      const whole = lengths();
      for (let turn = 0; turn < 8; turn += 1) press("+");
      return { whole: whole.length, near: lengths(), tip: box.querySelector(".tip").hidden };
    """)  # fmt: skip
    assert seen["whole"] > 100
    assert 0 < len(seen["near"]) < seen["whole"]
    assert min(seen["near"]) < 20.0


def test_keys_wheel_and_hand_move_the_same_picture(tmp_path: Path, real_page: str) -> None:
    seen = acted(tmp_path, real_page, """
      const picture = () => canvas.toDataURL();
      const whole = picture();
      press("+"); const zoomed = picture();
      press("ArrowRight"); const right = picture();
      press("ArrowLeft"); const back = picture();
      point("pointerdown", 600, 80); point("pointermove", 400, 80); point("pointerup", 400, 80);
      const dragged = picture();
      press("0"); const all = picture();
      const wheel = new WheelEvent("wheel", { deltaY: -600, clientX: 300, cancelable: true });
      canvas.dispatchEvent(wheel);
      const wheeled = picture();
      press("0");
      const out = new WheelEvent("wheel", { deltaY: 600, clientX: 300, cancelable: true });
      canvas.dispatchEvent(out);
      return { zoomed: zoomed !== whole, right: right !== zoomed, back: back === zoomed,
        dragged: dragged !== zoomed, all: all === whole, wheeled: wheeled !== whole,
        scrolls: !out.defaultPrevented && wheel.defaultPrevented };
    """)  # fmt: skip
    assert all(value for key, value in seen.items() if key != "failures"), seen


def test_two_fingers_zoom_around_what_is_under_them_and_a_tap_tells(
    tmp_path: Path, real_page: str
) -> None:
    seen = acted(tmp_path, real_page, """
      const touch = (kind, x, id) => point(kind, x, 320, id, "touch");
      const tapped = (x) => { touch("pointerdown", x, 9); touch("pointerup", x, 9);
        return box.querySelector(".told").textContent; };
      tool("Show the median step");
      const whole = canvas.toDataURL();
      touch("pointerdown", 100, 1); touch("pointerdown", 200, 2);
      touch("pointermove", 50, 1); touch("pointermove", 290, 2);
      touch("pointerup", 50, 1); touch("pointerup", 290, 2);
      const near = canvas.toDataURL();
      touch("pointerdown", 50, 1); touch("pointerdown", 290, 2);
      touch("pointermove", 100, 1); touch("pointermove", 200, 2);
      touch("pointerup", 100, 1); touch("pointerup", 200, 2);
      const again = canvas.toDataURL();
      const said = [];
      for (let x = 5; x < canvas.clientWidth; x += 5) said.push(tapped(x));
      return { near: near !== whole, again: again === whole, said };
    """, width=360)  # fmt: skip
    assert seen["near"]
    assert seen["again"]
    assert any(re.search(r"starts at .* lasts ", said) for said in seen["said"])


def test_on_a_phone_nothing_scrolls_sideways_words_stay_whole_and_buttons_fit_a_thumb(
    tmp_path: Path, real_page: str
) -> None:
    seen = acted(tmp_path, real_page, """
      const broken = [], small = [];
      const breaks = /[^\\s_:/.,(<-]+/g;
      const walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
      while (walk.nextNode()) {
        const node = walk.currentNode, around = node.parentElement;
        if (around.closest("script, style, svg, canvas") || !around.offsetParent) continue;
        for (const word of node.data.matchAll(breaks)) {
          const range = document.createRange();
          range.setStart(node, word.index);
          range.setEnd(node, word.index + word[0].length);
          const tops = new Set([...range.getClientRects()].map((one) => Math.round(one.top)));
          if (tops.size > 1 && word[0].length < 28) broken.push(word[0]);
        }
      }
      for (const one of document.querySelectorAll("button, input, summary, .sortable th")) {
        const size = one.getBoundingClientRect();
        if (one.offsetParent && size.height < 40) small.push([one.textContent, size.height]);
      }
      return { broken, small, width: innerWidth, content: document.documentElement.scrollWidth };
    """, width=360)  # fmt: skip
    assert seen["content"] <= seen["width"] == 360
    assert seen["broken"] == []
    assert seen["small"] == []


def test_a_page_of_256_ranks_is_short_small_and_finds_a_rank(tmp_path: Path) -> None:
    files = sorted((SHARED / "data" / "traces" / "v100_dlrm_8rank_nccl").glob("*.json.gz"))
    if not files:
        pytest.skip("the real traces are not here (shared/data/traces)")
    folder = tmp_path / "ranks"
    folder.mkdir()
    source = [json.loads(gzip.decompress(file.read_bytes())) for file in files]
    for rank in range(256):
        events = source[rank % len(source)]
        events["distributedInfo"].update(rank=rank, world_size=256)
        (folder / f"worker{rank}.json").write_text(json.dumps(events))
    page = tmp_path / "page.html"
    assert run(["trace", "report", str(folder), "--html", str(page)]) == 0
    assert page.stat().st_size < 2_000_000
    whole = page.read_text()
    seen = acted(tmp_path, whole, """
      const height = document.documentElement.scrollHeight;
      const fold = [...document.querySelectorAll("details")]
        .find((one) => one.firstChild.textContent === "All 256 ranks");
      fold.open = true;
      const filter = fold.querySelector(".filter");
      filter.value = "217";
      filter.dispatchEvent(new Event("input"));
      const rows = [...fold.querySelectorAll("tbody tr")];
      const left = rows.filter((row) => !row.hidden).map((row) => row.cells[0].textContent);
      return { height, left, rows: rows.length };
    """)  # fmt: skip
    assert seen["height"] <= 20_000
    assert seen["rows"] == 256
    assert seen["left"] == ["217"]
    on_a_phone = acted(tmp_path, whole, """
      return { height: document.documentElement.scrollHeight };
    """, width=360)  # fmt: skip
    assert on_a_phone["height"] <= 20_000
