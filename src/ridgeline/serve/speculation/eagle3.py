"""The head of EAGLE-3 reads three of the model's layers and has an output embedding of its own.

    f_i      = fc [h_i of three layers]                    or, further on, its own y
    x_i      = [norm(e(t_(i+1))); norm(f_i)]
    y_i      = z + mlp(norm(z)),  z = f_i + attention(x_0 … x_i)
    q        = softmax(lm_head · norm(y_i))                guesses t_(i+2)

Li et al., "EAGLE-3", 2503.01840, section 3.1, as in `eagle/model/cnets.py` of SafeAILab/EAGLE. It
guesses the commonest tokens alone: of its guess k the token is k + d2t[k]. Run by
`eagle_drafter.py` as the first EAGLE is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ridgeline.serve.speculation.eagle import EagleAttention, EagleHead, EagleLayer
from ridgeline.serve.speculation.eagle_facts import EagleFacts

LAYERS = 3
"""How many of the model's layers are read."""
NEVER = -1e30
"""The logit of a token that the head cannot guess: finite, for what a grammar leaves may be such
tokens alone."""


class Eagle3Layer(EagleLayer):
    """One decoder layer whose attention reads embeddings and states side by side."""

    def __init__(self, facts: EagleFacts) -> None:
        super().__init__(facts)
        self.self_attn = EagleAttention(facts, 2 * facts.hidden)
        self.input_layernorm = nn.RMSNorm(facts.hidden, eps=facts.norm_eps)
        self.hidden_norm = nn.RMSNorm(facts.hidden, eps=facts.norm_eps)


class Eagle3Head(EagleHead):
    """The whole head of one model; what its layer reads is [embedding; state], 2 · hidden wide."""

    d2t: Tensor
    """[draft vocab] int64, what is added to a guess to have its token."""

    def build(self) -> None:
        """Make the parts of the head."""
        facts = self.facts
        assert facts.draft_vocab is not None
        self.fc = nn.Linear(LAYERS * facts.hidden, facts.hidden, bias=False)
        self.layers = nn.ModuleList([Eagle3Layer(facts)])
        self.norm = nn.RMSNorm(facts.hidden, eps=facts.norm_eps)
        self.lm_head = nn.Linear(facts.hidden, facts.draft_vocab, bias=False)
        self.register_buffer("d2t", torch.zeros(facts.draft_vocab, dtype=torch.int64))

    @property
    def layer(self) -> Eagle3Layer:
        """The head's only layer."""
        layer = self.layers[0]
        assert isinstance(layer, Eagle3Layer)
        return layer

    def features(self, states: Tensor) -> Tensor:
        """What is fused, [T, hidden], of the inputs of the layers read, [T, 3 · hidden]."""
        return self.fc(states)  # type: ignore[no-any-return]

    def logits(self, features: Tensor, output_embedding: nn.Module) -> Tensor:  # noqa: ARG002
        """The logits of the tokens guessed, [N, V] float32, from states guessed."""
        own = self.lm_head(self.norm(features)).float()
        tokens = torch.arange(len(self.d2t), device=own.device) + self.d2t
        return own.new_full((len(own), self.facts.vocab), NEVER).index_copy_(1, tokens, own)

    def fuse(self, embedded: Tensor, features: Tensor) -> Tensor:
        """Side by side, of the tokens drawn and the states before them, […, 2 · hidden]."""
        return torch.cat((embedded, features), dim=-1)

    def read(self, fused: Tensor) -> Tensor:
        """What attention reads, with both halves normed."""
        embedded, features = fused.split(self.facts.hidden, dim=-1)
        layer = self.layer
        return torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(features)), dim=-1)

    def past(self, fused: Tensor) -> Tensor:
        """What runs past attention, […, hidden]."""
        features = fused[..., self.facts.hidden :]
        normed: Tensor = self.layer.hidden_norm(features)
        return normed if self.facts.norm_before_residual else features
