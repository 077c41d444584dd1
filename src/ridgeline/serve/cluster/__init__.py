"""Past one engine process: several behind a router, prefill and decode apart, Ray Serve, vLLM.

`routing.py` decides which replica gets a request (no asyncio, a clock passed in), `router.py` does
it; `handover.py` carries keys and values from one engine to another, `exchange.py` is an engine
that can do so, `disaggregated.py` makes one engine of a prefilling and a decoding one.
`ray_serve.py` and `vllm.py` hand over to others. All that faces the API is an `EngineLink`
(`process/client.py`). Start reading at `routing.py`.

No HTTP is spoken here, and no engine is implemented here.
"""
