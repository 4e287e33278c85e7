"""One way to look at every channel: pictures of buffers, side by side and as contact sheets.

Each channel has a fixed code, the same for every clip and frame, so that two pictures can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from einops import rearrange, repeat
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import interpolate

from flowshade.color import from_bytes, linear_to_srgb, to_bytes
from flowshade.types import CHANNELS, CORE_CHANNELS, GBuffer

DEPTH_SCALE_METRES = 10.0
"""s in the depth code s / (z + s): near is white, this far is mid-grey, sky is black."""
MOTION_SCALE_PIXELS = 16.0
"""Motion of this length is drawn in full colour."""


def _show_normal(normal: Tensor) -> Tensor:
    sky = (normal == 0).all(1, keepdim=True)
    return ((normal + 1) / 2).masked_fill(sky, 0.0)


def _show_motion(motion: Tensor) -> Tensor:
    """Grey at rest; red grows to the right, green downwards, blue with speed."""
    scaled = motion / (2 * MOTION_SCALE_PIXELS) + 0.5
    return torch.cat([scaled, (motion.norm(dim=1, keepdim=True) / MOTION_SCALE_PIXELS + 1) / 2], 1)


def _show_instance(instance: Tensor) -> Tensor:
    """A colour an id, spread by multiplicative hashing; background black."""
    hashes = [(instance.long() * odd >> 7) % 224 + 32 for odd in (2654435761, 2246822519, 3266489917)]
    return (torch.cat(hashes, 1) / 255).masked_fill(instance == 0, 0.0)


_SHOW: dict[str, Callable[[Tensor], Tensor]] = {
    "albedo": linear_to_srgb,
    "normal": _show_normal,
    "depth": lambda depth: DEPTH_SCALE_METRES / (depth + DEPTH_SCALE_METRES),
    "roughness": lambda roughness: roughness,
    "metallic": lambda metallic: metallic,
    "emission": linear_to_srgb,
    "motion": _show_motion,
    "instance": _show_instance,
}


def channel_picture(gbuffer: GBuffer, name: str) -> UInt8[Tensor, "T H W 3"]:
    """One channel as pictures: albedo and emission through the sRGB curve, normals as (n + 1) / 2 with black sky,
    depth as 10 / (z + 10), roughness and metallic as grey, motion and instance as colours.

    Raises:
        ValueError: a channel that does not exist, or that this clip lacks.
    """
    if name not in CHANNELS:
        raise ValueError(f"channel {name!r} does not exist; expected one of {', '.join(CHANNELS)}.")
    value = gbuffer.channels().get(name)
    if value is None:
        raise ValueError(
            f"this clip has no {name!r} (it has {', '.join(gbuffer.channels())}); choose one of those channels."
        )
    shown = _SHOW[name](value)  # [T, 1 or 3, H, W]
    return to_uint8(repeat(shown, "t 1 h w -> t 3 h w") if shown.shape[1] == 1 else shown)


def to_uint8(display: Float[Tensor, "T C H W"]) -> UInt8[Tensor, "T H W C"]:
    """Display values in [0, 1] to bytes, rounded to nearest; NaN becomes 0."""
    return rearrange(to_bytes(display), "t c h w -> t h w c").contiguous()


def side_by_side(gbuffer: GBuffer, rgb: Tensor, *, reference: Tensor | None = None) -> UInt8[Tensor, "T H W2 3"]:
    """The result with its buffers, small, in two columns at its right.

    Args:
        gbuffer: T frames of any size; its core channels are shown.
        rgb: the result, float [T, 3, H, W] display sRGB in [0, 1] or uint8 [T, H, W, 3].
        reference: a picture to compare with, in the same forms, shown as the last tile.

    Returns:
        uint8 [T, H, W + 2 * (W // 3), 3] on the CPU.
    """
    result = _as_uint8(rgb)
    frames, height, width, _ = result.shape
    if frames != gbuffer.frames:
        raise ValueError(f"side_by_side got {gbuffer.frames} frames of buffers and {frames} of rgb; give as many.")
    names = [name for name in CORE_CHANNELS if name in gbuffer.channels()]
    tiles = [channel_picture(gbuffer, name).cpu() for name in names]
    tiles += [] if reference is None else [_as_uint8(reference)]
    row_heights = [height // 3, height // 3, height - 2 * (height // 3)]
    columns = torch.zeros(frames, height, 2 * (width // 3), 3, dtype=torch.uint8)
    for index, tile in enumerate(tiles):
        row, column = divmod(index, 2)
        top, left = row * (height // 3), column * (width // 3)
        small = resize_pictures(tile, (row_heights[row], width // 3))
        columns[:, top : top + row_heights[row], left : left + width // 3] = small
    return torch.cat([result, columns], 2)


def _as_uint8(pictures: Tensor) -> UInt8[Tensor, "T H W 3"]:
    if pictures.dtype == torch.uint8 and pictures.ndim == 4 and pictures.shape[-1] == 3:
        return pictures.cpu()
    if pictures.is_floating_point() and pictures.ndim == 4 and pictures.shape[1] == 3:
        return to_uint8(pictures.float()).cpu()
    raise ValueError(
        f"pictures are {pictures.dtype} {list(pictures.shape)}; expected float [T, 3, H, W] or uint8 [T, H, W, 3]."
    )


def resize_pictures(pictures: UInt8[Tensor, "T H W 3"], size: tuple[int, int]) -> UInt8[Tensor, "T h w 3"]:
    """Pictures for looking at (not data) at another height and width, anti-aliased."""
    if tuple(pictures.shape[1:3]) == size:
        return pictures
    planes = from_bytes(rearrange(pictures, "t h w c -> t c h w"))
    return to_uint8(interpolate(planes, size, mode="bilinear", antialias=True))


def contact_sheet(
    pictures: UInt8[Tensor, "N H W 3"] | Sequence[Tensor],
    columns: int,
    labels: Sequence[str] = (),
    *,
    gap: int = 4,
) -> UInt8[Tensor, "H2 W2 3"]:
    """Pictures of one size in a grid, row by row, each under its label (if any).

    Args:
        pictures: uint8 [N, H, W, 3], or N of [H, W, 3].
        columns: pictures a row.
        labels: none, or one a picture.
        gap: pixels around every picture.
    """
    tiles = list(pictures)
    sizes = {tuple(tile.shape) for tile in tiles}
    if not tiles or len(sizes) != 1 or columns < 1:
        raise ValueError(
            f"contact_sheet got {len(tiles)} pictures of {len(sizes)} sizes in {columns} columns; expected at least "
            "one picture, all of one size, and one column or more. Resize them with resize_pictures."
        )
    if labels and len(labels) != len(tiles):
        raise ValueError(f"contact_sheet got {len(labels)} labels for {len(tiles)} pictures; give one each, or none.")
    height, width, _ = tiles[0].shape
    top = 14 if labels else 0
    rows = -(-len(tiles) // columns)
    sheet = torch.full((rows * (height + top + gap) + gap, columns * (width + gap) + gap, 3), 24, dtype=torch.uint8)
    for index, tile in enumerate(tiles):
        row, column = divmod(index, columns)
        y, x = gap + row * (height + top + gap), gap + column * (width + gap)
        if labels:
            sheet[y : y + top, x : x + width] = _label(labels[index], (top, width))
        sheet[y + top : y + top + height, x : x + width] = tile.cpu()
    return sheet


def _label(text: str, size: tuple[int, int]) -> UInt8[Tensor, "h w 3"]:
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    height, width = size
    image = Image.new("RGB", (width, height), (24, 24, 24))
    ImageDraw.Draw(image).text((1, 0), text, fill=(230, 230, 230), font=ImageFont.load_default(height - 4))
    return torch.from_numpy(np.array(image))
