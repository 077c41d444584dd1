"""How much a vision model may lose: `agreement-0.93`, `sqnr-20dB`, `metric-0.01`, ….

agreement-0.93   at least that share of equal answers       kl+0.05   nats an image
top1-1%, map-1%  points of accuracy or mAP                  metric-0.01   of --metric
sqnr-20dB        at least that SQNR of every output
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.records.image_compression import ImageRow

FORMS = (
    "give agreement-0.93 (at least that share of equal answers), top1-1% (points of top-1"
    " accuracy), map-1% (points of a detector's mAP), kl+0.05 (nats an image), sqnr-20dB (at least"
    " that of every output) or metric-0.01 (of what --metric gives)"
)


@dataclass(frozen=True, slots=True)
class ImageLimit:
    """A bound on what compression may cost."""

    text: str
    metric: str
    amount: float
    """What must stay (a share of agreement, decibels of sqnr), or what may go (a share of top1 and
    map, nats of kl, units of metric)."""

    def refusal(self, first: ImageRow, last: ImageRow) -> str:
        """Why a row lost more, in words; empty where it held.

        Raises:
            InputError: The images do not tell.
        """
        own, said = self._spent(first, last)
        if own is None:
            raise InputError(f"--max-loss {self.text}: {said}")
        held = own >= self.amount if self.metric in ("agreement", "sqnr") else own <= self.amount
        return "" if held and not math.isnan(own) else f"{said}: more than {self.text}"

    def _spent(self, first: ImageRow, last: ImageRow) -> tuple[float | None, str]:
        if self.metric == "agreement":
            if last.answers is None or last.answers.agreement is None:
                return None, "no output chooses a class; limit sqnr or metric"
            own = last.answers.agreement.share
            return own, f"{own:.2%} of the answers are those of the model as given"
        if self.metric == "top1":
            if first.quality is None or last.quality is None:
                return None, "the images have no labels; limit agreement or kl"
            before, after = first.quality.accuracy, last.quality.accuracy
            # a difference of shares, each a whole number of images
            return round(before - after, 12), f"top-1 {before:.2%} → {after:.2%}"
        if self.metric == "map":
            whole, part = first.mean_average_precision, last.mean_average_precision
            if whole is None or part is None:
                return None, "give --boxes FILE too, or limit agreement"
            return round(whole - part, 12), f"mAP {whole:.2%} → {part:.2%}"
        if self.metric == "metric":
            if first.metric is None or last.metric is None:
                return None, "give --metric FILE.py:NAME too"
            return first.metric - last.metric, f"metric {first.metric:.6g} → {last.metric:.6g}"
        if self.metric == "sqnr":
            return _worst_sqnr(last)
        if last.divergence is None:
            return None, "only a classifier has a KL; limit agreement, sqnr or metric"
        spent = last.divergence.kl_mean
        return spent, f"KL {spent:.4f}"


def _worst_sqnr(row: ImageRow) -> tuple[float | None, str]:
    """The SQNR of the output that lost most; infinite where nothing differs."""
    if row.answers is None:
        return None, "nothing was compared"
    if not row.outputs:
        found = row.answers.sqnr_db
        return math.inf if found is None else found, f"SQNR {_said(found)}"
    worst = min(row.outputs, key=lambda one: math.inf if one.sqnr_db is None else one.sqnr_db)
    own = math.inf if worst.sqnr_db is None else worst.sqnr_db
    return own, f"SQNR of {worst.name} {_said(worst.sqnr_db)}"


def _said(decibels: float | None) -> str:
    return "without noise" if decibels is None else f"{decibels:.1f} dB"


def image_limit(option: str, text: str) -> ImageLimit:
    """Read what an option gives.

    Raises:
        InputError: It says something else.

    >>> image_limit("--max-loss", "top1-1%").amount, image_limit("--max-loss", "kl+.05").amount
    (0.01, 0.05)
    """
    plain = text.replace(" ", "")
    number = r"(\d+(?:\.\d+)?|\.\d+)"
    if found := re.fullmatch(rf"agreement-{number}(%?)", plain):
        amount = float(found[1]) / (100 if found[2] else 1)
        if 0 < amount <= 1:
            return ImageLimit(text, "agreement", amount)
    elif found := re.fullmatch(rf"(top1|map)-{number}%", plain):
        return ImageLimit(text, found[1], float(found[2]) / 100)
    elif found := re.fullmatch(rf"kl\+{number}", plain):
        return ImageLimit(text, "kl", float(found[1]))
    elif found := re.fullmatch(rf"sqnr-{number}(?:dB)?", plain):
        return ImageLimit(text, "sqnr", float(found[1]))
    elif found := re.fullmatch(rf"metric-{number}", plain):
        return ImageLimit(text, "metric", float(found[1]))
    why = "a classifier has no perplexity; " if plain.startswith("ppl") else ""
    raise InputError(f"{option} {text}: {why}{FORMS}")


def refusal(rows: Sequence[ImageRow], max_loss: ImageLimit | None) -> str:
    """Why the last row may not be saved; empty where it may."""
    last = rows[-1]
    spent = [] if last.divergence is None else [last.divergence.kl_mean]
    broken = any(one.relative_error is None for one in last.outputs)
    if broken or not all(map(math.isfinite, spent)):
        return "outputs are infinite or NaN: the model is ruined"
    return "" if max_loss is None else max_loss.refusal(rows[0], last)
