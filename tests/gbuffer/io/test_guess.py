"""Proposals for what files do not say, on a room whose truth is known, and on a clip that Blender rendered."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

from flowshade.cli import main
from flowshade.gbuffer.io import ClipError, guess_conventions, open_clip
from flowshade.gbuffer.io.cameras import save_cameras
from flowshade.gbuffer.io.conventions import SIDECAR, intrinsics_of_fov, world_rotation
from flowshade.gbuffer.io.pictures import write_png
from flowshade.types import Camera

SIZE = (90, 120)
FOV = 70.0
NEAR, FAR = 0.1, 200.0


def look(position, yaw: float, pitch: float) -> np.ndarray:
    """A camera that looks along +Y at yaw 0, turned to the left by yaw and down by pitch (degrees)."""
    yaw, pitch = math.radians(yaw), math.radians(pitch)
    forward = np.array([-math.sin(yaw) * math.cos(pitch), math.cos(yaw) * math.cos(pitch), -math.sin(pitch)])
    right = np.array([math.cos(yaw), math.sin(yaw), 0])
    pose = np.eye(4)
    pose[:3, :3] = np.stack([right, np.cross(right, forward), -forward], 1)
    pose[:3, 3] = position
    return pose


POSES = [look((0, 0, 1.7), 20, 12), look((0.5, 0.4, 1.6), 12, 15), look((1.1, 0.7, 1.8), -5, 18)]
CAMERA = Camera(intrinsics=intrinsics_of_fov(FOV, SIZE).repeat(3, 1), pose=torch.from_numpy(np.stack(POSES)).float())


def room(camera: Camera) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ray distance [T, H, W], planar depth and world normals [T, 3, H, W] of a floor, two walls and a ball."""
    rays = camera.rays(*SIZE).double().numpy()
    origin = camera.pose[:, :3, 3].double().numpy()[:, :, None, None]
    distance = np.full((len(rays), *SIZE), np.inf)
    normal = np.zeros_like(rays)
    for axis, place, sign in ((2, 0.0, 1), (1, 8.0, -1), (0, -5.0, 1)):
        with np.errstate(divide="ignore"):
            hit = (place - origin[:, axis]) / rays[:, axis]
        nearer = (hit > 0) & (hit < distance)
        distance = np.where(nearer, hit, distance)
        facing = np.zeros(3)
        facing[axis] = sign
        normal = np.where(nearer[:, None], facing[None, :, None, None], normal)
    middle, radius = np.array([-1.0, 5.0, 1.0]), 1.0
    to_ball = origin - middle[None, :, None, None]
    along = (to_ball * rays).sum(1)
    inside = along**2 - ((to_ball**2).sum(1) - radius**2)
    hit = -along - np.sqrt(np.maximum(inside, 0))
    nearer = (inside > 0) & (hit > 0) & (hit < distance)
    distance = np.where(nearer, hit, distance)
    surface = (origin + rays * distance[:, None] - middle[None, :, None, None]) / radius
    normal = np.where(nearer[:, None], surface, normal)
    forward = -camera.pose[:, :3, 2].double().numpy()
    planar = distance * np.einsum("ti,tihw->thw", forward, rays)
    return distance, planar, normal


RAY, PLANAR, WORLD = room(CAMERA)
IN_CAMERA = np.einsum("tji,tjhw->tihw", CAMERA.pose[:, :3, :3].double().numpy(), WORLD)


@pytest.fixture
def write_room(tmp_path, write_layers):
    def write(depth, normal=None, cameras=True):
        for frame in range(3):
            channels = {"depth.Z": depth[frame].astype("f4")}
            if normal is not None:
                channels |= {f"normal.{name}": normal[frame, index].astype("f4") for index, name in enumerate("XYZ")}
            write_layers(tmp_path / f"a_{frame + 1}.exr", channels)
        if cameras:
            save_cameras(tmp_path / "cameras.json", CAMERA, 24, SIZE)
        return tmp_path

    return write


def answers(guess) -> dict:
    return {name: value for name, value in guess.conventions.stated().items() if name != "format"}


def test_the_room_is_what_it_should_be():
    assert (WORLD[..., -1, :][:, 2] == 1).all() and len({tuple(n) for n in WORLD[0].reshape(3, -1).T.round(3)}) > 100
    assert np.allclose(np.linalg.norm(WORLD, axis=1), 1)


@pytest.mark.parametrize("up", ["x", "y", "z"])
@pytest.mark.parametrize("handedness", ["right", "left"])
def test_worlds_are_told_apart_with_cameras(write_room, up, handedness):
    turned = np.einsum("ji,tjhw->tihw", world_rotation(up, handedness).double().numpy(), WORLD)
    guess = guess_conventions(write_room(PLANAR, turned))
    assert answers(guess) == {
        "normals": "world",
        "up": up,
        "handedness": handedness,
        "depth_kind": "planar",
        "unit": "m",
    }, str(guess)


@pytest.mark.parametrize("up", ["y", "z"])
def test_worlds_are_told_apart_without_cameras(write_room, up):
    turned = np.einsum("ji,tjhw->tihw", world_rotation(up, "left").double().numpy(), WORLD)
    found = {entry.name: entry for entry in guess_conventions(write_room(PLANAR, turned, cameras=False)).findings}
    assert found["normals"].value == "world" and found["handedness"].value == "left"
    assert found["up"].value == up and "of the surfaces face along" in found["up"].evidence
    assert found["unit"].confidence < 0.6  # nobody can know without cameras


