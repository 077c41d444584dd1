"""What has to be known of a server before the run, learnt from a few requests to it.

Which model it serves, how many tokens our words are, and whether it can be told to complete in
full length. A server that cannot be reached or refuses is one clear line, before any load.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import msgspec

from ridgeline.batching.load.stamps import RequestStamps
from ridgeline.errors import InputError
from ridgeline.serve.loadtest.client import Client, request_body
from ridgeline.serve.loadtest.prompts import SyntheticPrompts
from ridgeline.serve.loadtest.settings import LoadSettings

PROBE_TOKENS = 8
_FEW_WORDS, _MORE_WORDS = 16, 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How to ask this server."""

    model: str
    full_length: str | None
    """The field that makes completions as long as max_tokens; None: none works."""
    prompts: SyntheticPrompts
    notes: tuple[str, ...] = ()

    def length_fields(self, max_tokens: int) -> dict[str, object]:
        """What asks for a completion in full length."""
        if self.full_length == "ignore_eos":
            return {"ignore_eos": True}
        return {"min_tokens": max_tokens} if self.full_length == "min_tokens" else {}


def base_url(url: str) -> str:
    """The address of the API.

    >>> base_url("http://host:8000/"), base_url("http://host/v1")
    ('http://host:8000/v1', 'http://host/v1')
    """
    plain = url.rstrip("/")
    return plain if plain.endswith("/v1") else plain + "/v1"


async def probe(client: Client, settings: LoadSettings, prompts: SyntheticPrompts) -> Served:
    """Ask the server what has to be known of it.

    Raises:
        InputError: it cannot be reached, serves no model, or refuses a plain request.
    """
    model = settings.model or await _first_model(client)
    served = Served(model=model, full_length=None, prompts=prompts)
    first = None
    for field in ("ignore_eos", "min_tokens", None):
        tried = replace(served, full_length=field)
        first = await _ask(client, tried, _FEW_WORDS)
        if first.ok and (field is None or first.output_tokens in (PROBE_TOKENS, None)):
            served = tried
            break
    if first is None or not first.ok:
        said = first.error if first else "no answer"
        raise InputError(f"{client.base_url}: refused a request of {PROBE_TOKENS} tokens: {said}")
    notes = []
    if served.full_length is None:
        notes.append("the server takes neither ignore_eos nor min_tokens: answers may end early")
    if first.output_tokens is None:
        notes.append(
            "the server sends no usage in its stream: tokens are not counted, so there is no TPOT,"
            " ITL or token throughput"
        )
    elif prompts.token_ids is None:
        await _count_words(client, served, first)
    return replace(served, notes=tuple(notes))


async def _count_words(client: Client, served: Served, first: RequestStamps) -> None:
    """Two lengths give the tokens of a word and of what the server adds to every prompt."""
    second = await _ask(client, served, _MORE_WORDS)
    if not second.ok or not second.prompt_tokens or not first.prompt_tokens:
        return
    ratio = (second.prompt_tokens - first.prompt_tokens) / (_MORE_WORDS - _FEW_WORDS)
    if ratio > 0:
        served.prompts.tokens_per_word = ratio
        served.prompts.overhead_tokens = max(0.0, first.prompt_tokens - ratio * _FEW_WORDS)


async def _ask(client: Client, served: Served, pieces: int) -> RequestStamps:
    exchange = RequestStamps(planned=client.now())
    # Before the words are counted one word is taken for one token.
    prompt = served.prompts.make(pieces, own_id=-pieces)
    extra = served.length_fields(PROBE_TOKENS)
    await client.send(request_body(client.api, served.model, prompt, PROBE_TOKENS, extra), exchange)
    return exchange


async def _first_model(client: Client) -> str:
    address = f"{client.base_url}/models"
    try:
        async with client.session.get(address, timeout=aiohttp.ClientTimeout(total=30)) as response:
            content: Any = msgspec.json.decode(await response.read())
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        said = str(error) or type(error).__name__
        raise InputError(f"{address}: {said}; is the server up?") from None
    except msgspec.MsgspecError:
        raise InputError(f"{address}: not JSON; name the model with --model") from None
    try:
        return str(content["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise InputError(f"{address}: names no model; give --model") from None
