"""Which template writes conversations: the one that was given, the tokenizer's own, or a plain one.

Base models come without a template. They are asked in the form that texts use for talk, a name and
a colon before each turn, and end where the user's next turn would begin. That is stated when the
server starts; what a template of the model's own would show, such as tools, is refused.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec

from ridgeline.errors import InputError, in_words
from ridgeline.records.input_file import read_text

OPTION = "--chat-template"
_TRAINING_TAGS = re.compile(r"{%-?\s*(end)?generation\s*-?%}")
"""What transformers adds to Jinja, for training; it marks and writes nothing."""
PLAIN_STOPS = ("\nUser:", "\nSystem:", "\nTool:")
"""The beginnings of turns that are not the model's, in the plain template."""


class ChatTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """How a conversation becomes a prompt."""

    text: str
    """Jinja, as transformers' tokenizers have it."""
    origin: Literal["given", "tokenizer", "plain"]
    stops: tuple[str, ...] = ()
    """Strings that end every completion of a conversation."""
    special: bool = False
    """Whether the tokenizer adds its first token, which other templates write themselves."""

    def has_role(self, role: str) -> bool:
        """Whether it names a role that is none of the usual ones, or what its name begins with.

        >>> granite = ChatTemplate(text="{% if m.role.startswith('document') %}", origin="given")
        >>> granite.has_role("document 2"), granite.has_role("usr")
        (True, False)
        """
        names = (role, role.partition(" ")[0])
        return any(f"{quote}{name}{quote}" in self.text for name in names for quote in "'\"")

    @property
    def in_words(self) -> str:
        """What is said of it when the server starts."""
        if self.origin == "plain":
            return (
                "chat template: the tokenizer has none, so the plain one (Name: text) is used;"
                f" {OPTION} FILE gives another"
            )
        return f"chat template: {'given' if self.origin == 'given' else 'of the tokenizer'}"


def read_template(given: str) -> str:
    """The template that an option names: a file, or the text itself.

    Raises:
        InputError: There is no such file, and it is no template; or the template has an error.
    """
    inline = "{{" in given or "{%" in given
    cure = "give a file with a Jinja template, or the template itself"
    text = given if inline else read_text(Path(given), option=OPTION, cure=cure)
    _check_syntax(text, "the text given" if inline else given)
    return text


def _check_syntax(text: str, where: str) -> None:
    if "messages" not in text:
        raise InputError(
            f"{OPTION} {where}: no chat template, for it does not read `messages`; give one as in"
            " tokenizer_config.json"
        )
    from jinja2 import TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    try:
        environment.parse(_TRAINING_TAGS.sub("", text))
    except TemplateSyntaxError as error:
        raise InputError(f"{OPTION} {where}, line {error.lineno}: {in_words(error)}") from None


def choose_template(own: str | dict[str, str] | None, given: str | None) -> ChatTemplate:
    """The template of a server.

    Args:
        own: The tokenizer's; several by name in some old ones.
        given: The text of `--chat-template`; None: it was not given.
    """
    if given is not None:
        return ChatTemplate(text=given, origin="given")
    if isinstance(own, dict):
        own = own.get("default")
    if own:
        return ChatTemplate(text=own, origin="tokenizer")
    plain = resources.files(__package__).joinpath("plain_template.jinja").read_text()
    return ChatTemplate(text=plain, origin="plain", stops=PLAIN_STOPS, special=True)
