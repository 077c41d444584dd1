"""Workers that live on from one epoch to the next.

Without it every new iterator starts its workers again, each importing and unpickling what it
needs. The first epoch is the same to the bit; in later ones the shuffle is another one, because
a new iterator draws a seed from the global generator and a kept one does not.
"""

from __future__ import annotations

from ridgeline.records import LoaderFacts
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl
from ridgeline.techniques.kinds.argument import set_argument

CARD = Card(
    name="persistent-workers",
    title="Persistent loader workers",
    cures=("worker-restarts", "input-starved"),
    costs="The workers' memory is held between epochs.",
    source="PyTorch documentation, torch.utils.data.DataLoader, persistent_workers",
    equivalence="statistical",
    stage=Stage.INPUT,
    moves_work=True,
)


def applies(context: Context) -> Applicability:
    """A loader with workers was started more than once."""
    loaders = context.profile.loaders
    if not any(loader.num_workers for loader in loaders):
        return Applicability(False, "no loader has workers")
    if all(loader.persistent_workers for loader in loaders if loader.num_workers):
        return Applicability(False, "workers are persistent")
    if not _restarting(context):
        return Applicability(False, "no loader with workers was started twice while watching")
    return Applicability(True, "")


def _restarting(context: Context) -> list[LoaderFacts]:
    return [loader for loader in context.profile.loaders if _is_restarted(loader)]


def _is_restarted(loader: LoaderFacts) -> bool:
    return bool(loader.num_workers) and not loader.persistent_workers and loader.restarts > 0


def predict(context: Context, options: Options) -> Gain:
    """The time to the first batch of an epoch, spread over its steps, mostly goes."""
    seconds = sum(loader.restarts * loader.start_seconds for loader in _restarting(context))
    total = context.profile.step_seconds.mean * max(context.profile.steps, 1)
    return amdahl(min(seconds / total, context.phase_share("data")), 1.5, 20.0)


apply, edits = set_argument(
    CARD,
    "DataLoader",
    "persistent_workers",
    True,
    fits=lambda arguments: bool(arguments.get("num_workers")),
    lacks=_is_restarted,
)
