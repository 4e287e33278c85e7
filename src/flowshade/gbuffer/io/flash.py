"""AlayaRenderer-Flash's windows: `window-NN.npy`, uint8 [frames, 5, H, W, 3], buffers in the order of `ORDER`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Shaped
from torch import Tensor

from flowshade.gbuffer.io.coding import CodedReader
from flowshade.gbuffer.io.conventions import ClipConventions
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.pictures import open_npy
from flowshade.gbuffer.io.sequence import numbered

ORDER = ("albedo", "depth", "metallic", "normal", "roughness")
WINDOW_FRAMES = 16
SIZE = (448, 832)
"""The size Flash's own model takes; the format itself holds any."""


class FlashReader(CodedReader):
    """Reads a folder of Flash windows, or some of its files, see this module.

    Args:
        path: the folder.
        conventions: those of `CodedReader`.
        windows: its files to read; None reads all.
    """

    format = "flash"

    def __init__(self, path: Path, conventions: ClipConventions, *, windows: Sequence[Path] | None = None) -> None:
        self._given = windows
        super().__init__(path, conventions)

    def _find(self, warnings: list[str]) -> tuple[int, tuple[int, int], float | None]:
        found = self._path.glob("window-*.npy") if self._given is None else self._given
        files = numbered(found, f"{self._path}/window-*.npy")
        self._windows = list(files.values())
        shapes = [self._map(path).shape for path in self._windows]
        for path, shape in zip(self._windows[:-1], shapes, strict=False):
            if shape != shapes[0]:
                raise ClipError(
                    f"{path} is {shape} and the first window {shapes[0]}; expected one shape. Export it again."
                )
        if shapes[-1][1:] != shapes[0][1:] or shapes[-1][0] > shapes[0][0]:
            raise ClipError(
                f"{self._windows[-1]} is {shapes[-1]} and the first window {shapes[0]}; expected one shape."
            )
        self._window_frames = shapes[0][0]
        self.top = dict.fromkeys(ORDER, 255)
        frames = sum(shape[0] for shape in shapes)
        if self._stated is not None:
            frames = min(frames, self._stated.frames)
        return frames, (shapes[0][2], shapes[0][3]), None

    def _map(self, path: Path) -> np.ndarray:
        window = open_npy(path)
        if window.dtype != np.uint8 or window.ndim != 5 or window.shape[1] != len(ORDER) or window.shape[4] != 3:
            raise ClipError(
                f"{path} is {window.dtype} {list(window.shape)}; expected uint8 [frames, {len(ORDER)}, height, "
                f"width, 3] with the buffers {', '.join(ORDER)}. Export it again."
            )
        return window

    def _raw(self, channel: str, start: int, stop: int) -> Shaped[Tensor, "T C H W"]:
        runs = []
        for index in range(start // self._window_frames, (stop - 1) // self._window_frames + 1):
            first = index * self._window_frames
            low, high = max(start - first, 0), min(stop - first, self._window_frames)
            runs.append(np.array(self._map(self._windows[index])[low:high, ORDER.index(channel)]))
        return rearrange(torch.from_numpy(np.concatenate(runs)), "t h w c -> t c h w")
