"""How good a drive's results are, by what is true of its scene; every figure the higher the better."""

import numpy as np

from driving.assignment import assign
from driving.birds_eye import cell_centres
from driving.drive import CAMERA_HZ
from driving.planning import TIMES
from driving.prediction import ON_ROAD
from driving.world import rotate

RANGE = (24.0, 14.0)
"""Ahead or behind, and to the side: beyond that nobody is asked to see a vehicle."""
SEEN = 60
"""Raw pixels of it, at least."""
NEAR = 2.0
"""Metres between a track and the vehicle that it is of, at most."""


def judge(drive, results):
    """Figures of merit of a drive.

    Args:
        drive: Where the frames came from.
        results: (frame, what `plan` gave) in order; leading frames, in which tracks begin, are for
            the caller to leave out.

    Returns:
        `recall`: share of visible vehicles that are tracked within 2 m; `precision`: share of
        tracks that are of a vehicle; `place`: 1 m less the mean distance to it, per metre; `same
        track`: share of a vehicle's sightings that keep its identity; `road IoU`; `safe`: share of
        plans that touch no vehicle where it will really be.
    """
    tally, places, last, kept = np.zeros(3), [], {}, []
    union = overlap = safe = 0
    for frame, result in results:
        boxes, tracks = drive.visible(frame, SEEN), result["tracks"]
        every = drive.scene.boxes(frame / CAMERA_HZ)
        pairs = matched(boxes[in_range(boxes[:, :2])], tracks)
        tally += (in_range(boxes[:, :2]).sum(), len(pairs), 0)
        near = tracks[in_range(tracks[:, 1:3])]
        tally[2] += len(near)
        places.append((len(matched(every, near)), len(near)))
        for vehicle, identity, away in pairs:
            if vehicle in last:
                kept.append(last[vehicle] == identity)
            last[vehicle] = identity
            places[-1] += (away,)
        truth = drive.scene.on_road(frame / CAMERA_HZ, cell_centres())
        said = result["road"] > ON_ROAD
        overlap, union = overlap + (truth & said).sum(), union + (truth | said).sum()
        safe += not touches(drive.scene, frame / CAMERA_HZ, result["path"])
    away = [value for row in places for value in row[2:]]
    return {
        "recall": float(tally[1] / max(tally[0], 1)),
        "precision": float(sum(row[0] for row in places) / max(tally[2], 1)),
        "place": float(1 - np.mean(away)) if away else 0.0,
        "same track": float(np.mean(kept)) if kept else 0.0,
        "road IoU": float(overlap / max(union, 1)),
        "safe": safe / max(len(results), 1),
    }


def in_range(places):
    """Which of some places (n, 2) are near enough to be judged."""
    return (np.abs(places) < RANGE).all(axis=1)


def matched(boxes, tracks):
    """Pairs of a vehicle and a track: the vehicle's index, the track's identity, metres between."""
    if len(boxes) == 0 or len(tracks) == 0:
        return []
    away = np.linalg.norm(boxes[:, None, :2] - tracks[None, :, 1:3], axis=-1)
    pairs = zip(*assign(np.minimum(away, 100.0)))
    return [
        (int(boxes[row, 8]), int(tracks[column, 0]), away[row, column])
        for row, column in pairs
        if away[row, column] < NEAR
    ]


def touches(scene, seconds, path):
    """Whether the ego car, on a path (10, 3) from now, meets a vehicle where that will be."""
    ego = scene.ego_pose(seconds)
    for point, later in zip(path, seconds + TIMES):
        then = scene.ego_pose(later)
        boxes = scene.boxes(later)
        world = then[:2] + rotate(boxes[:, :2], then[2])
        place = ego[:2] + rotate(point[:2], ego[2])
        gap = np.abs(rotate(world - place, -then[2]))
        reach = (boxes[:, 3:5] + (4.4, 1.85)) / 2
        if (gap < reach).all(axis=1).any():
            return True
    return False
