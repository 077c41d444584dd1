"""What every rank must decide alike: sums over all ranks, known one step later, waited for never.

After each step a rank hands in a few numbers and gets the sums of the step before. Their all-reduce
runs on the host (gloo) while the next step computes, so agreeing costs no time and no wait for the
device; all ranks learn the same sums at the same step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ridgeline.train.ranks import Ranks


class Agreement:
    """Every rank must make one and call it alike."""

    def __init__(self, ranks: Ranks) -> None:
        # A group of its own: the others' collectives are not queued behind it.
        self._group = dist.new_group(backend="gloo") if ranks.world > 1 else None
        self._under_way: tuple[torch.Tensor, dist.Work] | None = None

    def exchange(self, mine: Sequence[float]) -> list[float] | None:
        """Hand numbers in; the sums of those handed in before. None: there were none.

        A run of one rank gets its own at once.
        """
        if self._group is None:
            return list(mine)
        earlier = self.settle()
        numbers = torch.tensor(mine, dtype=torch.float64)
        work = dist.all_reduce(numbers, group=self._group, async_op=True)
        assert work is not None
        self._under_way = (numbers, work)
        return earlier

    def settle(self) -> list[float] | None:
        """The sums that are still to come, now; None: there are none."""
        if self._under_way is None:
            return None
        numbers, work = self._under_way
        self._under_way = None
        work.wait()
        return list(numbers.tolist())
