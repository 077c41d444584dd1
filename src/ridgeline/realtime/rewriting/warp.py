"""Feature maps in bird's eye view, moved by the motion of the car.

BEVDet4D (Huang and Huang, 2022, section 3.3) aligns the last frame's features with the present one
before it uses them; the same move lets features that were computed a frame ago stand for now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class EgoMotion:
    """How the car moved between two frames, in its own coordinates at the earlier one."""

    forward_metres: float = 0.0
    left_metres: float = 0.0
    yaw_radians: float = 0.0
    """The turn, counter-clockwise from above."""


def warp_bev(features: Tensor, motion: EgoMotion, cell_metres: float) -> Tensor:
    """The map as the car sees it after it has moved.

    Args:
        features: [rows, channels, height, width]; the car stands in the middle, forward is up
            (towards row 0), left is left. A mask of bools is moved by nearest cells.
        motion: Since the features were computed.
        cell_metres: The side of a cell.

    Cells that were not seen before are 0.
    """
    import torch
    from torch.nn.functional import affine_grid, grid_sample

    height, width = features.shape[-2:]
    cosine, sine = math.cos(motion.yaw_radians), math.sin(motion.yaw_radians)
    across = -motion.left_metres / cell_metres * 2 / width
    down = -motion.forward_metres / cell_metres * 2 / height
    # A place p of the new map, in cells from the car (x right, y down), lay at R p + t in the old
    # one; affine_grid counts in halves of the map, so that the rotation is stretched by its sides.
    theta = torch.tensor(
        [
            [cosine, sine * height / width, across],
            [-sine * width / height, cosine, down],
        ],
        dtype=torch.float32,
        device=features.device,
    )
    grid = affine_grid(theta.expand(len(features), 2, 3), list(features.shape), align_corners=False)
    mode = "bilinear" if features.is_floating_point() else "nearest"
    moved = grid_sample(features.float(), grid, mode=mode, align_corners=False)
    return moved.to(features.dtype)
