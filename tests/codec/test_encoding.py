"""Channels to planes and back."""

import pytest
import torch

from flowshade.codec.encoding import (
    EncodingProfile,
    decode_planes,
    encode_buffers,
)
from flowshade.types import Camera, GBuffer, Planes, stream_frame

PROFILE = EncodingProfile()


def test_round_trip_returns_every_channel(small_gbuffer: GBuffer) -> None:
    clip = small_gbuffer.replace(emission=torch.rand(14, 3, 40, 64) * 20)
    back = decode_planes(encode_buffers(clip, PROFILE), PROFILE)
    assert list(back.channels()) == ["albedo", "normal", "depth", "roughness", "metallic", "emission"]
    sky = clip.depth.isinf()
    assert torch.equal(back.depth.isinf(), sky)
    torch.testing.assert_close(back.depth[~sky], clip.depth[~sky], rtol=1e-4, atol=1e-4)
    for name in ("albedo", "normal", "roughness", "metallic"):
        torch.testing.assert_close(back.channels()[name], clip.channels()[name], rtol=0, atol=2e-6)
    torch.testing.assert_close(back.emission, clip.emission, rtol=1e-4, atol=1e-4)


def test_planes_lie_in_range_and_order(small_gbuffer: GBuffer) -> None:
    planes = encode_buffers(small_gbuffer, PROFILE, torch.eye(3))
    assert planes.values.shape == (1, 14, PROFILE.planes, 40, 64)
    assert planes.values.abs().max() <= 1 + 1e-6
    assert planes.present.tolist() == [[True, True, True, True, True, False, True]]
    torch.testing.assert_close(planes.values[0, :, PROFILE.slices["roughness"]], small_gbuffer.roughness * 2 - 1)


def test_stated_encodings() -> None:
    depth = torch.tensor([0.0, 10.0, 30.0, torch.inf]).view(1, 1, 1, 4)
    planes = encode_buffers(GBuffer(depth=depth), PROFILE)
    torch.testing.assert_close(planes.values[0, 0, PROFILE.slices["depth"]].flatten(), torch.tensor([1, 0, -0.5, -1.0]))
    assert planes.present.sum() == 1
    assert planes.values[0, 0, PROFILE.slices["albedo"]].eq(0).all()


def test_rays_are_the_cameras_turned_into_the_stream_frame() -> None:
    pose = torch.eye(4).repeat(3, 1, 1)
    pose[:, :3, :3] = torch.linalg.qr(torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(0)))[0]
    camera = Camera(intrinsics=torch.tensor([5.0, 6.0, 4.0, 3.0]).repeat(3, 1), pose=pose)
    frame = stream_frame(pose[0])
    planes = encode_buffers(GBuffer(depth=torch.ones(3, 1, 7, 9), camera=camera), PROFILE, frame)
    expected = torch.einsum("ij,tjhw->tihw", frame, camera.rays(7, 9))
    torch.testing.assert_close(planes.values[0, :, PROFILE.slices["rays"]], expected)


def test_decode_takes_one_clip() -> None:
    planes = Planes(values=torch.zeros(2, 4, 15, 8, 8), present=torch.ones(2, 7, dtype=torch.bool))
    with pytest.raises(ValueError, match="one clip at a time"):
        decode_planes(planes, PROFILE)
