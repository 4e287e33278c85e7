"""The renderer: encoder, transformer, schedule and decoder, and one stream through them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flowshade.codec.decoder import DecoderConfig, DecoderState, GuidedDecoder
from flowshade.codec.encoder import STRIDE, BufferEncoder, BufferEncoderConfig
from flowshade.codec.encoding import EncodingProfile
from flowshade.nn.graphs import Graphs, staged
from flowshade.renderer.memory import History
from flowshade.renderer.schedule import FlowMatching
from flowshade.renderer.stream import Stream, crop, pad_planes, rollout_window
from flowshade.renderer.transformer import (
    HistoryKV,
    HistoryTokens,
    PaddedText,
    TextContext,
    TextMemory,
    TransformerConfig,
    WorldTransformer,
)
from flowshade.types import FRAMES_PER_LATENT, Frames, GBuffer, Planes


@dataclass(frozen=True, kw_only=True)
class RendererConfig:
    """Everything that defines a renderer but its weights; the defaults are the compact model's."""

    name: str = "compact"
    profile: EncodingProfile = EncodingProfile()
    encoder: BufferEncoderConfig = BufferEncoderConfig()
    decoder: DecoderConfig = DecoderConfig()
    transformer: TransformerConfig = TransformerConfig()
    schedule: FlowMatching = FlowMatching()
    steps: int = 2
    """Denoising steps when none are asked for."""
    window: int = 16
    """Pictures in a window when none are asked for."""

    def __post_init__(self) -> None:
        transformer = self.transformer
        if self.encoder.channels != transformer.buffer_channels:
            raise ValueError(
                f"the encoder makes {self.encoder.channels} channels and the transformer takes "
                f"{transformer.buffer_channels}; they must agree."
            )
        if self.decoder.latent_channels != transformer.latent_channels:
            raise ValueError(
                f"the transformer makes {transformer.latent_channels} latent channels and the decoder takes "
                f"{self.decoder.latent_channels}; they must agree."
            )


class Renderer(nn.Module):
    """G-buffers and a prompt to pictures, window after window.

    `reset`, `set_text`, `set_sun` and `push` drive the renderer's own stream; `open_stream` makes further ones.
    `render` takes a whole clip at once and leaves the own stream alone.
    """

    def __init__(self, config: RendererConfig) -> None:
        super().__init__()
        self.config = config
        self.profile = config.profile
        self.schedule = config.schedule
        self.encoder = BufferEncoder(config.encoder, config.profile)
        self.transformer = WorldTransformer(config.transformer)
        self.decoder = GuidedDecoder(config.decoder, config.profile)
        self.autocast_dtype: torch.dtype | None = None
        """Type that matrix products run in on a GPU; None = the weights' own."""
        self.graphs: Graphs | None = None
        """CUDA graphs of the stages (`renderer.fast.speed_up`); None = none."""
        self._padded = PaddedText()
        self.stream = Stream(self)

    @property
    def device(self) -> torch.device:
        return self.decoder.latent_mean.device

    @property
    def pixel_multiple(self) -> int:
        """Sizes are padded to multiples of this many pixels."""
        return STRIDE * max(self.config.transformer.patch[1:])

    def autocast(self) -> AbstractContextManager[object]:
        dtype = self.autocast_dtype
        return torch.autocast(self.device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)

    def open_stream(self, seed: int = 0) -> Stream:
        """A further stream through the same weights."""
        return Stream(self, seed=seed)

    def reset(self, seed: int = 0) -> None:
        """Starts the own stream anew. The prompt and the sun must be set again."""
        self.stream = Stream(self, seed=seed)

    def set_text(self, text: TextContext) -> None:
        """Takes a prompt [1, S, E] from the next window on."""
        self.stream.set_text(text)

    def set_sun(self, sun: Float[Tensor, "3"] | None) -> None:
        """Takes a unit vector towards the sun in the stream frame from the next window on; None = unknown."""
        self.stream.set_sun(sun)

    def push(self, window: GBuffer, *, steps: int | None = None) -> Frames:
        """Renders the next window of the own stream (see `Stream.push`)."""
        return self.stream.push(window, steps=steps)

    def encode(self, planes: Planes) -> Float[Tensor, "B D L h w"]:
        """The encoder, from a graph where there is one."""
        return staged(self.graphs, "encode", self.encoder, planes)

    def roll(
        self,
        noise: Float[Tensor, "B C L h w"],
        buffers: Float[Tensor, "B D L h w"],
        text: TextMemory,
        sun: Float[Tensor, "B 3"] | None,
        history: History | None,
        steps: int,
    ) -> Float[Tensor, "B C L h w"]:
        """What a window needs of the past, and `denoise`; from a graph where there is one."""
        text = text if self.graphs is None else self._padded.of(text)
        return staged(self.graphs, "roll", self._roll, noise, buffers, text, sun, history, steps)

    def decode(
        self, latents: Float[Tensor, "B C L h w"], planes: Planes, state: DecoderState | None
    ) -> tuple[Float[Tensor, "B T 3 H W"], DecoderState]:
        """The decoder's next step, from a graph where there is one."""
        return staged(self.graphs, "decode", self.decoder.step, latents, planes, state)

    def _roll(
        self,
        noise: Tensor,
        buffers: Tensor,
        text: TextMemory,
        sun: Tensor | None,
        history: History | None,
        steps: int,
    ) -> Tensor:
        return self.denoise(noise, buffers, text, sun, self.transformer.encode_history(history), steps=steps)

    def denoise(
        self,
        noise: Float[Tensor, "B C L h w"],
        buffers: Float[Tensor, "B D L h w"],
        text: TextContext | TextMemory,
        sun: Float[Tensor, "B 3"] | None = None,
        history_kv: HistoryKV | HistoryTokens | None = None,
        *,
        steps: int | None = None,
    ) -> Float[Tensor, "B C L h w"]:
        """`rollout_window` with this renderer's transformer and schedule; differentiable."""
        steps = self.config.steps if steps is None else steps
        return rollout_window(self.transformer, self.schedule, noise, buffers, text, sun, history_kv, steps=steps)

    @torch.no_grad()
    def render(
        self,
        clip: GBuffer,
        text: TextContext,
        *,
        sun: Float[Tensor, "3"] | None = None,
        seed: int = 0,
        steps: int | None = None,
        window: int | None = None,
    ) -> Frames:
        """Renders a whole clip that fits in memory: encoded at once, denoised by windows, decoded at once.

        The plain version of a stream: the result equals that of `push` with windows of the same length.

        Args:
            clip: any number of frames, any size.
            text: a prompt's embeddings [1, S, E].
            sun: unit vector towards the sun in the stream frame; None = unknown.
            seed: the noise's.
            steps: denoising steps; the config's when None.
            window: pictures that are denoised together, a multiple of 4; the config's when None.
        """
        window = self.config.window if window is None else window
        if window < FRAMES_PER_LATENT or window % FRAMES_PER_LATENT:
            raise ValueError(f"got windows of {window} frames; expected a multiple of {FRAMES_PER_LATENT}.")
        stream = Stream(self, seed=seed)
        stream.set_text(text)
        stream.set_sun(sun)
        planes = pad_planes(stream.encode(clip), self.pixel_multiple)
        with self.autocast():
            runs = self.encoder(planes).split(window // FRAMES_PER_LATENT, dim=2)
            latents = torch.cat([stream.denoise(run, steps=steps) for run in runs], 2)
            rgb = self.decoder(latents, planes)
        return crop(rgb, clip)
