"""How much a model may lose: `ppl+1%`, `ppl+0.2` or `kl+0.01`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from ridgeline.errors import InputError
from ridgeline.records.compression import Divergence, Quality


@dataclass(frozen=True, slots=True)
class Allowance:
    """A bound on what compression may cost."""

    text: str
    metric: Literal["ppl", "kl"]
    amount: float
    """A share of the perplexity, perplexity itself, or nats per token."""
    relative: bool

    def loss_rise(self, before: Quality) -> float:
        """Nats per token that it amounts to: of loss for `ppl`, of KL for `kl`."""
        if self.metric == "kl":
            return self.amount
        rise = self.amount if self.relative else self.amount / before.perplexity
        return math.log1p(rise)

    def spent(self, before: Quality, after: Quality, divergence: Divergence) -> float:
        """In the same nats."""
        return divergence.kl_mean if self.metric == "kl" else after.loss - before.loss

    def holds(self, before: Quality, after: Quality, divergence: Divergence) -> bool:
        """Whether the model after lost no more; never where it is not finite."""
        spent = self.spent(before, after, divergence)
        return math.isfinite(spent) and spent <= self.loss_rise(before)


def allowance(option: str, text: str) -> Allowance:
    """Read what an option gives.

    Raises:
        InputError: It says something else.

    >>> allowance("--target", "ppl+1%").amount, allowance("--max-loss", "kl+0.02").metric
    (0.01, 'kl')
    """
    found = re.fullmatch(r"(ppl|kl)\+(\d+(?:\.\d+)?|\.\d+)(%?)", text.replace(" ", ""))
    if found is None or (found[1] == "kl" and found[3]):
        raise InputError(
            f"{option} {text}: give ppl+1% (of the perplexity), ppl+0.2 or kl+0.01 (nats a token)"
        )
    metric: Literal["ppl", "kl"] = "kl" if found[1] == "kl" else "ppl"
    amount = float(found[2]) / (100 if found[3] else 1)
    return Allowance(text, metric, amount, relative=bool(found[3]))
