"""Images of a scene by casting one ray per pixel: ground, sky, and vehicles as boxes.

The ground is where a ray meets the plane; a box is met by the slab test (Kay and Kajiya 1986), done
only inside the rectangle of the image that its corners span.
"""

import numpy as np

from driving.cameras import (
    CENTRE_COLUMN,
    CROP_TOP,
    FEATURE_HEIGHT,
    FEATURE_WIDTH,
    FOCAL,
    HORIZON_ROW,
    MOUNT_HEIGHT,
    NUM_CAMERAS,
    RAW_HEIGHT,
    RAW_WIDTH,
    SCALE,
    STRIDE,
    YAW_DEGREES,
    raw_rays,
)
from driving.world import rotate

FAR = 1000.0
NEAR = 0.3
GROUND = np.array([[0.25, 0.45, 0.20], [0.36, 0.36, 0.38], [0.85, 0.85, 0.80]], dtype=np.float32)
"""Grass, asphalt, paint."""
SKY = np.array([0.65, 0.75, 0.90], dtype=np.float32)
FACE_LIGHT = np.array([0.75, 0.95, 1.1], dtype=np.float32)
"""Light on a box's ends, sides and top."""


class Renderer:
    """Draws scenes; keeps what depends on the cameras alone."""

    def __init__(self):
        self.rays = raw_rays()
        self.first_row = int(np.ceil(HORIZON_ROW + 0.5))
        below = self.rays[:, self.first_row :]
        self.ground_depth = -MOUNT_HEIGHT / below[..., 2]
        self.ground = below[..., :2] * self.ground_depth[..., None]
        self.haze = np.exp(-self.ground_depth / 60.0)[..., None]

    def draw(self, scene, seconds):
        """One moment of a scene.

        Returns:
            Images (6, 144, 352, 3) uint8; depth along each camera's axis (6, 144, 352); and how
            many pixels of each vehicle are seen, (n,).
        """
        image = np.empty((NUM_CAMERAS, RAW_HEIGHT, RAW_WIDTH, 3), dtype=np.float32)
        depth = np.full(image.shape[:3], FAR, dtype=np.float32)
        owner = np.full(image.shape[:3], -1, dtype=np.int16)
        image[:] = SKY * scene.light
        image[:, self.first_row :] = self._ground(scene, seconds)
        depth[:, self.first_row :] = self.ground_depth
        boxes = scene.boxes(seconds)
        for index, box in enumerate(boxes):
            for camera in range(NUM_CAMERAS):
                self._box(scene, box, index, camera, image, depth, owner)
        seen = np.bincount(owner[owner >= 0], minlength=len(boxes))
        return (image.clip(0, 1) * 255).astype(np.uint8), depth, seen

    def _ground(self, scene, seconds):
        ego = scene.ego_pose(seconds)
        world = ego[:2].astype(np.float32) + rotate(self.ground, np.float32(ego[2]))
        x, y = world[..., 0], world[..., 1]
        aside = np.abs(y - scene.middle(x)[0])
        dashes = (np.abs(aside - 1.75) < 0.12) & (x % 8.0 < 4.0)
        edges = np.abs(aside - scene.half_width + 0.4) < 0.15
        kind = (aside < scene.half_width).astype(np.int8)
        kind[dashes | edges] = 2
        cell = (np.floor(x * 4).astype(np.int32) & 255, np.floor(y * 4).astype(np.int32) & 255)
        colour = GROUND[kind] * (1 + 0.12 * scene.texture[cell])[..., None]
        return scene.light * (colour * self.haze + SKY * (1 - self.haze))

    def _box(self, scene, box, index, camera, image, depth, owner):
        window = _window(box, np.radians(YAW_DEGREES[camera]))
        if window is None:
            return
        rays = self.rays[camera][window]
        half = box[3:6] / 2
        origin = rotate(-box[:2], -box[2])
        start = np.array([*origin, MOUNT_HEIGHT - half[2]], dtype=np.float32)
        along = np.concatenate([rotate(rays[..., :2], np.float32(-box[2])), rays[..., 2:]], -1)
        along = np.where(np.abs(along) < 1e-6, 1e-6, along).astype(np.float32)
        one, other = (-half - start) / along, (half - start) / along
        enters, leaves = np.minimum(one, other), np.maximum(one, other)
        near = np.maximum(np.maximum(enters[..., 0], enters[..., 1]), enters[..., 2])
        away = np.minimum(np.minimum(leaves[..., 0], leaves[..., 1]), leaves[..., 2])
        hit = (near < away) & (near > NEAR) & (near < depth[camera][window])
        if not hit.any():
            return
        face = enters.argmax(axis=-1)[hit]
        height = (start[2] + near * along[..., 2])[hit] / half[2]
        colour = (
            np.array(scene.vehicles[index].colour, dtype=np.float32) * FACE_LIGHT[face][:, None]
        )
        colour[(face < 2) & (height > 0.1) & (height < 0.8)] *= 0.35  # windows
        colour[height < -0.75] *= 0.3  # wheels and shadow
        haze = np.exp(-near[hit] / 60.0)[:, None]
        image[camera][window][hit] = scene.light * (colour * haze + SKY * (1 - haze))
        depth[camera][window][hit] = near[hit]
        owner[camera][window][hit] = index


def _window(box, yaw):
    """Rows and columns of the image that a box can touch; None: it cannot be seen."""
    signs = np.array([(a, b) for a in (-0.5, 0.5) for b in (-0.5, 0.5)])
    corners = box[:2] + rotate(signs * box[3:5], box[2])
    ahead, left = rotate(corners, -yaw).T
    if ahead.max() < NEAR:
        return None
    if ahead.min() < NEAR:
        return slice(0, RAW_HEIGHT), slice(0, RAW_WIDTH)
    columns = CENTRE_COLUMN - FOCAL * left / ahead
    top = HORIZON_ROW - FOCAL * (box[5] - MOUNT_HEIGHT) / ahead
    bottom = HORIZON_ROW + FOCAL * MOUNT_HEIGHT / ahead
    first, last = int(max(columns.min(), 0)), int(min(columns.max() + 2, RAW_WIDTH))
    upper, lower = int(max(top.min(), 0)), int(min(bottom.max() + 2, RAW_HEIGHT))
    return (slice(upper, lower), slice(first, last)) if first < last and upper < lower else None


def depth_of_features(depth):
    """Depth at the middle of each feature cell, (6, 8, 22)."""
    step = STRIDE * SCALE
    rows = CROP_TOP + np.arange(FEATURE_HEIGHT) * step + step // 2
    columns = np.arange(FEATURE_WIDTH) * step + step // 2
    return depth[:, rows[:, None], columns[None, :]]
