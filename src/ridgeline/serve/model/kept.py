"""What a start leaves for the next one of the same model on the same machine.

Reading, rounding and packing the weights, the proof that blocks compute what the model computes,
and the measurement of what a step needs take the most of a start, and give the same each time. So
they are kept in one entry of `packed/`, under everything that they depend on. Where a decoder built
without transformers gives the same logits (`plain.py`), the next start does not import it.

Ranks of a model that is cut have an entry each, of their share. They compute the proofs together,
so these count as known where every rank knows them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.skeleton import empty_model, read_generation_config
from ridgeline.errors import InputError, in_words
from ridgeline.models.folder import read_by_library
from ridgeline.serve.cache import KvShape
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.model import trial
from ridgeline.serve.model.attention import Attended
from ridgeline.serve.model.plain import PlainDecoder, PlainShape, plain_shape
from ridgeline.serve.packed import entries
from ridgeline.serve.packed.file import EntryDamaged, read_entry, total_bytes, write_entry
from ridgeline.serve.packed.key import form_of_weights, key_of, path_of
from ridgeline.serve.packed.layers import PackedModel, put_together, take_apart
from ridgeline.serve.tensor_parallel.group import RankGroup
from ridgeline.serve.weights import is_compressed
from ridgeline.serve.weights.choice import kernel_for, settle


class Proven(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was found out about a model by computing with it."""

    calls: tuple[Attended, ...]
    not_in_one: str
    """Why its layers are computed one by one; empty: they are one operator."""
    activation_bytes: dict[int, int] = {}
    """The peak of a step beside what is kept, by its tokens."""
    rounding: float | None = None
    """What rounding activations does to logits, over their spread; None: they are not rounded."""
    plain: PlainShape | None = None
    """What is built instead of transformers' model; None: that is needed."""

    @property
    def shapes(self) -> list[KvShape]:
        """Key-value heads and head size of each layer that attends."""
        return [call.shape for call in self.calls]


