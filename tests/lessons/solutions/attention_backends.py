"""An answer to the exercise of the lesson attention-backends."""

import torch


def solve(q, k, v):
    q = q / q.shape[-1] ** 0.5
    largest = torch.full(q.shape[:-1], float("-inf"))
    total = torch.zeros(q.shape[:-1])
    out = torch.zeros_like(q)
    for keys, values in zip(k.split(64, -2), v.split(64, -2), strict=True):
        scores = q @ keys.transpose(-1, -2)
        top = torch.maximum(largest, scores.amax(-1))
        powers = (scores - top[..., None]).exp()
        shrink = (largest - top).exp()
        total = total * shrink + powers.sum(-1)
        out = out * shrink[..., None] + powers @ values
        largest = top
    return out / total[..., None]