@pytest.mark.parametrize(("axes", "signs"), [("opengl", (1, 1, 1)), ("directx", (1, -1, 1)), ("opencv", (1, -1, -1))])
def test_camera_space_axes(write_room, axes, signs):
    stored = IN_CAMERA * np.array(signs)[:, None, None]
    for cameras in (True, False):
        found = answers(guess_conventions(write_room(PLANAR, stored, cameras)))
        assert (found["normals"], found["normal_axes"], found["depth_kind"]) == ("camera", axes, "planar")


@pytest.mark.parametrize("unit", ["cm", "mm", "ft"])
@pytest.mark.parametrize("kind", ["planar", "ray"])
def test_units_by_cameras_that_move(write_room, unit, kind):
    metres = {"cm": 0.01, "mm": 0.001, "ft": 0.3048}[unit]
    found = answers(guess_conventions(write_room((PLANAR if kind == "planar" else RAY) / metres, WORLD)))
    assert (found["unit"], found["depth_kind"]) == (unit, kind)


def test_ray_distance_without_cameras(write_room):
    guess = guess_conventions(write_room(RAY, IN_CAMERA, cameras=False))
    found = {entry.name: entry for entry in guess.findings}
    assert found["depth_kind"].value == "ray" and found["depth_kind"].confidence > 0.8
    assert found["fov"].value == FOV and "fov" not in answers(guess)  # said, but too rough to be proposed
    stated = guess_conventions(guess.path, fov=FOV)
    assert answers(stated)["depth_kind"] == "ray" and "fov" not in {entry.name for entry in stated.findings}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (NEAR * (FAR - PLANAR) / (PLANAR * (FAR - NEAR)), "nearer is larger, so give reversed-z:NEAR,FAR or disparity"),
        (FAR * (PLANAR - NEAR) / (PLANAR * (FAR - NEAR)), "nearer is smaller, so give z-buffer:NEAR,FAR"),
        (10 / (PLANAR + 10), "as S/(z+S), code inverse:S"),
    ],
)
def test_other_codes_of_depth_are_named_and_not_proposed(write_room, code, words):
    guess = guess_conventions(write_room(code, IN_CAMERA))
    found = {entry.name: entry for entry in guess.findings}["depth_code"]
    assert found.value is None and words in found.evidence and found.confidence > 0.6
    assert not {"depth_code", "depth_kind", "unit"} & set(answers(guess))
    if "inverse" in words:  # normals follow from it all the same, whatever S
        assert answers(guess)["normal_axes"] == "opengl"


def test_coded_normals(write_room):
    found = answers(guess_conventions(write_room(PLANAR, (IN_CAMERA + 1) / 2)))
    assert (found["normal_code"], found["normals"]) == ("half", "camera")


def test_integer_pictures(tmp_path):
    for frame in range(3):
        normal = np.round((IN_CAMERA[frame] * np.array([1, -1, 1])[:, None, None] + 1) / 2 * 65535).astype(np.uint16)
        write_png(tmp_path / f"normal_{frame}.png", normal.transpose(1, 2, 0).copy())
        write_png(tmp_path / f"depth_{frame}.png", np.round(PLANAR[frame] * 1000).astype(np.uint16))
    guess = guess_conventions(tmp_path)
    assert answers(guess)["normal_axes"] == "directx" and answers(guess)["depth_kind"] == "planar"
    assert next(found for found in guess.findings if found.name == "unit").value == "mm"


def test_normals_alone(tmp_path):
    for name, stored in (("camera", IN_CAMERA), ("world", WORLD)):
        (tmp_path / name).mkdir()
        values = np.round((stored[0] + 1) / 2 * 255).astype(np.uint8).transpose(1, 2, 0)
        write_png(tmp_path / name / "normal_1.png", values.copy())
        assert answers(guess_conventions(tmp_path / name))["normals"] == name


def test_a_proposal_is_written_and_then_reads_the_truth(write_room, capsys):
    turned = np.einsum("ji,tjhw->tihw", world_rotation("y", "left").double().numpy(), WORLD)
    folder = write_room(PLANAR * 100, turned)
    with pytest.raises(ClipError, match="do not say its"):
        open_clip(folder)
    assert main(["inspect", str(folder), "--guess"]) == 0
    shown = capsys.readouterr().out
    assert "proposed  unit = cm" in shown and not (folder / SIDECAR).exists()
    assert main(["inspect", str(folder), "--guess", "--write"]) == 0
    assert "evidence" in json.loads((folder / SIDECAR).read_text())
    found = open_clip(folder).read()
    assert torch.allclose(found.depth[:, 0].double(), torch.from_numpy(PLANAR), rtol=1e-5)
    assert torch.allclose(found.normal.double(), torch.from_numpy(IN_CAMERA), atol=1e-5)
    assert main(["inspect", str(folder), "--guess", "--write"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["inspect", str(folder), "--write"]) == 2
    assert "--write goes with --guess" in capsys.readouterr().err


def test_what_is_stated_is_not_guessed_again(write_room):
    guess = guess_conventions(write_room(PLANAR, WORLD), normals="world", unit="m")
    assert not {"normals", "unit"} & {found.name for found in guess.findings}
    assert answers(guess)["up"] == "z"


def test_blender_clip(sample, tmp_path):
    for number in (1, 8, 16):
        shutil.copy(sample / f"plaza_{number:04d}.exr", tmp_path)
    guess = guess_conventions(sample)
    assert answers(guess) == {
        "normals": "world",
        "up": "z",
        "handedness": "right",
        "depth_kind": "planar",
        "unit": "m",
    }


def test_clips_that_say_everything(tmp_path, make_clip):
    from flowshade.gbuffer.io import write_clip

    write_clip(tmp_path / "c", make_clip(1), 24.0)
    with pytest.raises(ClipError, match="there is nothing to guess"):
        guess_conventions(tmp_path / "c")