class _Content(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an entry holds beside tensors."""

    packed: PackedModel | None
    """The packed layers; None where the checkpoint is read as it is."""
    proven: Proven


class KeptStart:
    """One model's entry, there or still to be written."""

    def __init__(self, config: EngineConfig, key: str) -> None:
        """Look for the entry of that key."""
        self._key = key
        self._path = path_of(config, key)
        self._directory = Path(config.model)
        self._content: _Content | None = None
        self._tensors: list[Tensor] = []
        self._to_keep: tuple[PackedModel, list[Tensor]] | None = None
        self.note = ""
        """For the row of the weights in the ledger."""
        self._read()

    @property
    def is_there(self) -> bool:
        """Whether an earlier start left it."""
        return self._content is not None

    @property
    def has_weights(self) -> bool:
        """Whether an earlier start left weights, too; they are read as they are otherwise."""
        return self._content is not None and self._content.packed is not None

    @property
    def proven(self) -> Proven | None:
        """What the entry says was found out; None: there is none."""
        return None if self._content is None else self._content.proven

    def plain_model(self, dtype: torch.dtype, directory: Path) -> PlainDecoder | None:
        """The model over the mapped entry without transformers; None: it needs the library."""
        proven = self.proven
        if proven is None or proven.plain is None:
            return None
        model = PlainDecoder(proven.plain, proven.calls, dtype, directory)
        return model if self.fills(model) else None

    def model(self, about: Any, dtype: torch.dtype, directory: Path) -> nn.Module | None:
        """Transformers' model over the mapped entry; None: its checkpoint is to be read."""
        if not self.has_weights:
            return None
        with read_by_library(directory):
            model: nn.Module = empty_model(about, dtype=dtype, attention="eager")
        if not self.fills(model):
            return None
        read_generation_config(model, directory)
        return model

    def plain_of(self, model: nn.Module, proven: Proven, vocab: int) -> PlainShape | None:
        """What the next start may build instead of a model whose modules are fused.

        None: its parts are others than a Llama's, or what is built gives other logits.
        """
        shape = plain_shape(model, proven.shapes, proven.calls)
        if shape is None or self._to_keep is None:
            return None
        packed, tensors = self._to_keep
        plain = PlainDecoder(shape, proven.calls, model.dtype, self._directory)  # type: ignore[arg-type]
        try:
            put_together(plain, packed, tensors)
        except EntryDamaged:  # a Llama with something of its own
            return None
        shapes = proven.shapes
        own = trial.logits_over_blocks(model, shapes, vocab)
        forward = trial.own_forward(plain.eval())
        return None if trial.refusal(plain, shapes, vocab, own, forward) else shape

    def notice(self, model: nn.Module) -> None:
        """Note what was read, before anything else is changed about the model."""
        if self._content is not None:
            return
        packed, tensors = take_apart(model)
        if all(one.numel() for one in tensors):
            self._to_keep = packed, tensors

    def keep(self, proven: Proven) -> None:
        """Write the entry, where there is none yet."""
        if self._to_keep is None:
            return
        packed: PackedModel | None
        (packed, tensors), self._to_keep = self._to_keep, None
        if not packed.layers and proven.plain is None:  # the library reads the checkpoint as fast
            packed, tensors = None, []
        why = entries.no_room_for(total_bytes(tensors))
        if why is None:
            content = msgspec.msgpack.encode(_Content(packed=packed, proven=proven))
            try:
                write_entry(self._path, self._key, content, tensors)
                entries.make_room()
            except OSError as error:
                why = f"{self._path}: {error.strerror or error}"
        if why is not None:
            _say(f"packed weights are not kept: {why}")

    def fills(self, model: nn.Module) -> bool:
        """Give a model without weights those of the entry, which has them; whether they fit."""
        tensors, self._tensors = self._tensors, []
        assert self._content is not None
        assert self._content.packed is not None
        try:
            put_together(model, self._content.packed, tensors)
        except EntryDamaged as why:
            self._forget(why)
            return False
        self.note = "mapped from the cache"
        return True

    def _read(self) -> None:
        try:
            content, self._tensors = read_entry(self._path, self._key)
            self._content = msgspec.msgpack.decode(content, type=_Content)
        except (FileNotFoundError, NotADirectoryError):
            return
        except msgspec.MsgspecError:
            self._forget(EntryDamaged("its content is of another layout"))
        except (EntryDamaged, OSError) as why:
            self._forget(why)
        else:
            entries.touch(self._path)

    def _forget(self, why: Exception) -> None:
        self._content, self._tensors = None, []
        _say(f"packed weights are made anew: {self._path}: {in_words(why)}")


def kept_start(
    config: EngineConfig, dtype: torch.dtype, device: torch.device, group: RankGroup | None = None
) -> KeptStart | None:
    """The entry of a model, or of a rank's share of it; None: for this one there is none.

    A CPU, a folder of safetensors whose layers are packed here: models on a GPU, with code of their
    own or compressed before are read as ever.
    """
    if group is None:
        return _kept_start(config, dtype, device, 0)
    if group.rank:  # the first one measures whose kernels multiply, for all
        group.least(0)
    found = _kept_start(config, dtype, device, group.rank)
    if not group.rank:
        group.least(0)
    return found


def _kept_start(
    config: EngineConfig, dtype: torch.dtype, device: torch.device, rank: int
) -> KeptStart | None:
    directory = Path(config.model)
    if not config.packed_cache or device.type != "cpu":
        return None
    if config.trust_remote_code or not directory.is_dir() or is_compressed(config.model):
        return None
    try:
        key = key_of(config, dtype, CheckpointFiles(directory).files, rank)
    except (InputError, OSError):  # whoever reads the checkpoint says what is wrong
        return None
    if key is None:
        return None
    found = KeptStart(config, key)
    form = form_of_weights(config, dtype)
    if found.is_there or not kernel_for(form).provisional:
        return found
    settle(form)  # weights are packed anyway: by a choice that lasts
    settled = key_of(config, dtype, CheckpointFiles(directory).files, rank)
    return found if settled is None or settled == key else KeptStart(config, settled)


def _say(line: str) -> None:
    sys.stderr.write(f"ridgeline: {line}\n")
