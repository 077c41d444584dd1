"""A Hugging Face causal LM, loaded for serving: from a directory or the hub, checked, shrunk.

Order matters for the peak of memory and for what is checked: load in the final dtype with linear
layers replaced one by one as they are read (`serve/weights/by_layer.py`), or all at once and
replaced later where only transformers can read the files; take the shapes of its cache, prove that
paged attention computes the same (`trial.py`), then replace small modules (`fused.py`), and look
for a way past the layers (`direct.py`), which proves itself.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from ridgeline.checkpoints.tokenizer import has_tokenizer
from ridgeline.errors import InputError
from ridgeline.kernels.paged_attention import LayerCache
from ridgeline.models.folder import read_by_library
from ridgeline.models.quiet import quiet_libraries
from ridgeline.serve.cache import KvForm, KvShape, form_of
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import MemoryRow
from ridgeline.serve.model import trial
from ridgeline.serve.model.attention import KEYWORD, NAME, Attended, Pages, register
from ridgeline.serve.model.batch import SeenRows, StepBatch, spans_of
from ridgeline.serve.model.direct import Direct, direct
from ridgeline.serve.model.fused import fuse
from ridgeline.serve.model.kept import KeptStart, Proven, kept_start
from ridgeline.serve.model.llama_like import NotInOne
from ridgeline.serve.model.own_attention import adds_bias, take_over
from ridgeline.serve.model.rounded import noted, settle_rounding
from ridgeline.serve.packed.tokenizer import kept_tokenizer
from ridgeline.serve.pipeline_parallel.gate import StageGate
from ridgeline.serve.pipeline_parallel.stages import load_stage
from ridgeline.serve.tensor_parallel.group import RankGroup
from ridgeline.serve.tensor_parallel.reading import load_share
from ridgeline.serve.vision.features import VisionTower
from ridgeline.serve.vision.model import read_apart, sees_images
from ridgeline.serve.weights import calibrated_cache, is_compressed, load_compressed, shrink
from ridgeline.serve.weights.by_layer import read_by_layer
from ridgeline.serve.weights.rounding import as_multiplied

if TYPE_CHECKING:
    from ridgeline.serve.model.recurrent import RecurrentLayers

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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
        self.layer_path = "all in one operator"
        """How its layers are computed, and why not otherwise; in words, for the start's ledger."""
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
        model.base_model.register_forward_hook(self._keep_states)  # type: ignore[union-attr]

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


def load(config: EngineConfig, group: RankGroup | None = None) -> LoadedModel:
    """Load, check and shrink the model that a configuration names.

    Args:
        config: Of the engine.
        group: The ranks over which the model is cut; None: it is loaded whole.

    Raises:
        InputError: It is not there, not a causal LM, of a family that does not fit, or its weights
            cannot be shrunk as asked.
    """
    device = device_of(config) if group is None else group.device
    dtype = dtype_of(config, device)
    config = as_multiplied(config, device)
    kept = kept_start(config, dtype, device)
    plain = None
    if kept is not None and not config.compiled:
        plain = kept.plain_model(dtype, Path(config.model))
    if plain is None:
        with quiet_libraries():
            register()
            model, tower, gate = _read(config, dtype, device, group, kept)
            take_over(model)
    else:
        model, tower, gate = plain, None, None
    model.requires_grad_(requires_grad=False).eval()
    vocab = model.config.get_text_config().vocab_size
    recurrent = trial.recurrent_layers(model, vocab) if plain is None else None
    if kept is not None and kept.proven is not None:
        shapes, calls = kept.proven.shapes, list(kept.proven.calls)
        if plain is None:
            model.set_attn_implementation(NAME)
    else:
        shapes = trial.kv_shapes(model, vocab)
        calls = trial.check(model, shapes, vocab, recurrent)
    rounding = settle_rounding(config, model, shapes, kept, recurrent)
    loaded = LoadedModel(model, _tokenizer(config), shapes)
    loaded.recurrent = recurrent
    loaded.kept = kept
    loaded.gate = gate
    stored = calibrated_cache(config.model, model, shapes) if is_compressed(config.model) else None
    loaded.kv_form = form_of(config.kv_dtype, loaded.dtype, stored)
    if config.kv_dtype != "model" and adds_bias(model):
        family = model.config.model_type
        raise InputError(
            f"--kv-dtype {config.kv_dtype}: keys of the family {family} carry a bias for their"
            " positions, which 8 bits do not hold; leave it out"
        )
    loaded.weight_rows = shrink(model, config)
    if tower is not None:
        loaded.tower = tower
        row = MemoryRow(what="vision tower", bytes=tower.weight_bytes(), note="and projector")
        loaded.weight_rows.append(row)
    fuse(model)
    if group is not None:
        sums = ["add up what they have twice a layer"] if group.shares > 1 else []
        why = " and ".join([*sums, *(["pass states on"] if group.stages > 1 else [])])
        loaded.layer_path = f"one by one: {group.size} ranks {why}"
        return loaded
    if kept is not None and kept.note:
        loaded.weight_rows = [
            replace(row, note=f"{row.note}, {kept.note}") for row in loaded.weight_rows
        ]
    loaded.weight_rows = noted(loaded.weight_rows, rounding)
    _compute_in_one(loaded, calls, rounding)
    return loaded


