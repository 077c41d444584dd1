"""The folders of what a configuration names, fetched where it says hub ids.

Ranks read their share of files, layers are read one by one, and packed weights are kept under what
the files are. So an engine and its front have folders alone before them, whatever was asked for.
"""

from __future__ import annotations

from msgspec.structs import replace

from ridgeline.checkpoints.revision import local_folder
from ridgeline.serve.config import EngineConfig


def with_folders(
    config: EngineConfig, revision: str | None = None, *, weights: bool = True
) -> EngineConfig:
    """The configuration with folders of this machine in place of hub ids.

    Args:
        config: Of an engine.
        revision: A branch, tag or commit of the model; None: its main branch.
        weights: Whether an engine is to run here, and not a front alone.

    Raises:
        InputError: There is no such folder, and the hub has nothing of that name.
    """
    tokenizer, speculation = config.tokenizer, config.speculation
    if tokenizer is not None:
        tokenizer = local_folder(tokenizer, option="--tokenizer", weights=False)
    if weights and speculation is not None and speculation.kind == "draft":
        draft = local_folder(speculation.path, option="--speculative draft:")
        speculation = replace(speculation, path=draft)
    return replace(
        config,
        model=local_folder(config.model, revision, weights=weights),
        tokenizer=tokenizer,
        speculation=speculation,
    )
