"""What travels in place of gradients, and how many bytes that is.

wire.py           the communication hook of one model; `SCHEMES`, by their names in recipes
bucket.py         gradients that travel together; what a scheme is, and what it remembers
counted.py        collectives that count what a rank sends
quantised.py      fp16, bf16, int8, sign
sparse.py         topk, randomk
powersgd.py       products of two thin matrices
"""
