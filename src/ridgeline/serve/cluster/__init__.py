"""Past one engine process: several behind a router, prefill and decode apart, Ray Serve, vLLM.

`router.py` sends each request where `batching/routing.py` says; `autoscaler.py` lets replicas come
and go behind it as a policy of `batching/scaling/` wants, and `punctuality.py` counts what is late.
`handover.py` carries keys and values from one engine to another, `exchange.py` is an engine
that can do so, `disaggregated.py` makes one engine of a prefilling and a decoding one.
`ray_serve.py` and `vllm.py` hand over to others. All that faces the API is an `EngineLink`
(`process/client.py`). Start reading at `router.py`.

No HTTP is spoken here, and no engine is implemented here.
"""
