"""transformers.Trainer on a tiny model."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        ids = torch.arange(32).add(index).remainder(64)
        return {"input_ids": ids, "labels": ids}


config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=80,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    report_to=[],
    use_cpu=True,
    save_strategy="no",
    disable_tqdm=True,
    gradient_checkpointing=True,
)
Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Tokens()).train()
