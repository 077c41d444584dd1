"""The same steps as `sight.py` and `birds_eye.py`, each as a few operations on whole arrays."""

import torch
from torch import nn
from torch.nn import functional

from driving.birds_eye import CELLS_X, CELLS_Y, cells_of
from driving.cameras import CROP_TOP, DEVIATION, MEAN, SCALE
from driving.network import OBJECT_CHANNELS

WEIGHT = torch.from_numpy(1 / (255 * DEVIATION)).view(1, 3, 1, 1)
BIAS = torch.from_numpy(-MEAN / DEVIATION).view(1, 3, 1, 1)


def preprocess_at_once(images):
    """What `preprocess` gives, (6, 3, 64, 176) float32, of all cameras together."""
    pixels = torch.from_numpy(images[:, CROP_TOP:]).permute(0, 3, 1, 2).float()
    return torch.addcmul(BIAS, functional.avg_pool2d(pixels, SCALE), WEIGHT)


class BirdsEyeViewAtOnce(nn.Module):
    """The grids of `BirdsEyeView`, by one weighted sum over an index that never changes.

    Where a point falls depends on the cameras alone. Sorted by cell once, the points of a cell are
    neighbours, and each cell adds up the pixels of its points, weighted: the idea of BEVPoolv2
    (Huang and Huang, arXiv:2211.17111), which never writes the lifted points down either.
    """

    def __init__(self, view):
        super().__init__()
        self.view = view
        cells = cells_of(view.points).reshape(-1)
        inside = torch.nonzero(cells >= 0)[:, 0]
        inside = inside[torch.argsort(cells[inside], stable=True)]
        cameras, depths, height, width = view.points.shape[:4]
        pixel = torch.arange(height * width).expand(cameras, depths, -1)
        pixel = pixel + torch.arange(cameras).view(-1, 1, 1) * height * width
        counts = torch.bincount(cells[inside], minlength=CELLS_X * CELLS_Y)
        starts = counts.cumsum(0) - counts
        self.register_buffer("inside", inside, persistent=False)
        self.register_buffer("pixels", pixel.reshape(-1)[inside], persistent=False)
        self.register_buffer("starts", starts, persistent=False)

    def forward(self, object_features, road_features, depth_features):
        view = self.view
        weights = view.depth_head(depth_features).softmax(dim=1).reshape(-1)[self.inside]
        objects, road = view.objects(object_features), view.road(road_features)
        values = torch.cat([objects, road], dim=1).permute(0, 2, 3, 1).flatten(0, 2)
        cells = functional.embedding_bag(
            self.pixels, values, self.starts, mode="sum", per_sample_weights=weights
        )
        grid = cells.T.reshape(1, -1, CELLS_X, CELLS_Y)
        return grid[:, :OBJECT_CHANNELS], grid[:, OBJECT_CHANNELS:]
