"""Procedural worlds: repeatable, different from seed to seed, sound, in motion, and with clear camera paths."""

from __future__ import annotations

from functools import cache

import mujoco
import numpy as np
import pytest

from flowshade.world import WORLDS, World, WorldError, make_world, step
from flowshade.world.camera import CameraPath
from flowshade.world.scene import COLLISION_GROUP

KINDS = sorted(WORLDS)
SEEDS = range(5)
CASES = [(kind, seed) for kind in KINDS for seed in SEEDS]
NAMED = {
    "street": ("street", "road"), "hills": ("hill", "slopes"), "yard": ("yard",), "harbour": ("harbour", "quay"),
    "rooms": ("room", "indoors", "interior"),
}  # fmt: skip
STANDING = ("tree", "fir", "rock", "lamp", "cabin", "bench", "bin", "building", "parked", "logs")
SEEN = np.array([1, 1, 1, 0, 0, 0], np.uint8)


@cache
def world(kind: str, seed: int) -> World:
    return make_world(kind, seed)


def sphere_directions(count: int) -> np.ndarray:
    k = np.arange(count) + 0.5
    polar, around = np.arccos(1 - 2 * k / count), np.pi * (1 + 5**0.5) * k
    return np.stack([np.cos(around) * np.sin(polar), np.sin(around) * np.sin(polar), np.cos(polar)], -1)


