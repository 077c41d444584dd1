"""More rows of the table client x call x status: toolkits that wrap the clients of others.

    ridgeline serve examples/models/library --port 8000 --chat-template FILE
    PYTHONPATH=OTHER python bench/serve_toolkits.py http://127.0.0.1:8000

As in `serve_agents.py`: each in a folder of its own (`pip install --target OTHER`), rows of others
say that they are not installed. The template has to show tools. Toolkits that count tokens with
tiktoken (CAMEL, langroid) want its files, which it would download, under `TIKTOKEN_CACHE_DIR`.
"""

import asyncio
import os
import sys
from typing import Any, Literal

from pydantic import BaseModel
from serve_clients import BOOLEANS, MESSAGES, TOOL, call, main

NAMED: Any = {"title": "A", "description": "b", **BOOLEANS}
FEW, SOME = 8, 60


class Answer(BaseModel):
    """A schema that ends soon."""

    kind: bool


def weather(days: int) -> str:
    """Tell the weather of some days.

    Args:
        days: How many.
    """
    return str(days)


@call("langchain-anthropic", "ChatAnthropic.invoke, .stream, .bind_tools(any), structured two ways")
def _(url: str, model: str) -> None:
    from langchain_anthropic import ChatAnthropic

    given: Any = {"model": model, "base_url": url, "api_key": "x", "max_tokens": SOME}
    client = ChatAnthropic(**given, max_retries=0)
    marked = {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}
    assert client.invoke([("system", [marked]), ("human", "hi")])
    assert list(client.stream("hi"))
    tool = {"name": "f", "description": "d", "input_schema": BOOLEANS}
    assert client.bind_tools([tool], tool_choice="any").invoke("hi").tool_calls
    for how in ("function_calling", "json_schema"):
        assert "kind" in client.with_structured_output(NAMED, method=how).invoke("hi")


@call("langchain-mistralai", "ChatMistralAI.invoke, .stream, .bind_tools(any)")
def _(url: str, model: str) -> None:
    from langchain_mistralai import ChatMistralAI

    given: Any = {"model_name": model, "base_url": url + "/v1", "api_key": "x", "max_tokens": 90}
    client = ChatMistralAI(**given, max_retries=1, random_seed=1)
    assert client.invoke("hi").content is not None
    assert list(client.stream("hi"))
    tool = {"type": "function", "function": {"name": "f", "parameters": BOOLEANS}}
    assert client.bind_tools([tool], tool_choice="any").invoke("hi").tool_calls


@call("agno", "Agent.run over OpenAILike, VLLM, OpenAIResponses: plain, streamed, a tool, a schema")
def _(url: str, model: str) -> None:
    from agno.agent import Agent
    from agno.models.openai import OpenAIResponses
    from agno.models.openai.like import OpenAILike
    from agno.models.vllm import VLLM

    given: Any = {"id": model, "base_url": url + "/v1", "api_key": "x"}
    made: Any = [(kind, {"max_tokens": SOME}) for kind in (OpenAILike, VLLM)]
    for kind, more in (*made, (OpenAIResponses, {"max_output_tokens": 16})):
        agents: Any = ({}, {"tools": [weather]}, {"output_schema": Answer})
        for asked in agents if "max_tokens" in more else agents[:1]:
            run = Agent(model=kind(**given, **more), telemetry=False, **asked).run("hi")
            assert run.status.value.lower() != "error", run.content
        assert list(Agent(model=kind(**given, **more), telemetry=False).run("hi", stream=True))


@call("strands-agents", "Agent over OpenAIModel and AnthropicModel: plain, a tool, a schema")
def _(url: str, model: str) -> None:
    from strands import Agent, tool
    from strands.models.anthropic import AnthropicModel
    from strands.models.openai import OpenAIModel
    from strands.types.exceptions import MaxTokensReachedException

    room: Any = {"max_tokens": 300}
    v1 = {"api_key": "x", "base_url": url + "/v1"}
    plain = {"api_key": "x", "base_url": url}
    for one in (
        OpenAIModel(client_args=v1, model_id=model, params=room),
        AnthropicModel(client_args=plain, model_id=model, **room),
    ):
        for tools in ([], [tool(weather)]):
            try:
                Agent(model=one, callback_handler=None, tools=tools)("hi")
            except MaxTokensReachedException:  # the model goes on and on
                continue
        assert Agent(model=one, callback_handler=None).structured_output(Answer, "hi")


@call("camel-ai", "ChatAgent.step, as compatible and as vLLM: plain, a tool, response_format")
def _(url: str, model: str) -> None:
    from camel.agents import ChatAgent
    from camel.models import ModelFactory
    from camel.types import ModelPlatformType as Platform

    for platform in (Platform.OPENAI_COMPATIBLE_MODEL, Platform.VLLM):
        given: Any = {"model_platform": platform, "model_type": model, "api_key": "x"}
        room = {"max_tokens": SOME}
        made = ModelFactory.create(**given, url=url + "/v1", model_config_dict=room)
        assert ChatAgent("be brief", model=made).step("hi").msgs
        assert ChatAgent("be brief", model=made, tools=[weather]).step("hi").msgs
        assert ChatAgent("be brief", model=made).step("hi", response_format=Answer).msgs


