"""What an engine asks of a model that is loaded: one step's forward, its layers, its facts."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ridgeline.errors import InputError
from ridgeline.kernels.paged_attention import LayerCache
from ridgeline.serve.cache import KvForm, KvShape
from ridgeline.serve.messages import MemoryRow
from ridgeline.serve.model.attention import KEYWORD, Pages
from ridgeline.serve.model.batch import SeenRows, StepBatch, spans_of
from ridgeline.serve.model.direct import Direct
from ridgeline.serve.model.kept import KeptStart, Proven
from ridgeline.serve.pipeline_parallel.gate import StageGate
from ridgeline.serve.vision.features import VisionTower

if TYPE_CHECKING:
    from ridgeline.serve.model.recurrent import RecurrentLayers


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """What one forward gave. T tokens, R rows that were asked for, V words."""

    logits: Tensor
    """Logits of the rows that want some, [R, V] float32."""
    states: Tensor
    """What the head reads, of every token, [T, hidden]."""
    rows: Tensor
    """Places of the tokens with logits, [R]."""
    between: Tensor | None = None
    """The inputs of the layers that are shown, side by side, [T, layers · hidden]; None: none."""

    @property
    def hidden(self) -> Tensor:
        """What the head reads, of the rows with logits, [R, hidden]."""
        return self.states[self.rows]


class LoadedModel:
    """A model, its tokenizer and the facts that an engine needs of them."""

    def __init__(self, model: nn.Module, tokenizer: Any, shapes: list[KvShape]) -> None:
        config = model.config.get_text_config()  # type: ignore[union-attr,operator]
        self.model = model
        self.tokenizer = tokenizer
        self.kv_shapes = shapes
        self.vocab: int = config.vocab_size
        self.eos_ids = _eos_ids(model)
        self.max_length: int | None = getattr(config, "max_position_embeddings", None)
        """Tokens that its positions reach; None: the configuration does not say."""
        self.dtype: torch.dtype = model.dtype  # type: ignore[assignment]
        self.kv_form = KvForm(self.dtype)
        """In which keys and values are kept."""
        self.device = next(model.parameters()).device
        self.weight_rows: list[MemoryRow] = []
        """Of the memory ledger."""
        self.kept: KeptStart | None = None
        """What the next start of this model finds, or what this one found; None: neither."""
        self.proven: Proven | None = None
        """What was found out about it by computing, now or at an earlier start."""
        self.direct: Direct | None = None
        """The short way from tokens to logits, where this model has one."""
        self.positions = ""
        """What is to be said of how positions are turned."""
        self.layer_path = "all in one operator"
        """How its layers are computed, and why not otherwise; in words, for the start's ledger."""
        self.slower: tuple[str, ...] = ()
        """What else is computed on a slower path than there is, and why."""
        self.gate: StageGate | None = None
        """Where a step leaves this stage of a model and comes back; None: it does not."""
        self.tower: VisionTower | None = None
        """What looks at images, where this model sees any."""
        self.recurrent: RecurrentLayers | None = None
        """Its layers that keep a state of each sequence; None: it has none."""
        self._states: Tensor | None = None
        self._between: dict[int, Tensor] = {}
        """The inputs of the layers that are shown, in the step that is computed."""
        self._shown: tuple[int, ...] = ()
        for stack in _stacks(model.base_model):  # type: ignore[arg-type]
            stack.register_forward_hook(self._keep_states)

    @property
    def layers(self) -> int:
        """The number of layers that keep keys and values."""
        return len(self.kv_shapes)

    @property
    def kv_heads(self) -> int:
        """The key-value heads of the first layer."""
        return self.kv_shapes[0][0]

    @property
    def head_dim(self) -> int:
        """The width of a head in the first layer."""
        return self.kv_shapes[0][1]

    @property
    def hidden_size(self) -> int:
        """Width of what the head reads."""
        return int(self.model.config.get_text_config().hidden_size)  # type: ignore[union-attr,operator]

    @property
    def output_layer(self) -> nn.Module:
        """The head as it is now, swapped or adapted ones too."""
        layer: nn.Module = self.model.get_output_embeddings()  # type: ignore[operator]
        return layer

    @property
    def input_layer(self) -> nn.Module:
        """The embedding of tokens, [N] to [N, hidden]."""
        layer: nn.Module = self.model.get_input_embeddings()  # type: ignore[operator]
        return layer

    def weight_bytes(self) -> int:
        """The size of all weights; tied ones count once."""
        return sum(row.bytes for row in self.weight_rows)

    def linears(self) -> dict[str, nn.Module]:
        """Linear layers by name, swapped ones included: whatever has in_ and out_features."""
        return {
            name: module
            for name, module in self.model.named_modules()
            if hasattr(module, "in_features") and hasattr(module, "out_features")
        }

    def forward(self, batch: StepBatch, caches: list[LayerCache]) -> ForwardOutput:
        """Compute one step; keys and values of its tokens go to the caches."""
        by_layer = caches if self.recurrent is None else self.recurrent.by_layer(caches)
        pages = Pages(batch.packed, by_layer, adapted=batch.adapters is not None)
        embedded = None if batch.seen is None else self._embedded(batch.tokens, batch.seen)
        if self.direct is not None and not pages.adapted and batch.axes is None:
            found = self.direct.states(batch.tokens, batch.positions, pages, embedded)
            logits = self.direct.logits(found[batch.logit_rows]).float()
            return ForwardOutput(logits, found, batch.logit_rows)
        given = (
            {"input_ids": batch.tokens[None]}
            if embedded is None
            else {"inputs_embeds": embedded[None]}
        )
        inputs = {
            **given,
            "position_ids": batch.positions[None] if batch.axes is None else batch.axes[:, None],
            "use_cache": False,
            KEYWORD: pages,
        }
        with self._given_states(batch) as given:
            if len(batch.logit_rows):
                out = self.model(**inputs, **given, logits_to_keep=batch.logit_rows)
                logits = out.logits[0].float()
            else:
                self.model.base_model(**inputs, **given)  # type: ignore[operator]
                logits = torch.empty(0, self.vocab, device=self.device)
        states, self._states = self._states, None
        assert states is not None
        between = None
        if self._shown:
            between = torch.cat([self._between.pop(number)[0] for number in self._shown], dim=-1)
        return ForwardOutput(logits, states[0], batch.logit_rows, between)

    def show_inputs_of(self, layers: tuple[int, ...]) -> None:
        """From now on `between` has the inputs of these layers, which are computed one by one.

        Raises:
            InputError: The model has no such layers.
        """
        count = int(self.model.config.get_text_config().num_hidden_layers)  # type: ignore[union-attr,operator]
        lists = [
            child
            for child in self.model.base_model.children()  # type: ignore[union-attr,operator]
            if isinstance(child, nn.ModuleList) and len(child) == count
        ]
        if len(lists) != 1 or len(set(layers)) < len(layers) or not set(layers) <= {*range(count)}:
            told = ", ".join(map(str, layers))
            raise InputError(f"a draft head reads inputs of layers {told}; the model has {count}")
        for number in layers:
            lists[0][number].register_forward_pre_hook(
                partial(self._keep_between, number), with_kwargs=True
            )
        self._shown = layers
        if self.direct is not None:
            self.direct = None
            self.layer_path = "one by one: a draft head reads states between them"

    def _keep_between(
        self, number: int, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._between[number] = args[0] if args else kwargs["hidden_states"]

    def _given_states(self, batch: StepBatch) -> AbstractContextManager[dict[str, Any]]:
        """What the model is given for the states of those who are in a step."""
        if self.recurrent is None:
            return nullcontext({})
        if batch.spans is None:
            return self.recurrent.computing(spans_of(batch.packed), None)
        return self.recurrent.computing(batch.spans, self.recurrent.kept)

    def _embedded(self, tokens: Tensor, seen: SeenRows) -> Tensor:
        """The embeddings of a step, [T, hidden], with features where tokens stand for images."""
        return self.input_layer(tokens).index_copy(0, seen.rows, seen.features)  # type: ignore[no-any-return]

    def _keep_states(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        self._states = output.last_hidden_state


def _eos_ids(model: Any) -> tuple[int, ...]:
    found = getattr(model.generation_config, "eos_token_id", None)
    if found is None:
        found = model.config.get_text_config().eos_token_id
    if found is None:
        return ()
    try:
        return tuple(map(int, found)) if isinstance(found, (list, tuple)) else (int(found),)
    except (TypeError, ValueError):
        raise InputError(
            f"{model.config.name_or_path}: eos_token_id is {found!r}; generation_config.json has to"
            " give a number, or a list of them"
        ) from None


def _stacks(base: nn.Module) -> list[nn.Module]:
    """Whatever gives a model's head its states: the base model, or one within, asked past it."""
    inner = [one for one in base.children() if hasattr(one, "get_input_embeddings")]
    return [base, *inner]
