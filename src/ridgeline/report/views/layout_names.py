"""How layouts, terms and rates of estimates are called, in one line."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.estimate import Estimate
from ridgeline.records.layout import Layout


def plain_term(term: str) -> str:
    """A term as it is read.

    >>> plain_term("kv_cache")
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
        kept = layout.offload.removesuffix("-on-disk")
        parts.append(f"{kept} on disk" if layout.on_disk else f"{kept} offloaded")
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
