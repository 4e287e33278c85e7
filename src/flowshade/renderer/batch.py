"""Several streams in one call: one batch through the networks, each with its own past, prompt and time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from flowshade.codec.decoder import DecoderState
from flowshade.nn.attention import KeysValues
from flowshade.renderer.memory import History
from flowshade.renderer.renderer import Renderer
from flowshade.renderer.stream import Stream, crop, pad_planes, stream_noise
from flowshade.renderer.transformer import TextMemory
from flowshade.types import Frames, GBuffer, Planes


@torch.no_grad()
def push_together(
    renderer: Renderer, streams: Sequence[Stream], windows: Sequence[GBuffer], *, steps: int | None = None
) -> list[Frames]:
    """Renders the next window of every stream: what `Stream.push` of each would give, to rounding.

    Side effect: the streams' memory and time advance, all of them or, if anything is raised, none.

    Args:
        renderer: whose streams they are.
        streams: different ones; each has its prompt.
        windows: one a stream, all of one size and number of frames; their channels may differ.
        steps: denoising steps; the model's own when None.

    Returns:
        One run of pictures a stream, [T, 3, H, W].

    Raises:
        ValueError: no streams, one of them twice or without a prompt, or windows that differ in frames or size.
    """
    _check(streams, windows)
    each = [pad_planes(stream.encode(window), renderer.pixel_multiple) for stream, window in zip(streams, windows)]
    planes = Planes(
        values=torch.cat([part.values for part in each]), present=torch.cat([part.present for part in each])
    )
    with renderer.autocast():
        buffers = renderer.encode(planes)
        count, height, width = buffers.shape[2:]
        shape = (renderer.config.transformer.latent_channels, height, width)
        noise = [stream_noise(stream.seed, stream.latent_index, count, shape, buffers.device) for stream in streams]
        text, sun = _joined_text(streams), _joined_suns(streams)
        steps = renderer.config.steps if steps is None else steps
        latents = renderer.roll(torch.cat(noise), buffers, text, sun, _joined_past(streams), steps)
        rgb, state = renderer.decode(latents, planes, _joined_state(streams, latents))
    pictures = [crop(rgb[index : index + 1], window) for index, window in enumerate(windows)]
    for index, stream in enumerate(streams):
        one = slice(index, index + 1)
        remembered = buffers[one] if renderer.config.transformer.history_buffers else None
        stream.memory.append(latents[one], remembered)
        stream.latent_index += count
        stream.decoder_state = DecoderState(previous=state.previous[one].clone())
    return pictures


def _check(streams: Sequence[Stream], windows: Sequence[GBuffer]) -> None:
    if not streams or len(streams) != len(windows) or len({id(stream) for stream in streams}) != len(streams):
        raise ValueError(
            f"push_together got {len(streams)} streams ({len({id(s) for s in streams})} different ones) and "
            f"{len(windows)} windows; expected at least one stream, none twice, and a window for each."
        )
    kinds = {(window.frames, *window.size) for window in windows}
    if len(kinds) > 1:
        raise ValueError(f"push_together got windows of (frames, height, width) {sorted(kinds)}; expected one kind.")
    if any(stream.text is None for stream in streams):
        raise ValueError("push_together got a stream that has no prompt; call its set_text first.")


def _joined_past(streams: Sequence[Stream]) -> History | None:
    """The pasts as a batch; a stream without one gets frames that are marked as missing."""
    views = [stream.memory.view() for stream in streams]
    known = next((view for view in views if view is not None), None)
    if known is None:
        return None

    def volumes(name: str) -> Tensor:
        like = getattr(known, name)
        return torch.cat([torch.zeros_like(like) if view is None else getattr(view, name) for view in views])

    valid = None
    if any(view is None or view.valid is not None for view in views):
        exists = known.latents.new_ones(1, known.latents.shape[2], dtype=torch.bool)
        rows = [~exists if view is None else exists if view.valid is None else view.valid for view in views]
        valid = torch.cat(rows)
    buffers = None if known.buffers is None else volumes("buffers")
    return History(latents=volumes("latents"), buffers=buffers, valid=valid)


def _joined_text(streams: Sequence[Stream]) -> TextMemory:
    """Prompts of any length as a batch, padded at the end and masked there."""
    texts = [stream.text for stream in streams if stream.text is not None]
    if len(texts) == 1:
        return texts[0]
    lengths = [next(layer.keys.shape[2] for layer in text.layers if layer is not None) for text in texts]
    longest = max(lengths)
    layers = []
    for parts in zip(*(text.layers for text in texts)):
        present = [part for part in parts if part is not None]
        keys = _padded([part.keys for part in present], longest) if present else None
        values = _padded([part.values for part in present], longest) if present else None
        layers.append(None if keys is None or values is None else KeysValues(keys, values))
    masks = [
        torch.ones(1, 1, 1, length, dtype=torch.bool, device=streams[0].device) if text.mask is None else text.mask
        for text, length in zip(texts, lengths)
    ]
    mask = torch.cat([F.pad(mask, (0, longest - mask.shape[-1]), value=False) for mask in masks])
    pooled = [text.pooled for text in texts if text.pooled is not None]
    return TextMemory(tuple(layers), mask, torch.cat(pooled) if pooled else None)


def _padded(parts: Sequence[Tensor], length: int) -> Tensor:
    """Joins [1, H, S, D] of different S."""
    return torch.cat([F.pad(part, (0, 0, 0, length - part.shape[2])) for part in parts])


def _joined_suns(streams: Sequence[Stream]) -> Tensor | None:
    """[B, 3]; zero vectors where the sun is unknown."""
    if all(stream.sun is None for stream in streams):
        return None
    unknown = torch.zeros(1, 3, device=streams[0].device)
    return torch.cat([unknown if stream.sun is None else stream.sun for stream in streams])


def _joined_state(streams: Sequence[Stream], latents: Tensor) -> DecoderState | None:
    """A stream at its start is decoded with its own first latent before it."""
    if all(stream.decoder_state is None for stream in streams):
        return None
    previous = [
        latents[index : index + 1, :, :1] if stream.decoder_state is None else stream.decoder_state.previous
        for index, stream in enumerate(streams)
    ]
    return DecoderState(previous=torch.cat(previous))
