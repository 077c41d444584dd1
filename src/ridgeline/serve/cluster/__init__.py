"""What lies past one engine process: several behind a router, prefill and decode apart, vLLM.

`router.py` sends each request where `batching/routing.py` says; `autoscaler.py` lets replicas come
and go behind it as a policy of `batching/scaling/` wants, and `slo_attainment.py` counts what is
late. `kv_transfer.py` carries keys and values from one engine to another, `kv_engine.py` is an
engine that can do so, `disaggregated.py` makes one engine of prefilling and decoding ones, and
`vllm.py` hands over to vLLM. On several hosts `node_server.py` is the process around each engine,
`node.py` what it does for fronts, `remote.py` the front's side of it, `node_words.py` what both
say and `handshake.py` how they prove who they are. All that faces the API is an `EngineLink`
(`process/client.py`). Start reading at `router.py`.

No API is spoken here, and no engine is implemented here.
"""
