"""What `ridgeline predict serving` and `plan serving` show."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.serving_plan import (
    Ranged,
    ServingEstimate,
    ServingOption,
    ServingPlan,
    Speculation,
    SplitOption,
)
from ridgeline.report import document as doc

WORDS = {
    "weights": "reading weights",
    "matmuls": "matmuls of linear layers",
    "attention": "attention of prompts",
    "cache": "reading the cache",
    "communication": "all-reduces",
    "launches": "starting kernels",
    "host": "the host",
    "guesses": "guessing",
}
OPTION_COLUMNS = (
    doc.words("deployment", ""),
    doc.Column("replicas"),
    doc.Column("ttft_seconds", "TTFT"),
    doc.Column("tpot_seconds", "per token"),
    *doc.figures("$/h", "$/1M output", "headroom"),
)


def serving_estimate_document(found: ServingEstimate) -> doc.ReportDocument:
    """Latencies with intervals, where the step goes, what was assumed."""
    one = found.deployment
    title = f"{one.model}, {one.weights}, {one.tp} x {one.gpu}, load: {found.load}"
    rows = [
        _row("time to first token", "ttft_seconds", found.ttft_seconds),
        _row("time per further token", "tpot_seconds", found.tpot_seconds),
        _row("whole completion", "e2e_seconds", found.e2e_seconds),
        _row("output tokens per second", "tokens", found.output_tokens_per_second),
        _row("at most", "tokens", found.most_output_tokens_per_second),
    ]
    columns = (doc.words("figure", ""), *doc.figures("predicted", "80 % interval"))
    parts = sorted(found.breakdown.items(), key=lambda item: -item[1])
    shares = [f"{WORDS[name]} {quantity.seconds(value)}" for name, value in parts if value > 0]
    running = f"{found.running:.0f} of at most {found.most_running:.0f} sequences run"
    cache = f"the cache {quantity.memory(found.cache_bytes_per_token)} per token"
    if found.state_bytes:
        cache += f", states {quantity.memory(found.state_bytes)} per sequence"
    lines = [
        f"{running}; a step takes {quantity.seconds(found.step_seconds)}: {', '.join(shares)}",
        f"weights {quantity.memory(found.weight_bytes)} on a device; {cache}",
    ]
    if found.saturated:
        lines.insert(0, "saturated: requests queue, and the time to the first token grows")
    if found.speculation is not None:
        lines.append(_speculation_line(found.speculation))
    lines += [f"assumed: {line}" for line in found.assumed]
    lines += [
        f"{one.name}: {one.before:.4g} → {one.after:.4g}, as measured" for one in found.calibrated
    ]
    return doc.ReportDocument(title, [doc.DataTable(columns, rows, title=title), doc.Lines(lines)])


def _row(name: str, field: str, value: Ranged) -> tuple[doc.Cell, ...]:
    low, high = (quantity.shown(field, end) for end in value.interval)
    return name, quantity.shown(field, value.value), f"{low} to {high}"


def _speculation_line(one: Speculation) -> str:
    who = f" by {one.draft}" if one.draft else ""
    if one.tree_depth is not None:
        who = f", in a tree {one.tree_depth} deep"
    best = f"{one.best_num_drafts} would be best" if one.best_num_drafts else "it only costs"
    return (
        f"{one.num_drafts} guesses a step{who}, {quantity.percent(one.acceptance)} accepted:"
        f" {one.tokens_per_step:.2f} tokens a step, decoding {quantity.ratio(one.speedup)} as"
        f" fast; {best}"
    )


def serving_plan_document(found: ServingPlan) -> doc.ReportDocument:
    """The best, the best of other devices, and what would change the answer."""
    load = f"{found.users:g} users" if found.users is not None else f"{found.rate:g} requests/s"
    title = f"{found.model}: {load} of {found.prompt_tokens:g} + {found.answer_tokens:g} tokens"
    rows = [_option(option) for option in (found.best, *found.others)]
    best = found.best
    low, high = best.replicas_interval
    kept = "met" if best.meets_at_worst else "missed"
    bound = f"bound by {WORDS[best.estimate.bottleneck]}"
    ends = f"{low} to {high} replicas at the ends of the 80 % interval"
    lines = [f"{bound}; {ends}; the targets are {kept} at its bad end", *_tail_lines(best)]
    if best.estimate.speculation is not None:
        lines.append(f"planned with {_speculation_line(best.estimate.speculation)}")
    lines += [f"{gpu}: {reason}" for gpu, reason in found.why_not.items()]
    changes = [
        (change.what, change.answer if change.different else "the same",
         _money(change.usd_per_hour))
        for change in found.changes
    ]  # fmt: skip
    columns = (doc.words("with"), doc.words("buy"), doc.Column("$/h"))
    shown: list[doc.Block] = [doc.DataTable(OPTION_COLUMNS, rows, title=title), doc.Lines(lines)]
    if found.splits:
        heads = (doc.words("prompts", ""), doc.words("decodes", ""), *OPTION_COLUMNS[2:-1])
        split_rows = [_split(one) for one in found.splits]
        title_of = "Prompts on some replicas, decoding on others"
        shown.append(doc.DataTable(heads, split_rows, title=title_of))
        shown.append(doc.Lines([_way(found.splits[0])]))
    shown.append(doc.DataTable(columns, changes, title="What would change the answer"))
    shown.append(doc.Lines([f"assumed: {line}" for line in best.estimate.assumed]))
    return doc.ReportDocument(title, shown)


def _tail_lines(option: ServingOption) -> list[str]:
    """The simulated percentiles, where they were asked for."""
    tail = option.tail
    if tail is None:
        return []
    more = option.replicas - option.replicas_by_mean
    asked = f"{more} more than the means ask for" if more else "as many as the means ask for"
    first, between = (
        quantity.seconds(one) for one in (tail.ttft_p99_seconds, tail.itl_p99_seconds)
    )
    said = f"99th percentiles of {tail.requests} simulated requests to one replica: {first} to the"
    return [f"{said} first token, {between} between tokens; {option.replicas} replicas, {asked}"]


def _option(option: ServingOption) -> tuple[doc.Cell, ...]:
    one = option.estimate
    low, high = option.replicas_interval
    return (
        f"{one.deployment.tp} x {one.deployment.gpu}, {one.deployment.weights}",
        f"{option.replicas} ({low}-{high})",
        one.ttft_seconds.value,
        one.tpot_seconds.value,
        _money(option.usd_per_hour),
        _money(option.usd_per_million_output_tokens),
        quantity.percent(option.headroom),
    )


def _split(option: SplitOption) -> tuple[doc.Cell, ...]:
    sides = (f"{one.replicas} of {one.tp} x {one.gpu}, {one.weights}"
             for one in (option.prefill, option.decode))  # fmt: skip
    return (
        *sides,
        option.ttft_seconds.value,
        option.tpot_seconds.value,
        _money(option.usd_per_hour),
        _money(option.usd_per_million_output_tokens),
    )


def _way(option: SplitOption) -> str:
    rate = quantity.scaled(option.transfer_bytes_per_second, "B/s")
    return (
        f"a prompt's cache is handed over in {quantity.seconds(option.transfer_seconds)} at {rate};"
        f" replicas for prompts are busy {quantity.percent(option.prefill_use)} of the time"
    )


def _money(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