def cast(model: mujoco.MjModel, data: mujoco.MjData, origin: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Distances [N] to what is seen along unit rays; inf where there is nothing."""
    count = len(directions)
    geom, distance = np.full(count, -1, np.int32), np.zeros(count)
    mujoco.mj_multiRay(model, data, origin, directions.ravel(), SEEN, 1, -1, geom, distance, None, count, 1e6)
    return np.where(distance < 0, np.inf, distance)


def glimpse(kind: str, seed: int) -> np.ndarray:
    """A coarse picture of nearness, [12 * 20]."""
    w = world(kind, seed)
    data, pose = w.reset(), w.camera_path.pose(0.0)
    y, x = np.mgrid[0.6:-0.6:12j, -1:1:20j]
    rays = np.stack([x, y, -np.ones_like(x)], -1).reshape(-1, 3) @ pose[:3, :3].T
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    return 5 / (5 + cast(w.model, data, pose[:3, 3].copy(), rays))


# Repeatable, and different ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_world(kind: str) -> None:
    a, b = make_world(kind, 3), world(kind, 3)
    for name in ("geom_pos", "geom_quat", "geom_size", "mesh_vert", "tex_data", "mat_rgba", "mat_roughness",
                 "hfield_data"):  # fmt: skip
        assert np.array_equal(getattr(a.model, name), getattr(b.model, name)), name
    assert a.descriptions == b.descriptions
    assert np.array_equal(a.camera_path.control, b.camera_path.control)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_motion(kind: str) -> None:
    states = []
    for w in (make_world(kind, 4), world(kind, 4)):
        data = w.reset()
        for _ in range(45):
            step(w, data)
        states.append((data.qpos.copy(), data.qvel.copy(), data.geom_xpos.copy(), data.geom_xmat.copy()))
    for one, other in zip(*states, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_give_different_pictures(kind: str) -> None:
    views = [glimpse(kind, seed) for seed in SEEDS]
    for i in range(len(views)):
        for j in range(i):
            assert np.abs(views[i] - views[j]).mean() > 0.01, (i, j)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_give_different_colours(kind: str) -> None:
    means = np.array([world(kind, seed).model.tex_data.mean() for seed in SEEDS])
    assert len(np.unique(means)) == len(means)


def test_kinds_do_not_share_their_randomness() -> None:
    assert world("street", 0).descriptions != world("hills", 0).descriptions


# Sound --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_all_that_is_seen_has_a_sensible_material(kind: str, seed: int) -> None:
    model = world(kind, seed).model
    seen = model.geom_group != COLLISION_GROUP
    material = model.geom_matid[seen]
    assert (material >= 0).all()
    used = np.unique(material)
    assert ((model.mat_roughness[used] >= 0.03) & (model.mat_roughness[used] <= 1)).all()
    assert ((model.mat_metallic[used] >= 0) & (model.mat_metallic[used] <= 1)).all()
    assert ((model.mat_emission[used] >= 0) & (model.mat_emission[used] <= 10)).all()
    rgb = model.mat_rgba[used]
    assert ((rgb[:, :3] > 0) & (rgb <= 1)[:, :3]).all()
    assert (rgb[:, 3] == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_worlds_have_variety_and_stay_small(kind: str) -> None:
    for seed in SEEDS:
        model = world(kind, seed).model
        seen = model.geom_group != COLLISION_GROUP
        assert 60 <= seen.sum() <= 560
        assert len(np.unique(model.geom_type[seen])) >= 6
        assert model.ntex >= 12
        assert np.ptp(model.mat_roughness) > 0.5
        assert model.mat_metallic.max() > 0.5
        assert (model.mat_emission > 0).any()
        assert model.nmeshface < 60_000


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_nothing_floats_or_is_buried(kind: str, seed: int) -> None:
    """Every standing thing reaches the ground below it, and shows above it."""
    w = world(kind, seed)
    model, data = w.model, w.reset()
    down = np.array([0.0, 0.0, -1.0])
    ground = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, "terrain" if kind == "hills" else "ground")
    for body in range(1, model.nbody):
        name = model.body(body).name
        if name.split("-")[0] not in STANDING:
            continue
        geoms = np.nonzero((model.geom_bodyid == body) & (model.geom_group != COLLISION_GROUP))[0]
        corners = np.array([c for g in geoms for c in _box(model, data, int(g))])
        x, y = data.xpos[body][:2]
        above = np.array([x, y, 100.0])
        if kind == "hills":
            height = 100 - mujoco.mj_rayHfield(model, data, ground, above, down, None)
        else:
            height = 0.0
        assert corners[:, 2].min() < height + 0.6, name
        assert corners[:, 2].max() > height + 0.1, name


def _box(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> np.ndarray:
    """The vertices of a mesh, or the eight corners of a geom's bounding box, in the world."""
    rotation = data.geom_xmat[geom].reshape(3, 3)
    if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        start = model.mesh_vertadr[mesh]
        local = model.mesh_vert[start : start + model.mesh_vertnum[mesh]]
    else:
        signs = np.stack(np.meshgrid(*[[-1, 1]] * 3), -1).reshape(-1, 3)
        local = model.geom_aabb[geom, :3] + signs * model.geom_aabb[geom, 3:]
    return local @ rotation.T + data.geom_xpos[geom]


@pytest.mark.parametrize("kind", KINDS)
def test_captions_say_what_is_there(kind: str) -> None:
    w = world(kind, 0)
    assert w.description == w.descriptions[0]
    assert len(set(w.descriptions)) == len(w.descriptions) >= 4
    assert all(any(word in text for word in NAMED[kind]) for text in w.descriptions)
    assert len({world(kind, seed).description for seed in SEEDS}) >= 4


# In motion ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fps", [12.5, 24.0, 30.0, 60.0])
def test_a_step_is_exactly_one_frame(fps: float) -> None:
    w = world("hills", 0).with_fps(fps)
    data = w.reset()
    for frame in range(1, 8):
        step(w, data)
        assert data.time == frame / fps
    assert w.model.opt.timestep * w.substeps == pytest.approx(1 / fps, rel=1e-12)
    assert w.model.opt.timestep <= 1 / 240 + 1e-12


def test_another_frame_rate_leaves_the_world_alone() -> None:
    w = world("hills", 0)
    before = w.model.opt.timestep
    faster = w.with_fps(60)
    assert faster.model is not w.model
    assert (w.fps, w.model.opt.timestep) == (30.0, before)


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind in KINDS for seed in (0, 5)])
def test_things_move_and_stay_in_bounds(kind: str, seed: int) -> None:
    w = world(kind, seed)
    data = w.reset()
    start = data.geom_xpos.copy()
    free = np.nonzero(w.model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)[0]
    for _ in range(300):
        step(w, data)
        for joint in free:
            x, y, z = data.qpos[w.model.jnt_qposadr[joint] :][:3]
            assert -0.5 < z < 25
            assert any(np.hypot(x - a.centre[0], y - a.centre[1]) < a.radius + 0.5 for a in w.keep_out)
    assert np.isfinite(data.qpos).all()
    assert not [warning for warning in data.warning if warning.number]
    moved = np.linalg.norm(data.geom_xpos - start, axis=1) > 0.3
    assert moved[w.model.body_mocapid[w.model.geom_bodyid] >= 0].any()
    assert moved[w.model.body_weldid[w.model.geom_bodyid] > 0].any()
    assert not moved[w.model.body_weldid[w.model.geom_bodyid] == 0].all()