def _compute_in_one(loaded: LoadedModel, calls: list[Attended], rounding: float | None) -> None:
    """Give a model its short way, where it has one, and note what was found out about it."""
    kept, shapes = loaded.kept, loaded.kv_shapes
    loaded.proven = None if kept is None else kept.proven
    not_in_one = "" if loaded.proven is None else loaded.proven.not_in_one
    if not not_in_one and loaded.recurrent is not None:
        not_in_one = "some of them keep a state"
    if not not_in_one:
        try:
            known = loaded.proven is not None
            loaded.direct = direct(loaded.model, shapes, loaded.vocab, calls, proven=known)
        except NotInOne as why:
            not_in_one = str(why)
    if not_in_one:
        loaded.layer_path = f"one by one: {not_in_one}"
    if loaded.proven is None:
        proven = Proven(calls=tuple(calls), not_in_one=not_in_one, rounding=rounding)
        shape = None if kept is None else kept.plain_of(loaded.model, proven, loaded.vocab)
        loaded.proven = replace(proven, plain=shape)


def device_of(config: EngineConfig) -> torch.device:
    """Where the model runs.

    Raises:
        InputError: CUDA was asked for and is not there.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: PyTorch sees no GPU here; use --device cpu")
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def dtype_of(config: EngineConfig, device: torch.device) -> torch.dtype:
    """The dtype that was asked for; auto: bf16 where the device multiplies it natively, or fp32."""
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else torch.float32


def _read(
    config: EngineConfig,
    dtype: torch.dtype,
    device: torch.device,
    group: RankGroup | None,
    kept: KeptStart | None,
) -> tuple[Any, VisionTower | None, StageGate | None]:
    """The language model, what sees where it has that, and the gate of the first of its stages."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as notices

    notices.disable_progress_bar()
    with read_by_library(config.model, what="config.json"):
        about = AutoConfig.from_pretrained(config.model, trust_remote_code=config.trust_remote_code)
    if getattr(about, "is_encoder_decoder", False):
        raise InputError(
            f"{config.model}: models of the family {about.model_type} have an encoder; "
            "only causal language models are served"
        )
    seeing = sees_images(about)
    if is_compressed(config.model):
        if seeing:
            raise InputError(
                f"{config.model}: models that see images are not read from compressed-tensors;"
                " give the model that it was made from, with --weights int8 or int4"
            )
        model = load_compressed(
            config.model, dtype, device=device, trust_remote_code=config.trust_remote_code
        )
        return model, None, None
    if getattr(about, "quantization_config", None) is not None:
        raise InputError(
            f"{config.model}: only compressed-tensors checkpoints are read quantised; "
            "give the unquantised model with --weights int8 or int4"
        )
    if seeing:
        return *read_apart(config, about, dtype, device), None
    if group is not None:
        directory, trusted = Path(config.model), config.trust_remote_code
        if config.pp == 1:
            model = load_share(
                about,
                directory,
                dtype,
                group.line,
                trust_remote_code=trusted,
                whole_experts=config.expert_parallel,
            )
            return model, None, None
        model, gate = load_stage(
            about,
            directory,
            dtype,
            group,
            trust_remote_code=trusted,
            whole_experts=config.expert_parallel,
        )
        return model, None, gate
    if kept is not None:
        mapped = kept.model(about, dtype, Path(config.model))
        if mapped is not None:
            return mapped, None, None
    layered = read_by_layer(config, about, dtype, device)
    if layered is not None:
        if kept is not None:
            kept.notice(layered)
        return layered, None, None
    with read_by_library(config.model):
        model = AutoModelForCausalLM.from_pretrained(
            config.model,
            config=about,
            dtype=dtype,
            attn_implementation="eager",
            trust_remote_code=config.trust_remote_code,
        )
    return model.to(device), None, None


def _tokenizer(config: EngineConfig) -> Any:
    """The tokenizer; None where the model comes without one: token ids then go in and out."""
    where = config.tokenizer or config.model
    if config.tokenizer is None and Path(where).is_dir() and not has_tokenizer(Path(where)):
        return None
    return kept_tokenizer(config)


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