@call("mirascope", "llm.Model over completions and over responses: call, stream, tools, format")
def _(url: str, model: str) -> None:
    from mirascope import llm

    tools = [llm.tool(weather)]
    for name in (f"openai/{model}:completions", f"openai/{model}:responses"):
        llm.register_provider("openai", scope=name, base_url=url + "/v1", api_key="x")
        client = llm.Model(name, max_tokens=SOME)
        assert client.call("hi")
        assert list(client.stream("hi").text_stream())
        assert client.call("hi", tools=tools)
        assert client.call("hi", format=Answer).parse() is not None


@call("magentic", "prompt with str, bool, a model, StreamedStr")
def _(url: str, model: str) -> None:
    from magentic import OpenaiChatModel, StreamedStr, prompt

    client = OpenaiChatModel(model, base_url=url + "/v1", api_key="x", max_tokens=SOME)
    for kind in (str, bool, Answer, StreamedStr):

        def asked() -> Any: ...

        asked.__annotations__["return"] = kind
        found = prompt("hi", model=client)(asked)()
        assert isinstance(found, kind), kind
        if isinstance(found, StreamedStr):
            assert list(found)


@call("chatlas", "chat, stream, chat_structured, a tool; completions and responses")
def _(url: str, model: str) -> None:
    import chatlas

    for kind in (chatlas.ChatOpenAI, chatlas.ChatOpenAICompletions):
        client = kind(base_url=url + "/v1", model=model, api_key="x")
        client.set_model_params(max_tokens=SOME)
        client.chat("hi", echo="none", stream=False)
        client.set_turns([])
        assert list(client.stream("hi"))
        client.set_turns([])
        assert client.chat_structured("hi", data_model=Answer)
        client.set_turns([])
        client.register_tool(weather)
        client.chat("hi", echo="none")


@call("outlines", "from_openai, from_vllm, from_sglang: text, schema, choice, regex")
def _(url: str, model: str) -> None:
    import openai
    import outlines

    client = openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0)
    plain = outlines.from_openai(client, model)
    assert list(plain.stream("hi", max_tokens=FEW))
    assert Answer.model_validate_json(plain("hi", Answer, max_tokens=SOME))
    digits = outlines.types.Regex("[0-9]{3}")
    for kind in (outlines.from_vllm, outlines.from_sglang):
        made = kind(client, model)
        assert Answer.model_validate_json(made("hi", Answer, max_tokens=SOME))
        assert made("hi", Literal["a", "b"], max_tokens=FEW) in ("a", "b")
        assert made("hi", digits, max_tokens=FEW).isdigit()


@call("deepeval", "LocalModel.generate")
def _(url: str, model: str) -> None:
    os.environ["DEEPEVAL_TELEMETRY_OPT_OUT"] = "YES"
    from deepeval.models import LocalModel

    given: Any = {"model": model, "base_url": url + "/v1", "api_key": "x"}
    assert LocalModel(**given, generation_kwargs={"max_tokens": FEW}).generate("hi")


@call("langroid", "OpenAIGPT.chat and ChatAgent.llm_response as vllm/")
def _(url: str, model: str) -> None:
    os.environ["OPENAI_API_KEY"] = "x"
    import langroid
    from langroid.language_models import OpenAIGPT, OpenAIGPTConfig

    given: Any = {"chat_model": f"vllm/{model}", "api_base": url + "/v1"}
    config = OpenAIGPTConfig(**given, max_output_tokens=30, chat_context_length=1024)
    assert OpenAIGPT(config).chat("hi", FEW).message is not None
    assert langroid.ChatAgent(langroid.ChatAgentConfig(llm=config)).llm_response("hi")


@call("aisuite", "Client.chat.completions.create")
def _(url: str, model: str) -> None:
    import aisuite

    client = aisuite.Client({"openai": {"base_url": url + "/v1", "api_key": "x"}})
    asked: Any = {"model": f"openai:{model}", "messages": MESSAGES, "max_tokens": FEW}
    assert client.chat.completions.create(**asked).choices


@call("any-llm-sdk", "completion, streamed, tools as vllm, openai, llamacpp; responses, embedding")
def _(url: str, model: str) -> None:
    import any_llm

    where: Any = {"api_key": "x", "api_base": url + "/v1"}
    for provider in ("vllm", "openai", "llamacpp"):
        asked: Any = {"model": f"{provider}:{model}", "messages": MESSAGES, **where}
        assert any_llm.completion(**asked, max_tokens=FEW).choices
        assert list(any_llm.completion(**asked, stream=True, max_tokens=FEW))
        forced: Any = {"tools": [TOOL], "tool_choice": "required", "max_tokens": SOME}
        assert any_llm.completion(**asked, **forced).choices
    assert any_llm.responses(f"openai:{model}", input_data="hi", max_output_tokens=16, **where)
    assert any_llm.embedding(f"openai:{model}", inputs="a", **where)
    assert any_llm.list_models("vllm", **where)


