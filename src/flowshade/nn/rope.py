"""Rotary positions in time, height and width.

Pairs of neighbouring channels turn together, the first ones with time, then with height, then with width, as
Wan and Helios order them. Only differences of positions matter to attention, so a stream may number its present
frames from 0 for ever and its past ones from -1 down.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from flowshade.nn.precision import full_precision


@dataclass(frozen=True)
class Rotation:
    """Cosine and sine of every token's angles, float32."""

    cos: Float[Tensor, "N D"]
    sin: Float[Tensor, "N D"]

    @staticmethod
    def cat(parts: list[Rotation]) -> Rotation:
        return Rotation(torch.cat([part.cos for part in parts]), torch.cat([part.sin for part in parts]))

    def apply(self, x: Float[Tensor, "B N H C"]) -> Float[Tensor, "B N H C"]:
        """Turns the channel pairs of every head; C = 2 D."""
        if x.device.type == "cpu" and x.dtype == torch.float32:
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())  # one pass instead of eight
            turned = pairs * torch.complex(self.cos, self.sin)[:, None]
            return torch.view_as_real(turned).flatten(-2)
        return self._apply_plain(x)

    def _apply_plain(self, x: Tensor) -> Tensor:
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = self.cos[:, None], self.sin[:, None]  # [N, 1, D]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).type_as(x)


class Rotations:
    """Rotations by what they depend on, so that each is computed once a shape.

    Args:
        capacity: how many are kept, the least recently used going first.
    """

    def __init__(self, capacity: int = 32) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[Hashable, Rotation] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Rotation]) -> Rotation:
        if key not in self._entries:
            self._entries[key] = make()
            if len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
        self._entries.move_to_end(key)
        return self._entries[key]

    def tensors(self) -> list[Tensor]:
        """All that is kept."""
        return [part for turn in self._entries.values() for part in (turn.cos, turn.sin)]


def rotation(
    times: Shaped[Tensor, "L"],
    grid: tuple[int, int],
    dims: tuple[int, int, int],
    theta: float,
    pool: tuple[int, int, int] = (1, 1, 1),
) -> Rotation:
    """Angles of a block of tokens, flattened in the order time, height, width.

    Args:
        times: position of each latent frame.
        grid: tokens down and across, before pooling.
        dims: channels of a head given to time, height and width; each even.
        theta: base of the frequencies.
        pool: how many positions one token covers; it gets the mean of their cosines and sines (Helios), the
            edges repeated where the grid does not divide.
    """
    with full_precision(times.device):
        angles = torch.cat(_axis_angles(times, grid, dims, theta), -1)  # [L, h, w, D]
        cos, sin = angles.cos(), angles.sin()
        if pool != (1, 1, 1):
            cos, sin = _pool(cos, pool), _pool(sin, pool)
        return Rotation(cos.flatten(0, 2), sin.flatten(0, 2))


def _axis_angles(times: Tensor, grid: tuple[int, int], dims: tuple[int, int, int], theta: float) -> list[Tensor]:
    height, width = grid
    shape = (len(times), height, width)
    positions = (
        times.float()[:, None, None],
        torch.arange(height, device=times.device, dtype=torch.float32)[:, None],
        torch.arange(width, device=times.device, dtype=torch.float32),
    )
    angles = []
    for position, dim in zip(positions, dims):
        exponents = torch.arange(0, dim, 2, device=times.device, dtype=torch.float32) / dim
        angles.append(position.expand(shape)[..., None] * theta**-exponents)
    return angles


def _pool(values: Tensor, pool: tuple[int, int, int]) -> Tensor:
    volume = values.permute(3, 0, 1, 2)[None]  # [1, D, L, h, w]
    pooled = F.avg_pool3d(pad_to_multiple(volume, pool), pool)
    return pooled[0].permute(1, 2, 3, 0)


def pad_to_multiple(volume: Float[Tensor, "B C L h w"], multiple: tuple[int, int, int]) -> Float[Tensor, "B C M y x"]:
    """Repeats the last frame, row and column until every size divides."""
    (frames, height, width), (t, y, x) = volume.shape[2:], multiple
    padding = (0, -width % x, 0, -height % y, 0, -frames % t)
    return F.pad(volume, padding, mode="replicate") if any(padding) else volume
