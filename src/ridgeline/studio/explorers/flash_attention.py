"""Attention in tiles over queries, keys and values: what stays on the chip, which bytes move."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.cost.flash_attention import TiledAttention
from ridgeline.plan.calc import Calculation, calculate
from ridgeline.report import document as doc
from ridgeline.report.views.attention_tiles import (
    chip_figure,
    form_table,
    meeting_figure,
    traffic_figure,
)
from ridgeline.studio.explorer import Explorer, Formula, Picture, Selection, Slider, State, Switch
from ridgeline.studio.listed import training_devices


def given(state: State) -> list[str]:
    """The arguments of the formula."""
    return [
        f"seq={state.whole('seq')}",
        f"head_dim={state.whole('head_dim')}",
        f"heads={state.whole('heads')}",
        f"tile_q={state.whole('tile_q')}",
        f"tile_k={state.whole('tile_k')}",
        f"causal={'true' if state.on('causal') else 'false'}",
        f"device={state.word('device')}",
    ]


def answer(state: State) -> Calculation:
    """The tiles and their traffic."""
    return calculate("flash-attention", given(state))


def draw(found: Calculation) -> Picture:
    """Tiles that meet, the chip's memory, the traffic."""
    tiled: TiledAttention = found.result  # type: ignore[assignment]  # what the formula gives
    return Picture(
        sentence=_bound(tiled),
        blocks=[
            doc.Chapter("Bytes moved", [
                *doc.figure("traffic", traffic_figure(tiled), 220), form_table(tiled),
            ]),
            doc.Chapter(
                "On the chip",
                doc.figure("chip", chip_figure(tiled), 230),
                "One tile of queries stays; keys and values pass it tile by tile, and the scores"
                " between them never leave.",
            ),
            doc.Chapter("Which tiles meet", doc.figure("tiles", meeting_figure(tiled), 380)),
        ],
    )  # fmt: skip


def _bound(tiled: TiledAttention) -> str:
    room = (
        "fit"
        if tiled.fits
        else f"do not fit into the {quantity.binary_memory(tiled.room_bytes or 0)} of one unit"
    )
    return (
        f"The plain form moves {quantity.memory(tiled.plain.moved_bytes)} and is"
        f" {tiled.plain.bound}-bound; in tiles it is"
        f" {quantity.memory(tiled.tiled.moved_bytes)}, {quantity.ratio(tiled.saved_ratio)} less,"
        f" and {tiled.tiled.bound}-bound: {quantity.ratio(tiled.speedup_ratio)} as fast at the"
        f" limit. Its tiles, {quantity.binary_memory(tiled.shared_bytes)} of shared memory, {room}."
    )


EXPLORER = Explorer(
    place=14,
    title="FlashAttention",
    question="Why does attention get faster when its scores never reach memory?",
    inputs=(
        Selection(
            name="device", label="Device", options=training_devices, default="H100-SXM-80GB"
        ),
        Slider(
            name="seq", label="Tokens", default=4096,
            stops=(512, 1024, 2048, 4096, 8192, 16384, 32768),
        ),
        Slider(name="head_dim", label="Channels of a head", default=128, stops=(32, 64, 128, 256)),
        Slider(
            name="heads", label="Heads of the whole batch", default=32,
            stops=(1, 8, 16, 32, 64, 128, 256),
        ),
        Slider(
            name="tile_q", label="Rows of a Q tile", default=128, stops=(16, 32, 64, 128, 256, 512)
        ),
        Slider(
            name="tile_k", label="Rows of a K and V tile", default=128,
            stops=(16, 32, 64, 128, 256, 512),
        ),
        Switch(name="causal", label="Causal mask", default=True),
    ),
    command=lambda state: ["calc", "flash-attention", *given(state)],
    answer=answer,
    draw=draw,
    why=(
        Formula(
            text="plain: 4 N² + 4 N d elements, for the scores are written and read twice",
            source="Dao et al., FlashAttention, arXiv 2205.14135, section 2.2 and theorem 2",
        ),
        Formula(
            text="tiled: 2 N d + 2 N d · (tiles of Q) elements; Q stays, K and V pass it",
            source="FlashAttention-2, arXiv 2307.08691, section 3.1; cost/flash_attention.py",
        ),
        Formula(
            text="no exact algorithm with M elements on the chip moves fewer than the order of"
            " N² d² ÷ M",
            source="arXiv 2205.14135, proposition 3",
        ),
    ),
)  # fmt: skip
