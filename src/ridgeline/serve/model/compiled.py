"""Decoding through `torch.compile` on a CPU, in the fixed shapes of `graphs.py`.

Inductor fuses what lies between our own operators, which it takes as they are. A shape is compiled
once, when the engine starts; nothing may fall back to eager in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ridgeline.kernels.paged_attention import LayerCache
from ridgeline.serve.model.batch import Batch
from ridgeline.serve.model.graphs import DecodeGraphs
from ridgeline.serve.model.loaded import Computed, LoadedModel

_OPTIONS = {"cpp.threads": 1}
"""What Inductor fuses is a row per sequence: starting threads for it costs more than it takes."""


class CompiledDecode(DecodeGraphs[Computed]):
    """`DecodeGraphs` over a compiled forward.

    Padding has a context of one token (whatever lies in block 0) where graphs have none: the C++
    kernel refuses a query without a context.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        caches: list[LayerCache],
        sizes: Sequence[int],
        *,
        max_context: int,
    ) -> None:
        super().__init__(
            _compiled(loaded, len(sizes)),
            caches,
            sizes,
            loaded.device,
            max_context=max_context,
            capture=False,
        )

    def _clear(self, first: int) -> None:
        super()._clear(first)
        self._inputs.packed.context_lengths[first:].fill_(1)


def _compiled(loaded: LoadedModel, num_sizes: int) -> Callable[[Batch, list[LayerCache]], Computed]:
    limit = torch._dynamo.config.recompile_limit
    torch._dynamo.config.recompile_limit = max(limit, num_sizes + 1)
    found: Callable[[Batch, list[LayerCache]], Computed] = torch.compile(
        loaded.forward, dynamic=False, fullgraph=True, options=dict(_OPTIONS)
    )
    return found
