"""What lies past one engine process: several behind a router, prefill and decode apart, vLLM.

`router.py` sends each request where `batching/routing.py` says; `autoscaler.py` lets replicas come
and go behind it as a policy of `batching/scaling/` wants, and `slo_attainment.py` counts what is
late. `kv_transfer.py` carries keys and values from one engine to another, `kv_engine.py` is an
engine that can do so, `disaggregated.py` makes one engine of a prefilling and a decoding one, and
`vllm.py` hands over to vLLM. All that faces the API is an `EngineLink` (`process/client.py`). Start
reading at `router.py`.

No HTTP is spoken here, and no engine is implemented here.
"""
