"""Forwards that record a graph which nobody goes back through, or for weights that nobody steps.

With gradients on, every operator makes a node of autograd and keeps what its backward would need
(PyTorch documentation, Autograd mechanics, "Locally disabling gradient computation"). An agent that
acts, samples that are detached, an evaluation without `no_grad`: the graph is thrown away. A target
network or a teacher outside of any optimizer: backward computes gradients of its weights, too.
"""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, percent
from ridgeline.records import Finding

CAUSES = ("unused-graph",)

RECORDING = (0.03, 0.3)
"""Share of a forward that recording takes, of large operators and of small ones."""
_FELT = 0.01
"""Share of the step in such forwards and their backward from which they are told of."""


def find(reading: Reading) -> list[Finding]:
    """Lines whose every call of a model was seen to be of no use to a backward."""
    lines = reading.profile.unused_graphs
    forward, backward = reading.phase_seconds("forward"), reading.phase_seconds("backward")
    recorded = forward * sum(line.forward_share for line in lines)
    gone_back = backward * sum(line.forward_share for line in lines if line.in_backward)
    touched = recorded + gone_back
    if reading.share(touched) < _FELT:
        return []
    least, most = (share * recorded for share in RECORDING)
    return reading.finding(
        "unused-graph",
        touched_seconds=touched,
        saves_seconds=(least + 0.3 * gone_back, most + gone_back),
        confidence=0.7,
        summary=f"{sum(line.calls for line in lines):,.3g} calls of a model per step record a "
        f"graph that nobody uses: {duration(recorded)} of forward"
        + (f" and {duration(gone_back)} of backward" if gone_back else "")
        + f", {percent(reading.share(touched))} of the step.",
        evidence={
            "forward_seconds": recorded,
            "backward_seconds": gone_back,
            "calls_per_step": sum(line.calls for line in lines),
        },
        where=[line.site for line in lines],
        cure="Call the model within `with torch.no_grad():` there.",
        effort="line",
        technique="no-unused-graph",
    )
