"""EXR files of Unreal, V-Ray, Arnold and of nobody in particular, against scenes whose truth is known."""

import math
import struct

import numpy as np
import OpenEXR
import pytest
import torch

from flowshade.gbuffer.io import ClipError, open_clip
from flowshade.gbuffer.io.exr import read_exr, read_header, to_rec709
from flowshade.gbuffer.io.unreal import camera_axes

SIZE = (6, 8)


def flat(value: float, dtype: str = "f4", size: tuple[int, int] = SIZE) -> np.ndarray:
    return np.full(size, value, dtype)


def planes(prefix: str, names: str | tuple[str, ...], values, dtype: str = "f4") -> dict[str, np.ndarray]:
    return {f"{prefix}{name}": flat(value, dtype) for name, value in zip(names, values, strict=True)}


UNREAL_CAMERA = {
    "unreal/camera/curPos/x": "100",
    "unreal/camera/curPos/y": "200",
    "unreal/camera/curPos/z": "300",
    "unreal/camera/curRot/pitch": "0",
    "unreal/camera/curRot/yaw": "90",
    "unreal/camera/curRot/roll": "0",
    "unreal/camera/FinalImage/fov": "90",
}


@pytest.fixture
def unreal(tmp_path, write_layers):
    def make(normal=(0, -1, 0), suffix="", dtype="f4", camera=UNREAL_CAMERA, **more):
        queue = "FinalImageMovieRenderQueue_"
        channels = {
            **planes("", "RGBA", (0.5, 0.25, 0.125, 1), "f2"),
            **planes(f"{queue}WorldDepth.", (f"R{suffix}",), (250,), dtype),
            **planes(f"{queue}WorldNormal.", [f"{c}{suffix}" for c in "RGB"], normal),
            **planes(f"{queue}BaseColor.", [f"{c}{suffix}" for c in "RGB"], (0.2, 0.4, 0.6)),
            **planes(f"{queue}Roughness.", [f"{c}{suffix}" for c in "RGB"], (0.3, 0.3, 0.3)),
            **planes(f"{queue}Metallic.", [f"{c}{suffix}" for c in "RGB"], (1, 1, 1)),
            **planes(f"{queue}MotionVectors.", [f"{c}{suffix}" for c in "RG"], (0.5, 0.5)),
            **more,
        }
        for number in (1, 2):
            write_layers(tmp_path / "shot" / f"shot.{number:04d}.exr", channels, **camera)
        return tmp_path / "shot"

    return make


def test_unreal_passes_units_axes_and_camera(unreal):
    clip = open_clip(unreal())
    found = clip.read()
    assert clip.info.format == "unreal" and clip.info.missing == () and clip.info.has_reference
    assert torch.allclose(found.depth, torch.tensor(2.5))
    # Yaw 90 looks along Unreal's +Y, which is our -Y; the wall's normal, Unreal's -Y, faces the camera.
    assert torch.allclose(found.normal, torch.tensor([0.0, 0, 1])[:, None, None].expand_as(found.normal), atol=1e-6)
    assert torch.allclose(found.camera.pose[0, :3, 3], torch.tensor([1.0, -2, 3]))
    assert torch.allclose(-found.camera.pose[0, :3, 2], torch.tensor([0.0, -1, 0]), atol=1e-6)
    assert torch.allclose(found.camera.intrinsics[1], torch.tensor([4.0, 4, 4, 3]))
    assert any("not used: FinalImageMovieRenderQueue_MotionVectors" in text for text in clip.info.warnings)


def test_unreal_cameras_where_the_render_graph_puts_them(unreal):
    elsewhere = {name.replace("unreal/camera", "unreal/layerData/rgba"): value for name, value in UNREAL_CAMERA.items()}
    first, second = (open_clip(unreal(camera=camera)).read().camera for camera in (UNREAL_CAMERA, elsewhere))
    assert torch.equal(first.pose, second.pose) and torch.equal(first.intrinsics, second.intrinsics)


