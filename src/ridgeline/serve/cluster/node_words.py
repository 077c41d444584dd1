"""What an engine's host and the front of its cluster say to each other, beside the engine's wire.

After the proofs of the key (`handshake.py`) the host sends one frame with an `EngineHello`, and
from then on both speak as an engine and its server do (`process/frames.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from ridgeline.checkpoints.digest import config_digest, tokenizer_digest, weights_digest
from ridgeline.errors import InputError
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import Ready

Role = Literal["prefill", "decode"]
PURPOSE = "engine"
"""What the cluster's key is proven for."""
WIRE = 1
"""Raise it when messages change their meaning: hosts of other versions are then refused."""
PORT = 8001
"""The port of an engine where the front is told none."""


class EngineIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be equal for one engine to go on with what another one has computed."""

    wire: int = WIRE
    config: str
    """Digests of the files of the model, and further down what was made of them."""
    tokenizer: str
    weights: str
    weight_format: str
    dtype: str
    kv_form: str
    block_size: int

    def difference(self, other: EngineIdentity) -> str | None:
        """What differs, in words; None: nothing does."""
        if self.wire != other.wire:
            return f"its version's wire is {other.wire}, not {self.wire}"
        files = {
            "config.json": (self.config, other.config),
            "tokenizer": (self.tokenizer, other.tokenizer),
            "weights": (self.weights, other.weights),
        }
        for what, (mine, its) in files.items():
            if mine != its:
                return f"it serves another model: the {what} beside it differs"
        options = {
            "--dtype": (self.dtype, other.dtype),
            "--weights": (self.weight_format, other.weight_format),
            "--kv-dtype": (self.kv_form, other.kv_form),
            "--block-size": (self.block_size, other.block_size),
        }
        for option, (wanted, its_own) in options.items():
            if wanted != its_own:
                return f"its {option} is {its_own}, not {wanted}"
        return None


class EngineHello(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame of an engine's host."""

    role: Role
    identity: EngineIdentity
    adapters: dict[str, str] = {}
    """Paths of the adapters, by name, that it has."""


def identity_of(config: EngineConfig, ready: Ready) -> EngineIdentity:
    """The identity of an engine that is up.

    Raises:
        InputError: Its model is no folder.
    """
    folder = Path(config.model)
    if not folder.is_dir():
        raise InputError(
            f"--role: {config.model} is no folder, so hosts cannot compare what they serve; fetch"
            f" it first: hf download {config.model} --local-dir FOLDER"
        )
    return EngineIdentity(
        config=config_digest(folder),
        tokenizer=tokenizer_digest(Path(config.tokenizer or config.model)),
        weights=weights_digest(folder),
        weight_format=config.weights,
        dtype=ready.dtype,
        kv_form=ready.kv_form,
        block_size=ready.ledger.block_size,
    )
