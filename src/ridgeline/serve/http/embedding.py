"""What turns texts into vectors and asks the engine for them.

An input becomes one vector, the mean of its last hidden states, of length one. Every endpoint that
vectors answer asks here.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Sequence

from fastapi import Request

from ridgeline.serve.http.protocol.embeddings import Truncate, VectorFields
from ridgeline.serve.http.protocol.errors import refused
from ridgeline.serve.http.reply import record_of, service_of

Vector = tuple[float, ...]


async def tokens_of(
    request: Request, body: VectorFields, given: str | list[int], param: str
) -> tuple[int, ...]:
    """The tokens of a text, or token ids as they came, checked."""
    text = service_of(request).text
    if isinstance(given, str):
        return await text.prompt(given, special=body.add_special_tokens is not False, param=param)
    return text.check(given, param)


async def vectors_of(
    request: Request, body: VectorFields, prompts: Sequence[tuple[int, ...]]
) -> list[Vector]:
    """One vector for each prompt; what is remembered of the request is filled in."""
    service, record = service_of(request), record_of(request)
    record.model, record.user = service.name_of(body.model), body.user
    record.without_effect = body.without_effect
    adapter = service.adapter(body.model)
    prompts = [service.cut(prompt, body.truncate_prompt_tokens, None) for prompt in prompts]
    for prompt in prompts:
        service.room(prompt, None, "input")
    vectors = await service.ask(request, service.engine.embed(tuple(prompts), adapter))
    record.prompt_tokens = sum(len(prompt) for prompt in prompts)
    return list(vectors)


def cosine(one: Vector, other: Vector) -> float:
    """How much two vectors point the same way, between -1 and 1."""
    lengths = math.hypot(*one) * math.hypot(*other)
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / (lengths or 1.0)


def shortened(vector: Vector, count: int) -> Vector:
    """The first numbers of a vector, normalised again. Raises ApiError where it has fewer."""
    if count > len(vector):
        text = f"dimensions is {count}; this model's vectors have {len(vector)}"
        raise refused(text, "dimensions")
    kept = vector[:count]
    length = math.hypot(*kept) or 1.0
    return tuple(value / length for value in kept)


def in_base64(vector: Vector) -> str:
    """The float32 of a vector, little endian."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def cut(
    request: Request, prompt: tuple[int, ...], cut_at: Truncate, most: int | None
) -> tuple[int, ...]:
    """What is left of a text's tokens. Raises ApiError where it must not be cut."""
    longest = service_of(request).ready.max_length - 1
    if most is not None:
        longest = min(longest, most)
    if len(prompt) <= longest:
        return prompt
    if cut_at == "NONE":
        text = f"a text has {len(prompt)} tokens, of which {longest} are taken; ask to truncate it"
        raise refused(text, "truncate")
    return prompt[:longest] if cut_at == "END" else prompt[-longest:]
