"""Routes, movers, kicks and camera paths: closed, smooth, and right about directions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshade.world.camera import CameraPath, camera_at
from flowshade.world.motion import Kick, Mover, Route, quaternion, smooth_loop


def circle(radius: float = 10.0, count: int = 200) -> Route:
    angle = np.linspace(0, 2 * np.pi, count, endpoint=False)
    return Route(np.column_stack([radius * np.cos(angle), radius * np.sin(angle), np.zeros(count)]))


def random_path(seed: int, turns: int = 1) -> CameraPath:
    rng = np.random.default_rng(seed)
    control = rng.normal(0, 2, (40, 5)) * [1, 1, 1, 0.1, 0.05]
    control[:, 3] += np.linspace(0, 2 * np.pi * turns, 40, endpoint=False)
    return CameraPath(control, 20.0, 60.0, 2 * np.pi * turns)


def test_route_goes_round_a_circle() -> None:
    route = circle()
    assert route.length == pytest.approx(2 * np.pi * 10, rel=1e-3)
    position, yaw, pitch = route.at(route.length / 4)
    np.testing.assert_allclose(position, [0, 10, 0], atol=1e-6)
    assert np.cos(yaw) == pytest.approx(-1, abs=1e-6)
    assert pitch == 0
    np.testing.assert_allclose(route.positions(np.array([route.length / 4]))[0], position, atol=1e-9)


def test_route_through_corners_keeps_equal_spacing() -> None:
    square = np.array([[0, 0, 0], [20, 0, 0], [20, 20, 0], [0, 20, 0]], float)
    route = Route.through(square, spacing=0.5, rounding=4.0)
    steps = np.linalg.norm(np.roll(route.points, -1, 0) - route.points, axis=1)
    assert steps.max() / steps.min() < 1.1
    assert 60 < route.length < 80  # corners are cut


def test_smooth_loop_keeps_the_mean_and_wraps() -> None:
    values = np.random.default_rng(0).normal(size=(64, 2))
    smooth = smooth_loop(values, 9)
    np.testing.assert_allclose(smooth.mean(0), values.mean(0), atol=1e-12)
    np.testing.assert_allclose(np.roll(smooth, 5, 0), smooth_loop(np.roll(values, 5, 0), 9), atol=1e-12)
    assert np.abs(np.diff(smooth, axis=0)).max() < np.abs(np.diff(values, axis=0)).max() / 2


def rotate(q: np.ndarray, v: np.ndarray) -> np.ndarray:
    u = q[1:]
    return v + 2 * np.cross(u, np.cross(u, v) + q[0] * v)


def test_quaternion_turns_then_lifts_the_nose() -> None:
    nose = rotate(quaternion(np.pi / 2, np.pi / 6), np.array([1.0, 0, 0]))
    np.testing.assert_allclose(nose, [0, np.cos(np.pi / 6), 0.5], atol=1e-9)
    side = rotate(quaternion(0.7, 0.4), np.array([0, 1.0, 0]))
    np.testing.assert_allclose(side, [-np.sin(0.7), np.cos(0.7), 0], atol=1e-9)


@given(st.floats(0, 1e4), st.floats(1, 12))
@settings(max_examples=50, deadline=None)
def test_a_mover_never_jumps(time: float, speed: float) -> None:
    mover = Mover(body="b", route=circle(), speed=speed, phase=3.0, offset=(1.0, 0.5, 0.2), bob=0.02)
    before, after = mover.pose(time)[0], mover.pose(time + 0.01)[0]
    assert np.linalg.norm(after - before) < 0.01 * speed * 1.3 + 1e-3


def test_a_leg_swings_both_ways() -> None:
    leg = Mover(body="l", route=circle(), speed=1.0, phase=0.0, swing=(0.4, 0.6, 0.0))
    pitch = [2 * np.arctan2(-leg.pose(t)[1][2], leg.pose(t)[1][0]) for t in np.linspace(0, 0.001, 2)]
    poses = np.array([rotate(leg.pose(t)[1], np.array([0, 0, -1.0])) for t in np.linspace(0, 4, 200)])
    assert abs(pitch[0]) < 1e-2
    assert np.hypot(poses[:, 0], poses[:, 1]).max() == pytest.approx(np.sin(0.4), abs=0.01)


def test_kicks_come_once_a_period_and_point_home() -> None:
    kick = Kick(joint="j", home=(5.0, 0.0), period=4.0, phase=1.0, speed=2.0, lift=1.0)
    dt = 1 / 30
    at = [k * dt for k in range(int(12 / dt)) if kick.velocity(k * dt, dt, [0.0, 0.0, 0.0]) is not None]
    np.testing.assert_allclose(at, [1.0 - dt, 5.0 - dt, 9.0 - dt], atol=dt + 1e-9)
    velocity = kick.velocity(at[0], dt, [0.0, 0.0, 0.0])
    assert velocity is not None
    assert np.hypot(*velocity[:2]) == pytest.approx(2.0)
    assert velocity[0] > 1.9
    assert velocity[2] == 1.0


@pytest.mark.parametrize("turns", [-1, 0, 1])
def test_camera_path_closes(turns: int) -> None:
    path = random_path(1, turns)
    first, again = path.states([0.3, 0.3 + path.period])
    np.testing.assert_allclose(again - first, [0, 0, 0, 2 * np.pi * turns, 0], atol=1e-9)
    np.testing.assert_allclose(path.pose(0.3), path.pose(0.3 + 3 * path.period), atol=1e-9)


@given(st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_camera_path_has_no_kinks(seed: int) -> None:
    """Position, velocity and acceleration agree on both sides of every knot."""
    path = random_path(seed)
    knots = np.arange(40) * path.period / 40
    h = 1e-4
    states = [path.states(knots + k * h) for k in (-3, -2, -1, 0, 1, 2, 3)]
    left, right = (states[3] - states[1]) / (2 * h), (states[5] - states[3]) / (2 * h)
    np.testing.assert_allclose(left, right, atol=2e-2)
    jump = states[4] - states[2]
    assert np.abs(jump).max() < 1e-2


def test_camera_axes_are_opengl() -> None:
    """Looking along +Y: right is +X, up is +Z, and the third column points back."""
    path = CameraPath(np.tile([1.0, 2.0, 3.0, np.pi / 2, 0.0], (8, 1)), 10.0, 60.0)
    np.testing.assert_allclose(path.pose(4.2), [[1, 0, 0, 1], [0, 0, -1, 2], [0, 1, 0, 3], [0, 0, 0, 1]], atol=1e-12)
    camera = camera_at(path, [0.0, 1.0], 90, 160)
    assert camera.frames == 2
    ray = camera.rays(90, 160)[0, :, 45, 80]
    np.testing.assert_allclose(ray, [0, 1, 0], atol=0.02)
    # The field of view: the top edge lies 30 degrees above the axis.
    focal = float(camera.intrinsics[0, 1])
    assert np.degrees(np.arctan(45 / focal)) == pytest.approx(30, abs=1e-4)


def test_camera_looks_up_with_positive_pitch() -> None:
    pose = CameraPath(np.tile([0.0, 0, 0, 0.3, 0.2], (8, 1)), 10.0, 60.0).pose(0.0)
    assert -pose[2, 2] == pytest.approx(np.sin(0.2))
    np.testing.assert_allclose(pose[:3, :3] @ pose[:3, :3].T, np.eye(3), atol=1e-12)
    assert np.linalg.det(pose[:3, :3]) == pytest.approx(1)
