"""What a stream remembers: its last latent frames and the buffer features they were made from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class HistoryBand:
    """A run of past latent frames that share one patch size."""

    frames: int
    """Latent frames, a multiple of patch[0] * pool[0]."""
    patch: tuple[int, int, int]
    """Latent frames, rows and columns of one token, after pooling."""
    pool: tuple[int, int, int] = (1, 1, 1)
    """Averages taken first: the distant past is for the look, not for detail."""

    def __post_init__(self) -> None:
        if self.frames % self.span[0]:
            raise ValueError(
                f"HistoryBand got {self.frames} frames; expected a multiple of {self.span[0]}, what one token covers."
            )

    @property
    def span(self) -> tuple[int, int, int]:
        """Latent frames, rows and columns that one token covers."""
        (t, y, x), (pool_t, pool_y, pool_x) = self.patch, self.pool
        return t * pool_t, y * pool_y, x * pool_x

    def tokens(self, height: int, width: int) -> int:
        """Tokens of the band for latents of this size."""
        t, y, x = self.span
        return self.frames // t * -(-height // y) * -(-width // x)


@dataclass(frozen=True, kw_only=True)
class History:
    """Past latent frames, the oldest first."""

    latents: Float[Tensor, "B C P h w"]
    """Normalised latents; whatever lies where `valid` is False is ignored."""
    buffers: Float[Tensor, "B D P h w"] | None = None
    """The buffer features of the same frames, for transformers that look at them."""
    valid: Bool[Tensor, "B P"] | None = None
    """Which frames exist; None = all."""
    first: History | None = None
    """The stream's first latent frame, for transformers that keep it in sight."""

    def __getitem__(self, frames: slice) -> History:
        """A run of the frames, as views, without the first frame that is kept beside them."""
        return History(
            latents=self.latents[:, :, frames],
            buffers=None if self.buffers is None else self.buffers[:, :, frames],
            valid=None if self.valid is None else self.valid[:, frames],
        )


class HistoryMemory:
    """The last `capacity` latent frames of a batch of streams, in memory that does not grow.

    Frames older than a stream are marked as such, and a transformer sees no trace of them: a stream with a short past
    gets exactly what it would get if the missing frames held anything else. Networks that were trained with a past of
    zeros in their place (Helios) get that from `start_with_zeros`.

    Args:
        capacity: `WorldTransformer.history_frames`.
        keep_first: also keep the first frame that is appended, however long ago that was; zeros until there is one.
    """

    def __init__(self, capacity: int, *, keep_first: bool = False) -> None:
        self.capacity = capacity
        self.keep_first = keep_first
        self._history: History | None = None
        self._first: History | None = None
        self._surely_valid = 0
        """How many of the newest frames exist in every stream of the batch, as far as the host knows."""

    @staticmethod
    def from_latents(
        latents: Float[Tensor, "B C P h w"],
        buffers: Float[Tensor, "B D P h w"] | None = None,
        valid: Bool[Tensor, "B P"] | None = None,
        *,
        capacity: int,
    ) -> HistoryMemory:
        """A memory that holds the last `capacity` of these frames, the same as appending them to an empty one.

        Args:
            latents: past latents, oldest first; any number, none included.
            buffers: their buffer features.
            valid: which frames exist; None = all. Missing ones must come before existing ones.
            capacity: `WorldTransformer.history_frames`.
        """
        memory = HistoryMemory(capacity)
        memory.append(latents, buffers, valid)
        return memory

    def append(
        self,
        latents: Float[Tensor, "B C L h w"],
        buffers: Float[Tensor, "B D L h w"] | None = None,
        valid: Bool[Tensor, "B L"] | None = None,
    ) -> None:
        """Adds the newest frames and forgets the oldest. Nothing is changed in place, so gradients may flow."""
        count = latents.shape[2]
        if count == 0:
            return
        exists = latents.new_ones(latents.shape[0], count, dtype=torch.bool) if valid is None else valid
        newest = History(latents=latents, buffers=buffers, valid=exists)
        if self.keep_first and self._first is None:
            self._first = dataclasses.replace(newest[0:1], valid=None)
        joined = newest if self._history is None else _join(self._history, newest)
        self._history = _fit(joined, self.capacity)
        self._surely_valid = min(self._surely_valid + count, self.capacity) if valid is None else 0

    def start_with_zeros(
        self, latents: Float[Tensor, "B C L h w"], buffers: Float[Tensor, "B D L h w"] | None = None
    ) -> None:
        """Forgets everything and takes as past `capacity` frames of zeros, which a transformer does see.

        Args:
            latents: any latents of the stream, for their shape and type.
            buffers: any buffer features of the stream, if its past has them.
        """
        self.reset()
        frame = _zeros_like(History(latents=latents, buffers=buffers)[0:1])
        size = (1, 1, self.capacity, 1, 1)
        self.append(frame.latents.repeat(size), None if frame.buffers is None else frame.buffers.repeat(size))
        self._first = None

    def reset(self) -> None:
        """Forgets everything."""
        self._history = None
        self._first = None
        self._surely_valid = 0

    def view(self) -> History | None:
        """The past as a transformer takes it; None while there is none."""
        history = self._history
        if history is None:
            return None
        if self._surely_valid == self.capacity:
            history = dataclasses.replace(history, valid=None)  # spares attention its mask
        if not self.keep_first:
            return history
        return dataclasses.replace(history, first=self._first if self._first is not None else _zeros_like(history[0:1]))


def _zeros_like(history: History) -> History:
    buffers = None if history.buffers is None else torch.zeros_like(history.buffers)
    return History(latents=torch.zeros_like(history.latents), buffers=buffers)


def _join(past: History, newest: History) -> History:
    assert past.valid is not None and newest.valid is not None
    if past.latents.shape[:2] != newest.latents.shape[:2] or past.latents.shape[3:] != newest.latents.shape[3:]:
        raise ValueError(
            f"HistoryMemory holds latents {tuple(past.latents.shape)} and got {tuple(newest.latents.shape)}; expected "
            "the same batch, channels and size. Call reset() before a stream of another size."
        )
    if (past.buffers is None) != (newest.buffers is None):
        raise ValueError("HistoryMemory got buffer features for some frames only; give them always or never.")
    buffers = None if past.buffers is None else torch.cat([past.buffers, newest.buffers], 2)  # pyright: ignore
    return History(
        latents=torch.cat([past.latents, newest.latents], 2),
        buffers=buffers,
        valid=torch.cat([past.valid, newest.valid], 1),
    )


def _fit(history: History, capacity: int) -> History:
    """Cuts the oldest frames, or pads in front of them, to `capacity` frames."""
    missing = capacity - history.latents.shape[2]

    def fit(volume: Tensor | None) -> Tensor | None:
        if volume is None:
            return None
        return F.pad(volume, (0, 0, 0, 0, missing, 0)) if missing > 0 else volume[:, :, -capacity:].contiguous()

    latents = fit(history.latents)
    assert latents is not None and history.valid is not None
    valid = F.pad(history.valid, (missing, 0)) if missing > 0 else history.valid[:, -capacity:]
    return History(latents=latents, buffers=fit(history.buffers), valid=valid)
