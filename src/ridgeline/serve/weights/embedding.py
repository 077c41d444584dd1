"""An embedding that reads its rows out of the panels of the head that it is tied to."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ridgeline.kernels.linear import PANEL
from ridgeline.serve.weights.linears import DenseLinear


class PanelEmbedding(nn.Module):
    """In place of an `nn.Embedding` or a subclass, whose forward still runs, over the rows needed.

    The subclass may scale its rows (Gemma); all that it must not do is look at ids by their number.
    """

    def __init__(self, inner: nn.Embedding, head: DenseLinear) -> None:
        super().__init__()
        self.embedding_dim = inner.embedding_dim
        self.num_embeddings = inner.num_embeddings
        self._panels = head.panels
        inner.padding_idx = None  # only gradients care, and it may lie beyond the rows needed
        inner.weight = nn.Parameter(  # on a device even where the model has no values yet
            inner.weight.new_empty(0, device=head.panels.device), requires_grad=False
        )
        self.inner = None if type(inner) is nn.Embedding else inner

    def forward(self, ids: Tensor) -> Tensor:
        """[...] to [..., embedding_dim]."""
        rows = self._panels[ids // PANEL, :, ids % PANEL]
        rows = rows.flatten(ids.ndim)[..., : self.embedding_dim]
        if self.inner is None:
            return rows
        numbers = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
        weight = {"weight": rows.reshape(-1, self.embedding_dim)}
        return torch.func.functional_call(self.inner, weight, (numbers,))
