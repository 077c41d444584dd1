"""The engine in a process of its own: what carries messages to it, and what keeps it alive.

`frames.py` is the wire, `host.py` the engine's side, `client.py` the API's side (asyncio),
`supervisor.py` starts, watches and restarts. The two sides share one socket, and the engine ends
when the socket does, so no engine outlives its server. Start reading at `client.py`.

Nothing here knows HTTP, and the API's side never imports torch.
"""
