"""A road with traffic that comes back to its beginning every four seconds.

Everything has a closed form in time, so any moment can be asked for, and a drive can be repeated
without a seam: the road repeats every 64 m, which the ego car drives in 4 s, and each other vehicle
gains or loses a whole number of such lengths on it (parked: -1, same direction: 0, oncoming: -2).
"""

from dataclasses import dataclass

import numpy as np

LENGTH = 64.0
PERIOD = 4.0
EGO_SPEED = LENGTH / PERIOD
LANE = 3.5


@dataclass(frozen=True)
class Vehicle:
    """One road user; lengths in metres."""

    start: float
    """Metres ahead of the ego car at time 0."""
    laps: int
    """Road lengths that it gains on the ego car in one period."""
    sway: float
    """Amplitude of its advance and retreat."""
    phase: float
    offset: float
    """To the left of the road's middle."""
    size: tuple[float, float, float]
    colour: tuple[float, float, float]


@dataclass(frozen=True)
class Scene:
    """A road, its light, its traffic."""

    bend: float
    """Amplitude of the road's curve."""
    bend_phase: float
    half_width: float
    light: float
    texture: np.ndarray
    """(256, 256) noise of the ground, four to a metre."""
    vehicles: tuple[Vehicle, ...]

    def middle(self, x):
        """The road's middle at x, and its slope there."""
        angle = 2 * np.pi * x / LENGTH + self.bend_phase
        return self.bend * np.sin(angle), self.bend * 2 * np.pi / LENGTH * np.cos(angle)

    def ego_pose(self, seconds):
        """Pose (x, y, yaw) of the ego car in the world; it keeps to the middle lane."""
        x = EGO_SPEED * seconds
        y, slope = self.middle(x)
        return np.array([x, y, np.arctan(slope)])

    def odometry(self, seconds):
        """Time, x, y, yaw, speed and yaw rate of the ego car, (6,)."""
        step = 1e-3
        before, now = self.ego_pose(seconds - step), self.ego_pose(seconds)
        moved = (now - before) / step
        return np.array([seconds, *now, np.hypot(moved[0], moved[1]), moved[2]])

    def boxes(self, seconds):
        """Vehicles around the ego car, (n, 9): x, y, yaw, length, width, height, speed along x and
        y (over the ground, in ego axes), index of the vehicle."""
        found = [self._box(index, seconds) for index in range(len(self.vehicles))]
        return np.array(found).reshape(len(found), 9)

    def _box(self, index, seconds):
        vehicle = self.vehicles[index]
        ego = self.ego_pose(seconds)
        turn = 2 * np.pi * seconds / PERIOD
        ahead = vehicle.start + vehicle.laps * EGO_SPEED * seconds
        ahead += vehicle.sway * np.sin(turn + vehicle.phase)
        ahead = (ahead + LENGTH / 2) % LENGTH - LENGTH / 2
        x = ego[0] + ahead
        y, slope = self.middle(x)
        speed = EGO_SPEED * (1 + vehicle.laps)
        speed += vehicle.sway * 2 * np.pi / PERIOD * np.cos(turn + vehicle.phase)
        forward = rotate(np.array([speed, speed * slope]), -ego[2])
        place = rotate(np.array([x, y + vehicle.offset]) - ego[:2], -ego[2])
        heading = np.arctan(slope) - ego[2] + (np.pi if speed < 0 else 0.0)
        return (*place, heading, *vehicle.size, *forward, index)

    def on_road(self, seconds, points):
        """Whether points (…, 2) in the ego frame lie on the road."""
        ego = self.ego_pose(seconds)
        world = ego[:2] + rotate(points, ego[2])
        return np.abs(world[..., 1] - self.middle(world[..., 0])[0]) < self.half_width


def rotate(points, angle):
    """Points (…, 2), turned to the left by an angle."""
    cos, sin = np.cos(angle), np.sin(angle)
    x, y = points[..., 0], points[..., 1]
    return np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)


def make_scene(seed):
    """The scene of a seed."""
    generator = np.random.default_rng(seed)
    half_width = generator.uniform(5.25, 6.5)
    lanes = (
        (0.0, 0, 1.5, generator.integers(0, 3), 14.0),
        (-LANE, 0, 3.0, generator.integers(1, 4), 0.0),
        (LANE, -2, 0.0, generator.integers(1, 4), 0.0),
        (half_width + 1.5, -1, 0.0, generator.integers(1, 4), 0.0),
        (-half_width - 1.5, -1, 0.0, generator.integers(1, 4), 0.0),
    )
    vehicles = [
        vehicle
        for offset, laps, sway, count, gap in lanes
        for vehicle in _lane_of_vehicles(generator, offset, laps, sway, count, gap)
    ]
    return Scene(
        bend=generator.uniform(0.0, 4.0),
        bend_phase=generator.uniform(0.0, 2 * np.pi),
        half_width=half_width,
        light=generator.uniform(0.75, 1.1),
        texture=generator.standard_normal((256, 256)).astype(np.float32),
        vehicles=tuple(vehicles),
    )


def _lane_of_vehicles(generator, offset, laps, sway, count, gap):
    """Vehicles of one lane, evenly spaced but for some metres; `gap` keeps the ego car's own place
    free."""
    room = (LENGTH - 2 * gap) / max(count, 1)
    for place in range(count):
        long = generator.random() < 0.15
        length, width, height = (7.0, 2.3, 2.7) if long else (4.4, 1.85, 1.5)
        scale = generator.uniform(0.92, 1.08)
        yield Vehicle(
            start=gap + (place + generator.uniform(0.3, 0.7)) * room,
            laps=laps,
            sway=sway * generator.uniform(0.3, 1.0) if sway else 0.0,
            phase=generator.uniform(0.0, 2 * np.pi),
            offset=offset + generator.uniform(-0.3, 0.3),
            size=(length * scale, width * scale, height * scale),
            colour=tuple(generator.uniform(0.1, 0.9, 3)),
        )
