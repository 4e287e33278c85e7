import json
import shutil
from fractions import Fraction

import numpy as np
import OpenEXR
import pytest
import torch

from flowshade.color import linear_to_srgb
from flowshade.gbuffer.io import ClipError, open_clip


@pytest.fixture
def clip_folder(tmp_path, blender_passes, write_blender, write_cameras):
    """Three frames in either layout, with hooks to change passes or headers."""

    def make(name="clip", version=5, frames=(1, 2, 3), change=lambda number, passes: passes, cameras=True, **options):
        for number in frames:
            passes = change(number, blender_passes(seed=number))
            write_blender(tmp_path / name / f"shot_{number}.exr", passes, version, **options)
        if cameras:
            write_cameras(tmp_path / name, max(frames))
        return tmp_path / name

    return make


def test_sample_keeps_the_convention(sample):
    with open_clip(sample) as clip:
        info = clip.info
        gbuffer = clip.read(6, 10)
        rays = clip.read().camera.rays(*info.size)[6:10]
        reference = clip.reference(0, 2)
    assert (info.format, info.frames, info.size, info.fps) == ("blender", 16, (176, 320), 24.0)
    assert info.missing == () and info.has_camera and info.warnings == ()
    assert reference.shape == (2, 3, 176, 320) and reference.min() >= 0 and reference.max() <= 1
    lengths = gbuffer.normal.norm(dim=1, keepdim=True)
    sky = gbuffer.depth.isinf()
    assert sky.any() and (lengths[sky] == 0).all() and torch.allclose(lengths[~sky], torch.ones(()), atol=1e-5)
    assert gbuffer.depth[~sky].min() > 3 and gbuffer.depth[~sky].max() < 40
    camera_rays = torch.einsum("tji,tjhw->tihw", gbuffer.camera.pose[:, :3, :3], rays)
    facing = (camera_rays * gbuffer.normal).sum(1, keepdim=True)
    assert (facing[~sky] < 0.05).all()  # every surface that is seen faces the camera
    assert gbuffer.albedo.min() >= 0 and gbuffer.albedo.max() <= 1
    assert gbuffer.instance.dtype == torch.int32


def test_sample_depth_is_planar_and_normals_fit_it(sample):
    """The ground plane, rebuilt from planar depth and cameras, lies at height 0 with its normal up."""
    with open_clip(sample) as clip:
        gbuffer = clip.read(0, 2)
    camera = gbuffer.camera
    rays = camera.rays(*gbuffer.size)  # unit, world
    along = torch.einsum("ti,tihw->thw", -camera.pose[:, :3, 2], rays)[:, None]
    world = camera.pose[:, :3, 3, None, None] + rays * gbuffer.depth / along  # [T, 3, H, W]
    normal = torch.einsum("tij,tjhw->tihw", camera.pose[:, :3, :3], gbuffer.normal)
    up = (normal[:, 2] > 0.999) & gbuffer.depth[:, 0].isfinite()
    floor = up[:, -40:]  # the lower rows hold only the floor
    assert floor.float().mean() > 0.95
    heights = world[:, 2, -40:][floor]
    assert (heights - heights.median()).abs().max() < 0.01


@pytest.mark.parametrize("version", [4, 5])
def test_channels_of_both_layouts(clip_folder, blender_passes, version):
    clip = open_clip(clip_folder(version=version))
    passes = blender_passes(seed=2)
    found = clip.read(1, 2)
    assert torch.equal(found.albedo[0], torch.from_numpy(np.stack([passes["basecolor"][c] for c in "RGB"])).float())
    assert torch.equal(found.roughness[0, 0], torch.from_numpy(passes["roughness"]["X"]))
    assert torch.equal(found.metallic[0, 0], torch.from_numpy(passes["metallic"]["X"]))
    assert torch.equal(found.instance[0, 0], torch.from_numpy(passes["Object Index"]["X"]).int())
    assert found.depth[0, 0, 0].isinf().all()
    assert torch.equal(found.depth[0, 0, 1:], torch.from_numpy(passes["Depth"]["Z"][1:]))
    assert torch.equal(found.motion[0, 0], torch.from_numpy(passes["Vector"]["X"]))
    assert torch.equal(found.motion[0, 1], -torch.from_numpy(passes["Vector"]["Y"]))
    combined = torch.from_numpy(np.stack([passes["Combined"][c] for c in "RGB"]).astype(np.float32))
    assert torch.equal(clip.reference(1, 2)[0], linear_to_srgb(combined))
    assert clip.info.warnings == ()


