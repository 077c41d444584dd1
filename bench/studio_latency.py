"""How long the studio takes: its start, a page's first paint, a slider's move to the new picture.

    python bench/studio_latency.py [--moves 40] [EXPLORER…]

A real Chromium (playwright) opens each explorer and moves every slider in turn, there and back. A
move ends when the new picture is drawn and the frame after it has begun. First paint is Chromium's
own first-contentful-paint. Nothing else should run; the load of the machine is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

from ridgeline.studio.explorer import explorers

START_SECONDS, PAINT_SECONDS, MOVE_SECONDS, SIMULATED_SECONDS = 2.0, 1.5, 0.15, 1.0
"""What is asked for; the last of explorers that simulate."""
MOVE = """
async ([place, value]) => {
  const control = document.querySelectorAll("#controls input[type=range]")[place];
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const start = performance.now();
  control.value = value;
  control.dispatchEvent(new Event("input", { bubbles: true }));
  while (document.body.hasAttribute("aria-busy")) await frame();
  await frame();
  return (performance.now() - start) / 1000;
}
"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"


@contextlib.contextmanager
def studio() -> Iterator[tuple[str, float]]:
    """The address of a studio, and the seconds until it answered."""
    command = [sys.executable, "-m", "ridgeline.cli.main", "studio", "--port", "0", "--json"]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        yield json.loads(b"".join(lines))["address"].rstrip("/"), time.perf_counter() - begun
        process.terminate()
        process.wait()


def moves_of(page: Any, most: int) -> list[float]:
    """Seconds of every move: each slider one place on and back, until there are enough."""
    page.wait_for_selector("body[data-ready]")
    sliders = page.locator("#controls input[type=range]")
    found: list[float] = []
    while len(found) < most:
        for place in range(sliders.count()):
            start = int(sliders.nth(place).input_value())
            other = start - 1 if start else 1
            found += [page.evaluate(MOVE, [place, str(to)]) for to in (other, start)]
    return found[2:]  # the first one there and back warm the page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="Explorers; all of them unless named.")
    parser.add_argument("--moves", type=int, default=40)
    given = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))))
    load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load:.1f};"
          f" Python {platform.python_version()}, starlette {version('starlette')},"
          f" plotly {version('plotly')}")  # fmt: skip
    with studio() as (address, seconds), sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        print(f"Chromium {browser.version}; start {seconds:.2f} s (asked: {START_SECONDS} s)")
        print("| explorer | first paint | median move | p95 | asked | |\n|---|---|---|---|---|---|")
        for name, explorer in explorers().items():
            if given.names and name not in given.names:
                continue
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"{address}/{name}")
            moves = moves_of(page, given.moves)
            paint = page.evaluate(PAINT)
            asked = SIMULATED_SECONDS if explorer.simulates else MOVE_SECONDS
            middle, late = np.percentile(moves, (50, 95))
            held = late <= asked and paint <= PAINT_SECONDS
            times = f"{paint:.2f} s | {1e3 * middle:.0f} ms | {1e3 * late:.0f} ms"
            verdict = "" if held else "MISSED"
            print(f"| {explorer.title} | {times} | {1e3 * asked:.0f} ms | {verdict} |", flush=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
