"""The one loop of world, camera and tracer: that it can begin anywhere, and that what it yields is true."""

from __future__ import annotations

import functools

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from flowshade.gbuffer.look import LOOKS
from flowshade.gbuffer.rollout import TracedFrame, restore_state, rollout, save_state
from flowshade.gbuffer.trace import Tracer
from flowshade.types import Camera
from flowshade.world import World, make_world

SIZE = (24, 40)


@pytest.fixture(scope="module")
def world() -> World:
    return make_world("hills", 4, fps=12)


@pytest.fixture(scope="module")
def tracer(world: World) -> Tracer:
    return Tracer(world.model, size=SIZE)


def same(a: TracedFrame, b: TracedFrame) -> bool:
    pairs = zip(a.gbuffer.channels().values(), b.gbuffer.channels().values(), strict=True)
    pictures = zip(a.pictures, b.pictures, strict=True)
    return all(torch.equal(x, y) for x, y in (*pairs, *pictures))


def _keep(world: World, states: dict[int, np.ndarray], index: int, data: mujoco.MjData) -> None:
    states[index] = save_state(world, data)


@pytest.mark.parametrize("saved", [False, True])
def test_it_may_begin_anywhere(world: World, tracer: Tracer, saved: bool) -> None:
    states = {}
    looks = [LOOKS["sunset"]]
    visit = functools.partial(_keep, world, states)
    whole = list(rollout(world, tracer, frames=7, looks=looks, visit=visit))
    late = list(rollout(world, tracer, frames=7, looks=looks, first=4, state=states[3] if saved else None))
    assert [frame.index for frame in late] == [4, 5, 6]
    assert all(same(a, b) for a, b in zip(whole[4:], late, strict=True))
    assert not same(whole[3], whole[4])


def test_dynamics_do_not_notice_being_traced(world: World, tracer: Tracer) -> None:
    """Bit for bit, in any look, at any number of samples."""
    ends = []
    for looks, other in (((), tracer), ((LOOKS["night"], LOOKS["snow"]), Tracer(world.model, size=(8, 8), samples=16))):
        states = {}
        visit = functools.partial(_keep, world, states)
        list(rollout(world, other, frames=6, looks=looks, visit=visit))
        ends.append(states[5])
    assert np.array_equal(*ends)


def test_a_look_changes_no_buffer(world: World, tracer: Tracer) -> None:
    plain, lit = (list(rollout(world, tracer, frames=2, looks=looks)) for looks in ((), (LOOKS["snow"],)))
    for a, b in zip(plain, lit):
        for name, channel in a.gbuffer.channels().items():
            assert torch.equal(channel, b.gbuffer.channels()[name]), name


def points(camera: Camera, depth: Tensor) -> Tensor:
    """[H, W, 3] world points of one frame."""
    height, width = depth.shape
    fx, fy, cx, cy = camera.intrinsics[0].double()
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    local = torch.stack([(x - cx) / fx * depth, -(y - cy) / fy * depth, -depth], -1)
    pose = camera.pose[0].double()
    return local @ pose[:3, :3].T + pose[:3, 3]


def test_normals_agree_with_depth(world: World) -> None:
    """On smooth surfaces the cross product of neighbouring points is the normal."""
    frame = next(rollout(world, Tracer(world.model, size=(60, 100)), frames=1))
    depth, normal, camera = frame.gbuffer.depth, frame.gbuffer.normal, frame.gbuffer.camera
    assert depth is not None and normal is not None and camera is not None and frame.gbuffer.instance is not None
    p = points(camera, depth[0, 0].double())
    across, down = p[1:-1, 2:] - p[1:-1, :-2], p[2:, 1:-1] - p[:-2, 1:-1]
    made = torch.nn.functional.normalize(torch.linalg.cross(down, across), dim=-1)
    given = torch.einsum("ij,jhw->hwi", camera.pose[0, :3, :3].double(), normal[0, :, 1:-1, 1:-1].double())
    ids = frame.gbuffer.instance[0, 0].float()[None, None]
    largest, least = (torch.nn.functional.max_pool2d(s * ids, 3, 1)[0, 0] * s for s in (1, -1))
    inner = (largest == least) & (largest > 0) & torch.isfinite(made).all(-1)
    angle = torch.rad2deg(torch.acos((made * given).sum(-1).clamp(-1, 1)))[inner]
    assert inner.float().mean() > 0.3
    assert angle.median() < 3 and (angle < 15).float().mean() > 0.8


def test_motion_is_reprojection(world: World) -> None:
    """Where nothing moves but the camera, a pixel was where its point falls in the camera before."""
    tracer = Tracer(world.model, size=SIZE)
    first, second = rollout(world, tracer, frames=2)
    assert second.gbuffer.depth is not None and second.gbuffer.motion is not None
    assert second.gbuffer.camera is not None and first.gbuffer.camera is not None
    assert second.gbuffer.instance is not None
    depth = second.gbuffer.depth[0, 0].double()
    before = first.gbuffer.camera
    pose = before.pose[0].double()
    local = (points(second.gbuffer.camera, depth) - pose[:3, 3]) @ pose[:3, :3]
    fx, fy, cx, cy = before.intrinsics[0].double()
    was = torch.stack([cx - fx * local[..., 0] / local[..., 2], cy + fy * local[..., 1] / local[..., 2]])
    y, x = torch.meshgrid(torch.arange(SIZE[0]) + 0.5, torch.arange(SIZE[1]) + 0.5, indexing="ij")
    error = (was - torch.stack([x, y]) - second.gbuffer.motion[0].double()).norm(dim=0)
    geom = second.gbuffer.instance[0, 0].long() - 1
    still = torch.from_numpy(world.model.body_weldid[world.model.geom_bodyid[geom.numpy()]] == 0)
    body = torch.from_numpy(world.model.body_mocapid[world.model.geom_bodyid[geom.numpy()]] < 0)
    fixed = (geom >= 0) & still & body
    assert fixed.float().mean() > 0.3 and second.gbuffer.motion.abs().max() > 0.05
    assert error[fixed].max() < 0.01


def test_instances_are_mujocos_own(world: World) -> None:
    """The geom that MuJoCo's ray meets through a pixel's centre is the pixel's, but for grazed silhouettes."""
    tracer = Tracer(world.model, size=SIZE)
    data = world.reset()
    frame = next(rollout(world, tracer, frames=1))
    assert frame.gbuffer.camera is not None and frame.gbuffer.instance is not None
    pose = frame.gbuffer.camera.pose[0].double().numpy()
    rays = frame.gbuffer.camera.rays(*SIZE)[0].permute(1, 2, 0).double().numpy()
    seen, geom = np.array([1, 1, 1, 0, 0, 0], np.uint8), np.zeros(1, np.int32)
    agree = []
    for row in range(0, SIZE[0], 3):
        for column in range(0, SIZE[1], 3):
            mujoco.mj_ray(world.model, data, pose[:3, 3].copy(), rays[row, column].copy(), seen, 1, -1, geom, None)
            agree.append(int(frame.gbuffer.instance[0, 0, row, column]) == geom[0] + 1)
    assert np.mean(agree) > 0.98


def test_a_state_of_another_world_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match=r"restore_state got \(3,\)"):
        restore_state(world, world.reset(), np.zeros(3))
