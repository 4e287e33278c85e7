"""MJCF and URDF files become worlds, and files that cannot are explained."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from flowshade.world import WorldError, load_mjcf, load_urdf, step

MJCF = """<mujoco><option timestep="0.01"/><worldbody><geom type="plane" size="5 5 .1"/>
<body name="ball" pos="0 0 2"><freejoint/><geom type="sphere" size=".2" rgba="1 0 0 1"/></body>
<body name="arm" pos="1 0 1"><joint name="j" type="hinge" axis="0 1 0"/><geom type="capsule" size=".05 .3"/></body>
</worldbody><actuator><motor joint="j"/></actuator></mujoco>"""

OBJ = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"

URDF = """<robot name="cart"><link name="base">
<visual><geometry><mesh filename="package://cart/meshes/hull.obj"/></geometry></visual>
<collision><geometry><box size="1 1 1"/></geometry></collision></link>
<link name="wheel"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>
<visual><geometry><cylinder radius=".3" length=".1"/></geometry></visual></link>
<joint name="axle" type="continuous"><parent link="base"/><child link="wheel"/><origin xyz="1 0 0"/><axis xyz="0 1 0"/>
</joint></robot>"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_an_mjcf_file_runs(tmp_path: Path) -> None:
    world = load_mjcf(write(tmp_path, "falling_ball.xml", MJCF), fps=25)
    assert world.name == "falling_ball"
    assert "falling ball" in world.description
    data = world.reset()
    for _ in range(10):
        step(world, data, np.array([0.1]))
    assert data.time == 10 / 25
    assert data.qpos[2] == pytest.approx(2 - 9.81 / 2 * 0.4**2, abs=0.03)
    assert data.ctrl[0] == 0.1


def test_its_camera_circles_outside_and_looks_at_the_middle(tmp_path: Path) -> None:
    world = load_mjcf(write(tmp_path, "a.xml", MJCF))
    path, data = world.camera_path, world.reset()
    centre = data.geom_xpos[1:].mean(0)
    for time in np.linspace(0, path.period, 12):
        pose = path.pose(time)
        towards = centre - pose[:3, 3]
        assert np.linalg.norm(towards) > 2
        assert -pose[:3, 2] @ towards / np.linalg.norm(towards) > 0.9
        assert pose[2, 3] > 0.5


def test_a_keyframe_is_the_start(tmp_path: Path) -> None:
    text = MJCF.replace("</mujoco>", '<keyframe><key qpos="0 0 3 1 0 0 0 0.5"/></keyframe></mujoco>')
    assert load_mjcf(write(tmp_path, "key.xml", text)).reset().qpos[2] == 3


def test_includes_and_meshes_are_found_beside_the_file(tmp_path: Path) -> None:
    write(tmp_path, "parts/hull.obj", OBJ)
    text = """<mujoco><compiler meshdir="parts"/><asset><mesh name="m" file="hull.obj"/></asset>
    <worldbody><geom type="mesh" mesh="m"/></worldbody></mujoco>"""
    assert load_mjcf(write(tmp_path, "mesh.xml", text)).model.nmesh == 1


def test_urdf_keeps_its_visuals(tmp_path: Path) -> None:
    write(tmp_path, "meshes/hull.obj", OBJ)
    model = load_urdf(write(tmp_path, "cart.urdf", URDF)).model
    types = sorted(int(t) for t in model.geom_type)
    assert int(mujoco.mjtGeom.mjGEOM_MESH) in types
    assert int(mujoco.mjtGeom.mjGEOM_CYLINDER) in types
    assert int(mujoco.mjtGeom.mjGEOM_BOX) in types
    visual = (model.geom_contype == 0) & (model.geom_conaffinity == 0)
    assert visual.sum() == 2


def test_urdf_with_its_own_extension_keeps_it(tmp_path: Path) -> None:
    write(tmp_path, "data/hull.obj", OBJ)
    text = URDF.replace("package://cart/meshes/hull.obj", "hull.obj").replace(
        '<robot name="cart">', '<robot name="cart"><mujoco><compiler meshdir="data" discardvisual="true"/></mujoco>'
    )
    assert load_urdf(write(tmp_path, "own.urdf", text)).model.nmesh == 1


def test_packages_are_found_above_the_file(tmp_path: Path) -> None:
    """As in ROS: `package://cart/meshes` lies beside the folder `urdf` that holds the file."""
    write(tmp_path, "cart/meshes/hull.obj", OBJ)
    assert load_urdf(write(tmp_path, "cart/urdf/cart.urdf", URDF)).model.nmesh == 1


