"""Matmuls in float16 with dynamic loss scaling, for GPUs that have no bfloat16 units.

float16 loses gradients below 6e-8, so the backward runs on a loss multiplied by a factor, and
each parameter's gradient is divided by it as it arrives (Micikevicius et al., "Mixed Precision
Training", ICLR 2018, section 3.2). The script sees true gradients, so its own clipping and
accumulation stay right. A step whose gradients overflowed is left out and the factor halved;
after 2000 good steps it is doubled, as `torch.amp.GradScaler` does. The first step runs in
float32.

The factor enters as the gradient of the loss, not as a multiple of it; it is divided out by a hook
on every parameter that an optimizer owns. A leaf that no optimizer owns would keep it, so the
first backward looks for one, and then nothing is scaled and float16 is not used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.anatomy import parameters
from ridgeline.measure.child.guard import attempt
from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, in_reverse, patch
from ridgeline.records.edits import Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

if TYPE_CHECKING:
    import torch
    from torch import nn

CARD = Card(
    name="fp16-autocast",
    title="float16 autocast with dynamic loss scaling",
    cures=("fp32-matmul",),
    costs="10 bits of mantissa in matmuls; a step now and then is left out when it overflows.",
    source="PyTorch documentation, torch.amp; Micikevicius et al. 2018, section 3.2",
    equivalence="statistical",
    stage=Stage.PRECISION,
    slot="autocast",
    optional={"initial_scale": float},
    breaks_with=("Half", "must have the same dtype"),
)

INITIAL_SCALE = 2.0**16
_GROW_AFTER = 2000


def applies(context: Context) -> Applicability:
    """float32 matmuls on a GPU that multiplies fast in float16 and not in bfloat16."""
    switches = context.profile.settings
    if context.device != "cuda":
        return Applicability(False, f"float16 is no faster on {context.device}")
    if switches.autocast_dtype is not None or switches.gradient_scaler:
        return Applicability(False, "the script runs in mixed precision")
    half, single = context.peak("fp16"), context.peak("fp32")
    if not half or not single:
        return Applicability(False, "float16 was not probed here; run: ridgeline hardware --probe")
    if (context.peak("bf16") or 0.0) > 1.1 * single:
        return Applicability(False, "bfloat16 is as fast here and needs no scaling")
    if half < 1.1 * single:
        return Applicability(False, "this machine's float16 matmul is no faster than float32")
    if context.matmul_share("float32") < 0.02:
        return context.lacks("float32 matmuls")
    if context.profile.habit("retain_graph").calls:
        return Applicability(False, "the script goes through a graph twice")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """The matmuls run at the ratio of the two peaks."""
    half, single = context.peak("fp16"), context.peak("fp32")
    speedup = half / single if half and single else 1.0
    return amdahl(context.matmul_share("float32"), 1 + max(speedup - 1, 0.0) * 0.3, speedup)


def apply(points: Points, options: Options) -> Undo:
    """Autocast around the forward, the factor around the backward, the check before the step."""
    import torch

    scaler = Scaler(float(options.get("initial_scale", INITIAL_SCALE)))
    takes_back = [
        scaler.own_parameters(),
        scaler.scale_backwards(),
        scaler.guard_steps(),
    ]

    def around(module: nn.Module) -> AbstractContextManager[Any]:
        if not scaler.usable:
            return nullcontext()
        device = parameters(module)[0].device.type
        if not torch.amp.is_autocast_available(device):
            return nullcontext()
        points.changed(
            CARD.name,
            f"forward runs under torch.autocast({device!r}, float16); loss scale "
            f"{scaler.scale:g}, {scaler.skipped} step(s) left out",
        )
        return torch.autocast(device, dtype=torch.float16)

    def after(module: nn.Module, output: Any) -> Any:
        from torch.utils._pytree import tree_map_only

        return tree_map_only(
            torch.Tensor, lambda t: t.float() if t.dtype is torch.float16 else t, output
        )

    points.around_forward.append(around)
    points.after_forward.append(after)

    def undo() -> None:
        points.around_forward.remove(around)
        points.after_forward.remove(after)
        in_reverse(takes_back)()

    return undo


class Scaler:
    """The factor, what it was last seen to do, and the three places where it acts."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.skipped = 0
        self.usable: bool | None = None
        """None until the first backward has shown whether an optimizer owns every leaf."""
        self._good = 0
        self._dividing = False
        self._owned: set[int] = set()
        self._handles: list[Any] = []

    # -- gradients are divided as they arrive ----------------------------------------------

    def own_parameters(self) -> Undo:
        """Hook every parameter that an optimizer is given."""

        def owning(original: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(original)
            def add(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
                original(optimizer, group)
                for parameter in optimizer.param_groups[-1]["params"]:
                    if id(parameter) not in self._owned and parameter.requires_grad:
                        self._owned.add(id(parameter))
                        self._handles.append(parameter.register_hook(self._divide))

            return add

        take_off = patch("torch.optim:Optimizer.add_param_group", owning)

        def undo() -> None:
            take_off()
            for handle in self._handles:
                handle.remove()

        return undo

    def _divide(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / self.scale if self._dividing else gradient

    # -- the loss's gradient is the factor -------------------------------------------------

    def scale_backwards(self) -> Undo:
        """Start every backward of a scalar float32 loss at the factor instead of at one."""
        import torch

        def scaling(original: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(original)
            def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
                fits = attempt(self._fits, tensors, grad_tensors, kwargs, otherwise=False)
                if self._dividing or not fits:
                    original(tensors, grad_tensors, *args, **kwargs)
                    return
                root = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
                self._dividing = True
                try:
                    original(tensors, torch.full_like(root, self.scale), *args, **kwargs)
                finally:
                    self._dividing = False

            return backward

        return patch("torch.autograd:backward", scaling)

    def _fits(self, tensors: Any, grad_tensors: Any, kwargs: dict[str, Any]) -> bool:
        import torch

        root = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        alone = not isinstance(tensors, (list, tuple)) or len(tensors) == 1
        if not alone or not isinstance(root, torch.Tensor) or root.numel() != 1:
            return False
        if grad_tensors is not None or kwargs.get("inputs") or root.dtype is not torch.float32:
            return False
        if self.usable is None:
            self.usable = all(id(leaf) in self._owned for leaf in leaves_of(root))
        return bool(self.usable)

    # -- a step that overflowed is left out ------------------------------------------------

    def guard_steps(self) -> Undo:
        """Wrap `step` of every optimizer class, outside of torch's own hooks."""
        import torch

        guarded_steps: list[tuple[Any, Any]] = []

        def guarding(original: Callable[..., Any]) -> Any:
            def guarded(step: Callable[..., Any]) -> Callable[..., Any]:
                hooked = original(step)

                @functools.wraps(hooked)
                def run(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
                    if self.usable and attempt(self._overflowed, optimizer, otherwise=False):
                        return None
                    return hooked(optimizer, *args, **kwargs)

                guarded_steps.append((run, hooked))
                return run

            return staticmethod(guarded)

        take_off = patch("torch.optim:Optimizer.profile_hook_step", guarding)

        def undo() -> None:
            take_off()
            for run, hooked in guarded_steps:
                for kind in _subclasses(torch.optim.Optimizer):
                    if vars(kind).get("step") is run:
                        kind.step = hooked
                        kind.step.hooked = True

        return undo

    def _overflowed(self, optimizer: torch.optim.Optimizer) -> bool:
        import torch

        gradients = [
            parameter.grad
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        if not gradients:
            return False
        norms = torch.stack([gradient.float().norm(float("inf")) for gradient in gradients])
        if bool(torch.isfinite(norms).all()):
            self._good += 1
            if self._good >= _GROW_AFTER:
                self.scale, self._good = self.scale * 2, 0
            return False
        self.scale, self._good = self.scale / 2, 0
        self.skipped += 1
        return True


def _subclasses(kind: Any) -> list[Any]:
    direct = kind.__subclasses__()
    return direct + [deeper for subclass in direct for deeper in _subclasses(subclass)]


def leaves_of(root: torch.Tensor) -> list[torch.Tensor]:
    """The leaves that a backward from `root` would give gradients to."""
    pending: list[Any] = [root.grad_fn]
    seen: set[Any] = set()
    leaves = []
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        pending += [following for following, _ in node.next_functions]
    return leaves


def edits(context: Context, options: Options) -> list[Edit]:
    """No edit is offered: a scaler changes backward, clipping and step, each in its own way."""
    return []
