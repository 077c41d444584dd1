"""Arithmetic of several tasks on one image: an encoder each, or one encoder for all.

    apart = n E + H        shared = E + H        E = (apart - shared) / (n - 1)

with E the work of one encoder and H that of all heads together. Hard parameter sharing: R. Caruana,
"Multitask learning", Machine Learning 28, 1997; in a car: HydraNet (Tesla AI Day, 2021).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWork:
    """The work of several tasks on one image, in FLOPs."""

    encoder_flops: float
    heads_flops: float
    """Work of all heads together."""
    tasks: int

    @property
    def apart_flops(self) -> float:
        """An encoder for each task."""
        return self.tasks * self.encoder_flops + self.heads_flops

    @property
    def shared_flops(self) -> float:
        """One encoder for all tasks."""
        return self.encoder_flops + self.heads_flops

    @property
    def factor(self) -> float:
        """By how much sharing cuts the work; at most the number of tasks."""
        return self.apart_flops / self.shared_flops


def work_of_totals(apart_flops: float, shared_flops: float, tasks: int) -> TaskWork:
    """The encoder and the heads behind two published totals.

    >>> work = work_of_totals(153e9, 55.5e9, tasks=3)
    >>> work.encoder_flops / 1e9, work.heads_flops / 1e9
    (48.75, 6.75)

    Raises:
        ValueError: Totals that no such tasks have: heads of less than nothing.
    """
    if tasks < 2:
        raise ValueError(f"sharing takes two tasks or more, not {tasks}")
    encoder = (apart_flops - shared_flops) / (tasks - 1)
    heads = shared_flops - encoder
    if encoder <= 0 or heads < 0:
        raise ValueError(
            f"{apart_flops:g} apart and {shared_flops:g} shared cannot be {tasks} tasks: "
            f"an encoder of {encoder:g}, heads of {heads:g}"
        )
    return TaskWork(encoder_flops=encoder, heads_flops=heads, tasks=tasks)
