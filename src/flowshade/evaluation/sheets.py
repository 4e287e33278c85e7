"""Pictures of a clip's results: a sheet, and a short video beside the reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from flowshade.evaluation.suites import Case
from flowshade.gbuffer.io import VideoWriter
from flowshade.gbuffer.io.pictures import write_png
from flowshade.gbuffer.view import channel_picture, contact_sheet, resize_pictures, to_uint8

TILE_WIDTH = 208
"""Widest picture on a sheet and in a video, in pixels."""
SHOWN = ("albedo", "normal", "depth")


def small(pictures: Tensor) -> Tensor:
    """uint8 [T, h, w, 3] of at most `TILE_WIDTH` and of even height and width, of uint8 [T, H, W, 3]."""
    height, width = pictures.shape[1:3]
    scale = min(1.0, TILE_WIDTH / width)
    even = [max(2, 2 * round(side * scale / 2)) for side in (height, width)]
    return resize_pictures(pictures.cpu(), (even[0], even[1]))


def write_clip_sheet(path: Path, shown: Sequence[tuple[Case, Tensor]]) -> None:
    """A PNG of a clip's last frame: a row a look; albedo, normal, depth, the result, the reference and where they
    differ (4 times, grey = same)."""
    tiles, labels = [], []
    for case, pictures in shown:
        last = case.gbuffer[case.gbuffer.frames - 1 :]
        row = {name: channel_picture(last, name) for name in SHOWN if name in case.gbuffer.channels()}
        row[f"{case.look}: result"] = to_uint8(pictures[-1:])
        if case.reference is not None:
            row["reference"] = to_uint8(case.reference[-1:])
            row["4 x difference"] = to_uint8(0.5 + 2 * (pictures[-1:] - case.reference[-1:]))
        tiles += [small(picture)[0] for picture in row.values()]
        labels += list(row)
    columns = len(tiles) // len(shown)
    write_png(path, contact_sheet(tiles, columns, labels).numpy())


def write_clip_video(path: Path, shown: Sequence[tuple[Case, Tensor]]) -> None:
    """An MP4 of a clip in every look: results above, the reference (if there is one) below."""
    rows = [[pictures for _, pictures in shown]]
    references = [case.reference for case, _ in shown if case.reference is not None]
    rows += [references] if len(references) == len(shown) else []
    grid = torch.cat([torch.cat([small(to_uint8(x)) for x in row], 2) for row in rows], 1)  # [T, h, w, 3]
    with VideoWriter(path, fps=shown[0][0].fps, size=(grid.shape[1], grid.shape[2]), crf=23) as video:
        video.append(grid)
