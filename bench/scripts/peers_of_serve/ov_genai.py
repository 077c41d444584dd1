"""OpenVINO GenAI's continuous batching."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
from worker import serve

KINDS = {"bf16": "fp16", "int8": "int8", "int4": "int4"}  # fp16 weights run in bf16 here


class OpenVino:
    def __init__(self, folder, weights, threads):
        target = folder / f"openvino-{KINDS[weights]}"
        if not (target / "openvino_model.xml").exists():
            program = Path(sys.executable).parent / "optimum-cli"
            words = ["export", "openvino", "--model", folder, "--task", "text-generation-with-past"]
            kind = ["--weight-format", KINDS[weights]]
            subprocess.run([program, *words, *kind, target], check=True, stdout=sys.stderr)
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.max_num_batched_tokens = 512
        scheduler.enable_prefix_caching = False
        self.pipeline = genai.ContinuousBatchingPipeline(
            str(target), scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self.number = 0

    def add(self, prompt, count):
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        self.number += 1
        ids = ov.Tensor(np.array([prompt], dtype=np.int64))
        return self.pipeline.add_request(self.number, ids, config)

    def run(self, handles):
        """Yields, per step, which of the requests got how many tokens."""
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            for place, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        yield place, len(output.generated_ids)

    def decode(self, prompt, count):
        found = self.run([self.add(prompt, count)])
        return [time.perf_counter() for _, tokens in found for _ in range(tokens)]

    def mixed(self, requests):
        counts = [0] * len(requests)
        for place, tokens in self.run([self.add(*request) for request in requests]):
            counts[place] += tokens
        return counts


serve(OpenVino)
