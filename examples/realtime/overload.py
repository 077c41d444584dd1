"""A camera that sends twice as many images as the detector behind it can look at.

The same three stages with edges of four kinds. Where old images give way to new ones, results stay
young; where all wait, each is older than the one before, while every stage's own time stays what it
was:

    ridgeline realtime run examples/realtime/overload.py:latest_only --executor threads
    ridgeline realtime run examples/realtime/overload.py:unbounded --executor threads
"""

import time

import numpy as np

from ridgeline.realtime import Pipeline

HEIGHT, WIDTH = 480, 640
TARGET = np.outer(np.hanning(24), np.hanning(24)).astype(np.float32)
OVERLOAD = 2.0


def photograph(frame):
    """A noisy image, HEIGHT × WIDTH, with one bright spot that moves; the same for each frame."""
    noise = np.random.default_rng(frame).standard_normal((HEIGHT, WIDTH), dtype=np.float32)
    row, column = 20 + frame % 200, 20 + 3 * frame % 440
    noise[row : row + 24, column : column + 24] += 4 * TARGET
    return noise


def scale(image):
    """Mean 0, deviation 1."""
    return (image - image.mean()) / image.std()


def detect(image):
    """Where the target is likeliest: the peak of a matched filter."""
    filtered = np.fft.irfft2(np.fft.rfft2(image) * np.conj(np.fft.rfft2(TARGET, image.shape)))
    return np.unravel_index(filtered.argmax(), filtered.shape)


class Follow:
    """A smoothed position over frames."""

    def __init__(self):
        self.position = None

    def __call__(self, found):
        new = np.asarray(found, dtype=float)
        self.position = new if self.position is None else 0.7 * new + 0.3 * self.position
        return self.position


def pipeline(policy, depth=2, overload=OVERLOAD):
    """The stages, behind a camera at so many times the rate that `detect` keeps up with."""
    images = [photograph(frame) for frame in range(32)]
    seconds = []
    for image in images:
        start = time.perf_counter()
        detect(scale(image))
        seconds.append(time.perf_counter() - start)
    made = Pipeline(f"overload, {policy}", deadline=5 * float(np.median(seconds)))
    camera = made.sensor(
        "camera",
        lambda frame: images[frame % len(images)],
        rate=overload / float(np.median(seconds)),
    )
    scaled = made.stage("scale", scale, camera.via(policy, depth=depth))
    found = made.stage("detect", detect, scaled.via(policy, depth=depth))
    made.stage("follow", Follow(), found.via(policy, depth=depth))
    return made


def drop_oldest():
    """The image that has waited longest makes room."""
    return pipeline("drop-oldest")


def latest_only():
    """One image waits, the newest."""
    return pipeline("latest-only")


def unbounded():
    """All wait: nothing is dropped, and data grows old."""
    return pipeline("unbounded")


def block():
    """Stages wait for each other, and the camera's images are dropped at the door."""
    return pipeline("block")
