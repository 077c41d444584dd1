"""Fields by the names of other servers that have a name here, and those that mean nothing here.

Cerebras says `min_completion_tokens` and `disable_reasoning`, SambaNova and Hugging Face
`do_sample`, NVIDIA's Dynamo puts its extras into `nvext`. A word that contradicts the field it
stands for stays where it is, to be refused by its name.
"""

from __future__ import annotations

from typing import Any

from ridgeline.serve.http.protocol.other_words import say

SEARCHES = frozenset({
    *("web_search_options", "search_parameters", "search_mode", "search_context_size"),
    *("search_domain_filter", "search_recency_filter", "search_after_date_filter"),
    *("search_before_date_filter", "search_language_filter", "search_settings"),
    *("last_updated_after_filter", "last_updated_before_filter", "num_search_results"),
    *("image_domain_filter", "image_format_filter", "include_domains", "exclude_domains"),
    *("disable_search", "enable_search_classifier", "safe_search", "return_images"),
    *("return_related_questions", "citation_options", "compound_custom", "country"),
})  # fmt: skip
"""Searches of OpenAI's, xAI's, Perplexity's and Groq's servers: there are none here, nor is the
model told of any."""


def as_vllms(given: Any) -> Any:
    """The body of a chat or a completion that names its fields as vLLM does.

    >>> as_vllms({"min_completion_tokens": 2, "do_sample": False})
    {'temperature': 0, 'min_tokens': 2}
    >>> as_vllms({"do_sample": False, "temperature": 0.7})  # which of them?
    {'do_sample': False, 'temperature': 0.7}
    >>> as_vllms({"nvext": {"top_k": 5, "greed_sampling": True}})
    {'top_k': 5, 'temperature': 0}
    """
    if not isinstance(given, dict):
        return given
    asked = dict(given)
    match asked.get("do_sample"):
        case True:
            del asked["do_sample"]
        case False:
            say(asked, "do_sample", temperature=0)
    match asked.get("disable_reasoning"):
        case True:
            say(asked, "disable_reasoning", reasoning_effort="none")
        case False:
            del asked["disable_reasoning"]
    if isinstance(asked.get("min_completion_tokens"), int):
        say(asked, "min_completion_tokens", min_tokens=asked["min_completion_tokens"])
    match asked.get("nvext"):
        case {**fields} if set(fields) <= _NVEXT:
            say(asked, "nvext", **_of_nvext(fields))
    return asked


_NVEXT = frozenset({
    *("ignore_eos", "top_k", "min_p", "repetition_penalty", "greed_sampling"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "max_thinking_tokens"),
})  # fmt: skip


def _of_nvext(fields: dict[Any, Any]) -> dict[str, Any]:
    """What NVIDIA's extras say."""
    said = {name: value for name, value in fields.items() if value is not None}
    if said.pop("greed_sampling", False):
        said["temperature"] = 0
    if "max_thinking_tokens" in said:
        said["thinking_token_budget"] = said.pop("max_thinking_tokens")
    return said


def as_completion(given: Any) -> Any:
    """The body of a completion whose bound or log-probabilities are asked for as of a chat.

    >>> as_completion({"max_completion_tokens": 8, "logprobs": True, "top_logprobs": 3})
    {'logprobs': 3, 'max_tokens': 8}
    >>> as_completion({"logprobs": True}), as_completion({"logprobs": False})
    ({'logprobs': 1}, {})
    """
    asked = as_vllms(given)
    if not isinstance(asked, dict):
        return asked
    most = asked.get("max_completion_tokens")
    if isinstance(most, int):
        say(asked, "max_completion_tokens", max_tokens=most)
    match asked.get("logprobs"):
        case True:
            wanted = asked.pop("top_logprobs", None)
            asked["logprobs"] = 1 if wanted is None else wanted
        case False if not asked.get("top_logprobs"):
            asked.pop("top_logprobs", None)
            del asked["logprobs"]
    return asked