def test_a_mesh_that_is_not_read_gives_way_to_its_neighbour(tmp_path: Path) -> None:
    path = write(tmp_path, "cart.urdf", URDF.replace("hull.obj", "hull.dae"))
    write(tmp_path, "meshes/hull.dae", "<COLLADA/>")
    with pytest.raises(WorldError, match=r"hull.dae is a .dae mesh; expected one of .obj, .stl, .msh.*Convert it"):
        load_urdf(path)
    write(tmp_path, "meshes/hull.obj", OBJ)
    assert load_urdf(path).model.nmesh == 1


def test_shapes_for_contact_are_hidden_where_others_are_seen(tmp_path: Path) -> None:
    """A dressed body, a bare one, and a floor that is seen although the world's body is dressed."""
    text = """<mujoco><worldbody><geom name="floor" type="plane" size="5 5 .1"/>
    <geom name="line" type="box" size="1 .1 .01" contype="0" conaffinity="0" group="1"/>
    <body><freejoint/><geom name="hull" type="box" size=".2 .2 .2" rgba="0 1 0 1"/>
    <geom name="skin" type="box" size=".19 .19 .19" contype="0" conaffinity="0" group="1" mass="0"/></body>
    <body pos="0 0 2"><freejoint/><geom name="bare" type="box" size=".2 .2 .2"/></body></worldbody></mujoco>"""
    model = load_mjcf(write(tmp_path, "dressed.xml", text)).model
    groups = {name: int(model.geom(name).group[0]) for name in ("floor", "line", "hull", "skin", "bare")}
    assert groups == {"floor": 0, "line": 1, "hull": 3, "skin": 1, "bare": 0}


def test_in_urdf_visuals_hide_what_is_for_contact(tmp_path: Path) -> None:
    write(tmp_path, "meshes/hull.obj", OBJ)
    model = load_urdf(write(tmp_path, "cart.urdf", URDF)).model
    box = model.geom_type == mujoco.mjtGeom.mjGEOM_BOX
    # The base is welded to the world, so its contact shape belongs to the world's body and stays.
    assert (model.geom_group[~box] < 3).all()


@pytest.mark.parametrize(("own", "expected"), [(0.001, 1 / 1000), (0.0003, 1 / 3360), (0.01, 1 / 240)])
def test_physics_never_takes_longer_steps_than_the_file_says(tmp_path: Path, own: float, expected: float) -> None:
    world = load_mjcf(write(tmp_path, "a.xml", MJCF.replace('timestep="0.01"', f'timestep="{own}"')), fps=30)
    assert world.model.opt.timestep <= min(own, 1 / 240) * (1 + 1e-6)
    assert world.model.opt.timestep == pytest.approx(expected, rel=0.02)
    assert world.with_fps(60).model.opt.timestep <= own


def test_the_camera_circles_what_moves(tmp_path: Path) -> None:
    """Not the far walls around it; without anything that moves it circles all."""
    wall = '<geom type="box" size="1 60 5" pos="80 0 5"/></worldbody>'
    near = load_mjcf(write(tmp_path, "arena.xml", MJCF.replace("</worldbody>", wall))).camera_path
    assert np.linalg.norm(near.pose(0)[:3, 3]) < 8
    still = '<mujoco><worldbody><geom type="box" size="1 9 5"/></worldbody></mujoco>'
    far = load_mjcf(write(tmp_path, "still.xml", still)).camera_path
    assert np.linalg.norm(far.pose(0)[:3, 3]) > 12


@pytest.mark.parametrize(
    ("name", "text", "load", "message"),
    [
        ("a.urdf", URDF, load_mjcf, "is a URDF file.*Use load_urdf"),
        ("a.xml", MJCF, load_urdf, "is an MJCF file.*Use load_mjcf"),
        ("b.xml", "<svg/>", load_mjcf, r"root <svg>; expected MJCF \(root <mujoco>\)"),
        ("b.urdf", "<svg/>", load_urdf, r"root <svg>; expected URDF \(root <robot>\)"),
        ("c.xml", "<mujoco><worldbody>", load_mjcf, "not well-formed XML"),
        ("d.xml", MJCF.replace('size=".2"', 'sise=".2"'), load_mjcf, "MuJoCo cannot load d.xml.*sise"),
        ("e.xml", "<mujoco><worldbody/></mujoco>", load_mjcf, "has no geoms"),
        ("f.urdf", URDF, load_urdf, "MuJoCo cannot load f.urdf.*hull.obj"),
    ],
)
def test_files_that_cannot_be_loaded_are_explained(tmp_path: Path, name, text, load, message) -> None:
    with pytest.raises(WorldError, match=f"(?s){message}"):
        load(write(tmp_path, name, text))


@pytest.mark.parametrize("load", [load_mjcf, load_urdf])
def test_a_missing_file_is_said_to_be_missing(tmp_path: Path, load) -> None:
    with pytest.raises(WorldError, match="found nothing at .*expected a .* file.*Check the path"):
        load(tmp_path / "none.xml")
    with pytest.raises(WorldError, match="found a folder"):
        load(tmp_path)
