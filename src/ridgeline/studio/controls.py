"""The inputs as HTML: native elements, so that keyboard, touch and screen readers work as ever.

A slider moves over places of its stops; the script reads the stops from `data-stops` and writes the
value beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ridgeline.report.markup import Markup, element, joined
from ridgeline.studio.explorer import (
    Input,
    Number,
    OpenFile,
    RowSwitches,
    Selection,
    Several,
    Slider,
    State,
    Switch,
    written,
)

LONG_LIST = 8
"""A list of more words scrolls in a box of its own."""


def draw_controls(inputs: Sequence[Input], state: State) -> Markup:
    """All inputs of an explorer, as they stand."""
    return joined([_drawn(one, state) for one in inputs if _is_shown(one, state)])


def _is_shown(one: Input, state: State) -> bool:
    """Whether there is something to choose: a file, rows of one, or what stands in its place."""
    if isinstance(one, OpenFile):
        return len(one.listed(state.files)) > 1
    if isinstance(one, RowSwitches):
        return bool(one.listed(state))
    return not (isinstance(one, Slider | Switch) and one.unless and state.file(one.unless))


def _drawn(one: Input, state: State) -> Markup:
    if isinstance(one, Slider):
        return _slider(one, state.number(one.name))
    if isinstance(one, Number):
        return _number(one, state.number(one.name))
    if isinstance(one, Switch):
        return _switch(one, on=state.on(one.name))
    if isinstance(one, RowSwitches):
        return _rows(one, one.listed(state), state.words(one.name))
    if isinstance(one, Several):
        return _several(one, state.words(one.name))
    listed = one.listed(state.files) if isinstance(one, OpenFile) else one.listed()
    return _choice(one, listed, state.word(one.name))


def _slider(one: Slider, value: float) -> Markup:
    stops = one.shown_stops(value)
    listed = [[written(int(stop) if one.whole else stop), one.write(stop)] for stop in stops]
    place = stops.index(value)
    return _field(
        element(
            "span",
            element("label", one.label, for_=f"in-{one.name}"),
            element("output", one.write(value), for_=f"in-{one.name}"),
            class_="named",
        ),
        _void(
            "input",
            type="range",
            id=f"in-{one.name}",
            data_name=one.name,
            data_stops=json.dumps(listed),
            min="0",
            max=str(len(stops) - 1),
            step="1",
            value=str(place),
            aria_valuetext=one.write(value),
        ),
        *([_play_button(one)] if one.plays else []),
    )


def _play_button(one: Slider) -> Markup:
    return element(
        "button", "Play", type="button", class_="play", data_play=one.name, aria_pressed="false"
    )


def _number(one: Number, value: float) -> Markup:
    return _field(
        element("label", one.label, for_=f"in-{one.name}"),
        _void(
            "input",
            type="text",
            inputmode="decimal",
            autocomplete="off",
            spellcheck="false",
            id=f"in-{one.name}",
            data_name=one.name,
            value=written(value),
        ),
    )


def _choice(one: Selection | OpenFile, listed: Mapping[str, str], chosen: str) -> Markup:
    options = [
        element("option", label, value=word, **({"selected": ""} if word == chosen else {}))
        for word, label in listed.items()
    ]
    return _field(
        element("label", one.label, for_=f"in-{one.name}"),
        element(
            "select",
            *options,
            id=f"in-{one.name}",
            data_name=one.name,
            **({"data_opens": "1"} if isinstance(one, OpenFile) else {}),
        ),
    )


def _switch(one: Switch, *, on: bool) -> Markup:
    box = _void(
        "input",
        type="checkbox",
        role="switch",
        id=f"in-{one.name}",
        data_name=one.name,
        **_checked(on),
    )
    return element("div", element("label", box, element("span", one.label)), class_="field switch")


def _several(one: Several, chosen: Sequence[str]) -> Markup:
    listed = one.listed()
    first = sorted(listed.items(), key=lambda pair: pair[0] not in chosen)
    boxes = [
        element(
            "label",
            _void("input", type="checkbox", value=word, **_checked(word in chosen)),
            element("span", label),
        )
        for word, label in (first if len(listed) > LONG_LIST else listed.items())
    ]
    long = {"tabindex": "0"} if len(listed) > LONG_LIST else {}
    look = "several long" if long else "several"
    return element(
        "fieldset",
        element("legend", one.label),
        element("div", *boxes, class_=look, role="group", aria_label=one.label, **long),
        class_="field",
        data_name=one.name,
        data_most=str(one.most),
    )


def _rows(one: RowSwitches, listed: Sequence[str], left_out: Sequence[str]) -> Markup:
    """A box for each row, on unless it is left out: the address holds what is off."""
    boxes = [
        element(
            "label",
            _void("input", type="checkbox", value=row, **_checked(row not in left_out)),
            element("span", row),
        )
        for row in listed
    ]
    return element(
        "fieldset",
        element("legend", one.label),
        element("div", *boxes, class_="several", role="group", aria_label=one.label),
        class_="field",
        data_name=one.name,
        data_off="1",
    )


def _checked(on: bool) -> dict[str, str]:
    return {"checked": ""} if on else {}


def _field(*parts: str) -> Markup:
    return element("div", *parts, class_="field")


def _void(tag: str, **attributes: str) -> Markup:
    """An element that cannot have an end."""
    return Markup(element(tag, **attributes).removesuffix(f"</{tag}>"))
