"""Stack techniques, measure each against the stack without it, verify, and keep the ledger.

    job.py       what to tune and within which limits
    tuner.py     the whole job: profile, the stack as a whole, its members, the final proof
    candidates.py  which techniques to ask about next, and how many in one question
    forecast.py  what a row is foretold to gain, and how far such ranges were off
    search.py    which stack is best: added as one, split, left out once more
    whole.py     the full stack's row, measured directly or as the product of its rows
    questions.py a question becomes an A/B run, an A/B run becomes a row; answers are remembered
    pool.py      the variants that are alive, frozen between questions
    ab_run.py    two runs of the script measured in turn, A B B A …
    ab_plan.py   how long that may take, and what decides it; ab_result.py what was found
    row.py       an A/B run written down as a row of the ledger
    losses.py    does the changed run still train the same model?
    memory.py    what was proved already, on disk, so that an interrupted job resumes
    stack.py     stack.toml, and running a script with it
    patch.py     the same stack as a diff of the user's own script: patch_script.py reads it,
                 patch_tree.py walks it, patch_source.py places edits, patch_rewrite.py makes them
    prove.py     the patched script is run, verified and measured before it is offered
    verify.py    side runs that tell a harmless difference of losses from a wrong one
    install.py   (in the child) applies a stack to the running script

What may not enter: the name of any single technique. Nothing becomes a row by assertion.
Start reading at `tuner.py`. This file loads none of them: `install.py` runs in the user's
process.

The room is named as what it does, so its name means one thing only: `ridgeline.tune` is a function,
before and after anything of the room was imported, and it is the package too.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.hardware.ceilings import Ceilings
    from ridgeline.records import Ledger
    from ridgeline.tune.job import TuneJob
    from ridgeline.tune.questions import OnProgress
    from ridgeline.tune.tuner import Show


def tune(
    job: TuneJob,
    *,
    ceilings: Ceilings | None = None,
    on_progress: OnProgress = lambda _: None,
    show: Show = lambda _: None,
    begun: float | None = None,
) -> Ledger:
    """Tune one script; returns the ledger and leaves it in the job's folder.

    See `ridgeline.tune.tuner.tune`.

    Raises:
        InputError: the script or an option is unusable.
        ChildDied: the script as it stands was killed.
    """
    from ridgeline.tune import tuner

    return tuner.tune(job, ceilings=ceilings, on_progress=on_progress, show=show, begun=begun)


# What the import system finds under the room's name: it asks for `__path__` and `__name__` alone,
# and hangs the room's files onto it.
tune.__dict__.update({name: globals()[name] for name in ("__path__", "__spec__", "__file__")})
tune.__name__, tune.__module__ = __name__, "ridgeline"
sys.modules[__name__] = tune  # type: ignore[assignment]
