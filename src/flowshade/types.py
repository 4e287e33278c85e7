"""What crosses module borders: G-buffers, cameras, prompts, frames and latents.

Every shape, unit, range and axis is stated here, once; `docs/conventions.md` says how
other tools differ. Tensors are float32 unless written otherwise and carry time first:
a clip is `[T, C, H, W]`, a batch of clips (inside networks only) `[B, T, C, H, W]`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from flowshade.color import to_bytes

CHANNELS: dict[str, int] = {
    "albedo": 3,
    "normal": 3,
    "depth": 1,
    "roughness": 1,
    "metallic": 1,
    "emission": 3,
    "motion": 2,
    "instance": 1,
}
"""Name and number of planes of every channel a `GBuffer` can hold."""

CORE_CHANNELS = ("albedo", "normal", "depth", "roughness", "metallic")
"""The five channels a renderer is conditioned on; the others are optional extras."""


@dataclass(frozen=True, kw_only=True)
class Camera:
    """A pinhole camera for each frame of a clip.

    World axes: right-handed, +Z up, metres. Camera axes are OpenGL's: +X right, +Y up,
    looking along -Z. Pixel (0, 0) is the upper left one and its centre lies at (0.5, 0.5).
    """

    intrinsics: Float[Tensor, "T 4"]
    """fx, fy, cx, cy in pixels."""
    pose: Float[Tensor, "T 4 4"]
    """Camera-to-world matrices, translation in metres."""

    def __post_init__(self) -> None:
        frames = self.intrinsics.shape[0]
        if tuple(self.intrinsics.shape) != (frames, 4) or tuple(self.pose.shape) != (frames, 4, 4):
            raise ValueError(
                f"Camera got intrinsics {tuple(self.intrinsics.shape)} and pose {tuple(self.pose.shape)}; "
                "expected [T, 4] and [T, 4, 4] with the same T. Give one row and one matrix a frame."
            )

    @property
    def frames(self) -> int:
        return self.intrinsics.shape[0]

    def __getitem__(self, index: slice) -> Camera:
        return Camera(intrinsics=self.intrinsics[index], pose=self.pose[index])

    def to(self, device: torch.device | str) -> Camera:
        return Camera(intrinsics=self.intrinsics.to(device), pose=self.pose.to(device))

    def rays(self, height: int, width: int) -> Float[Tensor, "T 3 H W"]:
        """Unit view rays in world space through every pixel centre."""
        fx, fy, cx, cy = self.intrinsics[:, :, None, None].unbind(1)  # each [T, 1, 1]
        x = (torch.arange(width, device=fx.device) + 0.5 - cx) / fx  # [T, 1, W]
        y = (torch.arange(height, device=fx.device)[:, None] + 0.5 - cy) / fy  # [T, H, 1]
        shape = (self.frames, height, width)
        camera_rays = torch.stack([x.expand(shape), -y.expand(shape), -torch.ones(shape, device=fx.device)], 1)
        world_rays = torch.einsum("tij,tjhw->tihw", self.pose[:, :3, :3], camera_rays)
        return torch.nn.functional.normalize(world_rays, dim=1)

    @staticmethod
    def cat(cameras: Sequence[Camera]) -> Camera:
        return Camera(
            intrinsics=torch.cat([camera.intrinsics for camera in cameras]),
            pose=torch.cat([camera.pose for camera in cameras]),
        )


@dataclass(frozen=True, kw_only=True)
class GBuffer:
    """What is there: the geometry and material channels of a clip. Absent channels are None."""

    albedo: Float[Tensor, "T 3 H W"] | None = None
    """Base colour (of metals too), linear Rec.709, [0, 1], no lighting."""
    normal: Float[Tensor, "T 3 H W"] | None = None
    """Unit vectors in camera space, OpenGL axes: +X right, +Y up, +Z towards the viewer; 0 = sky."""
    depth: Float[Tensor, "T 1 H W"] | None = None
    """Planar z (along the optical axis) in metres; +inf = sky."""
    roughness: Float[Tensor, "T 1 H W"] | None = None
    """Perceptual roughness, [0, 1]; GGX alpha is its square."""
    metallic: Float[Tensor, "T 1 H W"] | None = None
    """[0, 1]."""
    emission: Float[Tensor, "T 3 H W"] | None = None
    """Light the surface gives off, linear Rec.709, >= 0."""
    motion: Float[Tensor, "T 2 H W"] | None = None
    """Pixels, x right, y down: where this pixel was in the previous frame minus where it is now."""
    instance: Int[Tensor, "T 1 H W"] | None = None
    """int32, stable over the clip; 0 = background."""
    camera: Camera | None = None

    def __post_init__(self) -> None:
        present = self.channels()
        if not present:
            raise ValueError(f"GBuffer got no channel; expected at least one of {', '.join(CHANNELS)}.")
        first_name, first = next(iter(present.items()))
        for name, value in present.items():
            expected = (first.shape[0], CHANNELS[name], *first.shape[-2:])
            if tuple(value.shape) != expected:
                raise ValueError(
                    f"GBuffer channel {name!r} has shape {tuple(value.shape)}; expected {expected} to agree with "
                    f"{first_name!r}. Every channel needs the same frames and size: resize or cut it first."
                )
        if self.camera is not None and self.camera.frames != self.frames:
            raise ValueError(
                f"GBuffer has {self.frames} frames and its camera {self.camera.frames}; give one pose a frame."
            )

    def channels(self) -> dict[str, Tensor]:
        """The channels that are present, by name, in the order of `CHANNELS`."""
        values = {name: getattr(self, name) for name in CHANNELS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def _any(self) -> Tensor:
        return next(iter(self.channels().values()))

    @property
    def frames(self) -> int:
        return self._any.shape[0]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self._any.shape[-2], self._any.shape[-1]

    @property
    def device(self) -> torch.device:
        return self._any.device

    def replace(self, **changes: Tensor | Camera | None) -> GBuffer:
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def __getitem__(self, index: slice) -> GBuffer:
        """A run of frames, as views."""
        camera = None if self.camera is None else self.camera[index]
        return GBuffer(**{name: value[index] for name, value in self.channels().items()}, camera=camera)

    def to(self, device: torch.device | str) -> GBuffer:
        camera = None if self.camera is None else self.camera.to(device)
        return GBuffer(**{name: value.to(device) for name, value in self.channels().items()}, camera=camera)

    def windows(self, frames: int) -> Iterator[GBuffer]:
        """Consecutive runs of `frames` frames; the last may be shorter."""
        for start in range(0, self.frames, frames):
            yield self[start : start + frames]

    @staticmethod
    def cat(parts: Sequence[GBuffer]) -> GBuffer:
        """Joins clips in time. All parts must hold the same channels."""
        names = list(parts[0].channels())
        for part in parts:
            if list(part.channels()) != names:
                raise ValueError(f"cannot join clips with channels {names} and {list(part.channels())}.")
        cameras = [part.camera for part in parts if part.camera is not None]
        camera = Camera.cat(cameras) if len(cameras) == len(parts) else None
        joined = {name: torch.cat([part.channels()[name] for part in parts]) for name in names}
        return GBuffer(**joined, camera=camera)


@dataclass(frozen=True, kw_only=True)
class Frames:
    """A run of pictures."""

    rgb: Float[Tensor, "T 3 H W"]
    """Display-referred sRGB, [0, 1]."""

    @property
    def frames(self) -> int:
        return self.rgb.shape[0]

    def to_uint8(self) -> Tensor:
        """[T, H, W, 3] uint8, rounded to nearest."""
        return to_bytes(self.rgb).permute(0, 2, 3, 1).contiguous()


@dataclass(frozen=True, kw_only=True)
class Planes:
    """G-buffers as a network sees them: channels encoded to [-1, 1] and stacked, absent ones zero."""

    values: Float[Tensor, "B T C H W"]
    """All planes of an encoding profile, in its order."""
    present: Bool[Tensor, "B P"]
    """Which of the profile's buffers this clip has."""


FRAMES_PER_LATENT = 4
"""Pictures in one latent frame, always (no 4n+1 rule); a tail is padded and cut."""


def stream_frame(first_pose: Float[Tensor, "4 4"]) -> Float[Tensor, "3 3"]:
    """Rotation from world axes into a stream's own: +Z up, +Y the heading of its first camera, +X right.

    Sun directions and view rays are given in this frame, so that "sun from the left" means the same picture in
    every world, and still does after the camera has turned. A camera that looks straight up or down
    takes its heading from its up vector.
    """
    forward, up = -first_pose[:3, 2], first_pose[:3, 1]
    heading = forward[:2] if forward[:2].norm() > 1e-3 else up[:2] * -torch.sign(forward[2])
    heading = heading / heading.norm()
    x, y = heading.unbind()
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    return torch.stack([torch.stack([y, -x, zero]), torch.stack([x, y, zero]), torch.stack([zero, zero, one])])
