"""Memory of one device over a step: what is alive when, by category, and where the peak lies.

Sizes are those of `memory.py`, on the fuller end of the pipeline; here they are laid out in time.
In the forward pass each layer leaves its activations behind, in the backward pass it frees them:

    none        every layer keeps all of them
    selective   the attention core is redone           Korthikanti et al., 2205.05198, section 5
                or, of torch, every second matmul and all that is element-wise
    full        a layer keeps its input and is redone  Chen et al., 1604.06174, section 3
    sqrt        ⌈√L⌉ segments keep an input each, and a whole one is redone at a time (ibid., 4.1)

Gradients of the first micro-batch come to life in its backward pass; from the second on they are
there from the beginning, which is the micro-batch that is drawn where there are several. With
ZeRO-2 and 3 the unsharded gradients of a layer live while it is differentiated: that is in the
slack. Times are those of the layers: a backward pass redoes what was not kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ridgeline.cost.training.layer import layer_pass, total
from ridgeline.cost.training.memory import (
    SLACK,
    layer_activation_bytes,
    peak_terms,
    update_bytes,
)
from ridgeline.cost.training.setting import Setting
from ridgeline.cost.training.step import optimizer_seconds

Checkpoint = Literal["none", "selective", "full", "sqrt"]
STATIC = ("weights", "master", "optimizer", "gathered", "buffers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is alive at a time of the step."""

    phase: Literal["forward", "backward", "optimizer"]
    seconds: float
    terms: dict[str, float]
    """The bytes of each category."""


def memory_moments(setting: Setting, checkpoint: Checkpoint) -> list[Moment]:
    """The last micro-batch of a step and the optimizer, layer by layer.

    `setting` has one layout, whose recomputation is `checkpoint`'s (of `sqrt`, full).
    """
    peaks = peak_terms(setting)
    terms = {name: float(np.ravel(value)[0]) for name, value in peaks.items()}
    update = float(np.ravel(update_bytes(peaks, setting))[0])
    layers = round(float(np.ravel(setting.dims.layers / setting.layouts.pp)[0]))
    held = _Held(setting, checkpoint, layers, terms)
    work = layer_pass(setting)
    forward, backward = (float(np.ravel(total(one))[0]) for one in (work.forward, work.backward))
    accumulates = float(np.ravel(setting.layouts.num_microbatches)[0]) > 1
    moments: list[Moment] = []
    now = 0.0

    def note(phase: Literal["forward", "backward", "optimizer"], **alive: float) -> None:
        static = {name: terms[name] for name in STATIC}
        moving = sum(alive.get(name, 0.0) for name in ("activations", "recompute", "logits"))
        slack = SLACK * (moving + terms["gathered"])
        moments.append(Moment(phase=phase, seconds=now, terms={**static, **alive, "slack": slack}))

    first = terms["gradients"] if accumulates else 0.0
    for done in range(layers + 1):
        note("forward", activations=held.after_forward(done), gradients=first)
        now += forward if done < layers else 0.0
    core = np.where(setting.selects_core, work.forward["attention"], 0.0)
    again = float(np.ravel(core + setting.repeated_share * total(work.forward))[0])
    for left in range(layers, -1, -1):
        ready = (layers - left) / layers
        note(
            "backward",
            activations=held.after_forward(left),
            recompute=held.redone(left) if left else 0.0,
            logits=terms["logits"] if left == layers else 0.0,
            gradients=terms["gradients"] if accumulates else terms["gradients"] * ready,
        )
        now += backward + again if left else 0.0
    note("optimizer", gradients=terms["gradients"], update=update)
    now += float(np.ravel(optimizer_seconds(setting))[0])
    note("optimizer", gradients=terms["gradients"], update=update)
    return moments


class _Held:
    """What layers leave behind, and what is redone at a time."""

    def __init__(
        self, setting: Setting, checkpoint: Checkpoint, layers: int, terms: dict[str, float]
    ) -> None:
        self.layers = layers
        self.waiting = terms["activations"] / layers
        """Of all micro-batches that a pipeline stage holds at once, per layer."""
        self.working = terms["recompute"]
        self.segment = 1
        self.everything = float(np.ravel(layer_activation_bytes(setting))[0])
        if checkpoint == "sqrt":
            self.segment = math.ceil(layers / math.ceil(math.sqrt(layers)))
            self.working += (self.segment - 1) * self.everything

    def after_forward(self, done: int) -> float:
        """Alive once so many layers have run, or are still to be differentiated."""
        return self.waiting * math.ceil(done / self.segment)

    def redone(self, left: int) -> float:
        """Alive while the layer before `left` is differentiated: what of its segment is left."""
        inside = (left - 1) % self.segment
        return max(0.0, self.working - (self.segment - 1 - inside) * self.everything)
