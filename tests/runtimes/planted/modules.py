"""Modules as people write them, each with one thing that another runtime does not take."""

import functools
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Backbone(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Suppresses(nn.Module):
    """A detector's greedy non-maximum suppression."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone(5)

    def forward(self, x):
        rows = self.backbone(x).flatten(2).transpose(1, 2)[0]
        boxes, scores = rows[:, :4], rows[:, 4]
        order = scores.argsort(descending=True)
        kept = []
        while order.numel() > 0:  # LINE
            best = order[0]
            kept.append(best)
            overlap = (boxes[order[1:]] - boxes[best]).abs().sum(1)
            order = order[1:][overlap > 0.5]
        return boxes[torch.stack(kept)]


class CountsNonzero(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        y = self.backbone(x)
        found = torch.nonzero(y.mean(1) > 0.5)
        if found.shape[0] == 0:  # LINE
            return y.mean((2, 3))
        return y[found[:, 0]].mean((2, 3))


class SelectsByMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        y = self.backbone(x).flatten(1)
        chosen = y[y > 0]
        return chosen.topk(8).values  # LINE


class BranchesOnItem(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        y = self.backbone(x)
        if y.mean().item() > 0.5:  # LINE
            y = y * 2
        return y.mean((2, 3))


class AsksATensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        y = self.backbone(x)
        while (y.abs() > 10).any():  # LINE
            y = y / 2
        return y.mean((2, 3))


class WritesItsInput(nn.Module):
    """Normalises the image in place, through a view of what it was given."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        red = x[:, 0]
        red.sub_(0.485)  # LINE
        return self.backbone(x).mean((2, 3))


class CorrelatesPairs(nn.Module):
    def forward(self, x):
        kernels = x[:, :, 16:48, 16:48].flatten(0, 1)[:, None]
        maps = x.flatten(0, 1)[None]
        found = F.conv2d(maps, kernels, groups=kernels.shape[0])  # LINE
        return found.view(x.shape[0], x.shape[1], 33, 33)


class LoopsOverTheBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        y = self.backbone(x)
        rows = []
        for index in range(x.shape[0]):  # LINE
            rows.append(y[index].mean((1, 2)))
        return torch.stack(rows)


class FixesTheBatch(nn.Module):
    """Written for the one image of its example: the smallest batch, and the only one."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(8 * 32 * 32, 10)

    def forward(self, x):
        return self.head(self.backbone(x).view(1, 8 * 32 * 32))  # LINE


class ReturnsMore(nn.Module):
    """A dict with a number that follows from the input's size."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        y = self.backbone(x).mean((2, 3))
        return {"logits": y, "names": ["cat", "dog"], "images": x.shape[0]}  # LINE


class ReturnsAnObject(nn.Module):
    class Answer:
        def __init__(self, logits):
            self.logits = logits

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        return self.Answer(self.backbone(x).mean((2, 3)))


class UsesNumpy(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        y = self.backbone(x).mean((2, 3))
        scores = y.numpy()  # LINE
        return torch.from_numpy(np.exp(scores))


class KeepsAGrid(nn.Module):
    """Remembers its grid by the size of the image: a cache that outlives the call."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    @functools.lru_cache(maxsize=8)
    def grid(self, batch, size):
        return torch.linspace(-1, 1, size).expand(batch, size)

    def forward(self, x):
        y = self.backbone(x)
        return y.mean((1, 2)) + self.grid(y.shape[0], y.shape[-1])  # LINE


class CountsItsCalls(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1  # LINE
        return self.backbone(x).mean((2, 3)) / self.calls


class CountsInPython(nn.Module):
    seen = 0

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.step = 0

    def forward(self, x):
        self.step += 1
        return self.backbone(x).mean((2, 3)) * (1.0 if self.step < 3 else 0.5)


LOG = []


class TellsTheWorld(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        y = self.backbone(x).mean((2, 3))
        LOG.append(tuple(x.shape))
        print("forward", len(LOG))
        return y


class FiltersByFourier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.filter = nn.Parameter(torch.randn(8, 32, 17, dtype=torch.complex64))

    def forward(self, x):
        y = torch.fft.rfft2(self.backbone(x))  # LINE
        return torch.view_as_real(y * self.filter)


class ReturnsComplex(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        return torch.fft.fft2(self.backbone(x))  # LINE


class FactorisesMatrices(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        y = self.backbone(x).flatten(2)
        return torch.linalg.svdvals(y @ y.transpose(1, 2))  # LINE


class HasDropout(nn.Module):
    """Left as it was constructed: in training mode."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.backbone(x).mean((2, 3)))


class TakesAList(nn.Module):
    """Images of different sizes, as detectors take them."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, images):
        return torch.cat([self.backbone(image[None]).mean((2, 3)) for image in images])


class CallsItsOwnKernel(nn.Module):
    """An operator registered without a rule for its shapes."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        return torch.ops.planted.sharpen(self.backbone(x))  # LINE


class CallsAKernelWithShapes(nn.Module):
    """An operator that PyTorch can trace, and no other runtime has."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        return torch.ops.planted.soften(self.backbone(x))  # LINE


class Rounds(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(np.round(x.numpy()))  # LINE

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class HasItsOwnGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        return Rounds.apply(self.backbone(x))


class RemembersAFrame(nn.Module):
    """What moved since the frame before, which a dictionary keeps."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.memory = {}

    def forward(self, x):
        found = self.backbone(x)
        before = self.memory.get("frame", found)
        self.memory["frame"] = found
        return (found - 0.5 * before).mean((2, 3))


class HandsToItsDecoder(nn.Module):
    """Hooks keep activations for the same call's decoder, as DPT's do."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.activations = {}
        self.backbone.register_forward_hook(self.keep)

    def keep(self, module, args, output):
        self.activations["deep"] = output

    def forward(self, x):
        self.backbone(x)
        return self.activations["deep"].mean((2, 3))


class IsWatched(nn.Module):
    """Its hook keeps what goes by."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        kept = []

        def keep(module, args, output):
            kept.append(output)

        self.backbone.register_forward_hook(keep)

    def forward(self, x):
        return self.backbone(x).mean((2, 3))


class ComputesInFloat8(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        y = self.backbone(x).to(torch.float8_e8m0fnu)  # LINE
        return y.float().mean((2, 3))


class DrawsAtRandom(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        y = self.backbone(x).mean((2, 3))
        return y[torch.randperm(y.shape[0])]  # LINE


# -- what converts, and must go on computing what it did


class WritesAView(nn.Module):
    """In place, through a view of its own intermediate."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        y = self.backbone(x)
        y[:, :2].mul_(0.5)
        return y.mean((2, 3))


class TakesKeywordsOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, *, pixels, scale=1.0):
        return {"logits": self.backbone(pixels).mean((2, 3)) * scale, "labels": ["a", "b"]}


class StridesOnce(nn.Module):
    """One number for both dimensions, in a list, as configurations of networks give it."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=[2], padding=[1]),
            nn.MaxPool2d([3], stride=[2]),
            nn.ConvTranspose2d(8, 4, 2, stride=[2]),
        )

    def forward(self, x):
        return self.body(x)


class Contracts(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.register_buffer("mix", torch.linspace(-1, 1, 64).reshape(8, 8))

    def forward(self, x):
        y = self.backbone(x)
        return torch.einsum("bchw,cd,bdhw->bcd", y, self.mix, y)


class Warps(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.register_buffer("turn", torch.tensor([[[0.8, 0.2, 0.1], [-0.2, 0.8, 0.0]]]))

    def forward(self, x):
        y = self.backbone(x)
        grid = F.affine_grid(self.turn.expand(y.shape[0], 2, 3), list(y.shape), False)
        return F.grid_sample(y, grid, align_corners=False)


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class RoundsStraight(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        return StraightThrough.apply(self.backbone(x) * 4).mean((2, 3))


def register_kernels():
    """Declare the two operators, once per process."""
    if hasattr(register_kernels, "library"):
        return
    register_kernels.library = library = torch.library.Library("planted", "FRAGMENT")
    library.define("sharpen(Tensor x) -> Tensor")
    library.define("soften(Tensor x) -> Tensor")
    library.impl("sharpen", lambda x: x * 2, "CPU")
    library.impl("soften", lambda x: x / 2, "CPU")
    torch.library.register_fake("planted::soften", lambda x: torch.empty_like(x), lib=library)
