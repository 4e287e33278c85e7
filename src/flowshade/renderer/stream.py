"""One stream: everything that changes while windows go through a renderer."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from flowshade.codec.decoder import DecoderState
from flowshade.codec.encoding import encode_buffers
from flowshade.renderer.memory import HistoryMemory
from flowshade.renderer.schedule import FlowMatching
from flowshade.renderer.transformer import (
    HistoryKV,
    HistoryTokens,
    TextContext,
    TextMemory,
    WorldTransformer,
)
from flowshade.types import FRAMES_PER_LATENT, Frames, GBuffer, Planes, stream_frame

if TYPE_CHECKING:
    from flowshade.renderer.renderer import Renderer


def rollout_window(
    transformer: WorldTransformer,
    schedule: FlowMatching,
    noise: Float[Tensor, "B C L h w"],
    buffers: Float[Tensor, "B D L h w"] | None,
    text: TextContext | TextMemory,
    sun: Float[Tensor, "B 3"] | None = None,
    history_kv: HistoryKV | HistoryTokens | None = None,
    *,
    steps: int,
) -> Float[Tensor, "B C L h w"]:
    """Noise to latents of one window by Euler steps: what a stream does, differentiable from end to end.

    Args:
        noise: unit normal noise; where the path starts.
        buffers: the window's conditioning features, [B, D, L, h, w].
        text: token embeddings, or `WorldTransformer.encode_text` of them.
        sun: unit vectors towards the sun in the stream frame; zero vectors or None = unknown.
        history_kv: `WorldTransformer.encode_history` of the past; None = a stream's start.
        steps: network evaluations, 1 or more.
    """
    text = text if isinstance(text, TextMemory) else transformer.encode_text(text)
    embedded = None if buffers is None else transformer.embed_buffers(buffers)
    x, sigmas = noise, schedule.sigmas(steps)
    for sigma, next_sigma in zip(sigmas[:-1], sigmas[1:]):
        timestep = schedule.timesteps(noise.new_full((noise.shape[0],), sigma, dtype=torch.float32))
        velocity = transformer(x, timestep, text, embedded, sun, history_kv)
        x = schedule.euler_step(x, velocity, sigma, next_sigma)
    return x


def stream_noise(
    seed: int, start: int, count: int, shape: tuple[int, int, int], device: torch.device | str = "cpu"
) -> Float[Tensor, "1 C L h w"]:
    """Noise of latent frames `start` to `start + count`: each a function of the seed and its index alone."""
    frames = []
    for index in range(start, start + count):
        digest = hashlib.sha256(f"{seed}:{index}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        frames.append(torch.randn(shape, generator=generator))
    return torch.stack(frames, 1)[None].to(device)


class Stream:
    """A stream's seed, prompt, place in time, memory and decoder state; bounded at any length."""

    def __init__(self, renderer: Renderer, *, seed: int = 0) -> None:
        self._renderer = renderer
        self.seed = seed
        self.latent_index = 0
        """Latent frames made so far."""
        self.memory = HistoryMemory(renderer.transformer.history_frames)
        self.decoder_state: DecoderState | None = None
        self.frame: Float[Tensor, "3 3"] | None = None
        """Rotation from world axes to this stream's, from its first camera."""
        self.sun: Float[Tensor, "1 3"] | None = None
        self._text: TextMemory | None = None
        self._size: tuple[int, int] | None = None

    @property
    def device(self) -> torch.device:
        return self._renderer.device

    @property
    def text(self) -> TextMemory | None:
        """What the layers take from the prompt; None before the first `set_text`."""
        return self._text

    def set_text(self, text: TextContext) -> None:
        """Takes a prompt's embeddings [1, S, E] from the next window on; only what depends on text is computed."""
        if text.tokens.shape[0] != 1:
            raise ValueError(f"a stream got a batch of {text.tokens.shape[0]} prompts; give one.")
        device = self._renderer.device
        mask = None if text.mask is None else text.mask.to(device)
        with torch.no_grad(), self._renderer.autocast():
            context = TextContext(tokens=text.tokens.to(device), mask=mask)
            self._text = self._renderer.transformer.encode_text(context)

    def set_sun(self, sun: Float[Tensor, "3"] | None) -> None:
        """Takes a unit vector towards the sun in the stream frame from the next window on; None = unknown.

        Raises:
            ValueError: anything but three numbers of length 1.
        """
        if sun is not None:
            sun = torch.as_tensor(sun, dtype=torch.float32)
            if sun.shape != (3,) or not abs(float(sun.norm()) - 1) < 0.01:
                raise ValueError(f"the sun is {sun.tolist()}; expected a unit vector of three numbers, or None.")
        self.sun = None if sun is None else sun.to(self._renderer.device, torch.float32)[None]

    @torch.no_grad()
    def push(self, window: GBuffer, *, steps: int | None = None) -> Frames:
        """Renders the next window.

        Any number of frames and any size will do. A window that does not hold whole latent frames is completed by
        repeating its last frame and the result is cut again; time in the stream goes on after the repeated frames, so
        only a stream's last window should be ragged.
        """
        planes = pad_planes(self.encode(window), self._renderer.pixel_multiple)
        with self._renderer.autocast():
            buffers = self._renderer.encode(planes)
            latents = self.denoise(buffers, steps=steps)
            rgb, self.decoder_state = self._renderer.decode(latents, planes, self.decoder_state)
        return crop(rgb, window)

    def encode(self, window: GBuffer) -> Planes:
        """A window's planes; the stream's first camera sets the stream frame."""
        _check_window(window, self._size)
        window = window.to(self._renderer.device)
        if self.frame is None and window.camera is not None:
            self.frame = stream_frame(window.camera.pose[0])
        self._size = window.size
        return encode_buffers(window, self._renderer.profile, self.frame)

    def denoise(self, buffers: Float[Tensor, "1 D L h w"], *, steps: int | None = None) -> Float[Tensor, "1 C L h w"]:
        """Makes the window's latents and remembers them. Side effect: memory and time advance."""
        if self._text is None:
            raise ValueError("the stream has no prompt; call set_text (or Renderer.set_text) before the first window.")
        renderer = self._renderer
        count, height, width = buffers.shape[2:]
        shape = (renderer.config.transformer.latent_channels, height, width)
        noise = stream_noise(self.seed, self.latent_index, count, shape, buffers.device)
        steps = renderer.config.steps if steps is None else steps
        latents = renderer.roll(noise, buffers, self._text, self.sun, self.memory.view(), steps)
        self.memory.append(latents, buffers if renderer.config.transformer.history_buffers else None)
        self.latent_index += count
        return latents

    def state_bytes(self) -> int:
        """Memory that the stream's state takes, in bytes; does not grow once the past is full."""
        history = self.memory.view()
        tensors = [] if history is None else [history.latents, history.buffers]
        tensors += [] if self.decoder_state is None else [self.decoder_state.previous]
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors if tensor is not None)


