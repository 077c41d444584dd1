"""A driving pipeline as it is first written: correct, and not in time.

ridgeline realtime run examples/realtime/baseline.py --frames 300

Six cameras and the odometry at 30 Hz, and a navigation that says twice a second how fast to go, feed
preprocessing, three encoders (objects, road and depth came from three teams, who all kept the same
pre-trained one), the projection to bird's eye view, a detector, a segmenter, a tracker, a predictor
and a planner. Each frame has 33 ms.
"""

import numpy as np

from driving.at_once import BirdsEyeViewAtOnce, preprocess_at_once
from driving.drive import CAMERA_HZ, Drive
from driving.planning import plan
from driving.prediction import predict
from driving.quality import judge
from driving.sight import Detector, EachCamera, Segmenter, preprocess
from driving.tracking import Tracker
from driving.weights import load_encoder, load_object_head, load_road_head, load_view
from driving.world import EGO_SPEED
from ridgeline.realtime.declared import declare, judged_by
from ridgeline.realtime.pipeline import Pipeline

drive = Drive()
SETTLED = 6
"""Frames in which tracks begin."""


def target_speed(index):
    """What the navigation asks for, metres per second."""
    return np.array([EGO_SPEED])


# What these two steps would be as operations on whole arrays; nobody has put them in yet.
declare(preprocess, vectorised=preprocess_at_once)
view = load_view()
declare(view, vectorised=BirdsEyeViewAtOnce(view))

pipeline = Pipeline("driving", deadline="33ms")

cameras = pipeline.sensor("cameras", drive.read_cameras, rate=CAMERA_HZ)
odometry = pipeline.sensor("odometry", drive.read_odometry, rate=CAMERA_HZ)
navigation = pipeline.sensor("navigation", target_speed, rate="2Hz")

images = pipeline.stage("preprocess", preprocess, cameras)
object_features = pipeline.stage("encode_objects", EachCamera(load_encoder()), images)
road_features = pipeline.stage("encode_road", EachCamera(load_encoder()), images)
depth_features = pipeline.stage("encode_depth", EachCamera(load_encoder()), images)
grids = pipeline.stage("project", view, object_features, road_features, depth_features)
objects = pipeline.stage("detect", Detector(load_object_head()), grids)
road = pipeline.stage("segment", Segmenter(load_road_head()), grids)
pose = odometry.via("drop-oldest", depth=16)  # what comes while a frame is on its way
tracks = pipeline.stage("track", Tracker(), objects, pose, tolerance="15ms")
futures = pipeline.stage("predict", predict, tracks, road)
speed = navigation.via("latest-only", reuse=True)
path = pipeline.stage("plan", plan, futures, road, speed, tolerance="1s")


def quality(results):
    """What tuning may not make worse; tracks need some frames to begin."""
    return judge(drive, results["plan"][SETTLED:])


judged_by(pipeline, quality)
