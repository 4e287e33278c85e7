"""Stated conventions against a scene whose truth is known: a floor under a pitched camera."""

import json
import math

import numpy as np
import pytest
import torch

from flowshade.cli import main
from flowshade.gbuffer.io import ClipConventions, ClipError, open_clip
from flowshade.gbuffer.io.conventions import SIDECAR, world_rotation
from flowshade.gbuffer.io.depth import DepthCode
from flowshade.gbuffer.io.pictures import write_png
from flowshade.types import Camera

SIZE = (24, 32)
FOV = 70.0
FOCAL = SIZE[1] / 2 / math.tan(math.radians(FOV) / 2)
HEIGHT = 2.0
PITCH = math.radians(50)
# Axes of other worlds as rows: what a vector of ours (X right, Y ahead, Z up) becomes there.
UNREAL = np.array([[1, 0, 0], [0, -1, 0], [0, 0, 1]])
UNITY = np.array([[1, 0, 0], [0, 0, 1], [0, 1, 0]])
MAYA = np.array([[1, 0, 0], [0, 0, 1], [0, -1, 0]])
BLENDER = np.eye(3)


@pytest.fixture
def floor():
    """Pose of a camera 2 m above z = 0 that looks ahead (+Y) and down, and the floor's planar depth."""
    cos, sin = math.cos(PITCH), math.sin(PITCH)
    pose = np.eye(4)
    pose[:3, :3] = np.array([[1, 0, 0], [0, sin, -cos], [0, cos, sin]])  # right, up, back
    pose[2, 3] = HEIGHT
    camera = Camera(
        intrinsics=torch.tensor([[FOCAL, FOCAL, SIZE[1] / 2, SIZE[0] / 2]]), pose=torch.tensor(pose).float()[None]
    )
    rays = camera.rays(*SIZE)[0].double().numpy()  # unit, world
    distance = -HEIGHT / rays[2]
    forward = -pose[:3, 2]
    assert (distance > 0).all()
    return pose, distance, distance * np.einsum("i,ihw->hw", forward, rays)


def write_camera(folder, pose: np.ndarray) -> None:
    focal = {"fx": FOCAL, "fy": FOCAL, "cx": SIZE[1] / 2, "cy": SIZE[0] / 2}
    cameras = [{**focal, "camera_to_world": pose.tolist()}]
    (folder / "cameras.json").write_text(json.dumps({"fps": 24, "cameras": cameras}))


@pytest.fixture
def write_floor(tmp_path, floor, write_blender):
    """The floor as an EXR clip: depth as given, the floor's normal in the axes of another world."""

    def write(depth: np.ndarray, axes: np.ndarray = BLENDER, cameras: bool = True):
        folder = tmp_path / "floor"
        normal = axes @ np.array([0.0, 0.0, 1.0])
        passes = {
            "Depth": {"Z": depth.astype("f4")},
            "Normal": {c: np.full(SIZE, value, "f4") for c, value in zip("XYZ", normal, strict=True)},
        }
        write_blender(folder / "a_1.exr", passes)
        if cameras:
            entry = {
                "fx": FOCAL,
                "fy": FOCAL,
                "cx": SIZE[1] / 2,
                "cy": SIZE[0] / 2,
                "camera_to_world": floor[0].tolist(),
            }
            (folder / "cameras.json").write_text(json.dumps({"fps": 24, "cameras": [entry]}))
        return folder

    return write


def assert_floor(gbuffer, floor) -> None:
    """Depth within float32 rounding of the truth, normals those of a floor seen from this camera."""
    assert torch.allclose(gbuffer.depth[0, 0].double(), torch.tensor(floor[2]), rtol=2e-5)
    up = torch.tensor(floor[0][:3, :3].T @ np.array([0, 0, 1])).float()
    assert torch.allclose(gbuffer.normal[0], up[:, None, None].expand(3, *SIZE), atol=1e-6)


@pytest.mark.parametrize(
    ("axes", "up", "handedness"),
    [(BLENDER, "z", "right"), (UNREAL, "z", "left"), (MAYA, "y", "right"), (UNITY, "y", "left")],
)
def test_worlds_of_other_axes(floor, write_floor, axes, up, handedness):
    assert np.allclose(world_rotation(up, handedness).numpy() @ axes, np.eye(3))
    folder = write_floor(floor[2], axes)
    assert_floor(open_clip(folder, up=up, handedness=handedness).read(), floor)


def test_a_wrong_axis_is_seen_by_this_test(floor, write_floor):
    with pytest.raises(AssertionError):
        assert_floor(open_clip(write_floor(floor[2], UNITY), up="z").read(), floor)


