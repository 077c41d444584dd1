"""Ridgeline's engine, without its server."""

import time

from worker import serve

from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.decode_bench import read_bytes_per_step
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Delta, Sampling, Submit


class Ours:
    def __init__(self, folder, weights, threads):
        # No cached prefixes: every round asks the same.
        config = EngineConfig(
            model=str(folder),
            device="cpu",
            dtype="bf16",
            weights="model" if weights == "bf16" else weights,
            threads=threads,
            prefix_cache=False,
            max_sequences=16,
            kv_bytes=1 << 29,
        )
        self.engine = ServingEngine(config)
        self.bytes_per_step = read_bytes_per_step(self.engine.model, 1)
        self.number = 0

    def submit(self, prompt, count):
        self.number += 1
        sampling = Sampling(temperature=0.0, max_tokens=count, ignore_eos=True)
        self.engine.handle(Submit(id=str(self.number), prompt=tuple(prompt), sampling=sampling))
        return str(self.number)

    def run(self):
        while self.engine.has_work:
            self.engine.step()
            for message in self.engine.take():
                assert isinstance(message, Delta), message
                yield message

    def decode(self, prompt, count):
        self.submit(prompt, count)
        return [time.perf_counter() for delta in self.run() for _ in delta.tokens]

    def mixed(self, requests):
        counts = {self.submit(prompt, count): 0 for prompt, count in requests}
        for delta in self.run():
            counts[delta.id] += len(delta.tokens)
        return list(counts.values())


serve(Ours)
