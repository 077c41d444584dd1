"""Lightning on the same model and tokens; prints its median step in seconds and its last loss."""

import sys
import time
import warnings
from pathlib import Path

import lightning
import torch
from samples import TokenDataset
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

folder, precision, steps, warm = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
BATCH = 8
warnings.filterwarnings("ignore")


class Llama(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder / "config.json")
        )
        self.times, self.losses = [], []

    def training_step(self, batch, _):
        logits = self.model(input_ids=batch["input_ids"], use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten())
        self.losses.append(loss.detach())
        return loss

    def on_train_batch_end(self, *_):
        self.times.append(time.perf_counter())

    def configure_optimizers(self):
        return torch.optim.AdamW(
            self.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )


lightning.seed_everything(0, verbose=False)
module = Llama()
trainer = lightning.Trainer(
    max_steps=steps,
    accelerator="auto",
    precision="bf16-mixed" if precision == "bf16" else "32-true",
    # Lightning refuses to clip what a fused optimizer unscales under mixed precision.
    gradient_clip_val=1.0 if precision != "bf16" else None,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
loader = torch.utils.data.DataLoader(
    TokenDataset(folder, BATCH * (steps + 2)), batch_size=BATCH, num_workers=1
)
trainer.fit(module, loader)
times = module.times
steps_taken = sorted(b - a for a, b in zip(times[warm:], times[warm + 1 :], strict=False))
print(steps_taken[len(steps_taken) // 2], float(torch.stack(module.losses[-20:]).mean()))
