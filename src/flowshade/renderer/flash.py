"""AlayaRenderer-Flash: windows of 16 frames through a grouped encoder, few steps with memory, and a tiny decoder.

How upstream lays out its window, memory and codecs is read from its file list and shapes (arXiv 2607.18703): 16 frames
are 4 latents, the past is Helios' with zeros before a stream's start, and noise levels are spaced as its teacher's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from flowshade.codec.tiny import GroupedEncoder, GroupedEncoderConfig, TinyDecoder, TinyDecoderConfig
from flowshade.codec.wan_vae import ConvState
from flowshade.nn.graphs import Graphs, staged
from flowshade.renderer.memory import History, HistoryMemory
from flowshade.renderer.schedule import FlowMatching
from flowshade.renderer.stream import rollout_window, stream_noise
from flowshade.renderer.transformer import TextContext, TextMemory, TransformerConfig, WorldTransformer
from flowshade.renderer.upstream import BUFFERS, flash_transformer
from flowshade.types import FRAMES_PER_LATENT, Frames

FlashPlanes = Mapping[str, UInt8[Tensor, "T 3 H W"]]
"""8-bit planes of every buffer, as upstream stores them."""


@dataclass(frozen=True, kw_only=True)
class FlashConfig:
    """Everything that defines a `FlashRenderer` but its weights; the defaults are upstream's, as far as is known."""

    name: str = "alaya-flash"
    transformer: TransformerConfig = flash_transformer()
    encoder: GroupedEncoderConfig = GroupedEncoderConfig()
    decoder: TinyDecoderConfig = TinyDecoderConfig()
    schedule: FlowMatching = FlowMatching(shift=5.0)
    steps: int = 4
    window: int = 16
    """Pictures in a window."""

    def __post_init__(self) -> None:
        if self.encoder.channels != self.transformer.buffer_channels:
            raise ValueError(
                f"the encoder makes {self.encoder.channels} channels and the transformer takes "
                f"{self.transformer.buffer_channels}; they must agree."
            )


