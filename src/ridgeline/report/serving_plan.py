"""Estimates and plans of serving, for the terminal."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from ridgeline.records.serving_plan import (
    Ranged,
    ServingEstimate,
    ServingOption,
    ServingPlan,
    Speculation,
)
from ridgeline.report.fitted_table import FittedTable

WORDS = {
    "weights": "reading weights",
    "matmuls": "matmuls of linear layers",
    "attention": "attention of prompts",
    "cache": "reading the cache",
    "communication": "all-reduces",
    "launches": "starting kernels",
    "host": "the host",
}


def estimate_view(found: ServingEstimate) -> Group:
    """Latencies with intervals, where the step goes, what was assumed."""
    one = found.deployment
    title = f"{one.model}, {one.weights}, {one.tp} x {one.gpu}, load: {found.load}"
    table = FittedTable(title=title)
    for column in ("", "predicted", "80 % interval"):
        table.add_column(column, justify="right" if column else "left")
    rows = [
        ("time to first token", found.ttft_seconds, 1e3, "ms"),
        ("time per further token", found.tpot_seconds, 1e3, "ms"),
        ("whole answer", found.e2e_seconds, 1.0, "s"),
        ("output tokens per second", found.output_tokens_per_second, 1.0, ""),
        ("at most", found.most_output_tokens_per_second, 1.0, ""),
    ]
    for name, value, scale, unit in rows:
        table.add_row(name, *_cells(value, scale, unit))
    parts = sorted(found.breakdown.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{WORDS[name]} {1e3 * value:.3g} ms" for name, value in parts if value > 0)
    running = f"{found.running:.0f} of at most {found.most_running:.0f} sequences run"
    step = f"a step takes {1e3 * found.step_seconds:.3g} ms: {shares}"
    weights = f"weights {found.weight_bytes / 1e9:.1f} GB on a device"
    cache = f"the cache {found.cache_bytes_per_token / 1e3:.1f} kB per token"
    lines = [f"{running}; {step}", f"{weights}; {cache}"]
    if found.saturated:
        lines.insert(0, "saturated: requests queue, and the time to the first token grows")
    if found.speculation is not None:
        lines.append(_speculation_line(found.speculation))
    lines += [f"assumed: {line}" for line in found.assumed]
    return Group(table, *(Text(line) for line in lines))


def _speculation_line(one: Speculation) -> str:
    who = one.draft or "a prompt look-up"
    best = f"{one.best_num_drafts} would be best" if one.best_num_drafts else "it only costs"
    return (
        f"{one.num_drafts} drafts a step by {who}, {one.acceptance:.0%} accepted:"
        f" {one.tokens_per_step:.2f} tokens a step, decoding {one.speedup:.2f}x as fast; {best}"
    )


def plan_view(found: ServingPlan) -> Group:
    """The best, the best of other devices, and what would change the answer."""
    load = f"{found.users:g} users" if found.users is not None else f"{found.rate:g} requests/s"
    title = f"{found.model}: {load} of {found.prompt_tokens:g} + {found.answer_tokens:g} tokens"
    table = FittedTable(title=title)
    for column in ("", "replicas", "TTFT", "per token", "$/h", "$/1M output", "headroom"):
        table.add_column(column, justify="right" if column else "left")
    for option in (found.best, *found.others):
        table.add_row(*_option_cells(option))
    best = found.best
    low, high = best.replicas_interval
    kept = "met" if best.meets_at_worst else "missed"
    bound = f"bound by {WORDS[best.estimate.bottleneck]}"
    ends = f"{low} to {high} replicas at the ends of the 80 % interval"
    lines = [f"{bound}; {ends}; the targets are {kept} at its bad end"]
    lines += [f"{gpu}: {reason}" for gpu, reason in found.why_not.items()]
    changes = FittedTable(title="What would change the answer")
    for column in ("with", "buy", "$/h"):
        changes.add_column(column, justify="right" if column == "$/h" else "left")
    for change in found.changes:
        words = change.answer if change.different else "the same"
        changes.add_row(change.what, words, _money(change.usd_per_hour))
    assumed = [f"assumed: {line}" for line in best.estimate.assumed]
    return Group(table, *(Text(line) for line in lines), changes, *(Text(one) for one in assumed))


def _option_cells(option: ServingOption) -> list[str]:
    one = option.estimate
    low, high = option.replicas_interval
    return [
        f"{one.deployment.tp} x {one.deployment.gpu}, {one.deployment.weights}",
        f"{option.replicas} ({low}-{high})",
        f"{1e3 * one.ttft_seconds.value:.0f} ms",
        f"{1e3 * one.tpot_seconds.value:.1f} ms",
        _money(option.usd_per_hour),
        _money(option.usd_per_million_output_tokens),
        f"{option.headroom:.0%}",
    ]


def _cells(value: Ranged, scale: float, unit: str) -> tuple[str, str]:
    low, high = (f"{scale * end:.4g}" for end in value.interval)
    return f"{scale * value.value:.4g} {unit}".rstrip(), f"{low} to {high} {unit}".rstrip()


def _money(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
