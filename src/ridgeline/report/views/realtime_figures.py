"""Plots of a real-time run: ages frame by frame, and inside the worst frames."""

from __future__ import annotations

from ridgeline.records.realtime_run import FrameFates, RealtimeRun
from ridgeline.report.plots import (
    Figure,
    bars,
    limit_line,
    line,
    looks,
    plain_text,
    plot_layout,
    rounded,
)

WORST_FRAMES = 24
MOST_POINTS = 4000
"""Frames of a plot; of more, only the oldest of each stretch is drawn."""
_LOST = ("dropped", "failed")


def ages_figure(run: RealtimeRun) -> Figure | None:
    """Age of every result over the time of its frame, with the deadline as a line."""
    drawn = [fates for fates in run.fates if fates.sink in run.shape.sinks and fates.frames]
    if not drawn:
        return None
    colors = looks(f"{one.sensor} → {one.sink}" for one in drawn)
    traces = [
        trace for one in drawn for trace in _ages(one, colors[f"{one.sensor} → {one.sink}"].color)
    ]
    layout = plot_layout("s since the start", "ms from stamp to result")
    layout["yaxis"]["rangemode"] = "tozero"
    layout["shapes"] = _deadline(run, along="y")
    if run.shape.deadline_seconds is not None:
        layout["annotations"] = [
            {"xref": "paper", "x": 1, "xanchor": "right", "yanchor": "bottom", "showarrow": False,
             "y": rounded(run.shape.deadline_seconds * 1e3), "text": "deadline"}
        ]  # fmt: skip
    return {"data": traces, "layout": layout}


def _ages(fates: FrameFates, color: str) -> list[Figure]:
    points = [
        (stamp, (ended - stamp) * 1e3, frame)
        for stamp, ended, kind, frame in zip(
            fates.stamps, fates.ended, fates.kinds, fates.frames, strict=True
        )
        if ended is not None and kind in ("delivered", "late")
    ]
    points = _oldest_of_stretches(points)
    name = plain_text(f"{fates.sensor} → {fates.sink}")
    traces = [
        line(name, [x for x, _, _ in points], [y for _, y, _ in points], color,
             "frame %{text}: %{y:.4g} ms at %{x:.4g} s", mode="markers",
             text=[str(frame) for _, _, frame in points], marker={"size": 4, "color": color})
    ]  # fmt: skip
    lost = [
        (stamp, f"frame {frame}, {plain_text(place)}: {plain_text(reason)}")
        for stamp, kind, frame, place, reason in zip(
            fates.stamps, fates.kinds, fates.frames, fates.places, fates.reasons, strict=True
        )
        if kind in _LOST
    ][:MOST_POINTS]
    if lost:
        traces.append(
            line(f"{name}, lost", [x for x, _ in lost], [0.0] * len(lost), "--bad", "%{text}",
                 mode="markers", text=[said for _, said in lost],
                 marker={"size": 8, "symbol": "x", "color": "--bad"})
        )  # fmt: skip
    return traces


def _oldest_of_stretches(
    points: list[tuple[float, float, int]],
) -> list[tuple[float, float, int]]:
    """At most so many points, the slow frames among them: these are what is looked for."""
    stride = -(-len(points) // MOST_POINTS) or 1
    return [
        max(points[start : start + stride], key=lambda point: point[1])
        for start in range(0, len(points), stride)
    ]


def worst_frames_figure(run: RealtimeRun) -> Figure | None:
    """The calls inside the frames that took longest, from their stamps on; the deadline a line."""
    stamps, worst = _worst(run)
    if not worst:
        return None
    rows = [f"frame {frame}" for frame in worst]
    colors = looks(calls.stage for calls in run.calls)
    traces = []
    for calls in run.calls:
        spans = {
            frame: (start - stamps[frame], end - start, mode)
            for frame, start, end, mode in zip(
                calls.frames, calls.started, calls.ended, calls.modes, strict=True
            )
            if frame in worst
        }
        traces.append(
            bars(
                [f"frame {frame}" for frame in spans],
                [length * 1e3 for _, length, _ in spans.values()],
                name=plain_text(calls.stage),
                color=colors[calls.stage].color,
                hover="%{y}, from %{base:.4g} ms for %{x:.4g} ms, %{text}",
                base=[rounded(start * 1e3) for start, _, _ in spans.values()],
                text=[mode for _, _, mode in spans.values()],
                textposition="none",
            )
        )
    layout = plot_layout("ms since the frame's stamp", "")
    layout["barmode"] = "overlay"
    layout["yaxis"] |= {"type": "category", "categoryorder": "array", "categoryarray": rows[::-1]}
    layout["xaxis"]["rangemode"] = "tozero"
    layout["shapes"] = _deadline(run, along="x")
    return {"data": traces, "layout": layout}


def _worst(run: RealtimeRun) -> tuple[dict[int, float], list[int]]:
    """Stamps by frame of the first sensor, and its frames with the oldest results."""
    first = run.shape.sensors[0].name
    stamps: dict[int, float] = {}
    ages: dict[int, float] = {}
    for fates in run.fates:
        if fates.sensor != first:
            continue
        for place, (frame, stamp, ended) in enumerate(
            zip(fates.frames, fates.stamps, fates.ended, strict=True)
        ):
            if ended is not None and place >= run.warmup_frames and fates.kinds[place] not in _LOST:
                stamps[frame] = stamp
                ages[frame] = max(ages.get(frame, 0.0), ended - stamp)
    return stamps, sorted(ages, key=lambda frame: -ages[frame])[:WORST_FRAMES]


def _deadline(run: RealtimeRun, *, along: str) -> list[Figure]:
    """The line that no age should pass; `along` is the axis that it stands on."""
    if run.shape.deadline_seconds is None:
        return []
    at = rounded(run.shape.deadline_seconds * 1e3)
    return [limit_line(x=at if along == "x" else None, y=at if along == "y" else None,
                       color="--bad")]  # fmt: skip