class FlashRenderer(nn.Module):
    """One endless stream of windows: `reset`, `set_text`, then `push` for as long as the world runs.

    `render` takes a whole clip at once and is the plain version of a stream: the results are equal.
    """

    def __init__(
        self,
        config: FlashConfig,
        transformer: WorldTransformer | None = None,
        encoder: GroupedEncoder | None = None,
        decoder: TinyDecoder | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.transformer = WorldTransformer(config.transformer) if transformer is None else transformer
        self.encoder = GroupedEncoder(config.encoder) if encoder is None else encoder
        self.decoder = TinyDecoder(config.decoder) if decoder is None else decoder
        self.autocast_dtype: torch.dtype | None = None
        """For the interface of `Renderer`; the weights' own types decide here."""
        self.graphs: Graphs | None = None
        """CUDA graphs of the stages (`renderer.fast.speed_up`); None = none."""
        self._text: TextMemory | None = None
        self.reset()

    @property
    def device(self) -> torch.device:
        return self.transformer.patch_embedding.weight.device

    @property
    def pixel_multiple(self) -> int:
        """Sizes are padded to multiples of this many pixels."""
        return self.config.encoder.patch * max(self.config.transformer.patch[1:])

    def open_stream(self, seed: int = 0) -> FlashRenderer:
        """A further stream through the same weights and graphs."""
        stream = FlashRenderer(self.config, self.transformer, self.encoder, self.decoder).train(self.training)
        stream.graphs = self.graphs
        stream.reset(seed)
        return stream

    def reset(self, seed: int = 0) -> None:
        """Starts a new stream; the prompt stays."""
        self.seed = seed
        self.latent_index = 0
        """Latent frames made so far."""
        self.memory = HistoryMemory(self.transformer.history_frames, keep_first=self.transformer.config.keep_first)
        self._encoder_state: ConvState = {}
        self._decoder_state: ConvState = {}

    @torch.no_grad()
    def set_text(self, text: TextContext) -> None:
        """Takes a prompt's embeddings [1, S, E] from the next window on; only what depends on text is computed."""
        if text.tokens.shape[0] != 1:
            raise ValueError(f"a stream got a batch of {text.tokens.shape[0]} prompts; give one.")
        tokens = text.tokens.to(self.device, self.transformer.dtype)
        self._text = self.transformer.encode_text(TextContext(tokens=tokens, mask=text.mask))

    def set_sun(self, sun: Tensor | None) -> None:
        """Does nothing: this network knows no sun but the prompt's."""

    @torch.no_grad()
    def push(self, window: FlashPlanes, *, steps: int | None = None) -> Frames:
        """Renders the next window. Side effect: memory, codecs and time advance.

        Args:
            window: all five buffers; whole latents of 4 frames but for a stream's last window.
            steps: denoising steps; the config's when None.
        """
        latents = self.denoise(self.encode(window), steps=steps)
        return _crop(self.decode(latents), window)

    def encode(self, window: FlashPlanes) -> Float[Tensor, "1 D L h w"]:
        """The buffers' features of the next window. Side effect: the encoder moves on."""
        features, self._encoder_state = staged(
            self.graphs, "encode", self._encoded, self._gathered(window), self._encoder_state
        )
        return features

    def decode(self, latents: Float[Tensor, "1 C L h w"]) -> Float[Tensor, "1 T 3 H W"]:
        """The pictures of the next window. Side effect: the decoder moves on."""
        rgb, self._decoder_state = staged(self.graphs, "decode", self._decoded, latents, self._decoder_state)
        return rgb

    @torch.no_grad()
    def render(
        self, clip: FlashPlanes, *, seed: int = 0, steps: int | None = None, window: int | None = None
    ) -> Frames:
        """Renders a whole clip that fits in memory as a stream of its own: encoded and decoded at once."""
        self.reset(seed)
        size = (self.config.window if window is None else window) // FRAMES_PER_LATENT
        runs = self.encoder(self.stack(clip)).split(size, dim=2)
        latents = torch.cat([self.denoise(run, steps=steps) for run in runs], 2)
        return _crop(self.decoder(latents), clip)

    def stack(self, window: FlashPlanes) -> Float[Tensor, "1 T D H W"]:
        """Planes in [-1, 1] in the order `BUFFERS`, padded to whole latents and patches."""
        return self._normalised(self._gathered(window))

    def _gathered(self, window: FlashPlanes) -> UInt8[Tensor, "T B 3 H W"]:
        """The buffers in the order `BUFFERS` on the device."""
        missing = [name for name in BUFFERS if name not in window]
        if missing:
            raise ValueError(f"the clip lacks {', '.join(missing)}; this model takes all of {', '.join(BUFFERS)}.")
        return torch.stack([window[name] for name in BUFFERS], 1).to(self.device)

    def _normalised(self, stacked: UInt8[Tensor, "T B 3 H W"]) -> Float[Tensor, "1 T D H W"]:
        planes = rearrange(stacked, "t b c h w -> 1 (b c) t h w").float() * (2 / 255) - 1
        frames, height, width = planes.shape[2:]
        multiple = self.pixel_multiple
        padding = (0, -width % multiple, 0, -height % multiple, 0, -frames % FRAMES_PER_LATENT)
        if any(padding):
            planes = F.pad(planes, padding, mode="replicate")
        return planes.transpose(1, 2)

    @torch.no_grad()
    def denoise(self, buffers: Float[Tensor, "1 D L h w"], *, steps: int | None = None) -> Float[Tensor, "1 C L h w"]:
        """Makes a window's latents and remembers them. Side effect: memory and time advance."""
        if self._text is None:
            raise ValueError("the stream has no prompt; call set_text before the first window.")
        count, height, width = buffers.shape[2:]
        config = self.transformer.config
        shape = (config.latent_channels, height, width)
        noise = stream_noise(self.seed, self.latent_index, count, shape, buffers.device)
        past_buffers = buffers if config.history_buffers else None
        if self.memory.view() is None:
            self.memory.start_with_zeros(noise, past_buffers)
        steps = self.config.steps if steps is None else steps
        latents = self.roll(noise, buffers, self._text, self.memory.view(), steps)
        self.memory.append(latents, past_buffers)
        self.latent_index += count
        return latents

    def roll(
        self, noise: Tensor, buffers: Tensor, text: TextMemory, history: History | None, steps: int
    ) -> Float[Tensor, "1 C L h w"]:
        """Noise to a window's latents."""
        return staged(self.graphs, "roll", self._rolled, noise, buffers, text, history, steps)

    # What the graphs capture: functions of their arguments alone.

    def _encoded(self, stacked: Tensor, state: ConvState) -> tuple[Tensor, ConvState]:
        state = dict(state)
        return self.encoder(self._normalised(stacked), state), state

    def _decoded(self, latents: Tensor, state: ConvState) -> tuple[Tensor, ConvState]:
        state = dict(state)
        return self.decoder.step(latents, state), state

    def _rolled(self, noise: Tensor, buffers: Tensor, text: TextMemory, history: History | None, steps: int) -> Tensor:
        past = self.transformer.encode_history(history)
        return rollout_window(self.transformer, self.config.schedule, noise, buffers, text, None, past, steps=steps)

    def state_bytes(self) -> int:
        """Memory that the stream's state takes, in bytes; does not grow."""
        history = self.memory.view()
        tensors = [] if history is None else [history.latents, history.buffers]
        if history is not None and history.first is not None:
            tensors += [history.first.latents, history.first.buffers]
        tensors += [*self._encoder_state.values(), *self._decoder_state.values()]
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors if tensor is not None)


def _crop(rgb: Float[Tensor, "1 T 3 H W"], window: FlashPlanes) -> Frames:
    frames, _, height, width = window[BUFFERS[0]].shape
    return Frames(rgb=rgb[0, :frames, :, :height, :width].float().clamp(0, 1))
