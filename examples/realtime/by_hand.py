"""The pipeline of `baseline.py` after its tuning, by hand: the same results, in time.

ridgeline realtime run examples/realtime/by_hand.py --frames 300

One encoder instead of three of equal weights, all cameras in one batch, no graph of gradients,
preprocessing and projection as operations on whole arrays, and a camera edge that keeps the newest
frame alone. What `ridgeline realtime tune examples/realtime/baseline.py` finds by itself is in the
tutorial; this is what a person would write down.
"""

import numpy as np
import torch

from driving.at_once import BirdsEyeViewAtOnce, preprocess_at_once
from driving.drive import CAMERA_HZ, Drive
from driving.planning import plan
from driving.prediction import predict
from driving.sight import Detector, Segmenter
from driving.tracking import Tracker
from driving.weights import load_encoder, load_object_head, load_road_head, load_view
from driving.world import EGO_SPEED
from ridgeline.realtime.pipeline import Pipeline

drive = Drive()


def target_speed(index):
    """What the navigation asks for, metres per second."""
    return np.array([EGO_SPEED])


class See(torch.nn.Module):
    """Images to the objects' and the road's grids, the features computed once for all."""

    def __init__(self):
        super().__init__()
        self.encoder = load_encoder().to(memory_format=torch.channels_last)
        self.view = BirdsEyeViewAtOnce(load_view())

    @torch.inference_mode()
    def forward(self, images):
        features = self.encoder(images.contiguous(memory_format=torch.channels_last))
        return self.view(features, features, features)


pipeline = Pipeline("driving", deadline="33ms")

cameras = pipeline.sensor("cameras", drive.read_cameras, rate=CAMERA_HZ)
odometry = pipeline.sensor("odometry", drive.read_odometry, rate=CAMERA_HZ)
navigation = pipeline.sensor("navigation", target_speed, rate="2Hz")

newest = cameras.via("latest-only")
images = pipeline.stage("preprocess", preprocess_at_once, newest)
grids = pipeline.stage("see", See(), images)
objects = pipeline.stage("detect", torch.inference_mode()(Detector(load_object_head())), grids)
road = pipeline.stage("segment", torch.inference_mode()(Segmenter(load_road_head())), grids)
pose = odometry.via("drop-oldest", depth=16)  # what comes while a frame is on its way
tracks = pipeline.stage("track", Tracker(), objects, pose, tolerance="15ms")
futures = pipeline.stage("predict", predict, tracks, road)
speed = navigation.via("latest-only", reuse=True)
path = pipeline.stage("plan", plan, futures, road, speed, tolerance="1s")