@pytest.mark.parametrize("wrong", ["nan", "inf", "north"])
@pytest.mark.parametrize("name", ["curPos/y", "curRot/yaw", "FinalImage/fov"])
def test_unreal_cameras_that_are_no_numbers(unreal, name, wrong):
    with pytest.raises(ClipError, match=f"its header says unreal/camera/{name} is '{wrong}'; expected a finite number"):
        open_clip(unreal(camera={**UNREAL_CAMERA, f"unreal/camera/{name}": wrong}))


def test_unreal_world_is_mirrored_and_not_only_turned(unreal):
    """+X is to the left of a camera that looks along +Y in Unreal's left-handed world."""
    found = open_clip(unreal(normal=(1, 0, 0))).read()
    assert torch.allclose(found.normal[0, :, 0, 0], torch.tensor([-1.0, 0, 0]), atol=1e-6)
    up = open_clip(unreal(normal=(0, 0, 1))).read()
    assert torch.allclose(up.normal[0, :, 0, 0], torch.tensor([0.0, 1, 0]), atol=1e-6)


@pytest.mark.parametrize("angles", [(0, 0, 0), (20, 0, 0), (0, 70, 0), (0, 0, 30), (-35, 140, 50)])
def test_unreal_camera_axes_turn_as_its_editor_says(angles):
    pitch, yaw, roll = map(math.radians, angles)
    right, up, back = camera_axes(pitch, yaw, roll).T
    assert np.allclose(np.cross(right, up), -back * 1.0)  # left-handed: right x up = forward
    assert np.isclose(-back[2], math.sin(pitch))  # positive pitch looks up
    assert np.isclose(math.atan2(-back[1], -back[0]), yaw)
    assert np.isclose(right[2], -math.sin(roll) * math.cos(pitch))  # clockwise: the right side goes down


def test_unreal_channel_names_with_rubbish_behind(unreal):
    clip = open_clip(unreal(suffix="\u00a5?x"))
    assert clip.info.missing == () and torch.allclose(clip.read().depth, torch.tensor(2.5))


def test_unreal_half_float_depth_is_reported(unreal):
    clip = open_clip(unreal(dtype="f2"))
    assert any("beyond 655 m is sky" in text for text in clip.info.warnings)
    far = {"FinalImageMovieRenderQueue_WorldDepth.R": flat(65504, "f2")}
    assert open_clip(unreal(dtype="f2", **far)).read().depth.isinf().all()


def test_unreal_normals_without_a_camera(unreal):
    with pytest.raises(ClipError, match="world space and no cameras.json"):
        open_clip(unreal(camera={}))


def test_unreal_frame_that_lost_its_camera(unreal, write_layers):
    folder = unreal()
    file = read_exr(folder / "shot.0002.exr")
    write_layers(folder / "shot.0002.exr", file.channels)
    with pytest.raises(ClipError, match=r"shot.0002.exr holds no camera in its header"):
        open_clip(folder)


def test_coded_normals_are_asked_about(unreal):
    coded = (0.5, 0.0, 0.5)
    with pytest.raises(ClipError, match="give normal_code='half'"):
        open_clip(unreal(normal=coded)).read()
    found = open_clip(unreal(normal=coded), normal_code="half").read()
    assert torch.allclose(found.normal[0, :, 0, 0], torch.tensor([0.0, 0, 1]), atol=1e-6)


def test_vray_asks_for_normals_and_depth(tmp_path, write_layers):
    channels = {
        **planes("", "RGBA", (1, 1, 1, 1), "f2"),
        **planes("zDepth.", ("red", "green", "blue"), (300, 300, 300)),
        **planes("normals.", "XYZ", (0, 0, 1)),
        **planes("diffuse.", ("red", "green", "blue"), (0.1, 0.2, 0.3)),
        **planes("roughness.", ("red", "green", "blue"), (0.4, 0.4, 0.4)),
    }
    write_layers(tmp_path / "v.0001.exr", channels)
    with pytest.raises(ClipError, match="V-Ray files hold normal and do not say its normals"):
        open_clip(tmp_path)
    with pytest.raises(ClipError, match="hold depth and do not say its depth_code or unit"):
        open_clip(tmp_path, normals="camera")
    clip = open_clip(tmp_path, normals="camera", unit="cm")
    found = clip.read()
    assert clip.info.format == "vray" and clip.info.missing == ("metallic",)
    assert any("black for metals" in text for text in clip.info.warnings)
    assert torch.allclose(found.depth, torch.tensor(3.0))
    assert torch.allclose(found.albedo[0, :, 0, 0], torch.tensor([0.1, 0.2, 0.3]))
    # Depth clamped to 0..1 over 50 m, as the element does unless told otherwise.
    write_layers(tmp_path / "v.0001.exr", {**channels, **planes("zDepth.", ("red", "green", "blue"), (0.1, 0.1, 0.1))})
    clamped = open_clip(tmp_path, normals="camera", depth_code="far:50").read()
    assert torch.allclose(clamped.depth, torch.tensor(5.0))


