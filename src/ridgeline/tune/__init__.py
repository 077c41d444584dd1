"""Stack techniques, measure each against the stack without it, verify, and keep the ledger.

    tuner.py     the whole job: profile, candidates, greedy stacking, leaving out, final proof
    search.py    a question becomes a duel, a duel becomes a row
    duel.py      two runs of the script measured in turn, A B A B …
    losses.py    does the changed run still train the same model?
    memory.py    what was proved already, on disk, so that an interrupted job resumes
    stack.py     stack.toml, and running a script with it
    patch.py     the same stack as a diff of the user's own script (patch_source.py reads it,
                 patch_tree.py finds places in it, patch_rewrite.py changes it)
    prove.py     the patched script is run, verified and measured before it is offered
    install.py   (in the child) applies a stack to the running script

What may not enter: the name of any single technique. Nothing becomes a row by assertion.
Start reading at `tuner.py`. This file loads none of them: `install.py` runs in the user's
process. The room can be called, `ridgeline.tune(job)`, because it shares its name with what
it does.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.records import Ledger
    from ridgeline.tune.tuner import Job


class _Room(ModuleType):
    def __call__(self, job: Job, **options: Any) -> Ledger:
        """`ridgeline.tune.tuner.tune`."""
        from ridgeline.tune.tuner import tune

        return tune(job, **options)


sys.modules[__name__].__class__ = _Room
