"""Objects followed from frame to frame: a Kalman filter each, detections assigned by distance.

SORT (Bewley et al., arXiv:1602.00763) on the ground plane: states are x, y and their speeds in the
frame of the odometry, where parked cars stand still whatever the ego car does.
"""

from dataclasses import dataclass

import numpy as np

from driving.assignment import assign
from driving.world import rotate

GATE = 9.21
"""Squared Mahalanobis distance with two degrees of freedom that 1 % of true pairs exceed."""
MEASURED = 0.5
"""Standard deviation of a detection, metres."""
ACCELERATION = 4.0
"""Standard deviation of what the constant velocity leaves out, metres per second squared."""
UNKNOWN_SPEED = 12.0
CONFIRMED = 3
"""Detections after which a track counts."""
PATIENCE = 0.4
"""Seconds without a detection after which a track ends."""
OBSERVE = np.eye(2, 4)


@dataclass
class Track:
    """One object."""

    identity: int
    state: np.ndarray
    """x, y, speed along x, speed along y."""
    covariance: np.ndarray
    size: np.ndarray
    hits: int
    seen: float
    """When it was last detected."""

    def predict(self, seconds):
        """Go on with constant velocity."""
        move = np.eye(4)
        move[0, 2] = move[1, 3] = seconds
        gain = np.array([seconds**2 / 2, seconds])
        noise = np.kron(np.outer(gain, gain), np.eye(2)) * ACCELERATION**2
        self.state = move @ self.state
        self.covariance = move @ self.covariance @ move.T + noise

    def surprise(self, place):
        """Squared Mahalanobis distance of a detection."""
        away = place - self.state[:2]
        spread = self.covariance[:2, :2] + MEASURED**2 * np.eye(2)
        return float(away @ np.linalg.solve(spread, away))

    def update(self, place, size, now):
        """Take a detection in."""
        spread = OBSERVE @ self.covariance @ OBSERVE.T + MEASURED**2 * np.eye(2)
        gain = self.covariance @ OBSERVE.T @ np.linalg.inv(spread)
        self.state = self.state + gain @ (place - OBSERVE @ self.state)
        self.covariance = (np.eye(4) - gain @ OBSERVE) @ self.covariance
        self.size = 0.8 * self.size + 0.2 * size
        self.hits += 1
        self.seen = now


class Tracker:
    """Detections (n, 5) and odometry (6,) to the ego car's own `speed` and `tracks` (m, 8):
    identity, x, y, speed along x and y (over the ground, in ego axes), length, width, detections so
    far. Where the odometry's time goes back, tracks begin anew."""

    def __init__(self):
        self.tracks = []
        self.last = None
        self.next_identity = 1

    def __call__(self, detections, odometry):
        now, pose = odometry[0], odometry[1:4]
        if self.last is not None and now < self.last:
            self.tracks = []  # a recording that begins again
        elapsed = now - self.last if self.tracks else 0.0
        self.last = now
        places = pose[:2] + rotate(detections[:, :2].astype(float), pose[2])
        for track in self.tracks:
            track.predict(elapsed)
        free = self._update(places, detections, now)
        for index in free:
            self._begin(places[index], detections[index, 2:4].astype(float), now)
        self.tracks = [one for one in self.tracks if now - one.seen <= PATIENCE]
        return {"speed": float(odometry[4]), "tracks": self._listed(pose)}

    def _update(self, places, detections, now):
        """Assign detections to tracks; returns those that no track takes."""
        free = set(range(len(places)))
        if not self.tracks or not free:
            return sorted(free)
        costs = np.array([[one.surprise(place) for place in places] for one in self.tracks])
        for row, column in zip(*assign(np.minimum(costs, 100 * GATE))):
            if costs[row, column] <= GATE:
                size = detections[column, 2:4].astype(float)
                self.tracks[row].update(places[column], size, now)
                free.discard(int(column))
        return sorted(free)

    def _begin(self, place, size, now):
        covariance = np.diag([MEASURED**2] * 2 + [UNKNOWN_SPEED**2] * 2)
        state = np.array([*place, 0.0, 0.0])
        self.tracks.append(Track(self.next_identity, state, covariance, size, 1, now))
        self.next_identity += 1

    def _listed(self, pose):
        rows = [
            (
                one.identity,
                *rotate(one.state[:2] - pose[:2], -pose[2]),
                *rotate(one.state[2:], -pose[2]),
                *one.size,
                one.hits,
            )
            for one in self.tracks
            if one.hits >= CONFIRMED
        ]
        return np.array(rows, dtype=np.float64).reshape(-1, 8)
