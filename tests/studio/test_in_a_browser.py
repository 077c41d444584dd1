"""Explorers in a real browser: controls by mouse and keyboard, links, looks, accessibility."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from ridgeline.studio.answers import shown_answer
from ridgeline.studio.explorer import Explorer, explorers
from ridgeline.studio.inputs import read_state

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium or google-chrome")
REPRESENTATIVES = ("roofline", "number-formats")
QUICK = [pytest.param(name, id=name) for name in REPRESENTATIVES]
REST = [
    pytest.param(name, id=name, marks=pytest.mark.slow)
    for name in explorers()
    if name not in REPRESENTATIVES
]
EVERY = pytest.mark.parametrize("name", [*QUICK, *REST])
SETTLED = "() => !document.body.hasAttribute('aria-busy')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as player:
        found = player.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A tab in which nothing may fail."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    failures: list[str] = []
    tab.on("pageerror", lambda error: failures.append(str(error)))
    tab.on("console", lambda said: said.type == "error" and failures.append(said.text))
    yield tab
    context.close()
    assert [one for one in failures if "400" not in one] == []


def opened(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("body[data-ready]")


def is_what_python_says(page: Any, explorer: Explorer) -> None:
    """Sentence, command and figures are those of the function, for the state of the address."""
    page.wait_for_function(SETTLED)
    state = read_state(explorer.inputs, parse_qsl(urlsplit(page.url).query))
    said = shown_answer(explorer, state)
    assert page.inner_text("#sentence") == said["sentence"]
    assert page.inner_text("#command") == said["command"]
    for name, figure in said["figures"].items():
        drawn = page.evaluate(f"document.getElementById('{name}').data.map((one) => one.x)")
        assert json.loads(json.dumps(drawn)) == [one.get("x") for one in figure["data"]]


@EVERY
def test_controls_move_the_picture_by_keyboard_and_mouse(page: Any, studio: str, name: str) -> None:
    explorer = explorers()[name]
    opened(page, f"{studio}/{name}")
    sliders = page.locator("#controls input[type=range]")
    for place in range(sliders.count()):
        control = sliders.nth(place)
        before = page.url
        control.focus()
        page.keyboard.press("ArrowLeft" if control.input_value() != "0" else "ArrowRight")
        page.wait_for_function(SETTLED)
        if page.is_hidden("#problem"):
            assert page.url != before
            is_what_python_says(page, explorer)
        opened(page, f"{studio}/{name}")
    boxes = page.locator("#controls input[type=checkbox]")
    for place in range(min(2, boxes.count())):
        boxes.nth(place).click()
        is_what_python_says(page, explorer)
    for place in range(page.locator("#controls select").count()):
        choice = page.locator("#controls select").nth(place)
        choice.select_option(index=1)
        page.wait_for_function(SETTLED)
        if page.is_hidden("#problem"):
            is_what_python_says(page, explorer)
        opened(page, f"{studio}/{name}")


@EVERY
def test_a_link_restores_what_its_sender_saw(page: Any, studio: str, name: str) -> None:
    opened(page, f"{studio}/{name}")
    slider = page.query_selector("#controls input[type=range]")
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(SETTLED)
    sent, sentence = page.url, page.inner_text("#sentence")
    opened(page, sent)
    assert page.inner_text("#sentence") == sentence


@EVERY
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, studio: str, name: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="needs axe-playwright-python")
    script = Path(axe.__file__).with_name("axe.min.js").read_text()
    for width in (1280, 390):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
        )
        tab = context.new_page()
        opened(tab, f"{studio}/{name}")
        tab.evaluate(script)
        found = tab.evaluate("axe.run()")
        serious = [
            (one["id"], one["nodes"][0]["target"])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        context.close()


@pytest.mark.slow
def test_twenty_tabs_and_one_that_is_killed(browser: Any, studio: str) -> None:
    context = browser.new_context()
    tabs = [context.new_page() for _ in range(20)]
    for tab in tabs:
        tab.goto(f"{studio}/roofline", wait_until="commit")
    tabs[0].close()
    for tab in tabs[1:]:
        tab.wait_for_selector("body[data-ready]")
        assert "FLOP/byte" in tab.inner_text("#sentence")
    context.close()


@pytest.mark.slow
def test_data_and_pictures_are_saved(page: Any, studio: str) -> None:
    opened(page, f"{studio}/roofline")
    for button, ending in (("#save-json", ".json"), ("#save-svg", ".svg"), ("#save-png", ".png")):
        with page.expect_download() as saved:
            page.click(button)
        assert saved.value.suggested_filename.endswith(ending)


@pytest.mark.slow
def test_a_part_of_the_system_is_chosen_by_a_click(page: Any, studio: str) -> None:
    opened(page, f"{studio}/system-map")
    box = page.locator("#plot-map .scatterlayer .point").nth(4)
    place = box.bounding_box()
    page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    page.wait_for_function("document.querySelector('#in-part').value === 'vehicle'")
    is_what_python_says(page, explorers()["system-map"])
