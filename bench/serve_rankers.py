"""More rows of the table client x call x status: rankers, editors, and agents that read the web.

    ridgeline serve examples/models/library --port 8000 --chat-template FILE
    PYTHONPATH=OTHER python bench/serve_rankers.py http://127.0.0.1:8000

As in `serve_agents.py`: each in a folder of its own (`pip install --target OTHER`), rows of others
say that they are not installed. `mistralai` wants a model whose tokenizer has tokens for gaps.
"""

import asyncio
import sys
from typing import Any

from pydantic import BaseModel
from serve_clients import call, main

TEXTS = ["import os", "def main(): pass", "class A: pass"]
QUERY, FEW, SOME = "main", 8, 80


class Answer(BaseModel):
    """A schema that ends soon."""

    kind: bool


@call("langchain-nvidia-ai-endpoints", "NVIDIARerank, NVIDIAEmbeddings(truncate), NVIDIA.invoke")
def _(url: str, model: str) -> None:
    from langchain_core.documents import Document
    from langchain_nvidia_ai_endpoints import NVIDIA, NVIDIAEmbeddings, NVIDIARerank

    given: Any = {"base_url": url + "/v1", "model": model, "api_key": "x"}
    documents = [Document(page_content=text) for text in TEXTS]
    for cut in (None, "END"):
        ranker = NVIDIARerank(**given, top_n=2, truncate=cut)
        assert len(ranker.compress_documents(query=QUERY, documents=documents)) == 2
    vectors = NVIDIAEmbeddings(**given, truncate="END", dimensions=16)
    assert len(vectors.embed_query("hi")) == 16
    assert NVIDIA(**given, max_tokens=FEW).invoke("def main(")


@call("voyageai", "Client.rerank, .embed (output_dimension)")
def _(url: str, model: str) -> None:
    import voyageai

    client = voyageai.Client(api_key="x", base_url=url + "/v1", max_retries=0)
    ranked = client.rerank(QUERY, TEXTS, model=model, top_k=2).results
    assert [one.document for one in ranked if one.document in TEXTS][1:]
    vectors = client.embed(TEXTS, model=model, input_type="document", output_dimension=16)
    assert [len(one) for one in vectors.embeddings] == [16] * 3


@call("langchain-cohere", "CohereRerank, CohereEmbeddings")
def _(url: str, model: str) -> None:
    from langchain_cohere import CohereEmbeddings, CohereRerank

    given: Any = {"model": model, "cohere_api_key": "x", "base_url": url}
    assert len(CohereRerank(**given, top_n=2).rerank(TEXTS, QUERY)) == 2
    assert len(CohereEmbeddings(**given).embed_documents(TEXTS)) == 3


def llama_index(name: str, package: str, base: str) -> None:
    """A ranker of LlamaIndex, each of which is a package of its own."""

    @call(f"llama-index-postprocessor-{package}", f"{name}.postprocess_nodes")
    def _(url: str, model: str) -> None:
        import importlib

        from llama_index.core.schema import NodeWithScore, TextNode

        module = importlib.import_module(f"llama_index.postprocessor.{package.replace('-', '_')}")
        ranker = getattr(module, name)(base_url=url + base, model=model, api_key="x", top_n=2)
        nodes = [NodeWithScore(node=TextNode(text=text), score=0.1) for text in TEXTS]
        assert len(ranker.postprocess_nodes(nodes, query_str=QUERY)) == 2


llama_index("JinaRerank", "jinaai-rerank", "/v1")
llama_index("CohereRerank", "cohere-rerank", "")
llama_index("NVIDIARerank", "nvidia-rerank", "/v1")


@call("cohere-haystack", "CohereRanker.run")
def _(url: str, model: str) -> None:
    from haystack import Document
    from haystack.utils import Secret
    from haystack_integrations.components.rankers.cohere import CohereRanker

    key = Secret.from_token("x")
    ranker = CohereRanker(model=model, api_key=key, api_base_url=url, top_k=2)
    documents = [Document(content=text) for text in TEXTS]
    assert len(ranker.run(query=QUERY, documents=documents)["documents"]) == 2


