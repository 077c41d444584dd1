"""A recorded drive: the images of four seconds, repeated without a seam, and the odometry."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from driving.render import Renderer
from driving.world import LENGTH, PERIOD, make_scene

CAMERA_HZ = 30.0
NUM_FRAMES = int(PERIOD * CAMERA_HZ)
DRIVE_SEED = 900_001
"""A scene that training does not see."""


class Drive:
    """What the sensors of one drive send. Frame `i` of the cameras is of second `i / 30`.

    Args:
        seed: The scene's.
        frames: How many different images there are, 120 by default; fewer repeat with a jump.
    """

    def __init__(self, seed=DRIVE_SEED, frames=None):
        self.scene = make_scene(seed)
        renderer = Renderer()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            moments = [index / CAMERA_HZ for index in range(frames or NUM_FRAMES)]
            drawn = list(pool.map(lambda seconds: renderer.draw(self.scene, seconds), moments))
        self.images = [images for images, _, _ in drawn]
        self.seen = [seen for _, _, seen in drawn]

    def read_cameras(self, index):
        """Six images, (6, 144, 352, 3) uint8."""
        return self.images[index % len(self.images)]

    def read_odometry(self, index):
        """Time, x, y, yaw, speed, yaw rate at the moment of the cameras' frame, (6,)."""
        return odometry_at(self.scene, index / CAMERA_HZ)

    def visible(self, index, pixels):
        """Boxes of which at least so many raw pixels are seen in a frame, (n, 9)."""
        boxes = self.scene.boxes(index / CAMERA_HZ)
        return boxes[self.seen[index % len(self.seen)] >= pixels]


def odometry_at(scene, seconds):
    """Odometry that goes on from lap to lap, as `Scene.odometry` has it."""
    laps, rest = divmod(seconds, PERIOD)
    found = scene.odometry(rest)
    found[0] = seconds
    found[1] += laps * LENGTH
    return np.asarray(found, dtype=np.float64)
