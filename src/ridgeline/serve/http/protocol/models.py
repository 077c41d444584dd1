"""`/v1/models`, and LoRA adapters, which are models too."""

from __future__ import annotations

import msgspec

from ridgeline.serve.http.protocol.strict import PlainName, Strict


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The model, or an adapter of it."""

    id: str
    created: int
    max_model_len: int
    root: str
    parent: str | None = None
    owned_by: str = "ridgeline"
    object: str = "model"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All that a request may name as `model`."""

    data: list[ModelCard]
    object: str = "list"


class LoadAdapterRequest(Strict):
    """A directory with a PEFT LoRA adapter, on the server's machine."""

    lora_name: PlainName
    lora_path: PlainName


class UnloadAdapterRequest(Strict):
    """An adapter that no request uses."""

    lora_name: PlainName
