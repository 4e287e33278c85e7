"""Folders as other projects lay them out: DiffusionRenderer, InteriorVerse, Hypersim, Infinigen, Replicator."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from flowshade.errors import MissingDependencyError
from flowshade.gbuffer.io import ClipError, open_clip
from flowshade.gbuffer.io.conventions import ray_length
from flowshade.gbuffer.io.exr import write_exr
from flowshade.gbuffer.io.pictures import write_png

SIZE = (6, 8)


def grey(value: int, size=SIZE) -> np.ndarray:
    return np.full((*size, 3), value, np.uint8)


def save_jpeg(path, values) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path, quality=100)


@pytest.fixture
def diffusion_renderer(tmp_path):
    def make(clip="shot", chunks=((0, 3), (1, 2)), passes=("basecolor", "normal", "depth", "roughness", "metallic")):
        for chunk, frames in chunks:
            for frame in range(frames):
                for name in passes:
                    path = tmp_path / "gbuffer_frames" / clip / f"{chunk:04d}.{frame:04d}.{name}.jpg"
                    save_jpeg(path, grey(10 * chunk + frame + 100))
        return tmp_path

    return make


def test_diffusion_renderer_chunks_follow_one_another(diffusion_renderer):
    clip = open_clip(diffusion_renderer())
    assert (clip.info.format, clip.info.frames) == ("diffusion-renderer", 5)
    assert clip.info.missing == ("depth",) and any("stored as JPEG" in text for text in clip.info.warnings)
    found = (clip.read().roughness[:, 0, 3, 3] * 255).round().int().tolist()
    assert found == [100, 101, 102, 110, 111]
    assert "depth" in open_clip(diffusion_renderer(), depth_code="inverse:10").info.channels


def test_diffusion_renderer_gaps_and_several_clips(diffusion_renderer):
    root = diffusion_renderer()
    (root / "gbuffer_frames" / "shot" / "0001.0000.basecolor.jpg").unlink()
    with pytest.raises(ClipError, match="chunk 1 begins with frame 1; expected 0"):
        open_clip(root)
    diffusion_renderer("other", ((0, 2),))
    with pytest.raises(ClipError, match="holds the clips other, shot; expected one. Name it"):
        open_clip(root)
    assert open_clip(root / "gbuffer_frames" / "other").info.frames == 2


def test_interiorverse_material_depth_and_normals(tmp_path):
    def planes(*values):
        return {name: np.full(SIZE, value, np.float32) for name, value in zip("RGB", values, strict=True)}

    for number in range(2):
        depth = planes(2500, 2500, 2500)
        for values in depth.values():
            values[0] = np.inf
        write_exr(tmp_path / f"{number:03d}_depth.exr", depth)
        write_exr(tmp_path / f"{number:03d}_material.exr", planes(0.25, 0.75, 0))
        write_exr(tmp_path / f"{number:03d}_albedo.exr", planes(0.1, 0.2, 0.3))
        write_exr(tmp_path / f"{number:03d}_normal.exr", planes(0, 0.6, 0.8))
        write_exr(tmp_path / f"{number:03d}_im.exr", planes(1, 1, 1))
        write_exr(tmp_path / f"{number:03d}_mask.exr", planes(1, 1, 1))
    clip = open_clip(tmp_path, fps=24)
    found = clip.read()
    assert clip.info.format == "interiorverse" and clip.info.missing == () and clip.info.warnings == ()
    assert torch.allclose(found.depth[:, :, 1:], torch.tensor(2.5)) and found.depth[:, :, 0].isinf().all()
    assert (found.roughness == 0.25).all() and (found.metallic == 0.75).all()
    assert torch.allclose(found.normal[0, :, 2, 2], torch.tensor([0, 0.6, 0.8]))
    assert torch.allclose(found.albedo[0, :, 2, 2], torch.tensor([0.1, 0.2, 0.3]))
    assert torch.allclose(clip.reference(), torch.tensor(1.0))


@pytest.fixture
def hypersim(tmp_path):
    h5py = pytest.importorskip("h5py")

    def write(path, values) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w") as file:
            file.create_dataset("dataset", data=values, compression="gzip")

    intrinsics = torch.tensor([[4 / math.tan(math.radians(30)), 4 / math.tan(math.radians(30)), 4.0, 3.0]])
    ray = (ray_length(intrinsics, SIZE)[0, 0] * 3).numpy().astype(np.float16)
    ray[0] = np.nan
    scene = tmp_path / "ai_001_001"
    for frame in (0, 1, 2):
        geometry = scene / "images" / "scene_cam_00_geometry_hdf5"
        write(geometry / f"frame.{frame:04d}.depth_meters.hdf5", ray)
        write(geometry / f"frame.{frame:04d}.normal_cam.hdf5", np.full((*SIZE, 3), (0, 0, 1), np.float16))
        write(geometry / f"frame.{frame:04d}.semantic_instance.hdf5", np.full(SIZE, frame - 1, np.int16))
        reflectance = np.full((*SIZE, 3), 0.5, np.float16)
        final = scene / "images" / "scene_cam_00_final_hdf5"
        write(final / f"frame.{frame:04d}.diffuse_reflectance.hdf5", reflectance)
        save_jpeg(scene / "images" / "scene_cam_00_final_preview" / f"frame.{frame:04d}.tonemap.jpg", grey(128))
    detail = scene / "_detail"
    write(detail / "cam_00" / "camera_keyframe_positions.hdf5", np.arange(12, dtype=np.float64).reshape(4, 3))
    write(detail / "cam_00" / "camera_keyframe_orientations.hdf5", np.stack([np.eye(3)] * 4))
    (detail / "metadata_scene.csv").write_text("parameter_name,parameter_value\nmeters_per_asset_unit,0.0254\n")
    return scene


def test_hypersim_ray_distance_becomes_planar(hypersim):
    clip = open_clip(hypersim)
    found = clip.read()
    assert clip.info.format == "hypersim" and clip.info.missing == ("roughness", "metallic")
    assert torch.allclose(found.depth[:, :, 1:], torch.tensor(3.0), rtol=1e-3) and found.depth[:, :, 0].isinf().all()
    assert torch.allclose(found.camera.pose[2, :3, 3], torch.tensor([6.0, 7, 8]) * 0.0254)
    assert found.instance[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert clip.reference().shape == (3, 3, *SIZE)
    assert any("field of view taken as 60 degrees" in text for text in clip.info.warnings)
    assert any("black for metals" in text for text in clip.info.warnings)


def test_hypersim_by_folder_and_damage(hypersim):
    geometry = hypersim / "images" / "scene_cam_00_geometry_hdf5"
    assert open_clip(geometry).info.frames == 3
    whole = (geometry / "frame.0001.depth_meters.hdf5").read_bytes()
    (geometry / "frame.0001.depth_meters.hdf5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ClipError, match="cannot be read as HDF5"):
        open_clip(hypersim).read()
    (hypersim / "images" / "scene_cam_01_geometry_hdf5").mkdir()
    with pytest.raises(ClipError, match="holds the cameras scene_cam_00, scene_cam_01; expected one"):
        open_clip(hypersim)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("positions", np.full((4, 3), np.nan), "the camera of frame 0 has a number that is missing or not finite"),
        ("orientations", np.zeros((4, 3, 3)), "the camera of frame 0 has axes that span no space"),
    ],
)
def test_hypersim_poses_that_are_none(hypersim, name, value, message):
    h5py = pytest.importorskip("h5py")
    with h5py.File(hypersim / "_detail" / "cam_00" / f"camera_keyframe_{name}.hdf5", "w") as file:
        file.create_dataset("dataset", data=value)
    with pytest.raises(ClipError, match=message):
        open_clip(hypersim)


def test_hypersim_without_h5py(hypersim, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'flowshade\[hdf5\]'"):
        open_clip(hypersim)


@pytest.fixture
def infinigen(tmp_path):
    frames = tmp_path / "frames"

    def folder(kind):
        path = frames / kind / "camera_0"
        path.mkdir(parents=True, exist_ok=True)
        return path

    large = (2 * SIZE[0], 2 * SIZE[1])
    for frame in (48, 49):
        depth = np.arange(large[0] * large[1], dtype=np.float32).reshape(large) + 1
        np.save(folder("Depth") / f"Depth_0_0_{frame:04d}_0.npy", depth)
        write_png(folder("Depth") / f"Depth_0_0_{frame:04d}_0.png", grey(3, large))
        normal = np.full((*large, 3), (0, 0, 1), np.float32)
        np.save(folder("SurfaceNormal") / f"SurfaceNormal_0_0_{frame:04d}_0.npy", normal)
        write_png(folder("Image") / f"Image_0_0_{frame:04d}_0.png", grey(9))
        pose = np.eye(4)
        pose[:3, 3] = 1, 2, 3
        matrix = np.array([[10.0, 0, 8], [0, 10, 6], [0, 0, 1]])
        np.savez(folder("camview") / f"camview_0_0_{frame:04d}_0.npz", K=matrix, T=pose, HW=np.array(large))
    return tmp_path


def test_infinigen_takes_pixels_and_never_averages(infinigen):
    clip = open_clip(infinigen)
    found = clip.read()
    assert (clip.info.format, clip.info.frames, clip.info.size) == ("infinigen", 2, SIZE)
    stored = np.load(infinigen / "frames" / "Depth" / "camera_0" / "Depth_0_0_0048_0.npy")
    assert np.array_equal(found.depth[0, 0].numpy(), stored[::2, ::2])
    assert any("one pixel of each block" in text for text in clip.info.warnings)
    assert torch.allclose(found.camera.intrinsics[0], torch.tensor([5.0, 5, 4, 3]))
    # OpenCV's camera looks along +Z: ours looks along -Z, so its back is -Z and its up -Y of OpenCV's axes.
    assert torch.allclose(found.camera.pose[0, :3, :3], torch.diag(torch.tensor([1.0, -1, -1])))
    assert clip.reference().shape == (2, 3, *SIZE)


def test_infinigen_lacking_a_camera(infinigen):
    (infinigen / "frames" / "camview" / "camera_0" / "camview_0_0_0049_0.npz").unlink()
    with pytest.raises(ClipError, match=r"lacks frames \[49\]"):
        open_clip(infinigen)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"T": np.full((4, 4), np.nan)}, "the camera of frame 49 has a number that is missing or not finite"),
        ({"T": np.diag([1.0, 1, 0, 1])}, "the camera of frame 49 has axes that span no space"),
        ({"T": np.array([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])}, "axes that span no space"),
        ({"K": np.diag([0.0, 10, 1])}, "the camera of frame 49 has fx = 0 and fy = 5"),
        ({"K": np.diag([np.inf, 10, 1])}, "the camera of frame 49 has a number that is missing or not finite"),
    ],
)
def test_infinigen_cameras_that_see_nothing(infinigen, changed, message):
    large = np.array((2 * SIZE[0], 2 * SIZE[1]))
    path = infinigen / "frames" / "camview" / "camera_0" / "camview_0_0_0049_0.npz"
    np.savez(path, **({"K": np.diag([10.0, 10, 1]), "T": np.eye(4), "HW": large} | changed))
    with pytest.raises(ClipError, match=message):
        open_clip(infinigen)


def test_infinigen_cameras_that_unpack_to_gigabytes(infinigen):
    path = infinigen / "frames" / "camview" / "camera_0" / "camview_0_0_0049_0.npz"
    np.savez_compressed(path, K=np.zeros((2048, 2048)), T=np.eye(4), HW=np.array(SIZE))
    assert path.stat().st_size < 50_000
    with pytest.raises(ClipError, match="a camera has a few hundred"):
        open_clip(infinigen)


def test_replicator_prefers_planar_depth_and_leaves_normals_out(tmp_path):
    for frame in (0, 1):
        np.save(tmp_path / f"distance_to_image_plane_{frame:04d}.npy", np.full(SIZE, 2, np.float32))
        np.save(tmp_path / f"distance_to_camera_{frame:04d}.npy", np.full(SIZE, 9, np.float32))
        write_png(tmp_path / f"DiffuseAlbedo_{frame:04d}.png", grey(100))
        write_png(tmp_path / f"Roughness_{frame:04d}.png", grey(51))
        np.save(tmp_path / f"SmoothNormal_{frame:04d}.npy", np.full((*SIZE, 4), (0, 0, 1, 0), np.float32))
        write_png(tmp_path / f"rgb_{frame:04d}.png", grey(1))
    clip = open_clip(tmp_path)
    found = clip.read()
    assert clip.info.format == "replicator" and clip.info.missing == ("normal", "metallic")
    assert (found.depth == 2).all() and torch.allclose(found.roughness, torch.tensor(0.2))
    assert any("camera or world space, which is not stated" in text for text in clip.info.warnings)
    assert (open_clip(tmp_path, normals="camera").read().normal[:, 2] == 1).all()


def test_replicator_ray_distance_needs_a_field_of_view(tmp_path):
    np.save(tmp_path / "distance_to_camera_0000.npy", np.full(SIZE, 2, np.float32))
    with pytest.raises(ClipError, match="neither cameras nor a field of view"):
        open_clip(tmp_path)
    found = open_clip(tmp_path, fov=90).read().depth
    assert found.max() < 2 and float(found[0, 0, 0, 0]) == pytest.approx(2 / math.sqrt(1 + (3.5**2 + 2.5**2) / 16))
