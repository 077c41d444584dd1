"""In which precision the passes compute, and how fp16 gradients are kept from underflow.

    fp32             as it is
    bf16, fp16       autocast; fp16 with a dynamic loss scale
    fp8              the linear layers in float8 with one scale a tensor (torchao; Micikevicius et
                     al., arXiv 2209.05433), the rest as bf16

The loss scale is `torch.amp.GradScaler`'s (Micikevicius et al., arXiv 1710.03740, section 3.2):
halved and the step skipped when a gradient is not finite, doubled after `growth_interval` good
steps. What differs is who decides: every rank sees only its shards, so all ranks of the run agree,
on whatever axis of the layout they differ; else one would step and another not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ridgeline.errors import InputError, MissingExtra
from ridgeline.records.recipe import Recipe
from ridgeline.train.optimizers.shards import local
from ridgeline.train.parallel.sharding import uses_fsdp
from ridgeline.train.part import Part, PartState
from ridgeline.train.ranks import Ranks

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
_FP8_CAPABILITY = (8, 9)
"""Ada and Hopper have the first tensor cores that multiply float8."""
_FP8_MULTIPLE = 16
"""torch._scaled_mm wants both dimensions of a weight to be multiples of it."""


class Precision(Part):
    """The precision of a recipe on this rank's device; it steps the optimizer.

    Args:
        recipe: `layout.precision` and its `precision` table.
        ranks: This process's place.

    Raises:
        InputError: The device cannot compute in it.
    """

    name = "precision"

    def __init__(self, recipe: Recipe, ranks: Ranks) -> None:
        self._casts = not uses_fsdp(recipe.layout)
        """FSDP2 casts parameters itself."""
        self._name = recipe.layout.precision
        self._device = ranks.device
        self.skipped_steps = 0
        """Steps that were not taken because a gradient was not finite."""
        self._scaler: _AgreedScaler | None = None
        _require(self._name, ranks.device)
        if self._name == "fp16":
            self._scaler = _AgreedScaler(
                ranks.device.type,
                init_scale=recipe.precision.loss_scale,
                growth_interval=recipe.precision.growth_interval,
            )
            self._scaler._lazy_init_scale_growth_tracker(ranks.device)

    def autocast(self) -> AbstractContextManager[object]:
        """Cast in the forward pass; for layouts in which FSDP2 does not cast parameters itself."""
        if self._name not in _AUTOCAST:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=_AUTOCAST[self._name])

    @staticmethod
    def prepare(module: nn.Module, recipe: Recipe) -> nn.Module:
        """With fp8, give the linear layers inside the blocks torchao's."""
        return to_float8(module) if recipe.layout.precision == "fp8" else module

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by now; 1 where nothing is scaled."""
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    def scale(self, loss: Tensor) -> Tensor:
        """The loss that backward starts from."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def around_forward(self) -> AbstractContextManager[object]:
        """Autocast, where FSDP2 does not cast the parameters itself."""
        return self.autocast() if self._casts else nullcontext()

    def figures(self, steps: int, phases_by_rank: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        """Steps left out so far, and the loss scale where there is one."""
        del steps, phases_by_rank
        scale = self.loss_scale
        return {
            "skipped_steps": self.skipped_steps,
            "loss_scale": None if scale == 1.0 else scale,
        }

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale, before clipping. Every rank must call it."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Step the optimizer, unless a gradient of any rank is not finite (fp16 only).

        Returns:
            Whether the weights moved.
        """
        if self._scaler is None:
            optimizer.step()
            return True
        before = self._scaler.get_scale()
        self._scaler.step(optimizer)
        self._scaler.update()
        taken = self._scaler.get_scale() >= before
        self.skipped_steps += not taken
        return taken

    def state_dict(self) -> PartState:
        """The loss scale, its count of good steps, and the steps skipped so far."""
        scaler = {} if self._scaler is None else self._scaler.state_dict()
        return PartState(shared={"scaler": scaler, "skipped_steps": self.skipped_steps})

    def load_state_dict(self, state: PartState, *, same_ranks: bool = True) -> None:
        """Go on from there."""
        del same_ranks
        self.skipped_steps = int(state.shared["skipped_steps"])
        if self._scaler is not None:
            self._scaler.load_state_dict(state.shared["scaler"])


class _AgreedScaler(torch.amp.GradScaler):
    """torch's scaler on local shards; one non-finite gradient anywhere is everybody's.

    torch's fused optimizers would skip by themselves on what one rank saw; ours declare no such
    thing (`_step_supports_amp_scaling`), so that the agreed answer decides.
    """

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,  # noqa: ARG002 - torch's signature
    ) -> dict[torch.device, Tensor]:
        gradients: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = local(parameter.grad)
                    gradients.setdefault((gradient.device, gradient.dtype), []).append(gradient)
        for (device, _), alike in gradients.items():
            found = found_inf.to(device)
            torch._amp_foreach_non_finite_check_and_unscale_(alike, found, inv_scale.to(device))
            found_inf.copy_(torch.maximum(found_inf, found.to(found_inf.device)))
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(found_inf, dist.ReduceOp.MAX)
        return {found_inf.device: found_inf}


def to_float8(part: nn.Module, *, emulate: bool = False) -> nn.Module:
    """Swap linear layers for torchao's float8 ones, in place.

    The head stays as it is (its output is what the loss is most sensitive to, as torchtitan has
    it), and so does a layer with a dimension that the hardware cannot multiply.

    Args:
        part: A model or a pipeline stage.
        emulate: Round as float8 but multiply in fp32, on any device.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        raise MissingExtra("torchao", "train") from None
    head = getattr(part, "get_output_embeddings", lambda: None)()

    def wanted(module: nn.Module, name: str) -> bool:
        if module is head or name.endswith("lm_head") or not isinstance(module, nn.Linear):
            return False
        return module.in_features % _FP8_MULTIPLE == 0 == module.out_features % _FP8_MULTIPLE

    return convert_to_float8_training(
        part, module_filter_fn=wanted, config=Float8LinearConfig(emulate=emulate)
    )


def _require(name: str, device: torch.device) -> None:
    if name != "fp8":
        return
    if device.type != "cuda":
        raise InputError(
            f'layout.precision "fp8": this device ({device.type}) has no float8 matmuls;'
            ' choose layout.precision = "bf16"'
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < _FP8_CAPABILITY:
        raise InputError(
            f'layout.precision "fp8": {torch.cuda.get_device_name(device)} has compute capability'
            f" {capability[0]}.{capability[1]} and float8 needs 8.9 or later; choose"
            ' layout.precision = "bf16"'
        )
