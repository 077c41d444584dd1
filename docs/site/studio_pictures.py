"""Pictures of every explorer of the studio for the documentation, as a real Chromium shows them.

    python docs/site/studio_pictures.py [EXPLORER…]

Writes `docs/reference/studio-NAME.png`, 1280 pixels wide, and `studio-NAME-390.png` as on a phone;
desktops light but for the system map, phones dark. Colours are cut to a palette: the files stay
small.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from ridgeline.studio.explorer import explorers

FOLDER = Path(__file__).parents[1] / "reference"
DARK = {"system-map"}
"""Explorers whose desktop picture is in the dark scheme."""
COLOURS = 128


def main() -> None:
    """Take the pictures of the explorers that are named, or of all."""
    names = sys.argv[1:] or list(explorers())
    command = [sys.executable, "-m", "ridgeline.cli.main", "studio", "--port", "0", "--json"]
    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process, sync_playwright() as player:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        address = json.loads(b"".join(lines))["address"].rstrip("/")
        browser = player.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name in names:
            scheme = "dark" if name in DARK else "light"
            desktop = browser.new_context(
                viewport={"width": 1280, "height": 900}, color_scheme=scheme
            )
            phone = browser.new_context(
                viewport={"width": 390, "height": 844}, color_scheme="dark",
                has_touch=True, is_mobile=True,
            )  # fmt: skip
            _take(desktop, f"{address}/{name}", FOLDER / f"studio-{name}.png")
            _take(phone, f"{address}/{name}", FOLDER / f"studio-{name}-390.png")
            sys.stdout.write(f"{name}\n")
            sys.stdout.flush()
        browser.close()
        process.terminate()


def _take(context: Any, address: str, file: Path) -> None:
    page = context.new_page()
    page.goto(address, timeout=120_000)
    page.wait_for_selector("body[data-ready]", timeout=120_000)
    taken = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    taken.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
    context.close()


if __name__ == "__main__":
    main()