def test_world_normals_become_camera_normals(tmp_path, clip_folder, write_cameras):
    def upward(_, passes):
        normal = {c: np.full((6, 8), value, np.float32) for c, value in zip("XYZ", (0, 0, 0.7), strict=True)}
        return {**passes, "Normal": normal, "Depth": {"Z": np.ones((6, 8), np.float32)}}

    folder = clip_folder(change=upward)
    # A camera that looks along world +Y: its own up is world up.
    pose = np.array([[1, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
    write_cameras(folder, 3, pose=pose)
    normal = open_clip(folder).read().normal
    assert torch.allclose(normal, torch.tensor([0.0, 1.0, 0.0])[:, None, None].expand_as(normal))
    as_stored = open_clip(folder, normals="camera").read().normal
    assert torch.allclose(as_stored, torch.tensor([0.0, 0.0, 1.0])[:, None, None].expand_as(normal))
    assert open_clip(folder, normals="skip").info.missing == ("normal",)


def test_world_normals_without_cameras(clip_folder, tmp_path):
    folder = clip_folder(cameras=False)
    with pytest.raises(ClipError, match=r"world space and no cameras.json .* Give cameras=FILE, normals='camera'"):
        open_clip(folder)
    skipped = open_clip(folder, normals="skip")
    assert skipped.read().camera is None and any("24 assumed" in text for text in skipped.info.warnings)
    with pytest.raises(ClipError, match="is missing; expected a cameras file"):
        open_clip(folder, cameras=tmp_path / "absent.json")
    with pytest.raises(ClipError, match="normals='up' is unknown"):
        open_clip(folder, normals="up")


def test_half_float_depth_has_two_more_skies(clip_folder):
    def halves(_, passes):
        depth = np.full((6, 8), 7.5, np.float16)
        depth[0], depth[1] = 65504, np.inf
        return {**passes, "Depth": {"Z": depth}}

    depth = open_clip(clip_folder(change=halves)).read().depth
    assert depth[:, :, :2].isinf().all() and (depth[:, :, 2:] == 7.5).all()


@pytest.mark.parametrize("version", [4, 5])  # DiffCol, Diffuse Color
def test_diffuse_colour_stands_in_with_a_warning(clip_folder, version):
    def without_aov(_, passes):
        return {"Diffuse Color" if name == "basecolor" else name: planes for name, planes in passes.items()}

    info = open_clip(clip_folder(version=version, change=without_aov)).info
    assert "albedo" in info.channels and any("black for metals" in text for text in info.warnings)


@pytest.mark.parametrize("aov", ["Base_Color", "albedo", "Base Color"])
def test_base_colour_goes_before_diffuse_colour(clip_folder, aov):
    def both(_, passes):
        passes = dict(passes)
        base = passes.pop("basecolor")
        return {"Diffuse Color": {c: np.zeros((6, 8), np.float32) for c in "RGB"}, aov: base, **passes}

    clip = open_clip(clip_folder(change=both))
    assert clip.read().albedo.max() > 0 and not any("metals" in text for text in clip.info.warnings)


def test_value_aovs_ending_in_v_and_unknown_passes(clip_folder):
    def other(_, passes):
        return {**passes, "roughness": {"V": passes["roughness"]["X"]}, "Mist": {"Z": passes["Depth"]["Z"]}}

    info = open_clip(clip_folder(change=other)).info
    assert "roughness" in info.channels
    assert info.warnings == ("passes not used: Mist.",)


def test_frames_are_ordered_by_number(clip_folder, blender_passes):
    clip = open_clip(clip_folder(frames=tuple(range(1, 12))))
    for index in (1, 9, 10):
        expected = torch.from_numpy(blender_passes(seed=index + 1)["roughness"]["X"])
        assert torch.equal(clip.read(index, index + 1).roughness[0, 0], expected)


def test_frame_rate_of_the_header(clip_folder, tmp_path):
    folder = clip_folder(cameras=False, header={"framesPerSecond": Fraction(30000, 1001)})
    assert open_clip(folder, normals="skip").info.fps == pytest.approx(29.97, abs=1e-3)
    assert open_clip(folder, normals="skip", fps=12).info.fps == 12


def test_gaps_doubles_and_nameless_files(clip_folder, tmp_path):
    with pytest.raises(ClipError, match="frames 3, 4 are missing between 1 and 5"):
        open_clip(clip_folder("gap", frames=(1, 2, 5)))
    folder = clip_folder("double")
    shutil.copy(folder / "shot_2.exr", folder / "other_0002.exr")
    with pytest.raises(ClipError, match=r"other_0002.exr and shot_2.exr are both frame 2"):
        open_clip(folder)
    folder = clip_folder("nameless")
    shutil.copy(folder / "shot_2.exr", folder / "final.exr")
    with pytest.raises(ClipError, match="final.exr has no frame number"):
        open_clip(folder)


def test_mixed_sizes(clip_folder, blender_passes, write_blender):
    folder = clip_folder()
    write_blender(folder / "shot_3.exr", blender_passes((6, 10)))
    with pytest.raises(ClipError, match=r"shot_3.exr is 6x10 and the first frame 6x8"):
        open_clip(folder)
    shutil.copy(folder / "shot_3.exr", folder / "shot_2.exr")
    shutil.copy(folder / "shot_1.exr", folder / "shot_3.exr")
    with pytest.raises(ClipError, match=r"shot_2.exr is 6x10 and the first frame 6x8"):
        open_clip(folder).read()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.98])
def test_truncated_multi_part_file(sample, tmp_path, share):
    for number in (1, 2, 3):
        shutil.copy(sample / f"plaza_{number:04d}.exr", tmp_path)
    shutil.copy(sample / "cameras.json", tmp_path)
    cut = tmp_path / "plaza_0002.exr"
    cut.write_bytes(cut.read_bytes()[: int(cut.stat().st_size * share)])
    clip = open_clip(tmp_path)
    assert clip.read(0, 1).frames == clip.read(2, 3).frames == 1
    with pytest.raises(ClipError, match=r"plaza_0002.exr.* cut short"):
        clip.read(1, 2)


def test_truncated_first_file(sample, tmp_path):
    shutil.copy(sample / "plaza_0001.exr", tmp_path)
    shutil.copy(sample / "cameras.json", tmp_path)
    cut = tmp_path / "plaza_0001.exr"
    cut.write_bytes(cut.read_bytes()[:200_000])
    with pytest.raises(ClipError, match="cut short"):
        open_clip(tmp_path).read()


def test_a_frame_without_a_pass(clip_folder):
    def loses_depth(number, passes):
        return {name: planes for name, planes in passes.items() if number != 2 or name != "Depth"}

    clip = open_clip(clip_folder(change=loses_depth))
    with pytest.raises(ClipError, match=r"shot_2.exr lacks ViewLayer.Depth.Z, which the first frame has"):
        clip.read()


def test_files_that_are_not_exr(tmp_path):
    (tmp_path / "a_1.exr").write_bytes(b"not an image at all")
    with pytest.raises(ClipError, match=r"\(19 bytes\) does not begin like an EXR file"):
        open_clip(tmp_path)


def test_pictures_alone_are_no_clip(clip_folder):
    def only_picture(_, passes):
        return {"Combined": passes["Combined"]}

    with pytest.raises(ClipError, match=r"has the passes Combined, none of which is a G-buffer channel"):
        open_clip(clip_folder(change=only_picture))


def test_view_layers_must_be_named(tmp_path, blender_passes, write_cameras):
    passes = blender_passes()
    two = {f"{layer}.{name}": planes for layer in ("Near", "Far") for name, planes in passes.items()}
    channels = {f"{name}.{component}": v for name, planes in two.items() for component, v in planes.items()}
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage, "Software": "Blender 4.2.1"}
    (tmp_path / "c").mkdir()
    OpenEXR.File(header, channels).write(str(tmp_path / "c" / "a_1.exr"))
    write_cameras(tmp_path / "c", 1)
    with pytest.raises(ClipError, match="has the view layers .*Name it: layer="):
        open_clip(tmp_path / "c")
    assert open_clip(tmp_path / "c", layer="Far").info.missing == ()
    with pytest.raises(ClipError, match="has no view layer 'Middle'; it has"):
        open_clip(tmp_path / "c", layer="Middle")


