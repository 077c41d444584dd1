"""Gradients through the steps of a solver instead of a second solve in backward, where they fit.

The adjoint method keeps nothing of a solve: backward integrates state, adjoint and one integral
for each parameter back through time, which takes several times as long as the solve itself and is
as exact as its own tolerance. Going back through the steps that were taken is quicker and gives the
gradients of just what was computed; every evaluation's activations stay alive for it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.measure.guard.on_import import after_import
from ridgeline.patches import Undo, patch
from ridgeline.records.edits import AtStart, Edit, FirstOf, ReplaceCall
from ridgeline.records.ledger import Options
from ridgeline.records.script_facts import HabitName
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl, source_of_kernel

CARD = Card(
    name="no-adjoint",
    title="Gradients through the solver, no adjoint solve",
    cures=("adjoint-solve",),
    costs="Memory for the activations of every evaluation of a solve, which grows where a solver "
    "takes more steps.",
    source="Kidger, On Neural Differential Equations, 2022, section 5.1; Gholami et al., ANODE, "
    "2019; Chen et al., Neural Ordinary Differential Equations, 2018",
    equivalence="statistical",
    stage=Stage.MEMORY,
)

_SOLVERS: dict[HabitName, tuple[str, str]] = {
    "ode_adjoint": ("torchdiffeq:odeint_adjoint", "odeint"),
    "sde_adjoint": ("torchsde:sdeint_adjoint", "sdeint"),
}
"""Habit → the library's solver with an adjoint, and the plain one beside it."""
_OWN_KEYWORDS = tuple(
    f"adjoint_{name}" for name in ("rtol", "atol", "method", "options", "params", "adaptive")
)
_SAME_POSITIONS = 5
"""Leading arguments that both solvers of a library take in the same order: `sdeint_adjoint` has its
`adjoint_method` in the sixth place, where `sdeint` has the step."""
_FELT = 0.02
_ROOM = 0.5
"""Share of the device's memory that a step may take at most, with twice the evaluations seen:
solvers that choose their steps take more of them as a model learns."""
_GROWTH = 2.0
_KEPT_PHASES = ("forward", "other")
"""Where a solver works before backward: inside a call of the model's, and between such calls."""


def applies(context: Context) -> Applicability:
    """A second solve is felt, and what the first would keep fits."""
    profile = context.profile
    share = _share(context)
    if share < _FELT:
        seen = f"solving again in backward takes {share:.1%} of a step"
        return Applicability(False, seen if share else "no adjoint solve was seen")
    kept = profile.kept_at_most_bytes(*_KEPT_PHASES)
    if kept == 0:
        return Applicability(False, "what a solve would keep for backward was not seen")
    if context.has_finding("memory-limit"):
        return Applicability(False, "memory is the limit")
    capacity = profile.device_memory_bytes
    needed = profile.peak_memory_bytes + _GROWTH * kept
    if capacity and needed > _ROOM * capacity:
        return Applicability(
            False, f"keeping a solve could take {needed / capacity:.0%} of the device's memory"
        )
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Going back costs about what a solve costs; the second solve cost several."""
    return amdahl(_share(context), 2.0, 20.0)


def apply(points: Points, options: Options) -> Undo:
    """Answer calls of each library's adjoint solver by its plain one, once it is imported."""
    undos: list[Undo] = []
    for solver, plain in _SOLVERS.values():
        library = solver.partition(":")[0]
        after_import(library, functools.partial(_replace, points, undos, solver, plain))

    def undo() -> None:
        for one in reversed(undos):
            one()

    return undo


def _replace(points: Points, undos: list[Undo], solver: str, plain: str) -> None:
    from ridgeline.kernels.plain_solve import solve_plainly

    library = solver.partition(":")[0]
    refused = False
    agreed: set[type] = set()

    def solved(solution: Any, given: dict[str, Any]) -> bool:
        nonlocal refused
        if refused:
            return False
        kind = type(next(iter(given.values())))
        if kind not in agreed and requires_gradient(solution):
            if reaches_others(solution, given):
                refused = True
                points.refuse(CARD.name, "through the solver other tensors would be trained, too")
                return False
            agreed.add(kind)
            points.changed(CARD.name, f"{library} goes back through the steps of its solver")
        return True

    agrees = functools.partial(points.call, solved, otherwise=False)

    def replacing(original: Any) -> Any:
        return solve_plainly(original, getattr(sys.modules[library], plain), agrees)

    undos.append(patch(solver, replacing))


def requires_gradient(solution: Any) -> bool:
    """Will a backward go through this solution?"""
    from torch.utils._pytree import tree_leaves

    return any(getattr(one, "requires_grad", False) for one in tree_leaves(solution))


def reaches_others(solution: Any, given: dict[str, Any]) -> bool:
    """Would gradients flow to tensors that an adjoint solve gives none?

    It gives them to its tensors: the state that it starts from, times, and the parameters of the
    function or those that it was told.
    """
    from torch.utils._pytree import tree_leaves

    function = next(iter(given.values()))
    told = given.get("adjoint_params")
    if told is not None and not isinstance(told, list | tuple):
        return True  # an iterator, which can be looked at once only
    weights = () if told is not None else tuple(function.parameters())
    own = [one for one in tree_leaves((given, weights)) if getattr(one, "requires_grad", False)]
    leaves = {id(one) for one in own}
    seen = {one.grad_fn for one in own if one.grad_fn is not None}
    ahead = [getattr(one, "grad_fn", None) for one in tree_leaves(solution)]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in leaves:
            return True
        ahead += [following for following, _ in node.next_functions]
    return False


def edits(context: Context, options: Options) -> list[Edit]:
    """The plain solver's call, or in its library the plain solver in the other's place."""
    return [_edit(context, habit) for habit in _SOLVERS if context.profile.habit(habit).seconds > 0]


def _edit(context: Context, habit: HabitName) -> Edit:
    solver, plain = _SOLVERS[habit]
    library, _, adjoint = solver.partition(":")
    site = context.profile.habit(habit).site
    files = context.files if site is None else tuple(dict.fromkeys((site.file, *context.files)))
    assigned = f"{library}.{adjoint} = solve_plainly({library}.{adjoint}, {library}.{plain})"
    code = "\n".join([f"import {library}", source_of_kernel("plain_solve"), "", "", assigned])
    return FirstOf(
        edits=(
            ReplaceCall(
                files=files,
                callee="cdeint",
                code="{func}({args}, adjoint=False)",
                drop=(*_OWN_KEYWORDS, "adjoint"),
            ),
            ReplaceCall(
                files=files,
                callee=adjoint,
                code=f"{library}.{plain}({{args}})",
                drop=_OWN_KEYWORDS,
                most_positional=_SAME_POSITIONS,
            ),
            AtStart(files=context.files, code=code, before_imports=True),
        )
    )


def _share(context: Context) -> float:
    seconds = sum(context.profile.habit(habit).seconds for habit in _SOLVERS)
    return seconds / context.profile.step_seconds.mean
