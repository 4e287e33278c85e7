import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshade.gbuffer.io import ClipError, VideoReader, convert, open_clip, read_clip, resize, write_clip
from flowshade.gbuffer.io.coding import CODING_FILE
from flowshade.gbuffer.io.exr import read_header
from flowshade.gbuffer.view import channel_picture
from flowshade.types import GBuffer


@pytest.fixture
def source(tmp_path, make_clip):
    """21 frames (more than one Flash window) with small instance ids and pictures."""
    clip = make_clip(21)
    clip = clip.replace(instance=clip.instance % 1000)
    write_clip(tmp_path / "source", clip, 25.0, rgb=torch.rand(21, 3, *clip.size), caption="a plaza")
    return tmp_path / "source"


TOLERANCE = {"clip": 0.0, "exr": 0.0, "png": 1e-4, "flash": 0.02, "video": 0.02, "upstream": 0.02}
CLIP_BELOW = {"upstream": "clip_0001"}


@pytest.mark.parametrize("format", TOLERANCE)
def test_every_format_reads_back_without_options(tmp_path, source, format):
    steps = []
    done = convert(source, tmp_path / "out", format=format, progress=lambda now, all: steps.append((now, all)))
    assert steps == [(16, 21), (21, 21)] and done.frames == 21 and done.path == tmp_path / "out"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]
    expected = read_clip(source)
    with open_clip(tmp_path / "out" / CLIP_BELOW.get(format, "")) as clip:
        read_as = "pictures" if format == "png" else format
        assert (clip.info.format, clip.info.frames, clip.info.fps) == (read_as, 21, 25.0)
        assert clip.info.caption == ("" if format == "exr" else "a plaza")
        assert set(clip.info.channels) == set(done.channels)
        assert not any("assumed" in text or "taken as" in text for text in clip.info.warnings)
        found = clip.read()
        if format in ("clip", "png", "upstream", "exr"):
            exact = 0.001 if format == "exr" else 0.0  # half floats
            assert (clip.reference() - open_clip(source).reference()).abs().max() <= exact
    assert torch.allclose(found.camera.pose, expected.camera.pose)
    for name, value in found.channels().items():
        before = expected.channels()[name]
        if name == "depth":
            assert torch.equal(value.isinf(), before.isinf())
            value, before = 10 / (value + 10), 10 / (before + 10)
        assert (value.double() - before.double()).abs().max() <= TOLERANCE[format], name
    left_out = set(expected.channels()) - set(found.channels())
    assert left_out == set() or any(all(name in note for name in left_out) for note in done.notes)


@pytest.mark.parametrize("format", ["flash", "video", "upstream"])
def test_planes_of_8_bits_are_copied_byte_for_byte(tmp_path, source, format):
    """Whatever their code: here depth's is unknown, as upstream's is."""
    convert(source, tmp_path / "a", format="flash")
    for name in (CODING_FILE, "cameras.json"):
        (tmp_path / "a" / name).unlink()
    first = open_clip(tmp_path / "a")
    assert "depth" not in first.info.channels
    done = convert(tmp_path / "a", tmp_path / "b", format=format, stop=21)
    assert any("copied as they are" in note for note in done.notes) and "depth" in done.channels
    second = open_clip(tmp_path / "b" / CLIP_BELOW.get(format, ""))
    assert "depth" not in second.info.channels
    for name, planes in second.coded().items():
        assert torch.equal(planes, first.coded(0, 21)[name]), name


def test_planes_that_mean_something_else_are_converted(tmp_path, source):
    """Ray distance or another size cannot be copied: they are decoded and coded again."""
    convert(source, tmp_path / "a", format="flash")
    done = convert(tmp_path / "a", tmp_path / "b", format="flash", size=(6, 9))
    assert not any("copied" in note for note in done.notes)
    for name in (CODING_FILE, "cameras.json"):
        (tmp_path / "a" / name).unlink()
    with pytest.raises(ClipError, match="depth cannot be read without more being said"):
        convert(tmp_path / "a", tmp_path / "c", format="flash", size=(6, 9))
    done = convert(
        tmp_path / "a", tmp_path / "c", format="flash", depth_code="far:50", depth_kind="ray", fov=60, stop=16
    )
    assert not any("copied" in note for note in done.notes)