def test_colour_spaces_that_are_not_linear(clip_folder):
    with pytest.raises(ClipError, match="colour space srgb_rec709_display; expected linear Rec.709"):
        open_clip(clip_folder("display", header={"colorInteropID": "srgb_rec709_display"}))


def test_render_region(clip_folder, blender_passes):
    """Stored pixels lie in the picture where their window says; outside is sky."""
    window = (np.array([-3, -2], np.int32), np.array([12, 9], np.int32))
    folder = clip_folder("region", header={"displayWindow": window}, cameras=False)
    clip = open_clip(folder, normals="camera")
    assert clip.info.size == (12, 16) and any("region of the picture only" in text for text in clip.info.warnings)
    found, passes = clip.read(0, 1), blender_passes(seed=1)
    inside = (slice(2, 8), slice(3, 11))
    assert torch.equal(found.roughness[0, 0][inside], torch.from_numpy(passes["roughness"]["X"]))
    outside = torch.ones(12, 16, dtype=torch.bool)
    outside[inside] = False
    assert found.depth[0, 0][outside].isinf().all() and (found.albedo[0][:, outside] == 0).all()
    assert found.depth[0, 0, 3:8, 3:11].isfinite().all() and (found.normal[0][:, outside] == 0).all()


def test_cameras_must_fit_the_clip(clip_folder, write_cameras):
    folder = clip_folder()
    write_cameras(folder, 3, size=(12, 16))
    with pytest.raises(ClipError, match=r"pictures of 12x16 and the clip is 6x8"):
        open_clip(folder)
    write_cameras(folder, 2)
    with pytest.raises(ClipError, match=r"cameras for 2 frames \(1 to 2\) and the clip 3 frames"):
        open_clip(folder)
    (folder / "cameras.json").write_text(json.dumps({"cameras": [{"frame": 1}]}))
    with pytest.raises(ClipError, match="cameras.json: the camera of frame 1: 'fx' is missing; expected a finite"):
        open_clip(folder)
