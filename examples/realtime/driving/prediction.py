"""Where each track may go in the next two seconds: on with its speed, or along the road."""

import numpy as np

from driving.birds_eye import CELLS_X, CELLS_Y, cell_centres

STEPS, STEP_SECONDS = 10, 0.2
ON_ROAD = 0.5
CENTRES = cell_centres()
ROW_X = CENTRES[:, 0, 0]


def road_middle(road):
    """The middle of the road in each row of the grid (64,), from its probability (64, 32).

    Rows without road take the nearest middle that there is; 0 everywhere without any.
    """
    weight = np.where(road > ON_ROAD, road, 0.0)
    total = weight.sum(axis=1)
    known = np.flatnonzero(total > 1.0)
    if len(known) == 0:
        return np.zeros(CELLS_X)
    middle = (weight * CENTRES[..., 1]).sum(axis=1)[known] / total[known]
    smooth = np.convolve(np.pad(middle, 2, mode="edge"), np.full(5, 0.2), mode="valid")
    return np.interp(ROW_X, ROW_X[known], smooth)


def is_road(road, points):
    """Whether points (…, 2) lie on the road; outside of the grid: no."""
    row = np.floor(points[..., 0] + CELLS_X / 2).astype(int)
    column = np.floor(points[..., 1] + CELLS_Y / 2).astype(int)
    inside = (row >= 0) & (row < CELLS_X) & (column >= 0) & (column < CELLS_Y)
    value = road[row.clip(0, CELLS_X - 1), column.clip(0, CELLS_Y - 1)]
    return inside & (value > ON_ROAD)


def predict(tracked, road):
    """Futures of what the tracker gives.

    Returns:
        That, with `futures` (n, 2, 10, 2) in the ego frame of now and `probabilities` (n, 2).
    """
    tracks = tracked["tracks"]
    middle = road_middle(road)
    futures = np.zeros((len(tracks), 2, STEPS, 2))
    probabilities = np.zeros((len(tracks), 2))
    for index, track in enumerate(tracks):
        place, speed = track[1:3], track[3:5]
        aside = place[1] - np.interp(place[0], ROW_X, middle)
        for step in range(STEPS):
            straight = place + speed * (step + 1) * STEP_SECONDS
            futures[index, 0, step] = straight
            along = np.interp(straight[0], ROW_X, middle) + aside
            futures[index, 1, step] = straight[0], along
        follows = 0.7 if is_road(road, place) else 0.1
        probabilities[index] = 1 - follows, follows
    return {**tracked, "futures": futures, "probabilities": probabilities}