@pytest.mark.parametrize("names", ["XYZ", ("red", "green", "blue")])
def test_arnold_tiles_and_zero_sky(tmp_path, write_layers, write_cameras, names):
    depth = flat(400)
    depth[0], depth[1] = 0, 1e30
    channels = {
        **planes("", "RGBA", (1, 1, 1, 1)),
        "Z": depth,
        **planes("N.", names, (0, 1, 0)),
        **planes("albedo.", "RGB", (0.1, 0.2, 0.3)),
    }
    write_layers(tmp_path / "a_1.exr", channels, tiled=True)
    write_cameras(tmp_path, 1, pose=np.array([[1, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0], [0, 0, 0, 1]]))
    with pytest.raises(ClipError, match="Arnold files hold normal and do not say its up"):
        open_clip(tmp_path)
    with pytest.raises(ClipError, match="do not say its unit"):
        open_clip(tmp_path, up="y")
    clip = open_clip(tmp_path, up="y", unit="cm")
    found = clip.read()
    assert clip.info.format == "arnold" and clip.info.has_reference
    assert found.depth[0, 0, :2].isinf().all() and torch.allclose(found.depth[0, 0, 2:], torch.tensor(4.0))
    assert torch.allclose(found.normal[0, :, 3, 3], torch.tensor([0.0, 1, 0]), atol=1e-6)


def test_generic_files_ask_for_what_they_do_not_say(tmp_path, write_layers):
    write_layers(tmp_path / "a_1.exr", {"depth.Z": flat(7), **planes("normal.", "XYZ", (0, 0, 1))})
    with pytest.raises(ClipError, match="hold normal and do not say its normals"):
        open_clip(tmp_path)
    clip = open_clip(tmp_path, normals="camera", unit="m")
    assert clip.info.format == "exr" and torch.allclose(clip.read().depth, torch.tensor(7.0))


def test_renderers_are_told_by_attributes_and_not_by_paths(tmp_path, write_layers):
    layers = {"Shot.Depth.Z": flat(7)}
    for name, header, format in (
        ("a", {"File": "/jobs/unreal/arnold/blender/scene.max"}, "exr"),
        ("b", {"BlenderMultiChannel": "Blender V2.55.1 and newer"}, "blender"),
        ("c", {"Software": "V-Ray 6"}, "vray"),
        ("d", {"arnold/version": "7.2"}, "arnold"),
        ("e", {"unreal/jobName": "shot"}, "unreal"),
    ):
        write_layers(tmp_path / name / "a_1.exr", layers, **header)
        assert open_clip(tmp_path / name, depth_code="linear", unit="m").info.format == format


def test_half_float_and_uint_in_one_file(tmp_path, write_layers):
    ids = np.arange(48, dtype=np.uint32).reshape(SIZE) + 2**24 + 1  # beyond what float32 can count
    channels = {"depth.Z": flat(7, "f4"), "roughness.Y": flat(0.5, "f2"), "id.I": ids}
    write_layers(tmp_path / "a_1.exr", channels)
    found = open_clip(tmp_path, unit="m").read()
    assert torch.equal(found.instance[0, 0], torch.from_numpy(ids.astype(np.int64)).int())
    assert (found.roughness == 0.5).all() and found.instance.unique().numel() == 48