@call("langchain-community", "VLLMOpenAI (n, stop, streamed), InfinityEmbeddings, InfinityRerank")
def _(url: str, model: str) -> None:
    from infinity_client import Client
    from langchain_community.document_compressors.infinity_rerank import InfinityRerank
    from langchain_community.embeddings import InfinityEmbeddings
    from langchain_community.llms import VLLMOpenAI
    from langchain_core.documents import Document

    given: Any = {"openai_api_key": "x", "openai_api_base": url + "/v1", "model_name": model}
    client = VLLMOpenAI(**given, max_tokens=FEW, n=2, model_kwargs={"stop": ["."]})
    assert len(client.generate(["def", "a"]).generations) == 2
    assert list(VLLMOpenAI(**given, max_tokens=FEW).stream("a"))
    assert len(InfinityEmbeddings(model=model, infinity_api_url=url + "/v1").embed_documents(TEXTS))
    ranker = InfinityRerank(client=Client(base_url=url + "/v1"), model=model, top_n=2)
    assert len(ranker.compress_documents([Document(page_content=one) for one in TEXTS], QUERY)) == 2


@call(
    "lightrag-hku", "openai_complete_if_cache, streamed; openai_embed; jina_rerank, cohere_rerank"
)
def _(url: str, model: str) -> None:
    from lightrag.llm.openai import openai_complete_if_cache, openai_embed
    from lightrag.rerank import cohere_rerank, jina_rerank

    given: Any = {"base_url": url + "/v1", "api_key": "x"}

    async def work() -> None:
        assert await openai_complete_if_cache(model, "hi", **given, max_tokens=FEW)
        stream = await openai_complete_if_cache(model, "hi", **given, max_tokens=FEW, stream=True)
        assert [piece async for piece in stream]
        assert len(await openai_embed.func(TEXTS, model=model, **given)) == 3
        for rank, path in ((jina_rerank, "/v1/rerank"), (cohere_rerank, "/v2/rerank")):
            found = await rank(QUERY, TEXTS, top_n=1, api_key="x", model=model, base_url=url + path)
            assert len(found) == 1

    asyncio.run(work())


@call("graphiti-core", "OpenAIGenericClient and OpenAIClient.generate_response; OpenAIEmbedder")
def _(url: str, model: str) -> None:
    from graphiti_core.embedder.openai import OpenAIEmbedder, OpenAIEmbedderConfig
    from graphiti_core.llm_client.config import LLMConfig
    from graphiti_core.llm_client.openai_client import OpenAIClient
    from graphiti_core.llm_client.openai_generic_client import OpenAIGenericClient
    from graphiti_core.prompts.models import Message

    base: Any = {"api_key": "x", "base_url": url + "/v1"}
    config = LLMConfig(**base, model=model, small_model=model, max_tokens=SOME)
    asked = [Message(role="system", content="s"), Message(role="user", content="u")]
    for client in (OpenAIGenericClient(config), OpenAIClient(config)):
        work = client.generate_response(asked, response_model=Answer, max_tokens=SOME)
        assert "kind" in asyncio.run(work)
    wanted = OpenAIEmbedderConfig(**base, embedding_model=model, embedding_dim=16)
    assert len(asyncio.run(OpenAIEmbedder(wanted).create("hi"))) == 16


@call("browser-use", "ChatOpenAI.ainvoke, with a schema")
def _(url: str, model: str) -> None:
    from browser_use.llm import ChatOpenAI
    from browser_use.llm.messages import SystemMessage, UserMessage

    given: Any = {"model": model, "base_url": url + "/v1", "api_key": "x"}
    client = ChatOpenAI(**given, max_completion_tokens=SOME)
    asked = [SystemMessage(content="s"), UserMessage(content="hi")]
    assert asyncio.run(client.ainvoke(asked)).completion
    assert asyncio.run(client.ainvoke(asked, output_format=Answer)).completion.kind in (True, False)


@call("kani", "Kani.chat_round_str, .chat_round_stream over OpenAIEngine")
def _(url: str, model: str) -> None:
    from kani import Kani
    from kani.engines.openai import OpenAIEngine

    async def work() -> None:
        given: Any = {"api_key": "x", "model": model, "api_base": url + "/v1"}
        talk = Kani(OpenAIEngine(**given, max_context_size=1000, max_tokens=FEW))
        assert await talk.chat_round_str("hi") is not None
        assert [piece async for piece in talk.chat_round_stream("hi")]

    asyncio.run(work())


@call("mistralai", "fim.complete, fim.stream, models.list")
def _(url: str, model: str) -> None:
    from mistralai.client import Mistral

    client = Mistral(api_key="x", server_url=url)
    asked: Any = {"model": model, "prompt": "def f(", "suffix": "return a", "max_tokens": FEW}
    assert client.fim.complete(**asked).choices
    assert list(client.fim.stream(**asked))
    assert client.models.list().data


if __name__ == "__main__":
    sys.exit(main())
