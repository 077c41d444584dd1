"""How the terms of an estimate look: their order, colour, fill, and the name of a layout.

A term that has no look of its own takes the next free one, so that nothing is left out of a
picture because it is new.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline import quantity
from ridgeline.records.estimate import Estimate
from ridgeline.records.layout import Layout


@dataclass(frozen=True, slots=True)
class Look:
    """Of one term."""

    color: str
    """Variable of the style sheet."""
    terminal: str
    """Colour in the terminal."""
    fill: str
    """Character in the terminal: the picture must also read without colours."""


LOOKS = tuple(
    Look(f"--term-{index}", terminal, fill)
    for index, (terminal, fill) in enumerate(
        (
            ("cyan", "█"),
            ("blue", "▓"),
            ("magenta", "▒"),
            ("yellow", "░"),
            ("red", "▚"),
            ("green", "▞"),
            ("bright_yellow", "╬"),
            ("bright_magenta", "◆"),
            ("bright_blue", "■"),
            ("bright_red", "▪"),
            ("bright_cyan", "◼"),
            ("bright_black", "·"),
        )
    )
)
OWN = {
    **dict.fromkeys(("weights", "gemm"), 0),
    **dict.fromkeys(("gradients", "attention"), 1),
    "optimizer": 2,
    **dict.fromkeys(("activations", "elementwise"), 3),
    "logits": 4,
    **dict.fromkeys(("recompute", "kv_cache"), 5),
    **dict.fromkeys(("gathered", "tensor"), 6),
    "data": 7,
    **dict.fromkeys(("master", "expert"), 8),
    **dict.fromkeys(("slack", "shards"), 9),
    **dict.fromkeys(("buffers", "pipeline"), 10),
    **dict.fromkeys(("other", "bubble"), 11),
}
"""Term of a step or of memory → number of its look; the two never share a picture."""


def looks(terms: Iterable[str]) -> dict[str, Look]:
    """The look of each term; free looks are given out in order, and again when all are taken.

    >>> looks(["weights", "new thing"])["new thing"].color
    '--term-1'
    """
    names = list(dict.fromkeys(terms))
    taken = {OWN[name] for name in names if name in OWN}
    free = [index for index in range(len(LOOKS)) if index not in taken] or [0]
    chosen: dict[str, Look] = {}
    given = 0
    for name in names:
        if name in OWN:
            chosen[name] = LOOKS[OWN[name]]
        else:
            chosen[name] = LOOKS[free[given % len(free)]]
            given += 1
    return chosen


def plain(term: str) -> str:
    """A term as it is read.

    >>> plain("kv_cache")
    'kv cache'
    """
    return term.replace("_", " ")


def layout_name(layout: Layout) -> str:
    """A layout in one line; what is not used is not named.

    >>> layout_name(Layout(dp=8, fsdp=8, zero=3, tp=2, global_batch=64, recompute="full"))
    'dp 8 · zero-3 · tp 2 · micro-batch 1 · bf16 · full recompute'
    """
    parts = [f"dp {layout.dp}"]
    if layout.zero:
        group = "" if layout.fsdp == layout.dp * layout.cp else f" over {layout.fsdp}"
        parts.append(f"zero-{layout.zero}{group}")
    if layout.tp > 1:
        parts.append(f"tp {layout.tp}" + (" + sp" if layout.sp else ""))
    if layout.pp > 1:
        chunks = f" x {layout.vpp}" if layout.vpp > 1 else ""
        parts.append(f"pp {layout.pp}{chunks} {layout.schedule}")
    parts += [
        f"{name} {size}"
        for name, size in (("cp", layout.cp), ("ep", layout.ep), ("etp", layout.etp))
        if size > 1
    ]
    parts += [f"micro-batch {layout.micro_batch}", layout.precision]
    if layout.recompute != "none":
        parts.append(f"{layout.recompute} recompute")
    if layout.offload != "none":
        parts.append(f"{layout.offload} offloaded")
    if not layout.compiled:
        parts.append("eager")
    return " · ".join(parts)


def short_layout_name(layout: Layout) -> str:
    """The degrees alone, for axes and narrow columns.

    >>> short_layout_name(Layout(dp=8, tp=2, pp=4, vpp=2, global_batch=64))
    'dp8 tp2 pp4x2 mb1'
    """
    parts = [f"dp{layout.dp}"]
    if layout.zero:
        parts.append(f"z{layout.zero}")
    if layout.tp > 1:
        parts.append(f"tp{layout.tp}")
    if layout.pp > 1:
        parts.append(f"pp{layout.pp}" + (f"x{layout.vpp}" if layout.vpp > 1 else ""))
    if layout.cp > 1:
        parts.append(f"cp{layout.cp}")
    if layout.ep > 1:
        parts.append(f"ep{layout.ep}")
    parts.append(f"mb{layout.micro_batch}")
    if layout.recompute != "none":
        parts.append({"selective": "sel", "full": "full"}[layout.recompute])
    return " ".join(parts)


def rate_of(estimate: Estimate) -> tuple[str, str]:
    """What one device gets through, in words and as a number: images where the model reads them."""
    images = estimate.images_per_second_per_gpu
    if images is not None:
        return "images/s/device", quantity.count(images)
    return "tokens/s/device", quantity.count(estimate.tokens_per_second_per_gpu)
