"""A chat template at work: a program that came with the model, given words by strangers.

It runs on a thread of its own, which is stopped when its time is over, and what it has written is
measured. The sandbox it runs in is transformers'; names that the sandbox or the conversation give
it (`reserved`) are not a client's to set.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

from ridgeline.serve.http.protocol.errors import refused

LONGEST_SECONDS = 10.0
"""A long conversation takes some milliseconds."""
LONGEST_CHARACTERS = 1 << 26
"""Of what is written."""
_GIVEN = frozenset(
    {
        "self", "cls", "conversations", "messages", "raise_exception", "strftime_now",
        "loop", "caller", "super", "varargs", "kwargs",
    }
)  # fmt: skip
"""By transformers or by jinja's own statements, beside their tables of names."""


class _TimeOver(Exception):
    """Raised in a template's thread from outside."""


@functools.lru_cache(maxsize=4)
def reserved(tokenizer: Any) -> frozenset[str]:
    """Names that mean something already: what a template is given, and what renders it."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    rendering = inspect.signature(tokenizer.apply_chat_template).parameters
    special = getattr(tokenizer, "special_tokens_map", {})
    return _GIVEN.union(rendering, special, ImmutableSandboxedEnvironment().globals)


async def in_time(render: Callable[[], str], seconds: float = LONGEST_SECONDS) -> str:
    """What a template writes.

    Raises:
        ApiError: 400, for it takes too long or writes too much.
        Exception: Whatever the template raises.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str] = loop.create_future()

    def tell(text: str | None, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(text or "")

    def work() -> None:
        text, error = None, None
        try:
            text = render()
        except Exception as raised:  # templates are programs: they raise what they like
            error = raised
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(tell, text, error)

    thread = threading.Thread(target=work, name="chat-template", daemon=True)
    thread.start()
    try:
        text = await asyncio.wait_for(done, seconds)
    except TimeoutError:
        raise refused(
            f"the model's chat template takes longer than {seconds:g} s with this", "messages"
        ) from None
    finally:
        if done.cancelled():  # by the clock, or because the client has gone
            _stop(thread)
    if len(text) > LONGEST_CHARACTERS:
        raise refused(
            f"the model's chat template makes {len(text)} characters of this; at most"
            f" {LONGEST_CHARACTERS} are taken",
            "messages",
        )
    return text


def _stop(thread: threading.Thread) -> None:
    """Raise in a thread; it ends there at its next Python instruction."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(_TimeOver)
    )
