"""Names of compressions, read: `w4a16-gptq-g128` as a `Scheme`.

A name is parts joined by dashes, in any order; `schemes.toml` has them all, one line each.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.scheme import NumberFormat, Observer, Pruning, Scheme

_GROUP = re.compile(r"g(\d+)")
_PATTERN = re.compile(r"(\d+):(\d+)")
_BLOCK = re.compile(r"(\d+)x(\d+)")
_LISTED = re.compile(r"\d+\.\d+(?:\+\d+\.\d+)*")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")
_BITS = (
    "say first what is rounded to how many bits: of networks for images w8a8-int8 or w4a8-int8, of"
    " language models w8a8, w4a16 or fp8"
)
_HALF = "16 bits are no scheme; `ridgeline export --precision bf16` writes networks for images so"
_USUAL = {
    **dict.fromkeys(("int4", "ptq", "qdq", "quantize", "quantise", "w8", "w4"), _BITS),
    **dict.fromkeys(("fp16", "bf16", "float16", "bfloat16", "half"), _HALF),
    "qat": "rounding that is trained with is the [quantisation] of a recipe: `ridgeline train`",
    "prune": "say what is removed and how much of it: 50%-channels, 30%-heads, 2:4",
    "pruning": "say what is removed and how much of it: 50%-channels, 30%-heads, 2:4",
}
"""What other tools call a compression → what is said to who asks for it so."""


@cache
def offered() -> dict[str, tuple[tuple[str, str], ...]]:
    """Kind of part → (name, what it means) of each, in the order of `schemes.toml`."""
    return {
        kind: tuple((row["name"], row["meaning"]) for row in rows)
        for kind, rows in _table().items()
    }


def parse(name: str) -> Scheme:
    """The compression of that name.

    >>> parse("w4a16-gptq-g64").weights.group
    64

    Raises:
        InputError: A part that is not known, or parts that do not go together.
    """
    parts = _Parts(name)
    pattern, share = parts.matching(_PATTERN), parts.matching(_SHARE)
    listed = parts.matching(_LISTED)
    numbers, cached = parts.one_of("numbers"), parts.one_of("cache")
    if pattern or share or listed:
        if numbers or cached:
            raise parts.wrong(
                "removes and rounds weights at once; give two schemes, one after the other"
            )
        scheme = Scheme(name=name, pruning=_pruning(parts, pattern, share, listed))
    elif numbers or cached:
        scheme = _quantisation(parts, numbers, cached)
    else:
        parts.check_known()
        structure = parts.one_of("structures")
        if structure:
            raise parts.wrong(f"does not say how many; give their share, as in 50%-{structure}")
        if any(one in parts.left for one in ("static", *_names("images", "observers"))):
            raise parts.wrong(f"does not say to what; {_BITS}")
        raise parts.wrong(
            f"does not say to what; begin with one of {', '.join(_names('numbers', 'cache'))}, or "
            "a pattern (2:4) or share (50%) of weights to remove, or heads (0.1+0.3)"
        )
    parts.check_known()
    parts.check_used()
    return scheme


class _Parts:
    """The parts of one name, removed as they are understood."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.left = [part for part in name.lower().split("-") if part]
        if len(self.left) != len(set(self.left)):
            raise self.wrong("says the same twice")

    def wrong(self, why: str) -> InputError:
        return InputError(f"scheme {self.name!r} {why}")

    def take(self, name: str) -> bool:
        """Whether the part is there."""
        if name not in self.left:
            return False
        self.left.remove(name)
        return True

    def one_of(self, kind: str) -> str | None:
        """The one part of a kind, if any."""
        found = [name for name in _names(kind) if name in self.left]
        if len(found) > 1:
            raise self.wrong(f"says both {found[0]} and {found[1]}")
        return found[0] if found and self.take(found[0]) else None

    def matching(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The one part of a form, if any."""
        found = [match for part in self.left if (match := pattern.fullmatch(part))]
        if len(found) > 1:
            raise self.wrong(f"says both {found[0][0]} and {found[1][0]}")
        return found[0] if found and self.take(found[0][0]) else None

    def check_known(self) -> None:
        """Refuse parts that no scheme has."""
        known = tuple(dict.fromkeys(_names(*_table())))
        for part in self.left:
            forms = (_GROUP, _PATTERN, _SHARE, _BLOCK, _LISTED)
            if part not in known and not any(form.fullmatch(part) for form in forms):
                if part in _USUAL:
                    raise self.wrong(f"has the unknown part {part!r}; {_USUAL[part]}")
                near = difflib.get_close_matches(part, known, n=3, cutoff=0.5)
                if part.isdigit():
                    near = [f"{part}%", f"g{part}"]
                hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(known)}"
                raise self.wrong(f"has the unknown part {part!r}; {hint}")

    def check_used(self) -> None:
        """Refuse known parts that do not belong here."""
        if self.left and self.left[0] in _names("images"):
            raise self.wrong(f"says {self.left[0]}, which goes with int8, of networks for images")
        if self.left:
            raise self.wrong(f"says {self.left[0]}, which does not go with the rest of it")


def _quantisation(parts: _Parts, numbers: str | None, cached: str | None) -> Scheme:
    row = _row("numbers", numbers) if numbers else {}
    if parts.take("int8"):
        return _images(parts, row)
    weights = msgspec.convert(row.get("weights"), NumberFormat | None)
    activations = msgspec.convert(row.get("activations"), NumberFormat | None)
    kv = msgspec.convert(_row("cache", cached)["kv"], NumberFormat) if cached else None
    method: Any = "rtn"
    act_order = False
    if weights is not None and weights.kind == "codebook":
        if cached:
            raise parts.wrong(f"says {cached}, which a file of codebooks has no place for")
        method = "aqlm"
    elif weights is not None:
        method = parts.one_of("methods") or "rtn"
        weights = _weights(parts, weights, "mse" if method == "gptq" else "minmax")
        act_order = parts.take("actorder")
    if act_order and method != "gptq":
        raise parts.wrong("says actorder, which only gptq has")
    if method == "smoothquant" and activations is None:
        raise parts.wrong("says smoothquant, which needs activations to be rounded too (w8a8)")
    if activations is not None and parts.take("static"):
        if activations.share != "token":
            raise parts.wrong("says static, but blocks find their scales as they come")
        activations = msgspec.structs.replace(activations, share="tensor", dynamic=False)
    return Scheme(
        name=parts.name,
        weights=weights,
        activations=activations,
        kv=kv,
        method=method,
        act_order=act_order,
    )


def _images(parts: _Parts, row: dict[str, Any]) -> Scheme:
    """Whole networks in integers, as runtimes for images compute."""
    weights = msgspec.convert(row.get("weights"), NumberFormat | None)
    activations = msgspec.convert(row.get("activations"), NumberFormat | None)
    if weights is None or activations is None or {weights.kind, activations.kind} != {"int"}:
        raise parts.wrong("says int8, which goes with w8a8 and w4a8")
    dynamic = parts.take("dynamic")
    symmetric, affine = parts.take("sym"), parts.take("affine")
    if symmetric and affine:
        raise parts.wrong("says both sym and affine")
    observers = [name for name in _names("observers") if parts.take(name)]
    if len(observers) > 1:
        raise parts.wrong(f"says both {observers[0]} and {observers[1]}")
    if observers and dynamic:
        raise parts.wrong(f"says {observers[0]} and dynamic, whose ranges come with each batch")
    method: Any = parts.one_of("methods")
    if method not in {None, "rtn", "gptq"}:
        raise parts.wrong(f"says {method}, which is for language models; choose gptq or adaround")
    if parts.take("adaround"):
        if method:
            raise parts.wrong(f"says both {method} and adaround")
        method = "adaround"
    return Scheme(
        name=parts.name,
        weights=msgspec.structs.replace(weights, share="channel", group=None, observer="mse"),
        activations=msgspec.structs.replace(
            activations,
            share="tensor",
            symmetric=symmetric,
            observer=(observers or ["mse"])[0],
            dynamic=dynamic,
        ),
        method=method or "gptq",
        images=True,
        equalise=parts.take("cle"),
        correct_bias=parts.take("biascorr"),
        ignore=(),
    )


def _weights(parts: _Parts, form: NumberFormat, observer: Observer) -> NumberFormat:
    """With what the name says; `observer` where it says none."""
    changes: dict[str, Any] = {}
    blocks = form.kind in {"mxfp4", "mxfp8", "nvfp4"}
    group = parts.matching(_GROUP)
    shares = [share for share in ("channel", "tensor") if parts.take(share)]
    if len(shares) + bool(group) > 1:
        raise parts.wrong("says more than once which weights share a scale")
    if (group or shares) and blocks:
        raise parts.wrong(f"says {group[0] if group else shares[0]}, but its blocks are of a size")
    if group:
        if int(group[1]) < 1:
            raise parts.wrong("has groups of no weights")
        changes |= {"share": "group", "group": int(group[1])}
    elif shares:
        changes |= {"share": shares[0], "group": None}
    if parts.take("asym"):
        if form.kind != "int":
            raise parts.wrong("says asym, but floats have no zero points")
        changes["symmetric"] = False
    if parts.take("roundup"):
        if not form.kind.startswith("mx"):
            raise parts.wrong("says roundup, which only mxfp4 and mxfp8 have")
        changes["round_up"] = True
    observers = [name for name in ("minmax", "mse", "percentile") if parts.take(name)]
    if len(observers) > 1:
        raise parts.wrong(f"says both {observers[0]} and {observers[1]}")
    return msgspec.structs.replace(form, observer=(observers or [observer])[0], **changes)


def _pruning(
    parts: _Parts,
    pattern: re.Match[str] | None,
    share: re.Match[str] | None,
    listed: re.Match[str] | None,
) -> Pruning:
    if listed:
        return _listed(parts, listed[0])
    criterion: Any = parts.one_of("criteria") or "magnitude"
    structure: Any = parts.one_of("structures") or "weights"
    scope: Any = parts.one_of("scopes") or "layer"
    block = _block(parts, pattern, criterion, structure, scope)
    if pattern:
        stay, of = int(pattern[1]), int(pattern[2])
        if share or structure != "weights" or scope != "layer":
            raise parts.wrong("has a pattern, which holds for single weights and says their share")
        if not 0 < stay < of:
            raise parts.wrong(f"keeps {stay} of {of}; say fewer than there are, as in 2:4")
        return Pruning(criterion=criterion, share=1 - stay / of, pattern=(stay, of))
    assert share is not None
    if not 0 < float(share[1]) < 100:
        raise parts.wrong(f"removes {share[0]}; say more than 0 % and less than 100 %")
    return Pruning(
        structure=structure,
        criterion=criterion,
        share=float(share[1]) / 100,
        block=block,
        scope=scope,
    )


def _listed(parts: _Parts, text: str) -> Pruning:
    """Heads that are named one by one."""
    structure: Any = parts.one_of("structures")
    if structure != "heads" or parts.left:
        raise parts.wrong(f"lists {text}, layer and head of each, which goes with heads alone")
    pairs = [tuple(int(number) for number in one.split(".")) for one in text.split("+")]
    twice = next((one for one in pairs if pairs.count(one) > 1), None)
    if twice is not None:
        raise parts.wrong(f"lists head {twice[0]}.{twice[1]} twice")
    return Pruning(
        structure=structure,
        criterion="magnitude",
        share=0.0,
        listed=tuple((layer, head) for layer, head in pairs),
    )


def _block(
    parts: _Parts, pattern: re.Match[str] | None, criterion: str, structure: str, scope: str
) -> tuple[int, int] | None:
    """The block of weights that go together, where the name says one."""
    found = parts.matching(_BLOCK)
    if found is None:
        return None
    block = int(found[1]), int(found[2])
    if pattern or structure != "weights" or scope != "layer":
        raise parts.wrong(f"says {found[0]}, blocks of weights, which go by a share of each layer")
    if criterion == "sparsegpt":
        raise parts.wrong("says sparsegpt, which repairs single weights; choose another criterion")
    if min(block) < 1:
        raise parts.wrong("has blocks of no weights")
    return block


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files("ridgeline.records") / "schemes.toml").read_text("utf-8"))


def _names(*kinds: str) -> list[str]:
    return [row["name"] for kind in kinds for row in _table()[kind]]


def _row(kind: str, name: str) -> dict[str, Any]:
    return next(row for row in _table()[kind] if row["name"] == name)