def test_exr_files_keep_every_bit(tmp_path, make_clip):
    clip = make_clip(3)
    write_clip(tmp_path / "c", clip, 24.0, precision="float32")
    convert(tmp_path / "c", tmp_path / "e", format="exr")
    found = open_clip(tmp_path / "e")
    for name, value in found.read().channels().items():
        assert torch.equal(value, clip.channels()[name]), name
    assert set(found.info.channels) == set(clip.channels()) and found.info.warnings == ()
    header = read_header(tmp_path / "e" / "e_000001.exr")
    assert "depth.Z" in header.channels and "instance.I" in header.channels and header.fps == 24
    convert(tmp_path / "c", tmp_path / "e", format="exr", stop=2, overwrite=True)
    assert len(open_clip(tmp_path / "e")) == 2


def test_a_motion_pass_of_strangers_stays_unread(tmp_path, write_layers):
    moved = {f"motion.{name}": np.ones((4, 4), np.float32) for name in "XY"}
    write_layers(tmp_path / "a_1.exr", {"depth.Z": np.ones((4, 4), np.float32), **moved})
    clip = open_clip(tmp_path, unit="m")
    assert clip.info.channels == ("depth",) and any("its scale and direction" in text for text in clip.info.warnings)


def test_side_by_side_shows_every_channel(tmp_path, source):
    done = convert(source, tmp_path / "look.mp4", format="side-by-side", stop=4)
    expected = open_clip(source)
    with VideoReader(tmp_path / "look.mp4") as video:
        assert (len(video), video.fps, video.size) == (4, 25, (3 * 12, 3 * 18))
        shown = video.read(2, 3)[0].float()
    depth = channel_picture(expected.read(2, 3), "depth")[0].float()
    place = 1 + done.channels.index("depth")
    tile = shown[12 * (place // 3) : 12 * (place // 3) + 12, 18 * (place % 3) : 18 * (place % 3) + 18]
    assert (tile.mean(-1) - depth.mean(-1)).abs().mean() < 16  # compressed noise
    with pytest.raises(ClipError, match="exists already"):
        convert(source, tmp_path / "look.mp4", format="side-by-side")
    with pytest.raises(ClipError, match=r"expected a name that ends in .mp4"):
        convert(source, tmp_path / "look", format="side-by-side")


def test_a_conversion_copied_in_part(tmp_path, source):
    convert(source, tmp_path / "png", format="png")
    for channel in (tmp_path / "png").glob("*/"):
        (channel / "000021.png").unlink()
    with pytest.raises(ClipError, match="holds 20 frames and coding.json says 21"):
        open_clip(tmp_path / "png")
    convert(source, tmp_path / "flash", format="flash")
    (tmp_path / "flash" / "window-01.npy").unlink()
    with pytest.raises(ClipError, match="holds 16 frames and coding.json says 21"):
        open_clip(tmp_path / "flash")


def test_odd_sizes_stay_together(tmp_path, make_clip):
    clip = make_clip(3, (13, 17), core=True)
    write_clip(tmp_path / "c", clip, 24.0, rgb=torch.rand(3, 3, 13, 17))
    convert(tmp_path / "c", tmp_path / "v", format="video")
    assert open_clip(tmp_path / "v").info.size == (13, 17)


def test_a_part_at_another_size(tmp_path, source):
    done = convert(source, tmp_path / "out", size=(24, 36), start=3, stop=8)
    with open_clip(tmp_path / "out") as clip:
        assert (done.frames, clip.info.size, clip.info.has_reference) == (5, (24, 36), True)
        expected = resize(read_clip(source)[3:8], (24, 36))
        assert torch.equal(clip.read().depth, expected.depth)


def test_blender_options_pass_through(tmp_path, sample):
    convert(sample, tmp_path / "out", stop=1, normals="skip")
    assert open_clip(tmp_path / "out").info.missing == ("normal",)


def test_requests_that_cannot_be_met(tmp_path, source):
    with pytest.raises(ClipError, match="output format 'fbx' is unknown; expected one of clip, exr, png"):
        convert(source, tmp_path / "out", format="fbx")
    with pytest.raises(ClipError, match="size is 0x4; expected 1 to 32768 pixels a side"):
        convert(source, tmp_path / "out", size=(0, 4))
    convert(source, tmp_path / "out", format="png", stop=2)
    for format in ("png", "clip"):
        with pytest.raises(ClipError, match="exists already"):
            convert(source, tmp_path / "out", format=format)
    convert(source, tmp_path / "out", format="png", stop=3, overwrite=True)
    assert len(open_clip(tmp_path / "out")) == 3
    (tmp_path / "photos").mkdir()
    with pytest.raises(ClipError, match="was not written by Flowshade"):
        convert(source, tmp_path / "photos", format="png", overwrite=True)
    write_clip(tmp_path / "depth", GBuffer(depth=torch.ones(1, 1, 4, 4)), 24.0)
    with pytest.raises(ClipError, match="has no albedo, metallic, normal, roughness; Flash windows hold all"):
        convert(tmp_path / "depth", tmp_path / "f", format="flash")
    write_clip(tmp_path / "motion", GBuffer(motion=torch.ones(1, 2, 4, 4)), 24.0)
    with pytest.raises(ClipError, match="Convert to format 'clip'"):
        convert(tmp_path / "motion", tmp_path / "f", format="png")


@pytest.mark.parametrize("format", TOLERANCE)
def test_a_failed_conversion_leaves_nothing(tmp_path, source, format):
    (source / "frames" / "000018.exr").write_bytes(b"")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(ClipError):
        convert(source, tmp_path / "out", format=format)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_resize_keeps_each_channel_true(make_clip):
    clip = make_clip(2, (8, 12))
    small = resize(clip, (4, 6))
    assert small.size == (4, 6)
    depths = set(clip.depth.flatten().tolist())
    assert set(small.depth.flatten().tolist()) <= depths  # never an average across a silhouette
    lengths = small.normal.norm(dim=1)
    assert ((lengths - 1).abs() < 1e-5).logical_or(lengths == 0).all()
    assert set(small.instance.flatten().tolist()) <= set(clip.instance.flatten().tolist())
    assert torch.allclose(small.camera.intrinsics, clip.camera.intrinsics / 2)
    assert torch.equal(small.motion, resize(clip.replace(motion=clip.motion / 2), (8, 12)).motion[:, :, 1::2, 1::2])
    constant = GBuffer(albedo=torch.full((1, 3, 8, 12), 0.3))
    assert torch.allclose(resize(constant, (5, 7)).albedo, torch.tensor(0.3))


def test_rays_agree_after_resize(make_clip):
    """A pixel of the small clip looks where the four it stands for look on average."""
    clip = make_clip(1, (8, 12))
    clip = clip.replace(
        camera=clip.camera.__class__(intrinsics=torch.tensor([[9.0, 9, 6, 4]]), pose=torch.eye(4)[None])
    )
    large = clip.camera.rays(8, 12)
    large = (large / large[:, 2:3]).reshape(1, 3, 4, 2, 6, 2).mean((3, 5))
    small = resize(clip, (4, 6)).camera.rays(4, 6)
    assert torch.allclose(small / small[:, 2:3], large, atol=1e-6)


@settings(deadline=None, derandomize=True)
@given(
    old=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    new=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    seed=st.integers(0, 999),
)
def test_resizing_invents_no_geometry(old, new, seed):
    """Two surfaces with sky between them: depth, normals, ids and motion are always those of one of them."""
    generator = torch.Generator().manual_seed(seed)
    side = torch.randint(0, 3, (1, 1, *old), generator=generator)
    depths = torch.tensor([1.0, 50.0, torch.inf])
    normals = torch.tensor([[0.0, 0, 1], [0.6, 0, 0.8], [0, 0, 0]])
    clip = GBuffer(
        depth=depths[side],
        normal=normals[side[:, 0]].permute(0, 3, 1, 2),
        instance=side.int(),
        motion=torch.tensor([[4.0, 2], [-4, 0], [0, 0]])[side[:, 0]].permute(0, 3, 1, 2),
    )
    found = resize(clip, new)
    index = found.instance.long()
    assert torch.equal(found.depth, depths[index])
    assert torch.allclose(found.normal, normals[index[:, 0]].permute(0, 3, 1, 2))
    scale = torch.tensor([new[1] / old[1], new[0] / old[0]])[:, None, None]
    original = torch.tensor([[4.0, 2], [-4, 0], [0, 0]])[index[:, 0]].permute(0, 3, 1, 2)
    assert torch.allclose(found.motion, original * scale)
