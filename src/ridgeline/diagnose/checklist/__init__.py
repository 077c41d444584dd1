"""The field's checklists, answered by what was recorded.

    boxes/          the boxes as data, a file per group: what is so when one is done, why, what
                    finds out and what closes it
    boxes.py        reads them
    evidence.py     the records that may answer: profile, trace, recipe, ledger
    of_settings.py  what a profile shows of precision, compilation, kernels and switches
    of_loop.py      what a profile shows of loaders, memory and the loop
    of_ranks.py     what a profile shows of data parallelism, and of inference
    of_recipe.py    what a recipe declares of training
    of_launch.py    what a recipe declares of a run that has to survive
    of_trace.py     what the traces of a job show
    answered.py     all of it: `checklist(groups, evidence)`

What may not enter: a guess. A question returns None where the record does not say; a box that no
record answers is `unknown`. Start reading at `answered.py`.
"""

from ridgeline.diagnose.checklist.answered import checklist
from ridgeline.diagnose.checklist.evidence import Evidence, read_evidence

__all__ = ["Evidence", "checklist", "read_evidence"]
