"""Pictures of a run in progress: what the models make of clips from the pool."""

from __future__ import annotations

from pathlib import Path

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from flowshade.color import to_bytes
from flowshade.files import write_image
from flowshade.renderer.memory import HistoryMemory
from flowshade.training.stages import Context
from flowshade.types import FRAMES_PER_LATENT, Planes


@torch.no_grad()
def write_samples(path: Path, context: Context, *, clips: int = 4, latents: int = 6, steps: int = 2) -> None:
    """Writes a sheet. Rows: clips; columns: albedo, codec's reconstruction, stream at `steps` steps, reference.

    Shown is the last frame of streams of `latents` latent frames, which ran on their own past.
    """
    models, renderer = context.models, context.models.renderer
    latents = min(latents, context.pool.spec.frames // FRAMES_PER_LATENT)
    batch = context.pool.draw(clips, latents, context.rng)
    true_latents = models.latents(batch.rgb, batch.planes)
    reconstruction = renderer.decoder(true_latents, batch.planes)
    stream = stream_latents(context, batch.planes, batch.caption, batch.sun, window=2, steps=steps)
    streamed = renderer.decoder(stream, batch.planes)
    albedo = (batch.planes.values[:, :, context.pool.profile.slices["albedo"]] + 1) / 2
    columns = [clip[:, -1] for clip in (albedo, reconstruction, streamed, batch.rgb)]  # each [B, 3, H, W]
    write_sheet(path, rearrange(torch.stack(columns, 1), "b k c h w -> (b h) (k w) c"))


def write_sheet(path: Path, picture: Float[Tensor, "H W 3"]) -> None:
    """Writes a picture in [0, 1] as PNG, or nothing."""
    from PIL import Image

    image = Image.fromarray(to_bytes(picture).cpu().numpy())
    write_image(path, image)


def stream_latents(
    context: Context, planes: Planes, caption: Tensor, sun: Tensor, *, window: int, steps: int
) -> Tensor:
    """Latents of a batch of streams run on their own past: captions [B, L], suns [B, L, 3] -> [B, C, L, h, w]."""
    renderer = context.models.renderer
    memory = HistoryMemory(renderer.transformer.history_frames)
    features = renderer.encoder(planes)
    channels, count = renderer.config.transformer.latent_channels, planes.values.shape[1] // FRAMES_PER_LATENT
    made = []
    for start in range(0, count, window):
        run = features[:, :, start : start + window]
        noise = torch.randn(run.shape[0], channels, *run.shape[2:], device=run.device)
        text = context.text(caption[:, start])
        history = renderer.transformer.encode_history(memory.view())
        made.append(renderer.denoise(noise, run, text, sun[:, start], history, steps=steps))
        memory.append(made[-1], run)
    return torch.cat(made, 2)