def encoded(code: str, depth: np.ndarray) -> np.ndarray:
    """The textbook forms, apart from the package's own."""
    near, far = 0.1, 500.0
    return {
        "reversed-z:0.1": near / depth,
        "reversed-z:0.1,500": near * (far - depth) / (depth * (far - near)),
        "z-buffer:0.1,500": far * (depth - near) / (depth * (far - near)),
        "disparity:3": 3 / depth,
        "inverse:10": 10 / (depth + 10),
        "far:500": depth / far,
        "unit:0.01": depth / 0.01,
        "linear": depth,
    }[code]


@pytest.mark.parametrize("kind", ["planar", "ray"])
@pytest.mark.parametrize("code", ["disparity:3", "inverse:10", "far:500", "unit:0.01", "linear"])
def test_distances(floor, write_floor, code, kind):
    folder = write_floor(encoded(code, floor[2] if kind == "planar" else floor[1]))
    assert_floor(open_clip(folder, depth_code=code, depth_kind=kind).read(), floor)


@pytest.mark.parametrize("code", ["reversed-z:0.1", "reversed-z:0.1,500", "z-buffer:0.1,500"])
def test_depth_buffers(floor, code):
    depth = torch.tensor(floor[2])[None, None]
    found = DepthCode.parse(code).decode(torch.tensor(encoded(code, floor[2]))[None, None], 1)
    assert torch.allclose(found.double(), depth, rtol=1e-6)
    sky = torch.full((1, 1, 1, 1), 1.0 if code.startswith("z-buffer") else 0.0)
    assert DepthCode.parse(code).decode(sky, 1).isinf().all()


@pytest.mark.parametrize("code", ["reversed-z:0.1", "reversed-z:0.1,500", "z-buffer:0.1,500", "disparity:3000"])
def test_every_stored_number_is_kept(code):
    values = torch.arange(65536, dtype=torch.int32).reshape(1, 1, 1, -1)
    kept = DepthCode.parse(code).encode(DepthCode.parse(code).decode(values, 65535), 65535)
    assert (kept - values).abs().max() <= 1  # metres are float32
    assert torch.equal(kept[..., :1], values[..., :1]) and torch.equal(kept[..., -1:], values[..., -1:])


def test_centimetres_and_ray_distance_with_a_field_of_view_only(floor, write_floor):
    folder = write_floor(floor[1] * 100, cameras=False)
    clip = open_clip(folder, unit="cm", depth_kind="ray", fov=FOV, normals="skip", fps=24)
    assert torch.allclose(clip.read().depth[0, 0].double(), torch.tensor(floor[2]), rtol=2e-5)
    assert not clip.info.has_camera and "ray -> planar" in clip.info.axes and "cm -> metres" in clip.info.axes
    with pytest.raises(ClipError, match="neither cameras nor a field of view"):
        open_clip(folder, depth_kind="ray", normals="skip")


def test_field_of_view_and_cameras_must_agree(floor, write_floor):
    folder = write_floor(floor[2])
    assert_floor(open_clip(folder, fov=70.2).read(), floor)
    with pytest.raises(ClipError, match="fov=90 and the cameras file says 70 degrees"):
        open_clip(folder, fov=90)


@pytest.mark.parametrize(("axes", "sign"), [("opengl", (1, 1, 1)), ("directx", (1, -1, 1)), ("opencv", (1, -1, -1))])
@pytest.mark.parametrize("top", [255, 65535])
def test_camera_space_axes_of_integer_planes(tmp_path, axes, sign, top):
    ours = np.array([0.6, 0.48, 0.64])
    stored = np.round((ours * sign + 1) / 2 * top).astype(np.uint8 if top == 255 else np.uint16)
    write_png(tmp_path / "normal_1.png", np.broadcast_to(stored, (2, 2, 3)).copy())
    found = open_clip(tmp_path, normal_axes=axes).read().normal[0, :, 0, 0]
    assert np.allclose(found.numpy(), ours, atol=2 / top)


def test_world_normals_and_ray_distance_of_integer_planes(tmp_path, floor):
    normal = np.round((UNREAL @ np.array([0, 0, 1]) + 1) / 2 * 65535).astype(np.uint16)
    write_png(tmp_path / "normal_1.png", np.broadcast_to(normal, (*SIZE, 3)).copy())
    write_png(tmp_path / "depth_1.png", np.round(floor[1] / 0.001).astype(np.uint16))
    stated = {"normals": "world", "up": "z", "handedness": "left", "depth_code": "unit:0.001", "depth_kind": "ray"}
    with pytest.raises(ClipError, match=r"world space and no cameras.json"):
        open_clip(tmp_path, **stated, fov=FOV)
    write_camera(tmp_path, floor[0])
    clip = open_clip(tmp_path, **stated)
    found = clip.read()
    up = torch.tensor(floor[0][:3, :3].T @ np.array([0, 0, 1])).float()[:, None, None]
    assert clip.info.warnings == ()
    assert (found.depth[0, 0].double() - torch.tensor(floor[2])).abs().max() < 0.0006  # half a millimetre step
    assert (found.normal[0] - up).abs().max() < 1e-4


