"""The VAE of Wan 2.1: 8x8 pixels and 4 frames a latent, 4 n + 1 frames a clip.

Parameter names follow diffusers' `AutoencoderKLWan`. A state carries what the causal convolutions remember, so any
split of a clip into runs gives what the whole gives: the first picture is the first latent, every later four one more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from flowshade.types import FRAMES_PER_LATENT

ConvState = dict[nn.Module, Tensor]
"""What each convolution over time remembers of a stream; empty at its start."""


@dataclass(frozen=True, kw_only=True)
class WanVAEConfig:
    """Sizes of a `WanVAE`; the defaults are Wan 2.1's."""

    base_dim: int = 96
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temporal_downsample: tuple[bool, ...] = (False, True, True)
    """Whether each step down halves time too, finest first."""
    latents_mean: tuple[float, ...] = (
        -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
        0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
    )  # fmt: skip
    latents_std: tuple[float, ...] = (
        2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
        3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160,
    )  # fmt: skip

    @property
    def stride(self) -> int:
        """Pixels across one latent pixel."""
        return 2 ** (len(self.dim_mult) - 1)


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Overlapping tiles, in latent pixels: how upstream encodes and decodes what does not fit at once."""

    size: tuple[int, int] = (30, 52)
    stride: tuple[int, int] = (15, 26)

    def __post_init__(self) -> None:
        if any(not 0 < step <= size for size, step in zip(self.size, self.stride)):
            raise ValueError(f"got tiles of {self.size} every {self.stride}; expected strides from 1 to the size.")

    def origins(self, height: int, width: int) -> list[tuple[int, int]]:
        """Upper left corners; an axis ends with the first tile that reaches its end."""
        return [(y, x) for y in self._along(height, 0) for x in self._along(width, 1)]

    def _along(self, length: int, axis: int) -> list[int]:
        size, stride = self.size[axis], self.stride[axis]
        return [start for start in range(0, length, stride) if start == 0 or start - stride + size < length]


class WanVAE(nn.Module):
    """Pictures to normalised latents and back; whole, streamed or tiled."""

    def __init__(self, config: WanVAEConfig = WanVAEConfig()) -> None:
        super().__init__()
        self.config = config
        self.encoder = _Encoder(config)
        self.quant_conv = CausalConv3d(2 * config.z_dim, 2 * config.z_dim, 1)
        self.post_quant_conv = CausalConv3d(config.z_dim, config.z_dim, 1)
        self.decoder = _Decoder(config)

    @property
    def dtype(self) -> torch.dtype:
        return self.quant_conv.weight.dtype

    def encode(self, rgb: Float[Tensor, "B 3 T H W"], *, tiling: Tiling | None = None) -> Float[Tensor, "B C L h w"]:
        """A whole clip to latents: the mode, normalised to zero mean and unit variance.

        Args:
            rgb: display sRGB in [-1, 1], 4 n + 1 frames.
            tiling: encode tile by tile and blend.

        Raises:
            ValueError: frames that are not 4 n + 1, or a size that is no multiple of 8.
        """
        stride, frames = self.config.stride, rgb.shape[2]
        if frames % FRAMES_PER_LATENT != 1 or rgb.shape[3] % stride or rgb.shape[4] % stride:
            raise ValueError(
                f"WanVAE got {tuple(rgb.shape)}; expected 4 n + 1 frames and sizes in multiples of {stride}. "
                "Repeat the last frame, or cut."
            )
        rgb = rgb.to(self.dtype)
        if tiling is None:
            return self.encode_next(rgb, {})
        size = rgb.shape[3] // stride, rgb.shape[4] // stride
        return _tiled(rgb, lambda tile: self.encode_next(tile, {}), tiling, size, stride, 1)

    def decode(
        self, latents: Float[Tensor, "B C L h w"], *, tiling: Tiling | None = None
    ) -> Float[Tensor, "B 3 T H W"]:
        """A whole clip's latents to 4 L - 3 frames in [-1, 1]; clamped once, after tiles are blended."""
        latents = latents.to(self.dtype)
        if tiling is None:
            rgb = self.decode_next(latents, {})
        else:
            size = latents.shape[3], latents.shape[4]
            rgb = _tiled(latents, lambda tile: self.decode_next(tile, {}), tiling, size, 1, self.config.stride)
        return rgb.clamp(-1, 1)

    def encode_next(self, rgb: Float[Tensor, "B 3 T H W"], state: ConvState) -> Float[Tensor, "B C L h w"]:
        """The next frames of a stream to latents; `state` is changed.

        A stream begins with 4 n + 1 frames and goes on with 4 n. Frames go through one latent at a time, so memory
        does not grow with the clip.
        """
        runs, start = [], 0
        while start < rgb.shape[2]:
            stop = start + (FRAMES_PER_LATENT if state else 1)
            runs.append(self.quant_conv(self.encoder(rgb[:, :, start:stop], state), {}))
            start = stop
        mode = torch.cat(runs, 2).chunk(2, 1)[0]
        return (mode - self._statistic("mean", mode)) / self._statistic("std", mode)

    def decode_next(self, latents: Float[Tensor, "B C L h w"], state: ConvState) -> Float[Tensor, "B 3 T H W"]:
        """The next latents of a stream to frames, not clamped; `state` is changed. A stream's first gives one frame."""
        raw = latents * self._statistic("std", latents) + self._statistic("mean", latents)
        runs = [self.decoder(self.post_quant_conv(latent, {}), state) for latent in raw.split(1, dim=2)]
        return torch.cat(runs, 2)

    def _statistic(self, which: str, like: Tensor) -> Tensor:
        values = self.config.latents_mean if which == "mean" else self.config.latents_std
        return torch.tensor(values, device=like.device).to(like.dtype)[:, None, None, None]


