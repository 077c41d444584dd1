"""llama.cpp through llama-cpp-python: one context, sixteen sequences in its cells."""

import subprocess
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np
from worker import serve

KINDS = {"bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
CELLS, BATCH = 16 * 512, 512
"""Enough also where each sequence has cells of its own."""


class LlamaCpp:
    def __init__(self, folder, weights, threads):
        path = converted(folder, KINDS[weights])
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_seq_max = CELLS, BATCH, 16
        context.kv_unified = True
        context.n_threads = context.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def compute(self, rows):
        """Rows are (sequence, position, token, wanted); the argmax of the wanted ones."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (sequence, position, token, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = wanted
        code = llama_cpp.llama_decode(self.context, batch)
        assert code == 0, code
        found = {}
        for i, (sequence, _, _, wanted) in enumerate(rows):
            if wanted:
                logits = llama_cpp.llama_get_logits_ith(self.context, i)
                found[sequence] = int(np.ctypeslib.as_array(logits, (self.vocab,)).argmax())
        return found

    def run(self, requests):
        """Decodes first, then as much of the prompts as fits; yields the sequences that got one."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        done = [0] * len(requests)
        tokens = [list(prompt) for prompt, _ in requests]
        left = [count for _, count in requests]
        while any(left):
            rows = [
                (s, done[s], tokens[s][-1], 1)
                for s in range(len(requests))
                if left[s] and done[s] == len(tokens[s]) - 1
            ]
            for s in range(len(requests)):
                if left[s] and done[s] < len(tokens[s]) - 1:
                    piece = tokens[s][done[s] : done[s] + BATCH - len(rows)]
                    rows += [
                        (s, done[s] + i, token, int(done[s] + i == len(tokens[s]) - 1))
                        for i, token in enumerate(piece)
                    ]
            found = self.compute(rows)
            for s, _, _, _ in rows:
                done[s] += 1
            for s, token in found.items():
                tokens[s].append(token)
                left[s] -= 1
            yield list(found)

    def decode(self, prompt, count):
        return [time.perf_counter() for found in self.run([(prompt, count)]) for _ in found]

    def mixed(self, requests):
        counts = [0] * len(requests)
        for found in self.run(requests):
            for sequence in found:
                counts[sequence] += 1
        return counts


def converted(folder, kind):
    """The model as GGUF, made once."""
    whole, path = folder / "model-BF16.gguf", folder / f"model-{kind}.gguf"
    if not whole.exists():
        script = Path(__file__).parent / "to_gguf.py"
        subprocess.run([sys.executable, script, folder, whole], check=True)
    if not path.exists():
        settings = llama_cpp.llama_model_quantize_default_params()
        settings.ftype = {
            "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
            "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
        }[kind]
        settings.pure = True  # the head as well
        code = llama_cpp.llama_model_quantize(str(whole).encode(), str(path).encode(), settings)
        assert code == 0, code
    return path


serve(LlamaCpp)
