"""vLLM's CPU backend, in this process, compiled."""

import os
import time

from worker import serve

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"


class Vllm:
    def __init__(self, folder, weights, threads):
        assert weights == "bf16"
        import torch
        from vllm import LLM

        torch.set_num_threads(threads)
        llm = LLM(
            str(folder),
            dtype="bfloat16",
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_model_len=1024,
            max_num_seqs=16,
        )
        self.engine = llm.llm_engine
        self.number = 0

    def add(self, prompt, count):
        from vllm import SamplingParams

        self.number += 1
        sampling = SamplingParams(
            temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False
        )
        tokens = {"prompt_token_ids": list(prompt)}
        self.engine.add_request(str(self.number), tokens, sampling)
        return str(self.number)

    def run(self):
        """Yields, per step, the requests and how many tokens they have."""
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                yield output.request_id, len(output.outputs[0].token_ids)

    def decode(self, prompt, count):
        self.add(prompt, count)
        return [time.perf_counter() for _ in self.run()]

    def mixed(self, requests):
        counts = {self.add(*request): 0 for request in requests}
        counts.update(self.run())
        return list(counts.values())


serve(Vllm)
