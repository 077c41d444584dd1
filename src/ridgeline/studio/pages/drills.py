"""The drills, each a question in a box, two minutes, graded with the worked solution.

/drills            topics and the score over time
/drills/ask        a question: a new one of a topic, or the one that `id` names
/drills/grade      takes an answer (POST), remembers it, and leads to
/drills/graded     the grade and the solution, which a link shows again

What is remembered is what `ridgeline drill` remembers: one file in the user's state folder.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from ridgeline import quantity
from ridgeline.drills.bank import LARGEST_SEED, pick, question_of, topics
from ridgeline.drills.grading import grade
from ridgeline.drills.history import DrillHistory, standing_of
from ridgeline.drills.solved import SolvedQuestion
from ridgeline.errors import InputError
from ridgeline.records.drill import Ask, DrillGrade
from ridgeline.report.markup import Markup, element
from ridgeline.report.page import draw_blocks
from ridgeline.report.views.drill import grade_blocks, question_document, standing_document
from ridgeline.studio.explorer import number_in
from ridgeline.studio.files import Files
from ridgeline.studio.page import Page
from ridgeline.studio.shell import framed, script

LONGEST_BODY = 4096
LONGEST_WAIT_SECONDS = 86400.0
ANY_TOPIC = "any"


def routes(files: Files) -> Sequence[BaseRoute]:
    """The overview, a question, its grade."""

    def overview(_: Request) -> Response:
        return HTMLResponse(_overview(files))

    def asked(request: Request) -> Response:
        given = dict(request.query_params)
        if "id" not in given:
            identity = _new_question(given.get("topic", ANY_TOPIC))
            return RedirectResponse("/drills/ask?" + urlencode({"id": identity}), 303)
        return HTMLResponse(_question_page(question_of(given["id"]), files))

    async def answered(request: Request) -> Response:
        given = dict(await _form(request))
        address = await run_in_threadpool(_remembered, given)
        return RedirectResponse("/drills/graded?" + address, 303)

    def graded(request: Request) -> Response:
        given = dict(request.query_params)
        solved = question_of(given.get("id", ""))
        return HTMLResponse(_graded_page(solved, _grade(solved, given), files))

    return [
        Route("/drills", overview),
        Route("/drills/ask", asked),
        Route("/drills/grade", answered, methods=["POST"]),
        Route("/drills/graded", graded),
    ]


def _new_question(topic: str) -> str:
    chosen = [] if topic == ANY_TOPIC else [topic]
    return pick(secrets.randbelow(LARGEST_SEED), 1, chosen)[0].question.id


async def _form(request: Request) -> list[tuple[str, str]]:
    """What a form sent.

    Raises:
        InputError: It is too long, or no form.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_BODY:
            raise InputError(f"an answer has {LONGEST_BODY:,} signs at the most")
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=16, errors="strict")
    except ValueError:
        raise InputError("the answer cannot be read; open the question anew") from None


def _remembered(given: dict[str, str]) -> str:
    """Remember a graded answer; returns the address that shows it again."""
    solved = question_of(given.get("id", ""))
    began = number_in("asked", given.get("asked", ""), 0.0, LARGEST_SEED)
    waited = min(max(time.time() - began, 0.0), LONGEST_WAIT_SECONDS)
    known = {name: text for name, text in given.items() if name == "id" or name in _NAMES}
    known["seconds"] = f"{waited:.1f}"
    DrillHistory().add(_grade(solved, known))
    return urlencode(known)


_NAMES = tuple(f"answer{place}" for place in range(8))


def _grade(solved: SolvedQuestion, given: dict[str, str]) -> DrillGrade:
    answers = [given.get(name, "") for name in _NAMES[: len(solved.right)]]
    text = given.get("seconds", "")
    seconds = number_in("seconds", text, 0.0, LONGEST_WAIT_SECONDS) if text else None
    return grade(solved, answers, seconds)


def _overview(files: Files) -> str:
    history = DrillHistory()
    standing = standing_of(history.read())
    markup, _ = draw_blocks(standing_document(standing, history.notes).blocks)
    options = [element("option", "any topic", value=ANY_TOPIC)]
    options += [element("option", topic, value=topic) for topic in topics()]
    start = element(
        "form",
        element("label", "Topic", for_="topic"),
        element("select", *options, id="topic", name="topic"),
        element("button", "Ask me", type="submit"),
        action="/drills/ask",
        method="get",
        class_="drill",
    )
    return _framed(
        PAGE.title, [element("p", PAGE.about, class_="question")], [start, markup], files
    )


def _question_page(solved: SolvedQuestion, files: Files) -> str:
    question = solved.question
    markup, _ = draw_blocks(question_document(question, 1, 1).blocks[1:])
    clock = element(
        "p", "Two minutes: ", element("output", "2:00", id="clock"), class_="question", role="timer"
    )
    fields = [_field(ask, name) for ask, name in zip(question.asks, _NAMES, strict=False)]
    form = element(
        "form",
        _hidden("id", question.id),
        _hidden("asked", f"{time.time():.3f}"),
        *fields,
        element("button", "Answer", type="submit"),
        action="/drills/grade",
        method="post",
        class_="drill",
        autocomplete="off",
    )
    return _framed(
        question.topic.capitalize(), [clock], [markup, form], files, scripts=[script("drill.js")]
    )


def _field(ask: Ask, name: str) -> Markup:
    if not ask.options:
        return element(
            "div",
            element("label", ask.prompt, for_=name),
            Markup(
                f'<input type="text" id="{name}" name="{name}" maxlength="80" spellcheck="false"'
                " autofocus>"
            ),
            class_="field",
        )
    choices = [
        element(
            "label",
            Markup(f'<input type="radio" name="{name}" value="{letter}">'),
            element("span", option),
        )
        for letter, option in zip("abcdefgh", ask.options, strict=False)
    ]
    return element(
        "fieldset", element("legend", ask.prompt), element("div", *choices, class_="several"),
        class_="field",
    )  # fmt: skip


def _graded_page(solved: SolvedQuestion, graded: DrillGrade, files: Files) -> str:
    question, _ = draw_blocks(question_document(solved.question, 1, 1).blocks[1:])
    solution, _ = draw_blocks(grade_blocks(graded))
    took = "" if graded.seconds is None else f" in {quantity.seconds(graded.seconds)}"
    said = element(
        "p", f"{quantity.percent(graded.score)} of the points{took}.", id="sentence", role="status"
    )
    topic = graded.topic
    links = element(
        "p",
        element("a", f"Another of {topic}", href="/drills/ask?" + urlencode({"topic": topic})),
        " · ",
        element("a", "The same again", href="/drills/ask?" + urlencode({"id": graded.id})),
        " · ",
        element("a", "All topics and your score", href="/drills"),
    )
    return _framed(topic.capitalize(), [said], [question, solution, links], files)


def _framed(
    title: str, said: Sequence[str], body: Sequence[str], files: Files, scripts: Sequence[str] = ()
) -> str:
    header = element("header", element("h1", title), *said)
    shown = [header, element("div", *body, class_="drilled")]
    return framed(title, "drills", shown, files, scripts=scripts)


def _hidden(name: str, value: str) -> Markup:
    return Markup(element("input", type="hidden", name=name, value=value).removesuffix("</input>"))


PAGE = Page(
    place=10,
    title="Drills",
    about="Questions of a performance engineer's interview, two minutes each, and failures to be"
    " diagnosed from records of real runs.",
    routes=routes,
)
