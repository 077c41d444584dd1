"""The names of tensors in files, in the model's own class, and in a model that was wrapped.

transformers 5 keeps some weights otherwise than hub checkpoints do (experts in one parameter,
renamed prefixes); `StoredNames` asks its own conversions (`core_model_loading.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

PEFT_PREFIX = "base_model.model."
"""What PEFT puts before the names of the model that it wraps."""
_WRAPPERS = frozenset(
    {"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"},
)
"""Parts of a name that DDP, torch.compile, recomputation and FSDP add."""


def unwrapped_name(name: str) -> str:
    """The name that a parameter has in the model alone.

    >>> unwrapped_name("module._orig_mod.layers.0._checkpoint_wrapped_module.weight")
    'layers.0.weight'
    """
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def original_name(name: str) -> str:
    """The name without what PEFT adds either: what the model's own class calls the parameter.

    >>> original_name("base_model.model.model.layers.0.mlp.up_proj.base_layer.weight")
    'model.layers.0.mlp.up_proj.weight'
    """
    return unwrapped_name(name).replace(PEFT_PREFIX, "").replace("base_layer.", "")


def first_names(model: nn.Module) -> dict[str, str]:
    """Each parameter's name, and the first name that the same (tied) parameter has."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(parameter), name)
    return names


def tied_names(model: nn.Module) -> set[str]:
    """The names in a model's state that are another tensor under a second name."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    return set(model.state_dict()) - set(own)


class StoredNames:
    """Which parameter or buffer of a model of transformers a stored tensor belongs to."""

    def __init__(self, model: Any) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        rules = get_model_conversion_mapping(model)
        self._renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
        self._converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
        self._prefix = model.base_model_prefix
        self.wanted: dict[str, Any] = model.state_dict()
        self.converter_of = {
            pattern: rule for rule in self._converters for pattern in rule.source_patterns
        }
        """transformers' rule for a stored tensor that makes a part of a parameter, by pattern."""

    def target(self, source: str) -> tuple[str, str | None] | None:
        """The parameter or buffer, and the pattern of `converter_of`; None: the model has none."""
        from transformers.core_model_loading import rename_source_key

        for renamings, converters in ((self._renamings, self._converters), ([], [])):
            target, pattern = rename_source_key(
                source, renamings, converters, self._prefix, self.wanted
            )
            if target in self.wanted:
                return target, pattern
        return None

    def renamed(self, source: str) -> str:
        """The stored name after transformers' renamings."""
        from transformers.core_model_loading import apply_renamings

        found: str = apply_renamings(source, self._renamings)
        return found
