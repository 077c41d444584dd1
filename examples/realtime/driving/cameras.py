"""Six cameras around the car: where each looks, and the rays of its pixels.

All sit at one point above the middle of the car, as wide as those of nuScenes (70 degrees), so that
together they see all around. A raw image is 144 x 352; the network sees its lower 128 rows at half
the size.
"""

import numpy as np

YAW_DEGREES = (0.0, 55.0, 110.0, 180.0, -110.0, -55.0)
"""Front, front left, back left, back, back right, front right."""
NUM_CAMERAS = len(YAW_DEGREES)
RAW_HEIGHT, RAW_WIDTH = 144, 352
FOCAL = RAW_WIDTH / 2 / np.tan(np.radians(35.0))
CENTRE_COLUMN, HORIZON_ROW = RAW_WIDTH / 2, 40.0
MOUNT_HEIGHT = 1.6

CROP_TOP, SCALE = 16, 2
IMAGE_HEIGHT, IMAGE_WIDTH = (RAW_HEIGHT - CROP_TOP) // SCALE, RAW_WIDTH // SCALE
MEAN = np.array([0.42, 0.45, 0.43], dtype=np.float32)
"""Mean and deviation per channel of the scenes' images, in 0 … 1."""
DEVIATION = np.array([0.19, 0.17, 0.23], dtype=np.float32)

STRIDE = 8
"""Pixels of the network's image per cell of its features."""
FEATURE_HEIGHT, FEATURE_WIDTH = IMAGE_HEIGHT // STRIDE, IMAGE_WIDTH // STRIDE


def rays(rows, columns):
    """Direction of each raw pixel, scaled so that its component along the camera's axis is 1.

    A point at depth `t` behind that pixel lies at `mount + t * ray`.

    Args:
        rows: Centres of pixels, (h,).
        columns: Centres of pixels, (w,).

    Returns:
        (6, h, w, 3), float32.
    """
    yaw = np.radians(np.array(YAW_DEGREES))[:, None, None]
    right = (columns[None, None, :] - CENTRE_COLUMN) / FOCAL
    up = (HORIZON_ROW - rows[None, :, None]) / FOCAL
    x = np.cos(yaw) + right * np.sin(yaw)
    y = np.sin(yaw) - right * np.cos(yaw)
    return np.stack(np.broadcast_arrays(x, y, up), axis=-1).astype(np.float32)


def raw_rays():
    """Rays of all raw pixels, (6, 144, 352, 3)."""
    return rays(np.arange(RAW_HEIGHT) + 0.5, np.arange(RAW_WIDTH) + 0.5)


def feature_rays():
    """Rays of the middles of all feature cells, (6, 8, 22, 3)."""
    step = STRIDE * SCALE
    rows = CROP_TOP + (np.arange(FEATURE_HEIGHT) + 0.5) * step
    columns = (np.arange(FEATURE_WIDTH) + 0.5) * step
    return rays(rows, columns)
