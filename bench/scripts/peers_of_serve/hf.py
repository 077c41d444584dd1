"""transformers: a bare greedy loop for one sequence, its continuous batching for many."""

import inspect
import time

import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from worker import serve


class HuggingFace:
    def __init__(self, folder, weights, threads):
        assert weights == "bf16"
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def decode(self, prompt, count):
        times, tokens, cache = [], torch.tensor([prompt]), DynamicCache(config=self.model.config)
        # The argument was renamed in transformers 5.24.
        renamed = "cache" in inspect.signature(self.model.forward).parameters
        kept = {"cache" if renamed else "past_key_values": cache}
        for _ in range(count):
            out = self.model(tokens, use_cache=True, logits_to_keep=1, **kept)
            tokens = out.logits[:, -1].argmax(-1, keepdim=True)
            times.append(time.perf_counter())
        return times

    def mixed(self, requests):
        generation = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=128)
        # Sizes by hand: they are worked out from a GPU's memory otherwise.
        batching = ContinuousBatchingConfig(
            page_size=32, num_blocks=256, max_batch_tokens=512, use_async_batching=False
        )
        counts = {}
        with self.model.continuous_batching_context_manager(
            generation_config=generation, continuous_batching_config=batching, warmup=False
        ) as manager:
            wanted = [
                manager.add_request(list(prompt), max_new_tokens=count)
                for prompt, count in requests
            ]
            while len(counts) < len(wanted):
                out = manager.get_result(timeout=1)
                if out is not None and out.is_finished():
                    counts[out.request_id] = len(out.generated_tokens)
        return [counts[name] for name in wanted]


serve(HuggingFace)