def test_sidecar_is_used_and_flags_go_before_it(floor, write_floor):
    folder = write_floor(floor[2] * 100, UNREAL)
    ClipConventions(up="z", handedness="left", unit="cm", fps=30).save(folder / SIDECAR)
    clip = open_clip(folder)
    assert clip.info.fps == 30
    assert_floor(clip.read(), floor)
    assert torch.allclose(open_clip(folder, unit="mm").read().depth * 10, clip.read().depth)
    assert open_clip(folder, fps=12).info.fps == 12


def test_sidecar_names_format_and_cameras(floor, write_floor):
    folder = write_floor(floor[2])
    (folder / "cameras.json").rename(folder / "shot.json")
    (folder / SIDECAR).write_text(json.dumps({"format": "blender", "cameras": "shot.json", "evidence": ["measured"]}))
    assert_floor(open_clip(folder).read(), floor)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[1]", "holds a list; expected names and values"),
        ('{"colour": 1}', "'colour' is unknown; expected some of format, fps"),
        ('{"up": "w"}', "up='w' is unknown; expected one of x, y, z"),
        ('{"up": ["z"]}', "up="),
        ('{"unit": "yard"}', "unit='yard' is unknown; expected one of m, cm"),
        ('{"unit": -1}', "unit='-1' is unknown"),
        ('{"fov": 180}', "fov is 180; expected a positive number below 180"),
        ('{"fov": "wide"}', "fov is 'wide'"),
        ('{"fps": true}', "fps is True"),
        ('{"bits": 17}', "bits is 17; expected a whole number from 2 to 16"),
        ('{"cameras": 3}', "cameras=3 is no text"),
        ('{"depth_code": "log:2"}', "depth code 'log:2' is unknown"),
        ('{"unit": "cm", "depth_code": "inverse:10"}', "this code gives metres by itself"),
        ('{"format": "abc"}', "format 'abc' is unknown"),
        ('{"format": "pictures", "layer": "a"}', "gbuffer.json: option 'layer' is not one of format 'pictures'"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_sidecars_that_make_no_sense(tmp_path, text, sentence):
    write_png(tmp_path / "albedo_1.png", np.zeros((2, 2, 3), np.uint8))
    (tmp_path / SIDECAR).write_text(text)
    with pytest.raises(ClipError) as caught:
        open_clip(tmp_path)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "text", ["reversed-z", "reversed-z:1,0.5", "z-buffer:1", "z-buffer:1,inf", "linear:2", "disparity:0", "far:1,2"]
)
def test_depth_codes_that_make_no_sense(text):
    with pytest.raises(ClipError, match="depth code .* is unknown"):
        DepthCode.parse(text)


def test_a_sidecar_survives_saving(tmp_path):
    stated = ClipConventions(normals="world", up="y", handedness="left", unit="0.5", fov=60.0, depth_kind="ray")
    stated.save(tmp_path / SIDECAR, ("why",))
    assert ClipConventions.beside(tmp_path) == stated
    assert [path.name for path in tmp_path.iterdir()] == [SIDECAR]


def test_flags_of_inspect_and_convert(floor, write_floor, tmp_path, capsys):
    folder = write_floor(floor[1] * 100, UNITY)
    flags = ["--up", "y", "--handedness", "left", "--unit", "cm", "--depth-kind", "ray"]
    assert main(["inspect", str(folder), *flags]) == 0
    assert "world (y up, left-handed)" in capsys.readouterr().out
    assert main(["convert", str(folder), str(tmp_path / "clip"), *flags]) == 0
    assert_floor(open_clip(tmp_path / "clip").read(), floor)
    assert main(["inspect", str(folder), "--depth-code", "log:3"]) == 2
    assert "depth code 'log:3' is unknown" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "clip"), "--layer", "a"]) == 2
    assert "'layer' is not one of format 'clip'" in capsys.readouterr().err


@pytest.mark.parametrize("pose", [[[1, 0], [0, 1]], [[1, 0, 0], [0, 1]], "none", [["a"] * 4] * 4])
def test_cameras_of_the_wrong_shape(floor, write_floor, pose):
    folder = write_floor(floor[2])
    entry = {"fx": 1, "fy": 1, "cx": 1, "cy": 1, "camera_to_world": pose}
    (folder / "cameras.json").write_text(json.dumps({"cameras": [entry]}))
    with pytest.raises(ClipError, match="frame 1: 'camera_to_world' is .*expected four rows of four finite numbers"):
        open_clip(folder)
