"""What `ridgeline queue doctor` shows: causes of lost GPUs, each with its cure as a setting."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.queue_finding import QueueDiagnosis, QueueFinding
from ridgeline.report import document as doc

_NAMED = 5


def queue_doctor_document(found: QueueDiagnosis) -> doc.ReportDocument:
    """The costliest cause first."""
    first = f"{found.findings[0].cause}" if found.findings else "nothing found"
    waiting = _accelerators(found.waiting_gpus, found.waiting_slices)
    blocks: list[doc.Block] = [
        doc.Lead(
            found.source,
            f"{_accelerators(found.gpus, found.slices)} on {quantity.several(found.nodes, 'node')}",
            "Cluster",
        ),
        doc.Values(
            [
                ("costliest cause", first),
                ("allocated", _allocated(found)),
                ("waiting", f"{quantity.several(found.waiting_pods, 'pod')} for {waiting}"),
            ]
        ),
    ]
    if not found.findings:
        blocks.append(doc.Paragraph("Nothing here keeps GPUs from work that waits for them."))
    blocks += [doc.Chapter(_title(one), _finding(one)) for one in found.findings]
    blocks += [doc.Paragraph(f"Not known: {note}.") for note in found.notes]
    return doc.ReportDocument(f"Doctor of {found.source}", blocks)


def _accelerators(gpus: int, slices: int) -> str:
    """Whole GPUs and MIG slices, where there are any."""
    said = [quantity.several(gpus, "GPU")] if gpus or not slices else []
    return " and ".join([*said, quantity.several(slices, "MIG slice")] if slices else said)


def _allocated(found: QueueDiagnosis) -> str:
    said = [f"{found.allocated_gpus} of {found.gpus} GPUs"] if found.gpus else []
    if found.slices:
        said.append(f"{found.allocated_slices} of {found.slices} MIG slices")
    return " and ".join(said)


def _title(one: QueueFinding) -> str:
    whole = one.lost_gpus == round(one.lost_gpus)
    lost = quantity.count(one.lost_gpus) if whole else quantity.digits(one.lost_gpus)
    return f"{one.cause}: {lost} GPU{'' if lost == '1' else 's'} lost"


def _finding(one: QueueFinding) -> list[doc.Block]:
    more = f" and {len(one.where) - _NAMED} more" if len(one.where) > _NAMED else ""
    lines = [
        f"{one.summary}.",
        f"Counted: {one.counted} ({quantity.percent(one.confidence)} sure).",
        f"Where: {', '.join(one.where[:_NAMED])}{more}.",
        f"Cure: {one.cure}.",
        *_worth(one),
    ]
    return [doc.Lines(lines), doc.Verbatim(one.setting)]


def _worth(one: QueueFinding) -> list[str]:
    """What the cure is worth by the simulator, or why it was not asked."""
    worth = one.worth
    if worth is None:
        return [f"Worth: not simulated: {one.not_simulated}."] if one.not_simulated else []
    gain = worth.cured_working_gpus - worth.working_gpus
    spread = ""
    if worth.drawings > 1:
        low, high = (f"{bound:+.1f}" for bound in (worth.gain_low, worth.gain_high))
        spread = f" [{low}, {high}] of {worth.drawings} drawings"
    hours = quantity.seconds(worth.horizon_seconds)
    said = (
        f"Worth, simulated: {gain:+.1f} GPUs at work{spread} over the next {hours}"
        f" ({worth.working_gpus:.1f} as it is, {worth.cured_working_gpus:.1f} with the cure); of"
        f" {worth.waiting_jobs} waiting jobs {worth.started_jobs:.1f} start as it is and"
        f" {worth.cured_started_jobs:.1f} with it, mean wait"
        f" {quantity.seconds(worth.mean_wait_seconds)} and"
        f" {quantity.seconds(worth.cured_mean_wait_seconds)}."
    )
    return [said, f"Assumed: {worth.assumed}."]
