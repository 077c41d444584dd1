"""The loss on held-out text, with the averaged weights where there are some."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

import torch
import torch.distributed as dist

from ridgeline.train.batch import Batch
from ridgeline.train.build import Built
from ridgeline.train.parallel.context import cut_sequences
from ridgeline.train.ranks import Ranks


def validation_loss(built: Built, batches: Iterable[Batch], ranks: Ranks) -> float | None:
    """Mean loss of a target token, over all ranks; None where there is nothing held out.

    Args:
        built: Its passes take the losses.
        batches: This rank's share, as many on every rank.
        ranks: Ranks that read different data add up.
    """
    modules = built.passes.modules
    total = torch.zeros(2, dtype=torch.float64)
    for module in modules:
        module.eval()
    with ExitStack() as stack:
        for part in built.parts:
            stack.enter_context(part.around_evaluation())
        for batch in batches:
            targets = batch.num_targets()
            loss = built.passes.evaluate(cut_sequences(batch, ranks))
            total += torch.tensor([float(loss), targets], dtype=torch.float64)
    for module in modules:
        module.train()
    if ranks.size("data") > 1:
        total = total.to(ranks.device)
        dist.all_reduce(total, group=ranks.group("data"))
    loss, targets = total.tolist()
    return loss / targets if targets else None
