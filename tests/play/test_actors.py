"""The player's bodies: physics answers, and the world's own content is left alone."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from flowshade.play.actors import BALL_RADIUS, PARK, Controls, Mode, Player, add_bodies
from flowshade.world import World, load_mjcf, make_world, step

ROOM = """
<mujoco>
  <worldbody>
    <geom type="plane" size="30 30 1"/>
    <geom name="wall" type="box" size="0.2 10 2" pos="8 0 2"/>
    <body name="crate" pos="3 0 0.5"><freejoint/><geom type="box" size="0.5 0.5 0.5" mass="10"/></body>
    <body name="tower" pos="0 4 1"><geom type="box" size="0.3 0.3 1"/></body>
  </worldbody>
  <keyframe><key qpos="3 0 0.5 1 0 0 0"/></keyframe>
</mujoco>
"""


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> World:
    path = tmp_path_factory.mktemp("worlds") / "room.xml"
    path.write_text(ROOM)
    return load_mjcf(path, extend=add_bodies)


def begin(world: World, mode: Mode, at: tuple[float, float, float] = (-4.0, 0.0, 1.7)) -> tuple[Player, mujoco.MjData]:
    data = world.reset()
    player = Player(world, "fly")
    player.reset(data)
    player.eye, player.yaw, player.pitch = np.array(at), 0.0, 0.0
    player.set_mode(data, mode)
    return player, data


def run(player: Player, data: mujoco.MjData, controls: Controls, ticks: int) -> None:
    for _ in range(ticks):
        player.before_step(data, controls)
        step(player.world, data)
        player.after_step(data)


@pytest.mark.parametrize("mode", ["walk", "drive"])
def test_the_player_stands_and_goes_ahead(room: World, mode: Mode) -> None:
    player, data = begin(room, mode)
    run(player, data, Controls(), 30)
    rest = player.position(data).copy()
    assert np.abs(rest[:2] - (-4, 0)).max() < 0.1
    assert player.on_ground(data)
    run(player, data, Controls(forward=1), 30)
    assert player.position(data)[0] > rest[0] + 1.5
    assert abs(player.position(data)[1]) < 0.2


def test_walls_stop_the_walker_and_crates_give_way(room: World) -> None:
    player, data = begin(room, "walk", (6.0, 3.0, 1.7))
    run(player, data, Controls(forward=1, fast=True), 90)
    assert 7.2 < player.position(data)[0] < 7.7, "stopped by the wall at x = 7.8, less its radius"
    player, data = begin(room, "walk")
    run(player, data, Controls(forward=1, fast=True), 90)
    assert data.body("crate").xpos[0] > 3.3, "pushed"


def test_jump_leaves_the_ground_and_comes_back(room: World) -> None:
    player, data = begin(room, "walk")
    run(player, data, Controls(), 10)
    rest = player.position(data)[2]
    run(player, data, Controls(jump=True), 1)
    run(player, data, Controls(), 10)
    assert player.position(data)[2] > rest + 0.5
    run(player, data, Controls(jump=True), 1)  # in the air: nothing to push off from
    assert player._walker.velocity(data)[2] < 4
    run(player, data, Controls(), 60)
    assert player.position(data)[2] == pytest.approx(rest, abs=0.05)


def test_the_car_steers_to_the_side_that_is_held(room: World) -> None:
    for right in (-1.0, 1.0):
        player, data = begin(room, "drive", (-20.0, 0.0, 1.7))
        run(player, data, Controls(forward=1), 20)
        run(player, data, Controls(forward=1, right=right), 30)
        assert np.sign(player.position(data)[1]) == -right
        assert player._rotation(data)[2, 2] > 0.95, "upright"


def test_the_free_camera_flies_where_it_looks(room: World) -> None:
    player, data = begin(room, "fly")
    run(player, data, Controls(yaw=np.pi / 2), 1)
    run(player, data, Controls(forward=1), 30)
    assert player.position(data) == pytest.approx([-4.0, 2.0 + 4.0, 1.7], abs=0.01)


def test_a_thrown_ball_knocks_things_over(room: World) -> None:
    player, data = begin(room, "walk")
    run(player, data, Controls(), 20)
    before = data.body("crate").xpos.copy()
    run(player, data, Controls(throw=True, pitch=-0.2), 1)
    run(player, data, Controls(), 45)
    assert np.linalg.norm(data.body("crate").xpos - before) > 0.05
    ball = data.body("play-ball-0").xpos
    assert BALL_RADIUS - 0.03 < ball[2] < 3
    assert data.body("play-ball-1").xpos[2] > PARK - 1, "the others wait"


def test_balls_come_round_again(room: World) -> None:
    player, data = begin(room, "walk")
    for _ in range(14):
        run(player, data, Controls(throw=True), 1)
        run(player, data, Controls(), 3)
    heights = [data.body(f"play-ball-{index}").xpos[2] for index in range(12)]
    assert max(heights) < 10
    player.reset(data)
    mujoco.mj_kinematics(room.model, data)
    assert min(data.body(f"play-ball-{index}").xpos[2] for index in range(12)) > PARK - 1


def test_a_player_that_falls_out_of_the_world_is_set_back(room: World) -> None:
    player, data = begin(room, "walk")
    player._walker.place(data, np.array([0.0, 0.0, -200.0]), np.zeros(3))
    run(player, data, Controls(), 1)
    assert player.position(data)[2] > -1


def test_the_camera_is_a_rotation_and_looks_ahead(room: World) -> None:
    player, data = begin(room, "drive")
    pose = player.camera(data, (48, 80)).pose[0].double().numpy()
    assert pose[:3, :3] @ pose[:3, :3].T == pytest.approx(np.eye(3), abs=1e-6)
    assert np.linalg.det(pose[:3, :3]) == pytest.approx(1)
    assert pose[:3, 3][0] < player.position(data)[0] - 3, "behind the car"
    assert -pose[:3, 2] @ [1, 0, 0] > 0.9


def test_a_procedural_world_keeps_its_content_and_motion() -> None:
    plain, played = make_world("hills", 1), make_world("hills", 1, extend=add_bodies)
    assert np.array_equal(plain.camera_path.control, played.camera_path.control)
    assert played.model.ngeom > plain.model.ngeom
    name = plain.kicks[0].joint
    a, b = plain.reset(), played.reset()
    player = Player(played, "fly")
    player.reset(b)
    for _ in range(10):
        step(plain, a)
        player.before_step(b, Controls())
        step(played, b)
    mine, theirs = a.joint(name).qpos, b.joint(name).qpos
    assert theirs == pytest.approx(mine, abs=1e-3), "equal but for the solver's scale of convergence"


def test_model_files_keep_their_camera(tmp_path: Path) -> None:
    path = tmp_path / "room.xml"
    path.write_text(ROOM)
    assert np.array_equal(load_mjcf(path).camera_path.control, load_mjcf(path, extend=add_bodies).camera_path.control)
