"""How a person would write a change: the edits that a technique asks for, as data.

In the code of an edit, `{model}` stands for the model's expression in the user's script: the one
whose `.parameters()` the statement at the site uses, or else the one that it calls.
`tune/patch_source.py` finds their places.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.records.script_facts import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class SetArgument:
    """Set `keyword=value` in the call of `callee` at `site`, or in every call in `files`."""

    callee: str
    """Last name of the called expression, e.g. `DataLoader`; the file may import it under
    another name."""
    keyword: str
    value: str
    """The value as Python source."""
    site: Site | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceCall:
    """Put `code` where the call of `callee` stands, at `site` or everywhere in `files`.

    In `code`, `{func}` is the called expression, `{object}` what it is a method of, `{args}` its
    arguments, `{0}` the first positional one and `{rest}` the others. Empty code takes the
    statement away, if the call is all of it.
    """

    callee: str
    code: str
    site: Site | None = None
    files: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    """Keywords that `{args}` and `{rest}` leave out."""
    passing: str | None = None
    """Only calls that pass this keyword."""
    most_positional: int | None = None
    """Arguments by position that mean the same in `code`: a call with more is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertBefore:
    """Insert statements before the one at `site`."""

    site: Site
    code: str
    outside_loops: bool = False
    """Before the outermost loop around `site` in its function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertAfter:
    """Insert statements after the one at `site`; `{target}` is what that one assigns to."""

    site: Site
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapWith:
    """Put the statement at `site` into a `with` block.

    Those after it come along, up to but not including the one at `until`, or including the one
    at `through`, when that follows in the same block.
    """

    site: Site
    header: str
    """Without `with` and colon, e.g. `torch.autocast("cpu", dtype=torch.bfloat16)`.

    `{condition}` is that of the innermost `if` around the statement at `stepping`."""
    until: Site | None = None
    through: Site | None = None
    stepping: Site | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUnder:
    """Put the model's call at `site`, and nothing else, into a `with` block."""

    site: Site
    header: str
    """Without `with` and colon."""
    converts: tuple[bool, ...] = ()
    """Which of the tensors that the call returns get `.float()`: one for a bare tensor, several
    for a tuple. Of anything else the floats cannot be named: then it has no place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtStart:
    """Insert statements after the imports of the first of `files` that may be changed."""

    files: tuple[str, ...]
    code: str
    before_imports: bool = False
    """They stand before the imports instead, for what a library reads as it is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOf:
    """The first of these edits that can be placed."""

    edits: tuple[Edit, ...]


Edit = (
    SetArgument
    | ReplaceCall
    | InsertBefore
    | InsertAfter
    | WrapWith
    | CallUnder
    | AtStart
    | FirstOf
)
