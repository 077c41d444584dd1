"""The API that OpenAI's clients speak: FastAPI over an `EngineLink`, without torch's threads.

`protocol/` says what requests and replies look like, `routes/` serves them, `reply.py` goes from
prompts to a response, whole or streamed; `app.py` puts them together, `server.py` runs them around
supervised engines. Whatever a request asks for happens, or it is refused with status 400 in
OpenAI's error shape: no field is ignored. Start reading at `app.py`, then `routes/chat.py`.

A chat passes `access_log.py`, `gate.py`, `routes/chat.py`, `conversation.py`,
`reply.py`, `growing_chat.py`, and in the other process `engine/`; from the engine's socket a token
goes into one queue and out of it. `/v1/responses` and `/v1/messages` are the same chat in other
words: their requests become a chat's, and its pieces become their items and blocks.

Nothing here computes: tokens come from the engine, and long prompts are tokenised on threads, so
that the event loop never waits.
"""