def test_positions_belong_to_the_new_time() -> None:
    """After a step the bodies' frames agree with the joints; MuJoCo alone would leave them a substep behind."""
    w = world("street", 1)
    data = w.reset()
    for _ in range(5):
        step(w, data)
    for mover in w.movers:
        position, _ = mover.pose(5 / w.fps)
        np.testing.assert_allclose(data.xpos[w.model.body(mover.body).id], position, atol=1e-9)
    joint = int(np.nonzero(w.model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)[0][0])
    np.testing.assert_array_equal(data.xpos[w.model.jnt_bodyid[joint]], data.qpos[w.model.jnt_qposadr[joint] :][:3])


def test_controls_must_fit() -> None:
    w = world("street", 0)
    with pytest.raises(ValueError, match=r"shape \(3,\).*0 actuators"):
        step(w, w.reset(), np.zeros(3))


# Cameras ------------------------------------------------------------------------------------------------------------


def assert_clear(w: World, path: CameraPath, loops: int) -> None:
    """Looks round from many places of a path, at the times it is there, with everything that moves in its place."""
    data = w.reset()
    around = sphere_directions(120)
    for time in np.linspace(0, loops * path.period, 70 * loops, endpoint=False):
        for mover in w.movers:
            mocap = w.model.body_mocapid[w.model.body(mover.body).id]
            data.mocap_pos[mocap], data.mocap_quat[mocap] = mover.pose(time)
        mujoco.mj_kinematics(w.model, data)
        position = path.pose(time)[:3, 3].copy()
        assert cast(w.model, data, position, around).min() > 0.3, (time, position)
        below = cast(w.model, data, position, np.array([[0.0, 0.0, -1.0]]))[0]
        assert 0.6 < below < 40, (time, position)
        for area in w.keep_out:
            inside = np.hypot(position[0] - area.centre[0], position[1] - area.centre[1]) < area.radius
            assert not inside or position[2] > area.top


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_camera_path_is_clear(kind: str, seed: int) -> None:
    assert_clear(world(kind, seed), world(kind, seed).camera_path, loops=2)


@pytest.mark.parametrize("kind", KINDS)
def test_other_paths_are_clear_and_different(kind: str) -> None:
    w = world(kind, 1)
    paths = w.paths(4)
    assert paths[0] is w.camera_path
    for path in paths[1:]:
        assert_clear(w, path, loops=1)
    starts = np.array([path.pose(0.0)[:3, 3] for path in paths])
    apart = np.linalg.norm(starts[:, None] - starts, axis=-1)[np.triu_indices(4, 1)]
    assert apart.min() > 0.2
    again = w.path(1001)
    assert np.array_equal(again.control, w.path(1001).control)


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_camera_moves_at_human_speeds(kind: str, seed: int) -> None:
    path = world(kind, seed).camera_path
    times = np.arange(0, path.period, 1 / 30)
    states = path.states(times)
    speed = np.linalg.norm(np.diff(states[:, :3], axis=0), axis=1) * 30
    turning = np.degrees(np.abs(np.diff(states[:, 3]))) * 30
    assert 0.2 < speed.mean() < 10
    assert speed.max() < 12
    assert np.percentile(turning, 90) < 50
    assert turning.max() < 120
    assert np.abs(np.degrees(states[:, 4])).max() < 30
    assert 45 <= path.fov_y <= 75


# Errors -------------------------------------------------------------------------------------------------------------


def test_unknown_worlds_are_named() -> None:
    with pytest.raises(WorldError, match="unknown world 'moon'; expected one of street, hills"):
        make_world("moon", 0)
    with pytest.raises(WorldError, match="seed is -1"):
        make_world("street", -1)
    with pytest.raises(ValueError, match="fps=0"):
        make_world("hills", 0, fps=0)
