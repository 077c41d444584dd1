"""How good a model is on a text, and how far from another: what `ridgeline evaluate` shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.files import disk_bytes
from ridgeline.compress.evaluate.loaded import (
    Loaded,
    check_directory,
    device_of,
    load,
    positions_of,
    tokenizer_of,
)
from ridgeline.compress.evaluate.quality import check_finite, measure
from ridgeline.compress.evaluate.text import read_text, text_windows
from ridgeline.compress.pruning.report import counted
from ridgeline.compress.watching.outliers import outliers, watched_channels
from ridgeline.errors import InputError
from ridgeline.hardware.environment import environment
from ridgeline.measure.device_name import device_name
from ridgeline.records.compression import Evaluation, KeptTokensSeen

PROBE = "def f(x):\n    return x  # ABC 1234, naïve café\n"
"""Text that two tokenizers must cut alike to be taken for one."""


def evaluate(
    model: Path,
    text: Path,
    *,
    reference: Path | None = None,
    context: int | None = None,
    stride: int | None = None,
    device: str = "auto",
    kv_recent: int | None = None,
    kv_first: int = 4,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Evaluation:
    """How well a model predicts, its size, zeros and outliers, and its distance from a reference.

    Args:
        model: WeightReader of a causal LM, dense or compressed-tensors, with its tokenizer.
        text: Held out from training and calibration.
        reference: WeightReader of the model that it was made from.
        context: Tokens of a window; None: 2,048 or the model's positions.
        stride: Tokens from window to window; None: `context`.
        device: auto, cpu or cuda.
        kv_recent: Each token sees so many last ones and the `kv_first` alone; the reference,
            without one the model itself, sees all. None: all are seen.
        kv_first: Tokens at the beginning that are seen beside `kv_recent`.
        on_progress: Told what is under way.

    Raises:
        InputError: A directory or text cannot be used, or the two models do not fit each other.
    """
    device_of(device)
    seen = None if kv_recent is None else KeptTokensSeen(recent=kv_recent, first=kv_first)
    if seen is not None and reference is None:
        reference = model
    for option, directory in (("MODEL", model), ("--reference", reference)):
        if directory is not None:
            check_directory(option, directory)
    judged = text_windows(
        read_text("--text", text),
        str(text),
        tokenizer_of("MODEL", model),
        context=context,
        stride=stride,
        positions=positions_of("MODEL", model),
    )
    on_progress(f"loading {model}")
    loaded = load("MODEL", model, device)
    beside = None
    if reference is not None:
        on_progress(f"loading {reference}")
        beside = load("--reference", reference, device)
        check_alike(loaded, beside)
    narrowed = nullcontext() if seen is None else sees_only(loaded.model, seen)
    with narrowed, watched_channels(loaded.model) as largest:
        found = measure(
            loaded.model,
            judged.tokens,
            judged.windows,
            beside.model if beside else None,
            on_progress,
        )
    quality = found.scores.quality(judged.protocol)
    check_finite(f"MODEL {model}", quality)
    return Evaluation(
        model=str(model),
        reference=None if reference is None else str(reference),
        computed_with=loaded.computed_with,
        protocol=judged.protocol,
        seen=seen,
        quality=quality,
        reference_quality=found.reference.quality(judged.protocol) if beside else None,
        divergence=found.distances.divergence() if beside else None,
        disk_bytes=disk_bytes(model),
        reference_disk_bytes=None if reference is None else disk_bytes(reference),
        zeros=counted(model),
        reference_zeros=None if reference is None else counted(reference),
        outliers=outliers(largest),
        environment=environment(device=device_name(device_of(device))),
    )


def check_alike(loaded: Loaded, reference: Loaded) -> None:
    """Raise `InputError` unless both models speak of the same tokens."""
    if loaded.vocab != reference.vocab:
        raise InputError(
            f"--reference {reference.directory}: its vocabulary has {reference.vocab} words, that"
            f" of {loaded.directory} {loaded.vocab}; give the model that it was made from"
        )
    own = tokenizer_of("MODEL", loaded.directory)
    theirs = tokenizer_of("--reference", reference.directory)
    if theirs(PROBE).input_ids != own(PROBE).input_ids:
        raise InputError(
            f"--reference {reference.directory}: its tokenizer cuts text differently from that of"
            f" {loaded.directory}; give the model that it was made from"
        )


NAME = "ridgeline_first_and_recent"
"""The name under which transformers knows the attention."""


@contextmanager
def sees_only(model: nn.Module, seen: KeptTokensSeen) -> Iterator[None]:
    """Within, the model sees first and recent tokens only, to judge what that costs.

    The mask is that of `ridgeline serve --kv-recent`, over dense attention in transformers: each
    token sees the first tokens of its window of text and a number of last ones, itself among them.
    Layers with a window of their own see the smaller of the two, and no first tokens.

    Raises:
        InputError: The model's attention cannot be exchanged, or does not reach the mask.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface

    calls = 0

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **given: Any
    ) -> tuple[Tensor, None]:
        nonlocal calls
        calls += 1
        given.pop("attention_mask", None)
        window = given.pop("sliding_window", None)
        mask = first_and_recent(query.shape[2], seen, window, query.device)
        return sdpa_attention_forward(module, query, key, value, mask, **given)

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)
    before = model.config._attn_implementation  # type: ignore[union-attr]
    try:
        model.set_attn_implementation(NAME)  # type: ignore[operator]
        with torch.inference_mode():
            model(torch.zeros(1, 2, dtype=torch.int64, device=model.device), use_cache=False)
        if not calls:
            raise InputError("--kv-recent: this model has attention of its own, out of reach")
        yield
    finally:
        model.set_attn_implementation(before)  # type: ignore[operator]


def first_and_recent(
    tokens: int, seen: KeptTokensSeen, window: int | None, device: torch.device
) -> Tensor:
    """[1, 1, T, T]: which token (row) sees which (column)."""
    at = torch.arange(tokens, device=device)
    behind = at[:, None] - at
    recent = behind < min(seen.recent, window or seen.recent)
    if window is None:
        recent |= at < seen.first
    return ((behind >= 0) & recent)[None, None]
