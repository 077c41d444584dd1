"""Thoughts apart from answers: how models mark them, and a reader that tells them as text streams.

`reasoning.toml` says how each family does. Whether a completion begins inside of its thoughts is
seen at the end of the prompt, where templates open them, or open and close them at once. Whole
completions are read by the same code as streams, so the two agree however the text is cut.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources

import msgspec

from ridgeline.errors import InputError
from ridgeline.serve.http.chat_template import ChatTemplate

OPTION = "--reasoning-parser"
AUTO, NONE = "auto", "none"
_SPACE = " \t\r\n"


class ThoughtMarks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a family of models marks its thoughts."""

    open: str
    close: str
    begins_inside: bool = False
    """Completions begin with thoughts even where nothing opens them."""
    again: bool = False
    """Thoughts may come again behind the answer's beginning."""
    sign: str = ""
    """What shows in a chat template that it is this family's; empty: `close` does."""
    also: tuple[str, ...] = ()
    """Other names of the family."""
    drop: tuple[str, ...] = ()
    """Marks around the answer that are no text."""
    source: str

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks that a reader must see in the text."""
        return (self.open, self.close, *self.drop)


@functools.cache
def thought_marks() -> dict[str, ThoughtMarks]:
    """Every known family by its name."""
    text = resources.files(__package__).joinpath("reasoning.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, ThoughtMarks])


def check_parser(name: str) -> str:
    """A family's own name, from any of its names. Raises InputError where no family has it."""
    families = thought_marks()
    own = {other: one for one, marks in families.items() for other in marks.also}
    known = (AUTO, NONE, *families, *own)
    if name not in known:
        raise InputError(f"{OPTION} {name}: unknown; known are {', '.join(known)}")
    return own.get(name, name)


def choose_marks(name: str, template: ChatTemplate) -> tuple[str, ThoughtMarks | None]:
    """The family that a server reads thoughts of, and how it marks them; None: it reads none."""
    families = thought_marks()
    if name == AUTO:
        signs = ((one, marks.sign or marks.close) for one, marks in families.items())
        name = next((one for one, sign in signs if sign in template.text), NONE)
    return name, families.get(name)


@dataclass(slots=True)
class ThoughtReader:
    """A reader of one completion; feed it text, and thoughts and answer come out, nothing twice.

    Space around thoughts is left out, as templates put their own.
    """

    marks: ThoughtMarks
    inside: bool
    """The text is a thought unless it says otherwise."""
    _text: str = ""
    """What is not decided yet."""
    _begun: bool = False
    """Something but space and an opening tag has come, or the tag has."""
    _answering: bool = False
    """Thoughts are over, or there are none."""
    _edge: bool = True
    """Nothing but space has come of the thoughts, or behind them."""

    @classmethod
    def behind(cls, prompt: str, marks: ThoughtMarks) -> ThoughtReader:
        """The reader of a completion to a prompt, whose end may have opened or ended thoughts."""
        end = prompt.rstrip(_SPACE)
        if end.endswith(marks.close):
            return cls(marks, inside=False, _answering=True, _edge=False)
        return cls(marks, inside=marks.begins_inside or end.endswith(marks.open))

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends in a thought."""
        return self.inside and not self._answering

    def feed(self, text: str) -> tuple[str, str]:
        """Take some more text: what it brings of thoughts, and of the answer."""
        self._text += text
        thought = answer = ""
        more = True
        while more:
            if not self._answering:
                if not self._begun:
                    self._begin()
                if self._begun and not self._answering:
                    thought += self._think()
            if self._answering:
                answer += self._answer()
            more = not self._answering and self.marks.close in self._text
        return thought, answer

    def finish(self) -> tuple[str, str]:
        """End the text here: what is undecided is a thought inside, else part of the answer."""
        rest, self._text = self._text, ""
        if self.thinking:
            return rest.strip(_SPACE) if self._edge else rest.rstrip(_SPACE), ""
        return "", rest

    def _begin(self) -> None:
        """Look for an opening tag behind nothing but space."""
        rest = self._text.lstrip(_SPACE)
        if rest.startswith(self.marks.open):
            self._text = rest.removeprefix(self.marks.open)
            self.inside = self._begun = True
        elif not self.marks.open.startswith(rest):
            self._begun = True
            self._answering, self._edge = not self.inside, self.inside

    def _think(self) -> str:
        if self._edge:
            self._text = self._text.lstrip(_SPACE)
            self._edge = not self._text
        before, tag, behind = self._text.partition(self.marks.close)
        if tag:
            self._text, self._answering, self._edge = behind, True, True
            return before.rstrip(_SPACE)
        kept = _held_back(self._text, self.marks.close)
        thought, self._text = self._text[:kept], self._text[kept:]
        return thought

    def _answer(self) -> str:
        if self._edge:
            self._text = self._text.lstrip(_SPACE)
            self._edge = not self._text
        kept = len(self._text)
        if self.marks.again:
            before, tag, behind = self._text.partition(self.marks.open)
            if tag:
                self._text, self.inside, self._answering, self._edge = behind, True, False, True
                return before.rstrip(_SPACE)
            kept = _held_back(self._text, self.marks.open)
        answer, self._text = self._text[:kept], self._text[kept:]
        return answer


def _held_back(text: str, tag: str) -> int:
    """Where the end begins that may yet be the space before a tag, or the tag's beginning."""
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    size = next((size for size in sizes if text.endswith(tag[:size])), 0)
    return len(text[: len(text) - size].rstrip(_SPACE))