@call("langfuse", "langfuse.openai: chat with name and metadata, streamed")
def _(url: str, model: str) -> None:
    os.environ |= {"LANGFUSE_PUBLIC_KEY": "a", "LANGFUSE_SECRET_KEY": "b"}
    os.environ["LANGFUSE_TRACING_ENABLED"] = "false"
    from langfuse.openai import openai

    client = openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0)
    asked: Any = {"model": model, "messages": MESSAGES, "max_tokens": FEW}
    assert client.chat.completions.create(**asked, name="n", metadata={"a": "b"}).choices
    assert list(client.chat.completions.create(**asked, stream=True))


@call("mem0ai", "VllmLLM.generate_response: plain, tools, json_object; OpenAIEmbedding.embed")
def _(url: str, model: str) -> None:
    from mem0.configs.embeddings.base import BaseEmbedderConfig
    from mem0.configs.llms.vllm import VllmConfig
    from mem0.embeddings.openai import OpenAIEmbedding
    from mem0.llms.vllm import VllmLLM

    given: Any = {"model": model, "api_key": "x"}
    client = VllmLLM(VllmConfig(**given, vllm_base_url=url + "/v1", max_tokens=SOME))
    shapes: Any = ({}, {"tools": [TOOL]}, {"response_format": {"type": "json_object"}})
    for more in shapes:
        assert client.generate_response(MESSAGES, **more) is not None
    about = BaseEmbedderConfig(**given, openai_base_url=url + "/v1", embedding_dims=128)
    assert OpenAIEmbedding(about).embed("hi")


@call("portkey-ai", "chat.completions.create, streamed")
def _(url: str, model: str) -> None:
    from portkey_ai import Portkey

    client = Portkey(base_url=url + "/v1", api_key="x")
    asked: Any = {"model": model, "messages": MESSAGES, "max_tokens": FEW}
    assert client.chat.completions.create(**asked).choices
    assert list(client.chat.completions.create(**asked, stream=True))


@call("pipecat-ai", "OpenAILLMService.run_inference")
def _(url: str, model: str) -> None:
    from pipecat.processors.aggregators.llm_context import LLMContext
    from pipecat.services.openai.llm import OpenAILLMService

    async def run() -> None:
        asked = OpenAILLMService.Settings(model=model, max_completion_tokens=FEW)
        client = OpenAILLMService(api_key="x", base_url=url + "/v1", settings=asked)
        assert await client.run_inference(LLMContext(messages=MESSAGES)) is not None

    asyncio.run(run())


@call("baml-py", "a function over openai-generic, anthropic, openai-responses")
def _(url: str, model: str) -> None:
    from baml_py import BamlRuntime

    kinds = {
        "openai-generic": f'base_url "{url}/v1"\n max_tokens {FEW}',
        "anthropic": f'base_url "{url}"\n max_tokens {FEW}',
        "openai-responses": f'base_url "{url}/v1"\n max_output_tokens 16',
    }
    for kind, more in kinds.items():
        client = f'client<llm> C {{\n provider {kind}\n options {{\n api_key "x"\n'
        client += f' model "{model}"\n {more}\n }}\n}}\n'
        text = '{{ _.role("user") }} say {{ a }}'
        function = 'function F(a: string) -> string {\n client C\n prompt #"' + text + '"#\n}\n'
        runtime = BamlRuntime.from_files("/", {"a.baml": client + function}, {})
        context = runtime.create_context_manager()
        found = runtime.call_function_sync("F", {"a": "b"}, context, None, None, [], {}, None)
        assert found.is_ok(), str(found)


@call("google-adk", "LlmAgent over LiteLlm(hosted_vllm/)")
def _(url: str, model: str) -> None:
    from google.adk.agents import LlmAgent
    from google.adk.models.lite_llm import LiteLlm
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    where: Any = {"api_base": url + "/v1", "api_key": "x", "max_tokens": FEW}
    agent = LlmAgent(name="a", model=LiteLlm(f"hosted_vllm/{model}", **where), instruction="hi")
    runner = InMemoryRunner(agent=agent, app_name="x")

    async def run() -> None:
        session = await runner.session_service.create_session(app_name="x", user_id="u")
        asked = types.Content(role="user", parts=[types.Part(text="hi")])
        given: Any = {"user_id": "u", "session_id": session.id, "new_message": asked}
        events = [one async for one in runner.run_async(**given)]
        assert any(one.content and one.content.parts for one in events)

    asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