def _check_window(window: GBuffer, size: tuple[int, int] | None) -> None:
    """Raises ValueError for a window without pixels, of another size than the stream's, or of integers."""
    if window.frames == 0 or 0 in window.size:
        raise ValueError(
            f"a stream got a window of {window.frames} frames of {window.size}; expected at least one frame of at "
            "least one pixel."
        )
    if size not in (None, window.size):
        raise ValueError(f"a stream of {size} got a window of {window.size}; reset() it to change size.")
    for name, value in window.channels().items():
        if name != "instance" and not value.is_floating_point():
            raise ValueError(
                f"a stream got {name} as {value.dtype}; expected floating point in the units of `GBuffer` (albedo "
                "linear in [0, 1]). Convert it first."
            )


def pad_planes(planes: Planes, multiple: int) -> Planes:
    """Repeats the last frame to whole latent frames, and the last row and column to multiples of `multiple` pixels."""
    frames, _, height, width = planes.values.shape[1:]
    missing = -frames % FRAMES_PER_LATENT
    bottom, right = -height % multiple, -width % multiple
    if not (missing or bottom or right):
        return planes
    values = planes.values.transpose(1, 2)  # [B, planes, T, H, W]
    values = F.pad(values, (0, right, 0, bottom, 0, missing), mode="replicate")
    return Planes(values=values.transpose(1, 2), present=planes.present)


def crop(rgb: Float[Tensor, "1 T 3 H W"], window: GBuffer) -> Frames:
    """Cuts padded pictures to the window's frames and size, and to what can be shown."""
    height, width = window.size
    return Frames(rgb=rgb[0, : window.frames, :, :height, :width].float().clamp(0, 1))
