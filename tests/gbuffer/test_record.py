"""Recording: one frame at a time, on the world's clock, without touching its dynamics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from flowshade.color import linear_to_srgb, srgb_to_linear
from flowshade.gbuffer.io import ClipError, open_clip
from flowshade.gbuffer.io.folder import ClipFolderReader
from flowshade.gbuffer.io.pictures import read_png
from flowshade.gbuffer.look import LOOKS
from flowshade.gbuffer.particles import particle_layer
from flowshade.gbuffer.record import record, record_clip
from flowshade.gbuffer.trace import Tracer
from flowshade.types import CHANNELS, CORE_CHANNELS
from flowshade.world import World, camera_at, load_mjcf, make_world, step

SIZE = (24, 40)

DROP = """<mujoco><worldbody><geom type="plane" size="5 5 .1" pos="0 0 -1"/>
<body pos="0 0 3"><freejoint/><geom type="sphere" size=".5" rgba="1 0 0 1"/></body></worldbody></mujoco>"""


@pytest.fixture(scope="module")
def street() -> World:
    return make_world("street", 2)


def value(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def test_frames_come_one_at_a_time_with_everything(street: World) -> None:
    frames = list(record(street, frames=3, fps=24, size=SIZE, look=LOOKS["sunny"]))
    assert len(frames) == 3
    for number, (gbuffer, rgb) in enumerate(frames):
        assert list(gbuffer.channels()) == list(CHANNELS)
        assert (gbuffer.frames, gbuffer.size) == (1, SIZE)
        assert rgb is not None
        assert rgb.shape == (1, 3, *SIZE)
        assert 0 <= rgb.min() <= rgb.max() <= 1
        assert rgb.std() > 0.02
        for name in CORE_CHANNELS:
            if name != "depth":
                assert gbuffer.channels()[name].isfinite().all(), name
        depth = value(gbuffer.depth)
        assert (depth > 0.2).all()
        assert depth.isfinite().float().mean() > 0.3
        expected = camera_at(street.camera_path, [number / 24], *SIZE)
        assert gbuffer.camera is not None
        assert torch.equal(gbuffer.camera.pose, expected.pose)
    assert value(frames[0][0].motion).abs().max() < 1e-4
    assert value(frames[1][0].motion).abs().max() > 0.01
    assert not torch.equal(value(frames[0][0].depth), value(frames[2][0].depth))


def test_no_look_no_picture(street: World) -> None:
    _, rgb = next(record(street, frames=1, fps=24, size=SIZE))
    assert rgb is None


def test_same_seed_same_frames(street: World) -> None:
    one, other = (list(record(street, frames=2, fps=24, size=SIZE, look=LOOKS["night"], seed=5)) for _ in range(2))
    for (a, rgb_a), (b, rgb_b) in zip(one, other, strict=True):
        assert torch.equal(value(rgb_a), value(rgb_b))
        for name, channel in a.channels().items():
            assert torch.equal(channel, b.channels()[name]), name


def test_the_world_moves_as_if_nobody_looked(street: World) -> None:
    """The tenth recorded frame is what one sees after ten steps without a tracer, in any look."""
    *_, last = record(street, frames=10, fps=30, size=SIZE, look=LOOKS["fog"])
    data = street.reset()
    for _ in range(9):
        step(street, data)
    tracer = Tracer(street.model, size=SIZE)
    tracer.update(data)
    alone = tracer.gbuffer(camera_at(street.camera_path, [9 / 30], *SIZE))
    for name in ("albedo", "normal", "depth", "instance"):
        assert torch.equal(last[0].channels()[name], alone.channels()[name]), name


def test_things_fall_on_the_clock_of_the_recording(tmp_path: Path) -> None:
    """A ball falls 4.905 t^2 whatever the frame rate; its top is seen to sink by that much."""
    path = tmp_path / "drop.xml"
    path.write_text(DROP)
    world = load_mjcf(path)
    for fps, frames in ((10.0, 4), (40.0, 13)):
        heights = []
        for gbuffer, _ in record(world, frames=frames, fps=fps, size=(96, 96)):
            assert gbuffer.camera is not None
            red = (value(gbuffer.albedo)[0, 0] > 0.5) & (value(gbuffer.albedo)[0, 1] < 0.2)
            points = gbuffer.camera.rays(96, 96)[0]
            z_axis = gbuffer.camera.pose[0, :3, 2]
            planar = -(points * z_axis[:, None, None]).sum(0)
            world_z = gbuffer.camera.pose[0, 2, 3] + points[2] * value(gbuffer.depth)[0, 0] / planar
            heights.append(float(world_z[red].max()))
        time = (frames - 1) / fps
        assert heights[0] - heights[-1] == pytest.approx(9.81 / 2 * time**2, abs=0.05)


def test_another_path_is_another_view(street: World) -> None:
    path = street.path(99)
    gbuffer, _ = next(record(street, frames=1, fps=24, size=SIZE, path=path))
    assert gbuffer.camera is not None
    np.testing.assert_allclose(gbuffer.camera.pose[0].numpy(), path.pose(0.0), atol=1e-5)


@pytest.mark.parametrize(("options", "message"), [({"frames": 0}, "frames=0"), ({"fps": 0.0}, "fps=0"),
                                                  ({"size": (0, 5)}, "size")])  # fmt: skip
def test_impossible_requests_fail_at_once(street: World, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        record(street, **{"frames": 2, "fps": 24.0, "size": SIZE, **options})


def test_a_clip_folder_tells_where_it_came_from(street: World, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    out = record_clip(
        street, tmp_path / "clip", seconds=0.125, fps=24, size=SIZE, look="sunset",
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert seen == [(1, 3), (2, 3), (3, 3)]
    with open_clip(out) as reader:
        assert len(reader) == 3
        assert reader.info.caption == street.description
        assert reader.info.has_reference
        assert reader.info.has_camera
        clip = reader.read(0, 3)
    first, _ = next(record(street, frames=1, fps=24, size=SIZE))
    torch.testing.assert_close(value(clip.depth)[:1], value(first.depth))
    torch.testing.assert_close(value(clip.albedo)[:1], value(first.albedo), atol=1e-3, rtol=1e-3)
    manifest = (out / "clip.json").read_text()
    for text in ('"street"', '"seed": 2', '"sunset"', LOOKS["sunset"].caption()):
        assert text in manifest, text


def test_path_samples_and_frames_are_used_and_stated(street: World, tmp_path: Path) -> None:
    out = record_clip(street, tmp_path / "clip", frames=2, size=SIZE, path=1, samples=1, seed=7)
    first, _ = next(record(street, frames=1, fps=24, size=SIZE, path=street.paths(2)[1], samples=1, seed=7))
    with open_clip(out) as reader:
        clip = reader.read()
    assert clip.frames == 2
    assert torch.equal(value(clip.normal)[:1], value(first.normal))
    manifest = (out / "clip.json").read_text()
    for text in ('"path": 1', '"samples": 1', '"sampling_seed": 7'):
        assert text in manifest, text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 1, "frames": 2}, "both seconds=1 and frames=2"),
        ({"frames": -3}, "would last -3 frames"),
        ({"seconds": float("nan")}, "would last nan seconds"),
        ({"fps": float("inf")}, "fps is inf"),
        ({"frames": 1, "path": -1}, "camera path is -1"),
        ({"frames": 1, "samples": 0}, "samples=0"),
    ],
)
def test_impossible_clips_fail_at_once(street: World, tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        record_clip(street, tmp_path / "clip", size=SIZE, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_model_file_has_one_path(tmp_path: Path) -> None:
    model = tmp_path / "drop.xml"
    model.write_text(DROP)
    with pytest.raises(ValueError, match="camera path 1 was asked for, but drop has a single one"):
        record_clip(load_mjcf(model), tmp_path / "clip", frames=1, size=SIZE, path=1)


def test_a_clip_that_cannot_be_made_leaves_nothing(street: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown look 'mars'; expected one of sunny"):
        record_clip(street, tmp_path / "a", seconds=1, look="mars")
    with pytest.raises(ValueError, match="at least one frame"):
        record_clip(street, tmp_path / "a", seconds=0.001)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_clip(street, tmp_path / "a", seconds=1, size=SIZE, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_a_recording_killed_half_way_goes_on_without_a_lost_or_doubled_frame(
    street: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowshade.gbuffer.record.CHECKPOINT_FRAMES", 3)
    settings = {"frames": 8, "fps": 12, "size": SIZE, "look": "overcast"}
    whole = record_clip(street, tmp_path / "whole", **settings)

    class Killed(BaseException):
        pass

    def kill(done: int, total: int) -> None:
        if done == 5:
            raise Killed

    with pytest.raises(Killed):
        record_clip(street, tmp_path / "clip", **settings, resume=True, progress=kill)
    partial = tmp_path / ".clip.part"
    (partial / "frames" / "000003.exr").write_bytes(b"cut short by the kill")
    assert not (tmp_path / "clip").exists()
    with pytest.raises(ClipError, match=r"other settings \(look"):
        record_clip(street, tmp_path / "clip", **{**settings, "look": "night"}, resume=True)
    seen = []
    record_clip(street, tmp_path / "clip", **settings, resume=True, progress=lambda done, _: seen.append(done))
    assert seen == [4, 5, 6, 7, 8]
    assert not partial.exists()
    with open_clip(whole) as one, open_clip(tmp_path / "clip") as other:
        a, b = one.read(0, 8), other.read(0, 8)
        for name, channel in a.channels().items():
            assert torch.equal(channel, b.channels()[name]), name
        assert torch.equal(value(one.reference(0, 8)), value(other.reference(0, 8)))


def test_motion_blur_is_the_mean_of_true_subframes(street: World, tmp_path: Path) -> None:
    """In linear light, over the first half of a frame; the sharp version is the first of them."""
    subframes, fps = 3, 6
    clip = record_clip(street, tmp_path / "clip", frames=2, fps=fps, size=SIZE, look="overcast", blur=subframes)
    fast = [rgb for _, rgb in record(street, frames=10, fps=2 * subframes * fps, size=SIZE, look=LOOKS["overcast"])]
    for frame in range(2):
        parts = torch.stack([srgb_to_linear(value(rgb)[0]) for rgb in fast[6 * frame : 6 * frame + subframes]])
        blurred = torch.from_numpy(read_png(clip / "blur" / f"{frame:06d}.png")).permute(2, 0, 1) / 255
        sharp = torch.from_numpy(read_png(clip / "rgb" / f"{frame:06d}.png")).permute(2, 0, 1) / 255
        torch.testing.assert_close(blurred, linear_to_srgb(parts.mean(0)), atol=0.003, rtol=0)
        torch.testing.assert_close(sharp, value(fast[6 * frame])[0], atol=0.003, rtol=0)
    assert (blurred - sharp).abs().max() > 0.05
    with pytest.raises(ValueError, match="blur=2 and look=None"):
        record_clip(street, tmp_path / "none", frames=1, size=SIZE, blur=2)


def test_particles_are_a_layer_beside_a_picture_without_them(street: World, tmp_path: Path) -> None:
    """The layer of a frame is that of its time, camera and seed, also after a recording that was stopped."""
    settings = {"frames": 3, "fps": 12, "size": SIZE, "look": "snow", "seed": 3}
    clip = record_clip(street, tmp_path / "clip", **settings, particles="auto")
    plain = record_clip(street, tmp_path / "plain", **settings)
    with open_clip(clip) as reader, open_clip(plain) as other:
        assert isinstance(reader, ClipFolderReader) and isinstance(other, ClipFolderReader)
        assert other.particles(0, 3) is None
        assert reader.meta["particles"] == "snow"
        assert torch.equal(value(reader.reference(0, 3)), value(other.reference(0, 3)))
        layers, gbuffer = value(reader.particles(0, 3)), reader.read(2, 3)
    assert layers.shape == (3, 4, *SIZE)
    assert (layers[:, 3].amax((1, 2)) > 0.3).all()
    assert not torch.equal(layers[1], layers[2])
    expected = particle_layer("snow", gbuffer, LOOKS["snow"], time=2 / 12, seed=3)
    torch.testing.assert_close(layers[2:], expected.rgba(), atol=0.003, rtol=0)


@pytest.mark.parametrize(
    ("particles", "look", "message"), [("hail", "rain", "particles='hail'"), ("rain", None, "and no look")]
)
def test_particles_that_cannot_be(
    street: World, tmp_path: Path, particles: str, look: str | None, message: str
) -> None:
    options: dict = {"particles": particles, "look": look}
    with pytest.raises(ValueError, match=message):
        record_clip(street, tmp_path / "clip", frames=1, size=SIZE, **options)
