"""The OpenAI-compatible API: FastAPI over an `EngineLink`, in a process without torch's threads.

`protocol/` says what requests and answers look like, one file per family of endpoints, `routes/`
answers them; `app.py` puts them together, `server.py` runs them around a supervised engine.
Whatever a request asks for happens, or it is refused with status 400 in OpenAI's error shape: no
field is ignored. Start reading at `app.py`, then `routes/chat.py`.

Nothing here computes: tokens come from the engine, and long prompts are tokenised on threads, so
that the event loop never waits.
"""
