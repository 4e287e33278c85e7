"""How well a student keeps its teacher: errors of latents and pictures on held-out clips, and drift of long streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from flowshade.color import from_bytes
from flowshade.evaluation.drift import Sample, drift, picture_statistics
from flowshade.evaluation.metrics import psnr, quantise
from flowshade.evaluation.perceptual import lpips, trunks
from flowshade.renderer.flash import FlashRenderer
from flowshade.renderer.upstream import BUFFERS
from flowshade.training.distill.clips import Clip
from flowshade.training.samples import write_sheet

SMALLEST_FOR_LPIPS = 32
"""Pixels a side; in smaller pictures the trunk's last layers are empty."""
MOST_PSNR = 99.0
"""dB that equal pictures count as, so that means stay finite."""


@torch.no_grad()
def picture_scores(made: Float[Tensor, "T 3 H W"], reference: Float[Tensor, "T 3 H W"]) -> dict[str, float]:
    """Mean PSNR in dB, and LPIPS (AlexNet) where its trunk is installed and pictures are large enough for it."""
    made, reference = made.float().clamp(0, 1), reference.float().clamp(0, 1).to(made.device)
    found = {"psnr": float(psnr(made, reference).clamp(max=MOST_PSNR).mean())}
    trunk = trunks(str(made.device))[0].get("alex")
    if trunk is not None and min(made.shape[-2:]) >= SMALLEST_FOR_LPIPS:
        with torch.autocast(made.device.type, enabled=False):
            parts = [lpips(a, b, trunk) for a, b in zip(made.split(16), reference.split(16))]
        found["lpips"] = float(torch.cat(parts).mean())
    return found


def write_rows(path: Path, rows: Sequence[Float[Tensor, "K 3 H W"]]) -> None:
    """A contact sheet of rows of pictures in [0, 1]; all of one size."""
    write_sheet(path, rearrange(torch.stack([row.cpu().float() for row in rows]), "b k c h w -> (b h) (k w) c"))


def there_and_back(frames: int, count: int) -> Iterator[int]:
    """`count` frame numbers that go through a clip of `frames` forwards and backwards again and again."""
    period = max(2 * (frames - 1), 1)
    return (min(place, period - place) for place in (index % period for index in range(count)))


@torch.no_grad()
def stream_drift(
    renderer: FlashRenderer, clip: Clip, size: tuple[int, int], *, frames: int, window: int, steps: int, seed: int = 0
) -> dict[str, float]:
    """Change of (output - albedo), the last 15% of a long stream against the first, by `evaluation.drift.drift`.

    The stream goes through a clip there and back, so it may be longer than any clip, and what is in sight at its ends
    cancels: what remains is the stream's own doing. Memory does not grow with it.

    Args:
        renderer: with its prompt set.
        clip: held out.
        size: height and width.
        frames: of the stream.
        window: frames a window.
        steps: a window.
        seed: of the noise.
    """
    renderer.reset(seed)
    order = list(there_and_back(clip.frames, frames))
    samples: list[Sample] = []
    for first in range(0, frames - window + 1, window):
        planes = _gathered(clip, order[first : first + window], size)
        made = renderer.push({name: planes[:, index] for index, name in enumerate(BUFFERS)}, steps=steps).rgb
        albedo = from_bytes(planes[:, BUFFERS.index("albedo")])
        pairs = zip(picture_statistics(quantise(made).cpu()), picture_statistics(albedo))
        samples += [Sample(frame=first + index, output=a, reference=b) for index, (a, b) in enumerate(pairs)]
    return drift(samples, len(samples))


def _gathered(clip: Clip, order: Sequence[int], size: tuple[int, int]) -> Tensor:
    """Frames of a clip in any order, read as one run."""
    first = min(order)
    planes = clip.planes(first, max(order) + 1, size)
    return planes[torch.tensor(order) - first]
