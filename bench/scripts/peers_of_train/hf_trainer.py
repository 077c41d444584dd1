"""HF Trainer on the same model and tokens; prints its median step in seconds and its last loss."""

import sys
import tempfile
import time
from pathlib import Path

import torch
from samples import TokenDataset
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

folder, precision, steps, warm = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
BATCH = 8


class Clock(TrainerCallback):
    def __init__(self):
        self.times = []

    def on_step_end(self, args, state, control, **kwargs):
        self.times.append(time.perf_counter())


class NextToken(Trainer):
    """Labels are shifted already."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        output = model(input_ids=inputs["input_ids"], use_cache=False)
        loss = functional.cross_entropy(
            output.logits.flatten(0, 1).float(), inputs["labels"].flatten()
        )
        return (loss, output) if return_outputs else loss


set_seed(0)
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "config.json"))
clock = Clock()
with tempfile.TemporaryDirectory() as out:
    trainer = NextToken(
        model=model,
        args=TrainingArguments(
            output_dir=out,
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            weight_decay=0.1,
            adam_beta2=0.95,
            max_grad_norm=1.0,
            optim="adamw_torch_fused",
            bf16=precision == "bf16",
            use_cpu=not torch.cuda.is_available(),
            dataloader_num_workers=1,
            logging_steps=20,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=TokenDataset(folder, BATCH * (steps + 2)),
        data_collator=default_data_collator,
        callbacks=[clock],
    )
    trainer.train()
times = clock.times
steps_taken = sorted(b - a for a, b in zip(times[warm:], times[warm + 1 :], strict=False))
losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
print(steps_taken[len(steps_taken) // 2], losses[-1])
