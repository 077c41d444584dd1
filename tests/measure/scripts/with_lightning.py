"""Lightning runs forward and backward inside optimizer.step."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 1)

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


data = TensorDataset(torch.randn(800, 16), torch.randn(800, 1))
trainer = lightning.Trainer(
    max_steps=100,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Regression(), DataLoader(data, batch_size=8))