def test_parts_of_different_size(tmp_path):
    """A pass may cover less of the picture than another; outside, depth is sky."""
    window = (np.array([0, 0], np.int32), np.array([7, 5], np.int32))
    small = (np.array([2, 1], np.int32), np.array([4, 3], np.int32))
    parts = [
        OpenEXR.Part({"displayWindow": window}, {"V": flat(0.5)}, name="roughness"),
        OpenEXR.Part({"displayWindow": window, "dataWindow": small}, {"Z": flat(3, size=(3, 3))}, name="depth"),
    ]
    OpenEXR.File(parts).write(str(tmp_path / "a_1.exr"))
    clip = open_clip(tmp_path, unit="m")
    found = clip.read()
    assert (found.depth[0, 0, 1:4, 2:5] == 3).all() and found.depth.isfinite().sum() == 9
    assert (found.roughness == 0.5).all() and any("depth: stored for a region" in text for text in clip.info.warnings)


def test_overscan_is_cut(tmp_path, write_layers):
    wide = np.arange(80, dtype=np.float32).reshape(8, 10)
    window = (np.array([-1, -1], np.int32), np.array([8, 6], np.int32))
    display = (np.array([0, 0], np.int32), np.array([7, 5], np.int32))
    write_layers(tmp_path / "a_1.exr", {"roughness.Y": wide}, dataWindow=window, displayWindow=display)
    assert np.array_equal(read_exr(tmp_path / "a_1.exr").channels["roughness.Y"], wide[1:7, 1:9])
    assert open_clip(tmp_path).info.warnings == (
        "frames per second are not stated; 24 assumed. Give fps=... to change it.",
    )


def test_chromaticities_become_rec709(tmp_path, write_layers):
    """ACES AP1 white stays white; its green lies outside Rec.709; a known pair agrees to the published matrix."""
    ap1 = (0.713, 0.293, 0.165, 0.83, 0.128, 0.044, 0.32168, 0.33767)
    channels = planes("albedo.", "RGB", (0.5, 0.5, 0.5))
    write_layers(tmp_path / "a_1.exr", channels, chromaticities=ap1)
    clip = open_clip(tmp_path)
    assert torch.allclose(clip.read().albedo, torch.tensor(0.5), atol=1e-4)
    assert any("converted from the primaries" in text for text in clip.info.warnings)
    matrix = to_rec709(tmp_path, read_header(tmp_path / "a_1.exr"))
    published = [[1.70505, -0.62179, -0.08326], [-0.13026, 1.14080, -0.01055], [-0.02400, -0.12897, 1.15297]]
    assert np.allclose(matrix, published, atol=2e-3)
    named = {"colorInteropID": "lin_ap1_scene"}
    write_layers(tmp_path / "a_1.exr", channels, **named)
    assert np.allclose(to_rec709(tmp_path, read_header(tmp_path / "a_1.exr")), published, atol=2e-3)
    write_layers(tmp_path / "a_1.exr", channels, chromaticities=(0.3, 0.3) * 4)
    with pytest.raises(ClipError, match="span no colours"):
        open_clip(tmp_path)


def test_deep_files_are_refused_in_a_sentence(tmp_path):
    samples = np.empty(SIZE, dtype=object)
    for pixel in np.ndindex(SIZE):
        samples[pixel] = np.array([1.0, 2.0], np.float32)
    header = {"compression": OpenEXR.ZIPS_COMPRESSION, "type": OpenEXR.deepscanline}
    OpenEXR.File(header, {"Z": samples}).write(str(tmp_path / "a_1.exr"))
    with pytest.raises(ClipError, match=r"deep EXR file .*Flatten it"):
        open_clip(tmp_path)


@pytest.mark.parametrize(
    "window", [(0, 0, 2**30, 2**30), (0, 0, 200_000, 10), (5, 5, 0, 0), (-(2**31), 0, 2**31 - 1, 5)]
)
def test_absurd_headers_are_refused_before_room_is_made(tmp_path, write_layers, window):
    write_layers(tmp_path / "a_1.exr", {"depth.Z": flat(7)})
    data = bytearray((tmp_path / "a_1.exr").read_bytes())
    for name in (b"dataWindow\0box2i\0", b"displayWindow\0box2i\0"):
        struct.pack_into("<4i", data, data.index(name) + len(name) + 4, *window)
    (tmp_path / "a_1.exr").write_bytes(data)
    with pytest.raises(ClipError, match="cannot be|announces|cut short"):
        open_clip(tmp_path)
