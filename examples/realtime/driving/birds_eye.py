"""Features of six cameras brought onto one grid seen from above: lift, splat.

Each feature cell is lifted to 32 points along its ray, weighted with the probability that it lies
that far, and all points that fall into one cell of the grid are added up (Philion and Fidler,
arXiv:2008.05711, section 3). The grid is 64 x 32 cells of 1 m around the car.
"""

import numpy as np
import torch
from torch import nn

from driving.cameras import MOUNT_HEIGHT, NUM_CAMERAS, feature_rays
from driving.network import DEPTHS, FEATURES, OBJECT_CHANNELS, ROAD_CHANNELS

CELLS_X, CELLS_Y = 64, 32
CELL = 1.0
FIRST_X, FIRST_Y = -CELLS_X * CELL / 2, -CELLS_Y * CELL / 2
NEAREST, DEPTH_STEP = 2.0, 1.0
"""Depth of the first bin's lower end, and the size of a bin."""
LOWEST, HIGHEST = -1.0, 3.5
"""Points outside of these heights are left out."""


def cell_centres():
    """Middles of the grid's cells in the ego frame, (64, 32, 2)."""
    x = FIRST_X + (np.arange(CELLS_X) + 0.5) * CELL
    y = FIRST_Y + (np.arange(CELLS_Y) + 0.5) * CELL
    return np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1)


def lifted_points():
    """Where the points of each camera lie in the ego frame, (6, 32, 8, 22, 3)."""
    depths = NEAREST + (np.arange(DEPTHS) + 0.5) * DEPTH_STEP
    points = feature_rays()[:, None] * depths[None, :, None, None, None].astype(np.float32)
    return torch.from_numpy(points + np.array([0, 0, MOUNT_HEIGHT], dtype=np.float32))


def cells_of(points):
    """The grid's cell of each point (…, 3), counted through; -1 outside of the grid."""
    x = torch.floor((points[..., 0] - FIRST_X) / CELL).long()
    y = torch.floor((points[..., 1] - FIRST_Y) / CELL).long()
    inside = (x >= 0) & (x < CELLS_X) & (y >= 0) & (y < CELLS_Y)
    inside &= (points[..., 2] > LOWEST) & (points[..., 2] < HIGHEST)
    return torch.where(inside, x * CELLS_Y + y, -1)


def splat(values, weights, cells):
    """Add values into the cells that their points fall into.

    Args:
        values: Per feature cell, (C, 8, 22).
        weights: Probability of each depth, (32, 8, 22).
        cells: (32, 8, 22); -1: nowhere.

    Returns:
        (C, 64, 32).
    """
    channels = values.shape[0]
    points = (values[:, None] * weights[None]).reshape(channels, -1)
    inside = (cells >= 0).reshape(-1)
    grid = torch.zeros(channels, CELLS_X * CELLS_Y)
    grid.index_add_(1, cells.reshape(-1)[inside], points[:, inside])
    return grid.reshape(channels, CELLS_X, CELLS_Y)


class BirdsEyeView(nn.Module):
    """Three sets of features, (6, 64, 8, 22) each, to the objects' and the road's grids.

    One camera after the other, each point's cell found anew: the way that it is first written.
    """

    def __init__(self, depth_head):
        super().__init__()
        self.depth_head = depth_head
        self.objects = nn.Conv2d(FEATURES, OBJECT_CHANNELS, 1)
        self.road = nn.Conv2d(FEATURES, ROAD_CHANNELS, 1)
        self.register_buffer("points", lifted_points(), persistent=False)

    def forward(self, object_features, road_features, depth_features):
        objects = torch.zeros(OBJECT_CHANNELS, CELLS_X, CELLS_Y)
        road = torch.zeros(ROAD_CHANNELS, CELLS_X, CELLS_Y)
        for camera in range(NUM_CAMERAS):
            one = slice(camera, camera + 1)
            weights = self.depth_head(depth_features[one])[0].softmax(dim=0)
            cells = cells_of(self.points[camera])
            objects += splat(self.objects(object_features[one])[0], weights, cells)
            road += splat(self.road(road_features[one])[0], weights, cells)
        return objects[None], road[None]


class GatheredBirdsEyeView(nn.Module):
    """The same grids for a whole batch of frames by one scatter, for training.

    Features are (6 B, 64, 8, 22) and the grids (B, C, 64, 32).
    """

    def __init__(self, view):
        super().__init__()
        self.view = view
        self.cells = cells_of(view.points).reshape(-1)

    def forward(self, features):
        view = self.view
        frames = features.shape[0] // NUM_CAMERAS
        logits = view.depth_head(features)
        values = torch.cat([view.objects(features), view.road(features)], dim=1)
        points = values[:, :, None] * logits.softmax(dim=1)[:, None]
        points = points.unflatten(0, (frames, NUM_CAMERAS)).transpose(1, 2).flatten(2)
        inside = self.cells >= 0
        grid = torch.zeros(frames, points.shape[1], CELLS_X * CELLS_Y)
        grid = grid.index_add(2, self.cells[inside], points[:, :, inside])
        grid = grid.unflatten(2, (CELLS_X, CELLS_Y))
        return grid[:, :OBJECT_CHANNELS], grid[:, OBJECT_CHANNELS:], logits
