"""Bird's eye view moved by the car's motion."""

import math

import torch

from ridgeline.realtime.rewriting.warp import EgoMotion, warp_bev


def place(features: torch.Tensor) -> tuple[int, int]:
    row, column = divmod(int(features[0, 0].argmax()), features.shape[-1])
    return row, column


def dot(row: int, column: int, size: int = 21) -> torch.Tensor:
    features = torch.zeros(1, 1, size, size)
    features[0, 0, row, column] = 1.0
    return features


def test_what_lay_ahead_comes_nearer_when_the_car_drives_on() -> None:
    moved = warp_bev(dot(4, 10), EgoMotion(forward_metres=3.0), cell_metres=1.0)
    assert place(moved) == (7, 10)
    assert moved.max() > 0.99


def test_what_lay_left_is_nearer_when_the_car_moves_left() -> None:
    moved = warp_bev(dot(10, 4), EgoMotion(left_metres=2.0), cell_metres=0.5)
    assert place(moved) == (10, 8)


def test_what_lay_ahead_lies_to_the_right_after_a_turn_to_the_left() -> None:
    moved = warp_bev(dot(4, 10), EgoMotion(yaw_radians=math.pi / 2), cell_metres=1.0)
    assert place(moved) == (10, 16)


def test_there_and_back_is_where_it_was() -> None:
    there = warp_bev(dot(6, 9), EgoMotion(forward_metres=2.0), cell_metres=1.0)
    back = warp_bev(there, EgoMotion(forward_metres=-2.0), cell_metres=1.0)
    torch.testing.assert_close(back, dot(6, 9))
