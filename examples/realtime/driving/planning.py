"""The ego car's own next two seconds: the cheapest of some paths.

A lattice of ends to the side and of accelerations, each followed along the road and costed against
what others may do (Werling et al., ICRA 2010, in its simplest form).
"""

import numpy as np

from driving.prediction import ROW_X, STEP_SECONDS, STEPS, is_road, road_middle

SIDES = np.linspace(-2.0, 2.0, 5)
ACCELERATIONS = (-5.0, -2.5, 0.0, 1.5)
SAFE = 2.6
"""Metres between two middles, across, below which it becomes expensive."""
TIMES = (np.arange(STEPS) + 1) * STEP_SECONDS


def plan(predicted, road, target_speed):
    """Choose a path.

    Args:
        predicted: What `predict` gives.
        road: Probability of drivable ground, (64, 32).
        target_speed: Metres per second, (1,).

    Returns:
        Dict of `path` (10, 3): x, y, speed in the ego frame of now; `cost`; and, for those who look
        on, `tracks` and `road`.
    """
    middle = road_middle(road)
    middle = middle - np.interp(0.0, ROW_X, middle)  # the lane that the car is in
    best, best_cost = None, np.inf
    for acceleration in ACCELERATIONS:
        for side in SIDES:
            path = follow(middle, predicted["speed"], acceleration, side)
            cost = collision_cost(path, predicted)
            cost += 4.0 * np.mean(~is_road(road, path[:, :2]))
            cost += 0.3 * side**2 + 0.05 * acceleration**2
            cost += 0.02 * np.mean((path[:, 2] - target_speed[0]) ** 2)
            if cost < best_cost:
                best, best_cost = path, cost
    return {
        "path": best,
        "cost": float(best_cost),
        "tracks": predicted["tracks"],
        "road": road,
    }


def follow(middle, speed, acceleration, side):
    """A path along the road that ends so far to the side, (10, 3)."""
    stop = speed / -acceleration if acceleration < 0 else np.inf
    times = np.minimum(TIMES, stop)
    x = speed * times + acceleration * times**2 / 2
    ease = np.clip(TIMES / TIMES[-1], 0, 1)
    y = np.interp(x, ROW_X, middle) + side * (3 * ease**2 - 2 * ease**3)
    return np.stack([x, y, speed + acceleration * times], axis=1)


def collision_cost(path, predicted):
    """How near others come, weighted with how likely that is."""
    cost = 0.0
    for track, futures, chances in zip(
        predicted["tracks"], predicted["futures"], predicted["probabilities"]
    ):
        reach = track[5] / 2 + 3.5
        for future, chance in zip(futures, chances):
            away = np.abs(future - path[:, :2])
            near = np.clip(1 - away[:, 0] / reach, 0, 1) * np.clip(1 - away[:, 1] / SAFE, 0, 1)
            cost += 40.0 * chance * near.max()
    return cost
