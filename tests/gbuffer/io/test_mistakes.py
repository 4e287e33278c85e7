"""Each line under "mistakes seen in the field" of docs/conventions.md: an error, or a conversion that is chosen and
said. What other tests hold is named at the end."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from flowshade.gbuffer.io import ClipError, VideoWriter, convert, inspect_clip, open_clip, write_clip
from flowshade.gbuffer.io.conventions import intrinsics_of_fov, ray_length, rebuild_normals
from flowshade.gbuffer.io.pictures import write_png
from flowshade.types import GBuffer
from tests.gbuffer.io import test_guess as rooms

SIZE = (6, 8)


def warned(path, text: str, **options) -> bool:
    return any(text in warning for warning in inspect_clip(path, **options).warnings)


def normal_picture(vectors: np.ndarray) -> np.ndarray:
    """[3, H, W] unit vectors as an 8-bit picture."""
    return np.round((vectors + 1) / 2 * 255).astype(np.uint8).transpose(1, 2, 0).copy()


def test_world_space_normals_fed_as_camera_space(tmp_path, sample):
    shutil.copy(sample / "plaza_0001.exr", tmp_path)
    shutil.copy(sample / "cameras.json", tmp_path)
    assert not warned(tmp_path, "face away")
    assert warned(tmp_path, "face away from the viewer: they may be in world space", normals="camera")
    (tmp_path / "cameras.json").unlink()  # without a camera, the width of the view is not known
    assert warned(tmp_path, "face away from the viewer", normals="camera", normal_axes="opencv")


def test_y_of_directx_normals(tmp_path):
    down = rooms.IN_CAMERA[0] * np.array([1, -1, 1])[:, None, None]
    write_png(tmp_path / "normal_1.png", normal_picture(down))
    assert warned(tmp_path, "give normal_axes='directx' if Y points down")
    found = open_clip(tmp_path, normal_axes="directx").read().normal[0]
    assert (found.double() - torch.from_numpy(rooms.IN_CAMERA[0])).abs().max() < 0.02


def test_red_and_blue_exchanged(tmp_path):
    write_png(tmp_path / "normal_1.png", normal_picture(rooms.IN_CAMERA[0])[..., ::-1].copy())
    write_png(tmp_path / "albedo_1.png", np.full((*rooms.SIZE, 3), (10, 20, 200), np.uint8))
    assert warned(tmp_path, "red and blue may be exchanged (order='bgr')")
    clip = open_clip(tmp_path, order="bgr", albedo_code="linear")
    found = clip.read()
    assert (found.normal[0].double() - torch.from_numpy(rooms.IN_CAMERA[0])).abs().max() < 0.02
    assert (found.albedo[0, :, 0, 0] * 255).round().tolist() == [200, 20, 10]
    assert clip.coded()["albedo"][0, :, 0, 0].tolist() == [200, 20, 10]
    assert not warned(tmp_path, "exchanged", order="bgr")


def test_depth_stretched_frame_by_frame(tmp_path):
    for frame in range(3):
        depth = rooms.PLANAR[frame]
        stretched = (depth - depth.min()) / (depth.max() - depth.min())
        for name, values in (("stretched", stretched), ("fixed", depth / 100)):
            (tmp_path / name).mkdir(exist_ok=True)
            write_png(tmp_path / name / f"depth_{frame}.png", np.round(values * 65535).astype(np.uint16))
    assert warned(tmp_path / "stretched", "both ends of its code in every frame", depth_code="far:10")
    assert not warned(tmp_path / "fixed", "both ends of its code", depth_code="far:100")


def test_chroma_subsampled_normals_and_materials(tmp_path):
    pictures = np.full((2, 16, 16, 3), 128, np.uint8)
    for name in ("normal", "roughness", "metallic"):
        with VideoWriter(tmp_path / f"{name}.mp4", fps=24, size=(16, 16)) as video:
            video.append(pictures)
    assert warned(tmp_path, "metallic, normal, roughness: stored as compressed colour video at half colour resolution")


def test_jpeg_for_normals(tmp_path):
    Image.fromarray(normal_picture(rooms.IN_CAMERA[0])).save(tmp_path / "normal_1.jpg", quality=95)
    assert warned(tmp_path, "normal: stored as JPEG")
    lengths = open_clip(tmp_path).read().normal.norm(dim=1)
    assert torch.allclose(lengths, torch.ones(()), atol=1e-5)


def test_one_plane_where_three_are_expected(tmp_path):
    write_png(tmp_path / "normal_1.png", np.full(SIZE, 128, np.uint8))
    with pytest.raises(ClipError, match="'normal' has 1 planes; expected 3"):
        open_clip(tmp_path).read()


def test_frames_sorted_as_text_and_alpha(tmp_path):
    for number in (2, 10, *range(3, 10)):
        Image.fromarray(np.full((*SIZE, 4), number, np.uint8), "RGBA").save(tmp_path / f"albedo_{number}.png")
    clip = open_clip(tmp_path, albedo_code="linear")
    assert [round(float(value) * 255) for value in clip.read().albedo[:, 0, 0, 0]] == list(range(2, 11))
    assert any("alpha plane, which is dropped" in text for text in clip.info.warnings)


def test_nothing_is_cut_to_the_shortest(tmp_path):
    for number in (1, 2, 3):
        write_png(tmp_path / f"albedo_{number}.png", np.zeros((*SIZE, 3), np.uint8))
    for number in (1, 2):
        write_png(tmp_path / f"roughness_{number}.png", np.zeros(SIZE, np.uint8))
    with pytest.raises(ClipError, match="channels differ in frames"):
        open_clip(tmp_path)


def test_odd_widths_survive_conversion(tmp_path):
    clip = GBuffer(albedo=torch.rand(2, 3, 7, 9))
    write_clip(tmp_path / "c", clip, 24.0, rgb=torch.rand(2, 3, 7, 9))
    convert(tmp_path / "c", tmp_path / "v", format="video")
    assert open_clip(tmp_path / "v").info.size == (7, 9)


def test_rebuilt_normals_need_intrinsics(tmp_path):
    write_png(tmp_path / "depth_1.png", np.round(rooms.PLANAR[0] * 1000).astype(np.uint16))
    with pytest.raises(ClipError, match="rebuilt from depth and neither cameras nor a field of view"):
        open_clip(tmp_path, unit="mm", normals="depth")
    write_png(tmp_path / "albedo_1.png", np.zeros((*rooms.SIZE, 3), np.uint8))
    with pytest.raises(ClipError, match="rebuilds them from depth in metres, and there is none"):
        open_clip(tmp_path, normals="depth", fov=rooms.FOV)
    clip = open_clip(tmp_path, unit="mm", normals="depth", fov=rooms.FOV)
    assert clip.info.channels == ("albedo", "normal", "depth") and "rebuilt from depth" in clip.info.axes
    agreement = (clip.read().normal[0].double() * torch.from_numpy(rooms.IN_CAMERA[0])).sum(0)
    assert (agreement > 0.98).double().mean() > 0.95


def test_rebuilt_normals_of_multilayer_files(tmp_path, write_layers):
    write_layers(tmp_path / "a_1.exr", {"depth.Z": rooms.PLANAR[0].astype("f4")})
    found = open_clip(tmp_path, unit="m", normals="depth", fov=rooms.FOV).read()
    assert ((found.normal[0].double() * torch.from_numpy(rooms.IN_CAMERA[0])).sum(0) > 0.999).double().mean() > 0.95


def test_rebuilt_normals_keep_to_their_side_of_a_silhouette():
    """A near plate before a far wall, both facing the viewer: so do all normals, at the plate's border too."""
    depth = torch.full((1, 1, 9, 9), 20.0)
    depth[..., 3:6, 3:6] = 2.0
    depth[..., 0, :] = torch.inf
    normal = rebuild_normals(depth, intrinsics_of_fov(60, (9, 9)))
    assert torch.allclose(normal[0, 2, 1:], torch.tensor(1.0), atol=1e-5) and (normal[0, :, 0] == 0).all()
    ray = ray_length(intrinsics_of_fov(60, (9, 9)), (9, 9))
    assert (rebuild_normals(depth * ray, intrinsics_of_fov(60, (9, 9)))[0, 2, 1:] < 0.999).any()


# 16-bit PNG read as 8-bit: test_picture_folder.py, test_pictures.py (bits). Resizing: test_convert.py. Variable frame
# rate, rotation: test_video.py. Truncated multi-part EXR: test_blender.py, test_damage.py. World normals by name of the
# format: test_multilayer.py.
