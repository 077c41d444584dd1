"""The studio over HTTP: states, files and guests that mean harm get one clear message."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.studio.conftest import ADDRESS

from ridgeline.cli.main import run
from ridgeline.report.views.roofline import roofline_document
from ridgeline.studio.app import create_app
from ridgeline.studio.explorer import explorers
from ridgeline.studio.files import NO_FILES
from ridgeline.studio.guard import COOKIE, POLICY, Door
from ridgeline.studio.opened import opened_document, openers

HOSTILE = [
    "batch=1e999",
    "batch=nan",
    "batch=-1",
    "batch=1.5",
    "batch=" + "9" * 150,
    "batch=" + "9" * 5000,
    "batch=4&batch=8",
    "model=%3Cscript%3Ealert(1)%3C/script%3E",
    "model=../../../../etc/passwd",
    "model=/etc/passwd",
    "model=%00",
    "model=%ff%fe",
    "model=",
    "device=",
    "device=h100%00",
    "phase=%F0%9F%98%80",
    "no_such_input=1",
    "seq=inf",
    "&".join(f"a{index}=1" for index in range(500)),
]


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("query", HOSTILE)
def test_a_state_that_cannot_be_gets_one_message_and_the_page_stands(
    client: TestClient, query: str
) -> None:
    answer = client.get(f"/api/roofline?{query}")
    assert answer.status_code in (400, 414)
    said = answer.json()["error"] if answer.status_code == 400 else answer.text
    assert said.strip()
    assert "\n" not in said.strip()
    page = client.get(f"/roofline?{query}")
    assert page.status_code == answer.status_code
    if page.status_code == 400:
        assert 'id="controls"' in page.text
        assert "<script>alert" not in page.text
    assert client.get("/api/roofline").status_code == 200


HARM = ("1e999", "nan", "-1", "<script>alert(1)</script>", "../../../etc/passwd", "\0", "9" * 300)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(explorers()))
def test_no_input_of_any_explorer_takes_harm(client: TestClient, name: str) -> None:
    for one in explorers()[name].inputs:
        for text in HARM:
            said = client.get(f"/api/{name}", params={one.name: text})
            page = client.get(f"/{name}", params={one.name: text})
            assert said.status_code == page.status_code
            assert said.status_code in (200, 400), (one.name, text)
            if said.status_code == 400:
                assert "\n" not in said.json()["error"].strip()
            assert "<script>alert" not in page.text
            assert "Traceback" not in page.text
    assert client.get(f"/{name}").status_code == 200


def test_every_page_stands_and_loads_nothing_from_elsewhere(client: TestClient) -> None:
    home = client.get("/")
    for name, explorer in explorers().items():
        assert f'href="/{name}"' in home.text
        page = client.get(f"/{name}")
        assert page.status_code == 200
        assert page.headers["content-security-policy"] == POLICY
        assert page.headers["referrer-policy"] == "same-origin"  # or forms have the Origin `null`
        assert explorer.title in page.text
        loaded = re.findall(r'(?:src|href)="([^"]*)"', page.text)
        assert not [one for one in loaded if not one.startswith(("/", "#", "data:,"))]
    for name in ("plotly.min.js", "studio.js", "studio.css", "page.css"):
        assert client.get(f"/looks/{name}").status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/looks/app.py", "/looks/..%2fapp.py", "/looks/%2e%2e/%2e%2e/pyproject.toml",
     "/files/99", "/files/..%2f..%2fetc%2fpasswd", "/api/none", "/files/1/../../../etc/passwd"],
)  # fmt: skip
def test_no_path_leads_out(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in (400, 404)
    assert "root:" not in answer.text


def test_the_answer_is_downloaded_as_the_command_prints_it(
    client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = client.get("/api/roofline/answer?batch=8&phase=decode")
    assert answer.headers["content-disposition"] == 'attachment; filename="roofline.json"'
    command = client.get("/api/roofline?batch=8&phase=decode").json()["command"]
    assert run([*command.split()[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer.json()


def test_another_host_or_origin_is_refused(client: TestClient) -> None:
    for headers in (
        {"host": "evil.example"},
        {"host": "evil.example:8765"},
        {"host": "127.0.0.1.evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ):
        assert client.get("/api/roofline", headers=headers).status_code == 403
    for headers in ({"host": "localhost:8765"}, {"origin": ADDRESS}, {"host": "[::1]:8765"}):
        assert client.get("/api/roofline", headers=headers).status_code == 200


def test_a_link_from_elsewhere_may_be_followed(client: TestClient) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/roofline", headers=headers).status_code == 200


def test_with_a_token_nobody_enters_without_it() -> None:
    app = create_app(NO_FILES, Door("0.0.0.0", "a-long-token"))  # noqa: S104
    with TestClient(app, base_url="http://10.0.0.7:8765", follow_redirects=False) as guest:
        assert guest.get("/").status_code == 401
        assert guest.get("/?token=another").status_code == 401
        assert guest.get("/", headers={"cookie": f"{COOKIE}=another"}).status_code == 401
        assert guest.get("/", headers={"host": "evil.example"}).status_code == 403
        entered = guest.get("/roofline?batch=8&token=a-long-token")
        assert entered.headers["location"] == "/roofline?batch=8"
        assert "HttpOnly" in entered.headers["set-cookie"]
        assert guest.get("/roofline?batch=8").status_code == 200


def test_another_address_needs_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    everywhere = "0.0.0.0"  # noqa: S104
    assert run(["studio", "--host", everywhere, "--port", "0"]) == 2
    assert "add --token" in capsys.readouterr().err
    assert run(["studio", "--host", everywhere, "--port", "0", "--token", "short"]) == 2
    assert run(["studio", "--host", "no.such.host.invalid", "--token", "a-long-token"]) == 2


def test_files_are_shown_as_their_commands_show_them_in_a_frame_without_rights(
    client: TestClient, written: list[Path]
) -> None:
    listed = client.get("/files").text
    for number, path in enumerate(written, start=1):
        assert path.name in listed
        page = client.get(f"/files/{number}")
        if path.name in (
            "profile.json",
            "run.json",
            "ledger.json",
            "roofline.json",
            "hostile.json",
        ):
            assert page.status_code == 200
            assert 'sandbox="allow-scripts"' in page.text
            assert (f'href="/stack?ledger={number}"' in page.text) == (path.name == "ledger.json")
            drawn = client.get(f"/files/{number}/page")
            assert drawn.status_code == 200
            assert drawn.headers["content-security-policy"].startswith("sandbox allow-scripts;")
            assert "<script>window.broken" not in drawn.text
        else:
            assert page.status_code == 400
            assert 'role="alert"' in page.text
            assert client.get(f"/files/{number}/page").status_code == 400
    assert opened_document(written[3]).title == roofline_document_title(written[3])


def roofline_document_title(path: Path) -> str:
    from ridgeline.records.roofline import ModelRoofline
    from ridgeline.records.store import read_record

    return roofline_document(read_record(path, ModelRoofline)).title


def test_every_opener_names_a_type_and_a_view_that_are_there() -> None:
    from ridgeline.studio.opened import _named

    for kind, opener in openers().items():
        record, view = _named(opener.type), _named(opener.view)
        assert callable(view), kind
        names = set(opener.fields)
        assert names <= set(getattr(record, "__struct_fields__", names))
        if not opener.keys:
            stated = getattr(record, "__struct_config__", None)
            assert opener.drop or (stated is not None and stated.tag == kind), kind


def test_it_says_its_address(studio: str) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", studio)


@pytest.mark.sweep("some")
@pytest.mark.parametrize("first", [pytest.param(3, id="some"), pytest.param(None, id="all")])
def test_it_answers_without_torch(first: int | None) -> None:
    code = (
        "import sys, ridgeline.studio.app as app, ridgeline.studio.files as files\n"
        "from ridgeline.studio.guard import Door\n"
        "from ridgeline.studio.explorer import explorers\n"
        "from ridgeline.studio.explorer import State\n"
        "app.create_app(files.NO_FILES, Door('127.0.0.1'))\n"
        f"for one in list(explorers().values())[:{first}]:\n"
        "    one.draw(one.answer(State({i.name: i.default for i in one.inputs})))\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
