"""Exercise of the lesson attention-backends: attention without a matrix of scores.

This is right, and writes 512 x 512 scores for each head. Take the keys a few at a time, and keep a
running maximum, a running sum and a running output for each query.
"""


def solve(q, k, v):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v
