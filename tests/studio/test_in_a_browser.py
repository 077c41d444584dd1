"""Explorers in a real browser: controls by mouse and keyboard, links, looks, accessibility."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from ridgeline.studio.app import shown_answer
from ridgeline.studio.explorer import Explorer, explorers, read_state
from ridgeline.studio.files import NO_FILES, Files, name_files

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium or google-chrome")
REPRESENTATIVES = ("roofline",)
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


def is_what_python_says(page: Any, explorer: Explorer, files: Files = NO_FILES) -> None:
    """Sentence, command and figures are those of the function, for the state of the address."""
    page.wait_for_function(SETTLED)
    # the browser's own word: what playwright holds for the address comes a moment later
    address = page.evaluate("location.search").removeprefix("?")
    state = read_state(explorer.inputs, parse_qsl(address, keep_blank_values=True), files)
    said = shown_answer(explorer, state)
    assert page.inner_text("#sentence") == said["sentence"]
    assert page.inner_text("#command") == said["command"]
    for name, figure in said["figures"].items():
        drawn = page.evaluate(f"document.getElementById('{name}').data.map((one) => one.x)")
        assert json.loads(json.dumps(drawn)) == [one.get("x") for one in figure["data"]]


@pytest.mark.slow
@EVERY
def test_controls_move_the_picture_by_keyboard_and_mouse(
    page: Any, studio: str, name: str, written: list[Path]
) -> None:
    explorer, files = explorers()[name], name_files(written)
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
        page.wait_for_function(SETTLED)
        if page.is_hidden("#problem"):
            is_what_python_says(page, explorer)
        opened(page, f"{studio}/{name}")
    for place in range(page.locator("#controls select").count()):
        choice = page.locator("#controls select").nth(place)
        if choice.get_attribute("data-opens"):
            with page.expect_navigation():
                choice.select_option(index=choice.locator("option").count() - 1)
            page.wait_for_selector("body[data-ready]")
        else:
            choice.select_option(index=1)
            page.wait_for_function(SETTLED)
        if page.is_hidden("#problem"):
            is_what_python_says(page, explorer, files)
        opened(page, f"{studio}/{name}")


@pytest.mark.slow
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


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, studio: str, name: str, scheme: str) -> None:
    assert violations(browser, f"{studio}/{name}", scheme) == []


def violations(browser: Any, address: str, scheme: str) -> list[tuple[int, str, str]]:
    """What axe-core finds serious, at both widths, and whether the page is wider than those."""
    axe = pytest.importorskip("axe_playwright_python", reason="needs axe-playwright-python")
    script = Path(axe.__file__).with_name("axe.min.js").read_text()
    serious = []
    for width in (1280, 390):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
        )
        with contextlib.closing(context):
            tab = context.new_page()
            tab.goto(address)
            if tab.query_selector("#controls") is not None:
                tab.wait_for_selector("body[data-ready]")
            tab.evaluate(script)
            # a frame without rights cannot be looked into; it is a page of the report
            found = tab.evaluate("axe.run({ exclude: [['iframe']] }, { iframes: false })")
            serious += [
                (width, one["id"], str(one["nodes"][0]["target"]))
                for one in found["violations"]
                if one["impact"] in ("serious", "critical")
            ]
            if tab.evaluate("document.documentElement.scrollWidth") > width:
                serious.append((width, "wider than the screen", address))
    return serious


@pytest.mark.slow
def test_twenty_tabs_and_one_that_is_killed(browser: Any, studio: str) -> None:
    with contextlib.closing(browser.new_context()) as context:
        context.set_default_timeout(120_000)  # twenty pages are drawn on what cores there are
        tabs = [context.new_page() for _ in range(20)]
        for tab in tabs:
            tab.goto(f"{studio}/roofline", wait_until="commit")
        tabs[0].close()
        for tab in tabs[1:]:
            tab.wait_for_selector("body[data-ready]")
            assert "FLOP/byte" in tab.inner_text("#sentence")


@pytest.mark.slow
def test_ones_own_ledger_and_run_are_moved_too(page: Any, studio: str, written: list[Path]) -> None:
    files = name_files(written)
    for name, control, file in (
        ("stack", "ledger", "ledger.json"),
        ("roofline", "run", "run.json"),
    ):
        explorer = explorers()[name]
        opened(page, f"{studio}/{name}")
        number = next(str(one.number) for one in files.files if one.path.name == file)
        with page.expect_navigation():
            page.select_option(f"#in-{control}", number)
        page.wait_for_selector("body[data-ready]")
        is_what_python_says(page, explorer, files)
        assert file in page.inner_text("#command")
    opened(page, f"{studio}/stack?ledger={files.files[2].number}")
    before = page.inner_text("#sentence")
    box = page.locator("fieldset[data-off] input").nth(1)
    box.focus()
    page.keyboard.press("Space")
    is_what_python_says(page, explorers()["stack"], files)
    assert "estimated, without" in page.inner_text("#sentence") != before
    box.click()
    is_what_python_says(page, explorers()["stack"], files)
    assert page.inner_text("#sentence") == before


@pytest.mark.slow
def test_a_moment_is_played_to_its_end_and_rests_at_a_press(page: Any, studio: str) -> None:
    opened(page, f"{studio}/collectives?step=2&ranks=8")
    button, step = page.locator("[data-play]"), page.locator("#in-step")
    button.click()
    page.wait_for_function("() => Number(document.querySelector('#in-step').value) > 4")
    button.click()
    assert button.inner_text() == "Play"
    page.wait_for_function(SETTLED)
    at = step.input_value()
    is_what_python_says(page, explorers()["collectives"])
    page.wait_for_timeout(500)
    assert step.input_value() == at
    opened(page, f"{studio}/collectives?step=12&ranks=8")  # of a ring's 14
    button.click()
    page.wait_for_function("() => document.querySelector('[data-play]').textContent === 'Play'")
    is_what_python_says(page, explorers()["collectives"])
    assert "Step 14 of 14" in page.inner_text("#picture")
    page.emulate_media(reduced_motion="reduce")
    assert button.is_hidden()


OTHERS = (
    "",
    "drills",
    "drills/ask?id=zero-states:7",
    "drills/ask?topic=failures",
    "drills/graded?id=zero-states:7&answer0=1+GB&seconds=3",
    "files",
    "files/{ledger}",
    "files/{broken}",
    "nothing",
    "stack?ledger={ledger}",
    "roofline?run={run}",
)
"""Pages that are no explorer as it starts; in braces the number of a file."""


@pytest.mark.slow
@pytest.mark.parametrize("path", OTHERS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_other_pages_read_well_too(
    browser: Any, studio: str, written: list[Path], scheme: str, path: str
) -> None:
    numbers = {one.path.stem: one.number for one in name_files(written).files}
    assert violations(browser, f"{studio}/{path.format(**numbers)}", scheme) == []


@pytest.mark.slow
def test_a_drill_is_answered_by_keyboard(page: Any, studio: str) -> None:
    page.goto(f"{studio}/drills/ask?id=zero-states:7")
    box = page.locator("form.drill input[type=text]").first
    box.focus()
    page.keyboard.type("1 GB")
    page.keyboard.press("Enter")
    page.wait_for_url("**/drills/graded*")
    assert "of the points" in page.inner_text("main")
    assert "ridgeline calc zero" in page.inner_text("main")


@pytest.mark.slow
def test_data_and_pictures_are_saved(page: Any, studio: str) -> None:
    opened(page, f"{studio}/roofline")
    for button, ending in (("#save-json", ".json"), ("#save-svg", ".svg"), ("#save-png", ".png")):
        # A page of several plots saves several pictures: one may still come when another is asked.
        right = functools.partial(_ends, ending)
        with page.expect_download(right) as saved:
            page.click(button)
        assert saved.value.path().stat().st_size > 0


def _ends(ending: str, download: Any) -> bool:
    return bool(download.suggested_filename.endswith(ending))


@pytest.mark.slow
def test_the_command_and_the_link_are_copied_and_why_opens(browser: Any, studio: str) -> None:
    with contextlib.closing(browser.new_context()) as context:
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        opened(page, f"{studio}/roofline?batch=8")
        for button, told in (("#copy-command", "Command copied"), ("#copy-link", "Link copied")):
            page.click(button)
            page.wait_for_function(
                f"() => document.querySelector('#done').textContent === '{told}'"
            )
            copied = page.evaluate("navigator.clipboard.readText()")
            assert copied == page.inner_text("#command") or "batch=8" in copied
        assert not page.is_visible("#why li")
        page.locator("#why > summary").focus()
        page.keyboard.press("Enter")
        assert "Williams" in page.inner_text("#why")


@pytest.mark.slow
def test_a_part_of_the_system_is_chosen_by_a_click(page: Any, studio: str) -> None:
    opened(page, f"{studio}/system-map")
    box = page.locator("#plot-map .scatterlayer .point").nth(4)
    place = box.bounding_box()
    page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    page.wait_for_function("() => document.querySelector('#in-part').value === 'vehicle'")
    is_what_python_says(page, explorers()["system-map"])