class CausalConv3d(nn.Conv3d):
    """A convolution that looks at the past only; before a stream's start lie zeros."""

    def __init__(self, channels: int, width: int, kernel: int | tuple[int, int, int]) -> None:
        frames, height, across = (kernel, kernel, kernel) if isinstance(kernel, int) else kernel
        super().__init__(channels, width, (frames, height, across), padding=(0, height // 2, across // 2))
        self.past = frames - 1
        """Frames it looks back."""

    def forward(self, x: Float[Tensor, "B C T h w"], state: ConvState) -> Float[Tensor, "B D T h w"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The next frames of a stream; `state` is changed."""
        if self.past:
            before = state[self] if self in state else x.new_zeros(*x.shape[:2], self.past, *x.shape[3:])
            x = torch.cat([before, x], 2)
            state[self] = x[:, :, -self.past :]
        return super().forward(x)


class _Norm(nn.Module):
    """x / |x| sqrt(C) gamma over channels."""

    def __init__(self, channels: int, spatial: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, *(1,) * spatial))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x.float(), dim=1).to(x.dtype) * x.shape[1] ** 0.5 * self.gamma


class _Residual(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.norm1 = _Norm(channels, 3)
        self.conv1 = CausalConv3d(channels, width, 3)
        self.norm2 = _Norm(width, 3)
        self.conv2 = CausalConv3d(width, width, 3)
        self.conv_shortcut = CausalConv3d(channels, width, 1) if channels != width else None

    def forward(self, x: Tensor, state: ConvState) -> Tensor:
        shortcut = x if self.conv_shortcut is None else self.conv_shortcut(x, {})
        x = self.conv1(F.silu(self.norm1(x)), state)
        return self.conv2(F.silu(self.norm2(x)), state) + shortcut


class _Attention(nn.Module):
    """One head over the pixels of each frame."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _Norm(channels, 2)
        self.to_qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width = x.shape[0], x.shape[3], x.shape[4]
        frames = rearrange(x, "b c t h w -> (b t) c h w")
        qkv = rearrange(self.to_qkv(self.norm(frames)), "n c h w -> n 1 (h w) c")
        attended = F.scaled_dot_product_attention(*qkv.chunk(3, -1))
        attended = rearrange(attended, "n 1 (h w) c -> n c h w", h=height, w=width)
        return x + rearrange(self.proj(attended), "(b t) c h w -> b c t h w", b=batch)


class _Middle(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList([_Residual(channels, channels), _Residual(channels, channels)])
        self.attentions = nn.ModuleList([_Attention(channels)])

    def forward(self, x: Tensor, state: ConvState) -> Tensor:
        return self.resnets[1](self.attentions[0](self.resnets[0](x, state)), state)


class _Down(nn.Module):
    """Half the size and, if `temporal`, half the frames; a stream's first frame keeps its place in time."""

    def __init__(self, channels: int, *, temporal: bool) -> None:
        super().__init__()
        pad = nn.ZeroPad2d((0, 1, 0, 1))
        self.resample = nn.Sequential(pad, nn.Conv2d(channels, channels, 3, stride=2))
        self.time_conv = nn.Conv3d(channels, channels, (3, 1, 1), stride=(2, 1, 1)) if temporal else None

    def forward(self, x: Tensor, state: ConvState) -> Tensor:
        x = _by_frame(self.resample, x)
        if self.time_conv is None:
            return x
        before = state.get(self)
        state[self] = x[:, :, -1:]
        if before is not None:
            return self.time_conv(torch.cat([before, x], 2))
        later = [self.time_conv(x)] if x.shape[2] > 1 else []
        return torch.cat([x[:, :, :1], *later], 2)


class _Up(nn.Module):
    """Twice the size and, if `temporal`, twice the frames but for a stream's first."""

    def __init__(self, channels: int, *, temporal: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.Identity(), nn.Conv2d(channels, channels // 2, 3, padding=1))
        self.time_conv = CausalConv3d(channels, 2 * channels, (3, 1, 1)) if temporal else None

    def forward(self, x: Tensor, state: ConvState) -> Tensor:
        if self.time_conv is not None:
            first = [] if self in state else [x[:, :, :1]]
            state[self] = x[:, :, :0]  # marks that the first has passed
            later = x[:, :, len(first) :]
            if later.shape[2]:
                doubled = rearrange(self.time_conv(later, state), "b (two c) t h w -> b c (t two) h w", two=2)
                first.append(doubled)
            x = torch.cat(first, 2)
        return _by_frame(lambda frames: self.resample(F.interpolate(frames, scale_factor=2.0, mode="nearest")), x)


class _Encoder(nn.Module):
    def __init__(self, config: WanVAEConfig) -> None:
        super().__init__()
        widths = [config.base_dim * mult for mult in config.dim_mult]
        self.conv_in = CausalConv3d(3, widths[0], 3)
        blocks: list[nn.Module] = []
        channels = widths[0]
        for level, width in enumerate(widths):
            for _ in range(config.num_res_blocks):
                blocks.append(_Residual(channels, width))
                channels = width
            if level < len(widths) - 1:
                blocks.append(_Down(width, temporal=config.temporal_downsample[level]))
        self.down_blocks = nn.ModuleList(blocks)
        self.mid_block = _Middle(channels)
        self.norm_out = _Norm(channels, 3)
        self.conv_out = CausalConv3d(channels, 2 * config.z_dim, 3)

    def forward(self, x: Float[Tensor, "B 3 T H W"], state: ConvState) -> Float[Tensor, "B D L h w"]:
        x = self.conv_in(x, state)
        for block in self.down_blocks:
            x = block(x, state)
        x = self.mid_block(x, state)
        return self.conv_out(F.silu(self.norm_out(x)), state)


class _UpBlock(nn.Module):
    def __init__(self, channels: int, width: int, blocks: int, up: _Up | None) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(_Residual(channels if index == 0 else width, width) for index in range(blocks))
        self.upsamplers = None if up is None else nn.ModuleList([up])

    def forward(self, x: Tensor, state: ConvState) -> Tensor:
        for block in self.resnets:
            x = block(x, state)
        return x if self.upsamplers is None else self.upsamplers[0](x, state)


class _Decoder(nn.Module):
    def __init__(self, config: WanVAEConfig) -> None:
        super().__init__()
        widths = [config.base_dim * mult for mult in reversed(config.dim_mult)]
        temporal = list(reversed(config.temporal_downsample))
        channels = widths[0]
        self.conv_in = CausalConv3d(config.z_dim, channels, 3)
        self.mid_block = _Middle(channels)
        blocks = []
        for level, width in enumerate(widths):
            last = level == len(widths) - 1
            up = None if last else _Up(width, temporal=temporal[level])
            blocks.append(_UpBlock(channels, width, config.num_res_blocks + 1, up))
            channels = width if last else width // 2
        self.up_blocks = nn.ModuleList(blocks)
        self.norm_out = _Norm(channels, 3)
        self.conv_out = CausalConv3d(channels, 3, 3)

    def forward(self, x: Float[Tensor, "B C L h w"], state: ConvState) -> Float[Tensor, "B 3 T H W"]:
        x = self.mid_block(self.conv_in(x, state), state)
        for block in self.up_blocks:
            x = block(x, state)
        return self.conv_out(F.silu(self.norm_out(x)), state)


def _by_frame(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    frames = function(rearrange(x, "b c t h w -> (b t) c h w"))
    return rearrange(frames, "(b t) c h w -> b c t h w", b=x.shape[0])


def _tiled(
    volume: Tensor,
    function: Callable[[Tensor], Tensor],
    tiling: Tiling,
    size: tuple[int, int],
    scale_in: int,
    scale_out: int,
) -> Tensor:
    """Applies a function tile by tile and blends linearly where tiles overlap; outer edges have no ramp.

    `size` and `tiling` are in latent pixels, which are `scale_in` pixels of `volume` and `scale_out` of the result.
    """
    total, weights = None, None
    for y, x in tiling.origins(*size):
        bottom, right = min(y + tiling.size[0], size[0]), min(x + tiling.size[1], size[1])
        tile = function(volume[..., y * scale_in : bottom * scale_in, x * scale_in : right * scale_in])
        if total is None:
            shape = (size[0] * scale_out, size[1] * scale_out)
            total, weights = tile.new_zeros(*tile.shape[:3], *shape), tile.new_zeros(shape)
        ramps = [
            _ramp(length, (tile_size - stride) * scale_out, first, last, tile)
            for length, tile_size, stride, first, last in (
                (tile.shape[3], tiling.size[0], tiling.stride[0], y == 0, bottom == size[0]),
                (tile.shape[4], tiling.size[1], tiling.stride[1], x == 0, right == size[1]),
            )
        ]
        weight = torch.minimum(ramps[0][:, None], ramps[1])
        place = (..., slice(y * scale_out, bottom * scale_out), slice(x * scale_out, right * scale_out))
        total[place] += tile * weight
        weights[place] += weight  # pyright: ignore[reportOptionalSubscript]
    assert total is not None and weights is not None
    return total / weights


def _ramp(length: int, border: int, first: bool, last: bool, like: Tensor) -> Tensor:
    ramp = torch.ones(length, dtype=like.dtype, device=like.device)
    border = min(border, length)
    rise = (torch.arange(border, device=like.device) + 1).to(like.dtype) / max(border, 1)
    if not first:
        ramp[:border] = rise
    if not last:
        ramp[length - border :] = rise.flip(0)
    return ramp
