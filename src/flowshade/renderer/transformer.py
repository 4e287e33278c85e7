"""The world transformer: Wan-style blocks over noisy latents, buffers, text and a compressed past.

Parameter names follow diffusers' `HeliosTransformer3DModel`. Legend for shapes: B batch, L latent frames, N tokens of
the present, P tokens of the past, S tokens of text, D width, C head channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from flowshade.nn.attention import Attention, FeedForward, KeysValues
from flowshade.nn.embedding import TwoLayers, sinusoid
from flowshade.nn.fields import ADDED_LATER
from flowshade.nn.precision import autocast_enabled, full_precision
from flowshade.nn.rope import Rotation, Rotations, pad_to_multiple, rotation
from flowshade.renderer.memory import History, HistoryBand


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes and choices of a `WorldTransformer`; the defaults are the compact model's."""

    latent_channels: int = 32
    buffer_channels: int = 96
    """Conditioning features concatenated to the noisy latents; 0 = none."""
    heads: int = 4
    head_dim: int = 64
    layers: int = 8
    ffn_dim: int = 1024
    exact_gelu: bool = True
    """False = approximated by tanh (Wan, Helios), which CPUs run three times slower."""
    patch: tuple[int, int, int] = (1, 2, 2)
    text_dim: int = 384
    freq_dim: int = 256
    eps: float = 1e-6
    rope_dims: tuple[int, int, int] = (16, 24, 24)
    """Channels of a head that turn with time, height and width."""
    rope_theta: float = 100.0
    memory: Literal["one_way", "full", "none"] = "one_way"
    """`one_way`: the past attends to the past only, so its keys and values serve every step of a window. `full`: the
    past attends to everything (Helios, Flash). `none`: there is no past (Wan)."""
    long: HistoryBand = HistoryBand(frames=8, patch=(4, 2, 2), pool=(2, 4, 4))
    mid: HistoryBand = HistoryBand(frames=2, patch=(2, 4, 4))
    short: HistoryBand = HistoryBand(frames=1, patch=(1, 4, 4))
    history_buffers: bool = True
    """Whether the past shows its buffer features too."""
    history_width: int | None = 16
    """Channels that the past is reduced to before it is cut into patches; None = as it is."""
    amplify_history: bool = False
    cross_attention_every: int = 2
    """Text is looked at in every n-th layer, counted from the end."""
    cross_attention_heads: int | None = 2
    """None = as many as `heads`."""
    look_embedding: bool = True
    """Adds the mean of the text and the sun's direction to the time embedding, and a learned null text token."""
    keep_first: bool = field(default=False, metadata=ADDED_LATER)
    """The stream's first latent frame stays in sight: a further short band, one frame older than the rest (Helios)."""
    history_reads_text: bool = field(default=False, metadata=ADDED_LATER)
    """Whether the past looks at the text too (Helios without guidance cross-attention); `full` memory only."""

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def history_frames(self) -> int:
        """Latent frames of the past that are looked at, a first frame that is kept not counted."""
        if self.memory == "none":
            return 0
        return self.long.frames + self.mid.frames + self.short.frames

    def history_tokens(self, height: int, width: int) -> int:
        """Tokens of a whole past for latents of this size."""
        return sum(band.tokens(height, width) for band in self.bands)

    @property
    def bands(self) -> tuple[HistoryBand, ...]:
        """The past's bands, the most distant first; a first frame that is kept stands between mid and short."""
        if self.memory == "none":
            return ()
        first = (self.first_band,) if self.keep_first else ()
        return self.long, self.mid, *first, self.short

    @property
    def first_band(self) -> HistoryBand:
        """The band of a first frame that is kept; it goes through the short band's patches."""
        return HistoryBand(frames=1, patch=self.short.patch)


@dataclass(frozen=True, kw_only=True)
class TextContext:
    """Token embeddings of a batch of prompts."""

    tokens: Float[Tensor, "B S E"]
    """Embeddings, zero where padded."""
    mask: Bool[Tensor, "B S"] | None = None
    """True for real tokens; None = all."""


@dataclass(frozen=True)
class TextMemory:
    """What the layers take from a prompt; computed once a prompt."""

    layers: tuple[KeysValues | None, ...]
    mask: Bool[Tensor, "B 1 1 S"] | None
    pooled: Float[Tensor, "B D"] | None
    """Mean of the embedded tokens."""


class PaddedText:
    """Prompts with masks at a few lengths, so that what is made for one length serves many prompts."""

    MULTIPLE = 128
    """Tokens; holds any prompt of the compact model, so that a longer one is nothing new in the middle of a game."""

    def __init__(self) -> None:
        self._given: TextMemory | None = None
        self._padded: TextMemory | None = None

    def of(self, text: TextMemory) -> TextMemory:
        """`text` with masked tokens behind it; as it is if it has no mask, since all of it is then looked at."""
        if text.mask is None:
            return text
        if self._padded is None or text is not self._given:
            self._given, self._padded = text, self._longer(text, -text.mask.shape[-1] % self.MULTIPLE)
        return self._padded

    def _longer(self, text: TextMemory, missing: int) -> TextMemory:
        assert text.mask is not None
        layers = tuple(
            None
            if layer is None
            else KeysValues(F.pad(layer.keys, (0, 0, 0, missing)), F.pad(layer.values, (0, 0, 0, missing)))
            for layer in text.layers
        )
        return TextMemory(layers, F.pad(text.mask, (0, missing), value=False), text.pooled)


@dataclass(frozen=True)
class HistoryTokens:
    """An embedded past."""

    tokens: Float[Tensor, "B P D"]
    rotation: Rotation
    mask: Bool[Tensor, "B P"] | None
    """True for tokens that hold at least one frame that exists; None = all."""


@dataclass(frozen=True)
class HistoryKV:
    """Each layer's keys and values of the past; computed once a window."""

    layers: tuple[KeysValues, ...]
    mask: Bool[Tensor, "B P"] | None


class FastLayers(Protocol):
    """All layers of a transformer at once, for inference (`renderer.fast`)."""

    def present(
        self,
        x: Float[Tensor, "B N D"],
        temb: Float[Tensor, "B D"],
        modulation: Float[Tensor, "B 6 D"],
        turn: Rotation,
        text: TextMemory,
        past: HistoryKV | None,
    ) -> Float[Tensor, "B N D"]:
        """The layers and the output norm, where the present looks at the past's keys or there is no past."""
        ...

    def joint(
        self,
        x: Float[Tensor, "B N D"],
        temb: Float[Tensor, "B D"],
        modulation: Float[Tensor, "B 6 D"],
        turn: Rotation,
        text: TextMemory,
        past: HistoryTokens,
        past_modulation: Float[Tensor, "B 6 D"],
    ) -> Float[Tensor, "B N D"]:
        """The layers and the output norm, past and present in one sequence; gives the present."""
        ...

    def remember(self, past: HistoryTokens, modulation: Float[Tensor, "B 6 D"]) -> HistoryKV:
        """Every layer's keys and values of the past on its own."""
        ...


class WorldTransformer(nn.Module):
    """Predicts the velocity of a window of latents."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if sum(config.rope_dims) != config.head_dim or any(dim % 2 for dim in config.rope_dims):
            raise ValueError(f"got rope_dims {config.rope_dims}; expected even numbers that sum to {config.head_dim}.")
        self.config = config
        self.fast: FastLayers | None = None
        """What runs the layers when no gradients are asked for; None = the plain layers."""
        self.rotations = Rotations()
        dim = config.width
        self.patch_embedding = _patches(config.latent_channels + config.buffer_channels, dim, config.patch)
        self.history_proj, channels = None, config.latent_channels
        if config.history_buffers:
            channels += config.buffer_channels
        if config.history_width is not None and config.memory != "none":
            self.history_proj = nn.Conv3d(channels, config.history_width, 1)
            channels = config.history_width
        if config.memory != "none":
            self.patch_short = _patches(channels, dim, config.short.patch)
            self.patch_mid = _patches(channels, dim, config.mid.patch)
            self.patch_long = _patches(channels, dim, config.long.patch)
        self.condition_embedder = ConditionEmbedder(config)
        self.blocks = nn.ModuleList(
            WorldBlock(config, reads_text=(config.layers - 1 - layer) % config.cross_attention_every == 0)
            for layer in range(config.layers)
        )
        self.norm_out = OutputNorm(dim, config.eps)
        self.proj_out = nn.Linear(dim, config.latent_channels * math.prod(config.patch))
        self._initialise()

    @property
    def history_frames(self) -> int:
        return self.config.history_frames

    @property
    def dtype(self) -> torch.dtype:
        return self.patch_embedding.weight.dtype

    def _initialise(self) -> None:
        """Xavier linear layers, small embeddings and a silent output (Wan)."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Conv3d):
                nn.init.xavier_uniform_(module.weight.flatten(1))
                nn.init.zeros_(module.bias)  # pyright: ignore[reportArgumentType]
        for module in self.condition_embedder.modules():
            if isinstance(module, TwoLayers):
                nn.init.normal_(module.linear_1.weight, std=0.02)
                nn.init.normal_(module.linear_2.weight, std=0.02)
        nn.init.zeros_(self.proj_out.weight)

    def forward(
        self,
        latents: Float[Tensor, "B C L h w"],
        timestep: Float[Tensor, "B"],
        text: TextContext | TextMemory,
        buffers: Float[Tensor, "B D L h w"] | Float[Tensor, "B N E"] | None = None,
        sun: Float[Tensor, "B 3"] | None = None,
        history_kv: HistoryKV | HistoryTokens | None = None,
    ) -> Float[Tensor, "B C L h w"]:
        """Predicts the velocity noise - x0.

        Args:
            latents: noisy latents of a window.
            timestep: noise level times 1000.
            text: token embeddings, or what `encode_text` made of them.
            buffers: conditioning features, or what `embed_buffers` made of them ([B, N, width]).
            sun: unit vectors towards the sun in the stream frame; zero vectors or None = unknown.
            history_kv: what `encode_history` made of the past; None = no past.
        """
        config = self.config
        memory = text if isinstance(text, TextMemory) else self.encode_text(text)
        x = self._embed_window(latents, buffers)
        grid = latents.shape[3] // config.patch[1], latents.shape[4] // config.patch[2]
        turn = self._present_rotation(latents.shape[2] // config.patch[0], grid, latents.device)
        temb, modulation = self.condition_embedder(timestep, memory.pooled, sun)
        fast = None if torch.is_grad_enabled() else self.fast
        if isinstance(history_kv, HistoryTokens):
            if fast is None:
                x = self.norm_out(self._joint(x, modulation, turn, memory, history_kv), temb)
            else:
                _, past_modulation = self.condition_embedder.at_zero(history_kv.tokens)
                x = fast.joint(x, temb, modulation, turn, memory, history_kv, past_modulation)
        elif fast is None:
            x = self.norm_out(self._present(x, modulation, turn, memory, history_kv), temb)
        else:
            x = fast.present(x, temb, modulation, turn, memory, history_kv)
        velocity = self.proj_out(x)
        t, y, x_patch = config.patch
        return rearrange(
            velocity,
            "b (l h w) (t y x c) -> b c (l t) (h y) (w x)",
            h=grid[0],
            w=grid[1],
            t=t,
            y=y,
            x=x_patch,
        ).to(latents.dtype)

    def embed_buffers(self, buffers: Float[Tensor, "B D L h w"]) -> Float[Tensor, "B N D"]:
        """The buffers' share of the patch embedding, the same in every step of a window."""
        weight = self.patch_embedding.weight[:, self.config.latent_channels :]
        return patch_tokens(buffers.to(weight.dtype), weight, self.patch_embedding.bias)

    def encode_text(self, text: TextContext) -> TextMemory:
        """Every layer's keys and values of a prompt."""
        tokens, mask, pooled = self.condition_embedder.embed_text(text)
        layers = tuple(
            block.attn2.keys_values(tokens) if block.attn2 is not None else None for block in self.typed_blocks
        )
        return TextMemory(layers, None if mask is None else mask[:, None, None], pooled)

    def encode_history(self, history: History | None) -> HistoryKV | HistoryTokens | None:
        """What a window needs of the past; None for no past.

        In `one_way` mode each layer's keys and values, in `full` mode the embedded tokens.

        Args:
            history: `HistoryMemory.view()`; exactly `history_frames` frames.
        """
        if history is None:
            return None
        embedded = self._embed_history(history)
        if self.config.memory == "full":
            return embedded
        _, modulation = self.condition_embedder.at_zero(embedded.tokens)
        if self.fast is not None and not torch.is_grad_enabled():
            return self.fast.remember(embedded, modulation)
        x, layers, last = embedded.tokens, [], len(self.blocks) - 1
        mask = among_past(embedded.mask)
        for layer, block in enumerate(self.typed_blocks):
            keys_values, x = block.remember(x, modulation, embedded.rotation, mask, only_keys=layer == last)
            layers.append(keys_values)
        return HistoryKV(tuple(layers), embedded.mask)

    @property
    def typed_blocks(self) -> list[WorldBlock]:
        return list(self.blocks)  # pyright: ignore[reportReturnType]

    def _embed_window(self, latents: Tensor, buffers: Tensor | None) -> Tensor:
        size = latents.shape[2:]
        if any(length % patch for length, patch in zip(size, self.config.patch)):
            raise ValueError(f"got latents {tuple(latents.shape)}; expected sizes in multiples of {self.config.patch}.")
        if (buffers is None) != (self.config.buffer_channels == 0):
            raise ValueError(
                f"expected {self.config.buffer_channels} channels of buffer features and got {_shape(buffers)}."
            )
        latents = latents.to(self.dtype)
        if buffers is None:
            x = patch_tokens(latents, self.patch_embedding.weight, self.patch_embedding.bias)
        else:
            share = buffers if buffers.ndim == 3 else self.embed_buffers(buffers)
            weight = self.patch_embedding.weight[:, : self.config.latent_channels]
            x = patch_tokens(latents, weight, None) + share
        return _residual(x)

    def _present_rotation(self, frames: int, grid: tuple[int, int], device: torch.device) -> Rotation:
        config = self.config
        return self.rotations.get(
            (frames, grid, device),
            lambda: rotation(torch.arange(frames, device=device), grid, config.rope_dims, config.rope_theta),
        )

    def _embed_history(self, history: History) -> HistoryTokens:
        tokens, turns, masks = [], [], []
        for band, patches, part, times in self._history_parts(history):
            volume = self._history_volume(part)  # [B, channels, frames, h, w]
            tokens.append(patch_tokens(_pooled(volume, part.valid, band), patches.weight, patches.bias))
            turns.append(self._history_rotation(band, times, volume.shape[3:], volume.device))
            if history.valid is not None:
                valid = history.valid[:, :1].new_ones(1).expand(len(volume), 1) if part.valid is None else part.valid
                masks.append(_token_mask(valid, band, tokens[-1].shape[1]))
        mask = torch.cat(masks, 1) if masks else None
        return HistoryTokens(_residual(torch.cat(tokens, 1)), Rotation.cat(turns), mask)

    def _history_parts(self, history: History) -> list[tuple[HistoryBand, nn.Conv3d, History, range]]:
        """Every band with its patches, its frames of the past and their times, the most distant first."""
        config, total = self.config, self.config.history_frames
        if config.memory == "none":
            raise ValueError("this transformer has no memory; give it no history.")
        if history.latents.shape[2] != total:
            raise ValueError(
                f"got a past of {history.latents.shape[2]} latent frames; expected {total}. "
                "Build it with HistoryMemory, which pads and cuts."
            )
        if config.keep_first != (history.first is not None):
            raise ValueError(
                f"keep_first is {config.keep_first} and the past has {'no' if history.first is None else 'a'} first "
                "frame; build the past with HistoryMemory(keep_first=...) to match."
            )
        times = range(-total, 0)
        parts, start = [], 0
        for band, patches in ((config.long, self.patch_long), (config.mid, self.patch_mid)):
            frames = slice(start, start + band.frames)
            parts.append((band, patches, history[frames], times[frames]))
            start = frames.stop
        if history.first is not None:
            parts.append((config.first_band, self.patch_short, history.first, range(-total - 1, -total)))
        return [*parts, (config.short, self.patch_short, history[start:total], times[start:])]

    def _history_rotation(self, band: HistoryBand, times: range, size: Sequence[int], device: torch.device) -> Rotation:
        config = self.config
        grid = math.ceil(size[0] / config.patch[1]), math.ceil(size[1] / config.patch[2])
        pool = (band.span[0], band.span[1] // config.patch[1], band.span[2] // config.patch[2])

        def make() -> Rotation:
            positions = torch.arange(times.start, times.stop, device=device)
            return rotation(positions, grid, config.rope_dims, config.rope_theta, pool)

        return self.rotations.get((times, grid, pool, device), make)

    def _history_volume(self, history: History) -> Tensor:
        volume = history.latents
        if self.config.history_buffers:
            if history.buffers is None:
                raise ValueError("this transformer's past needs buffer features; give them to HistoryMemory.append.")
            volume = torch.cat([volume, history.buffers.to(volume.dtype)], 1)
        volume = volume.to(self.dtype)
        if history.valid is not None:
            volume = torch.where(history.valid[:, None, :, None, None], volume, 0)  # stray values, NaN included
        if self.history_proj is not None:
            volume = self.history_proj(volume)
        if history.valid is not None:
            volume = torch.where(history.valid[:, None, :, None, None], volume, 0)
        return volume

    def _present(
        self, x: Tensor, modulation: Tensor, turn: Rotation, memory: TextMemory, past: HistoryKV | None
    ) -> Tensor:
        """All layers of the present, which looks at the past's keys."""
        mask = None if past is None else over_past(past.mask, x.shape[1])
        for layer, block in enumerate(self.blocks):
            keys_values = None if past is None else past.layers[layer]
            x = block(x, modulation, turn, memory.layers[layer], memory.mask, keys_values, mask)
        return x

    def _joint(self, x: Tensor, modulation: Tensor, turn: Rotation, memory: TextMemory, past: HistoryTokens) -> Tensor:
        """All layers with the past and the present in one sequence."""
        _, past_modulation = self.condition_embedder.at_zero(past.tokens)
        turn = Rotation.cat([past.rotation, turn])
        mask = over_past(past.mask, x.shape[1])
        h = past.tokens
        for layer, block in enumerate(self.typed_blocks):
            h, x = block.joint(h, x, past_modulation, modulation, turn, memory.layers[layer], memory.mask, mask)
        return x


class ConditionEmbedder(nn.Module):
    """Noise level, text and sun to what modulates the layers."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        dim = config.width
        self.freq_dim = config.freq_dim
        self.time_embedder = TwoLayers(config.freq_dim, dim, "silu")
        self.time_proj = nn.Linear(dim, 6 * dim)
        self.text_embedder = TwoLayers(config.text_dim, dim, "gelu_tanh")
        self.look_embedding = config.look_embedding
        if config.look_embedding:
            self.null_text = nn.Parameter(0.02 * torch.randn(config.text_dim))
            self.look_embedder = nn.Linear(dim, dim)
            self.sun_embedder = TwoLayers(3, dim, "silu")
            self.null_sun = nn.Parameter(torch.zeros(dim))

    def forward(
        self, timestep: Float[Tensor, "B"], pooled: Tensor | None, sun: Tensor | None
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B 6 D"]]:
        """The embedding of a noise level and a look, and its six modulations; float32."""
        with full_precision(timestep.device):
            temb = self.time_embedder(sinusoid(timestep, self.freq_dim))
            if pooled is not None:
                temb = temb + self.look_embedder(pooled.to(temb.dtype)) + self._embed_sun(sun, temb)
            return temb, self.time_proj(F.silu(temb)).unflatten(-1, (6, -1)).float()

    def at_zero(self, like: Tensor) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B 6 D"]]:
        """The embedding of timestep 0, without a look, so that the past does not depend on the prompt."""
        return self(torch.zeros(like.shape[0], device=like.device), None, None)

    def embed_text(self, text: TextContext) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Embedded tokens [B, S, D], their mask [B, S] and their mean [B, D]."""
        tokens, mask = text.tokens, text.mask
        if not self.look_embedding:
            return self.text_embedder(tokens), mask, None
        # A null token stands first, so that attention has something to look at even in an empty prompt.
        batch = tokens.shape[0]
        tokens = torch.cat([self.null_text.to(tokens).expand(batch, 1, -1), tokens], 1)
        if mask is None:
            mask = torch.ones_like(tokens[:, 1:, 0], dtype=torch.bool)
        mask = F.pad(mask, (1, 0), value=True)
        embedded = self.text_embedder(tokens)
        weights = mask[..., None].to(embedded.dtype)
        return embedded, mask, (embedded * weights).sum(1) / weights.sum(1)

    def _embed_sun(self, sun: Tensor | None, temb: Tensor) -> Tensor:
        null = self.null_sun.to(temb.dtype)
        if sun is None:
            return null
        known = sun.square().sum(-1, keepdim=True) > 0.25
        return torch.where(known, self.sun_embedder(sun), null)


class WorldBlock(nn.Module):
    """Self-attention, cross-attention to the text, feed-forward; the first and last modulated."""

    def __init__(self, config: TransformerConfig, *, reads_text: bool) -> None:
        super().__init__()
        dim = config.width
        self.eps = config.eps
        self.history_reads_text = config.history_reads_text
        self.attn1 = Attention(
            dim, config.heads, config.head_dim, eps=config.eps, amplify_history=config.amplify_history
        )
        self.attn2, self.norm2 = None, None
        if reads_text:
            heads = config.cross_attention_heads or config.heads
            self.attn2 = Attention(dim, heads, config.head_dim, eps=config.eps)
            self.norm2 = nn.LayerNorm(dim, eps=config.eps)
        self.ffn = FeedForward(dim, config.ffn_dim, exact=config.exact_gelu)
        self.scale_shift_table = nn.Parameter(torch.randn(1, 6, dim) / dim**0.5)

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        modulation: Float[Tensor, "B 6 D"],
        turn: Rotation,
        text: KeysValues | None,
        text_mask: Tensor | None,
        past: KeysValues | None,
        mask: Tensor | None,
    ) -> Float[Tensor, "B N D"]:
        """The present: looks at the past and itself."""
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = self._modulations(modulation)
        normed = _modulate(x, shift, scale, self.eps)
        context = self.attn1.keys_values(normed, turn)
        if past is not None:
            context = KeysValues.cat([self.attn1.amplify(past), context])
        x = _add(x, self.attn1.attend(self.attn1.queries(normed, turn), context, mask), gate)
        x = self._read(x, text, text_mask)
        return _add(x, self.ffn(_modulate(x, ffn_shift, ffn_scale, self.eps)), ffn_gate)

    def remember(
        self, x: Float[Tensor, "B P D"], modulation: Tensor, turn: Rotation, mask: Tensor | None, *, only_keys: bool
    ) -> tuple[KeysValues, Float[Tensor, "B P D"]]:
        """The past on its own: its keys and values, and itself one layer on (unless `only_keys`)."""
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = self._modulations(modulation)
        normed = _modulate(x, shift, scale, self.eps)
        keys_values = self.attn1.keys_values(normed, turn)
        if only_keys:
            return keys_values, x
        x = _add(x, self.attn1.attend(self.attn1.queries(normed, turn), keys_values, mask), gate)
        return keys_values, _add(x, self.ffn(_modulate(x, ffn_shift, ffn_scale, self.eps)), ffn_gate)

    def joint(
        self,
        h: Float[Tensor, "B P D"],
        x: Float[Tensor, "B N D"],
        past_modulation: Tensor,
        modulation: Tensor,
        turn: Rotation,
        text: KeysValues | None,
        text_mask: Tensor | None,
        mask: Tensor | None,
    ) -> tuple[Float[Tensor, "B P D"], Float[Tensor, "B N D"]]:
        """Past and present in one sequence; the past reads the text only where `history_reads_text`."""
        past = self._modulations(past_modulation)
        present = self._modulations(modulation)
        lengths = [h.shape[1], x.shape[1]]
        normed = torch.cat(
            [_modulate(h, past[0], past[1], self.eps), _modulate(x, present[0], present[1], self.eps)], 1
        )
        context = self.attn1.keys_values(normed, turn)
        if self.attn1.history_key_scale is not None:
            keys, values = (part.split(lengths, 2) for part in (context.keys, context.values))
            amplified = self.attn1.amplify(KeysValues(keys[0], values[0]))
            context = KeysValues.cat([amplified, KeysValues(keys[1], values[1])])
        attended = self.attn1.attend(self.attn1.queries(normed, turn), context, mask).split(lengths, 1)
        h, x = _add(h, attended[0], past[2]), _add(x, attended[1], present[2])
        x = self._read(x, text, text_mask)
        if self.history_reads_text:
            h = self._read(h, text, text_mask)
        normed = torch.cat(
            [_modulate(h, past[3], past[4], self.eps), _modulate(x, present[3], present[4], self.eps)], 1
        )
        fed = self.ffn(normed).split(lengths, 1)
        return _add(h, fed[0], past[5]), _add(x, fed[1], present[5])

    def _modulations(self, modulation: Tensor) -> tuple[Tensor, ...]:
        """Shift, scale and gate of attention, then of feed-forward; each [B, 1, D]."""
        return (self.scale_shift_table.float() + modulation).chunk(6, dim=1)

    def _read(self, x: Tensor, text: KeysValues | None, text_mask: Tensor | None) -> Tensor:
        if self.attn2 is None or self.norm2 is None:
            return x
        assert text is not None
        norm = self.norm2
        normed = F.layer_norm(x.float(), norm.normalized_shape, norm.weight.float(), norm.bias.float(), norm.eps)
        queries = self.attn2.queries(normed.to(x.dtype))
        return x + self.attn2.attend(queries, text, text_mask).to(x.dtype)


class OutputNorm(nn.Module):
    """Layer norm with a shift and a scale from the embedding."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.scale_shift_table = nn.Parameter(torch.randn(1, 2, dim) / dim**0.5)

    def forward(self, x: Float[Tensor, "B N D"], temb: Float[Tensor, "B D"]) -> Float[Tensor, "B N D"]:
        shift, scale = (self.scale_shift_table.float() + temb.float()[:, None]).chunk(2, dim=1)
        return _modulate(x, shift, scale, self.eps)


def _shape(value: Tensor | None) -> tuple[int, ...] | None:
    return None if value is None else tuple(value.shape)


def _patches(channels: int, dim: int, patch: tuple[int, int, int]) -> nn.Conv3d:
    return nn.Conv3d(channels, dim, kernel_size=patch, stride=patch)


def patch_tokens(
    volume: Float[Tensor, "B C L h w"], weight: Float[Tensor, "D C t y x"], bias: Float[Tensor, "D"] | None
) -> Float[Tensor, "B N D"]:
    """A convolution whose stride is its kernel, as a matrix product; its result as tokens."""
    t, y, x = weight.shape[2:]
    patches = rearrange(volume, "b c (l t) (h y) (w x) -> b (l h w) (c t y x)", t=t, y=y, x=x)
    return F.linear(patches, weight.flatten(1), bias)


def _residual(x: Tensor) -> Tensor:
    """The residual stream: float32 when autocast picks the layers' types, the weights' type otherwise."""
    return x.float() if autocast_enabled(x.device) else x


def _modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    return torch.addcmul(shift, F.layer_norm(x.float(), x.shape[-1:], eps=eps), 1 + scale).type_as(x)


def _add(x: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    return torch.addcmul(x.float(), update.float(), gate).type_as(x)


def _pooled(volume: Tensor, valid: Tensor | None, band: HistoryBand) -> Tensor:
    """A band's latents, averaged over the frames that exist and padded to whole patches."""
    volume = pad_to_multiple(volume, band.span)
    if band.pool == (1, 1, 1):
        return volume
    pooled = F.avg_pool3d(volume, band.pool)
    if valid is not None and band.pool[0] > 1:
        share = F.avg_pool1d(valid[:, None].float(), band.pool[0])[..., None, None]  # [B, 1, frames, 1, 1]
        pooled = pooled / share.clamp(min=1 / band.pool[0]).to(pooled.dtype)
    return pooled


def _token_mask(valid: Tensor, band: HistoryBand, tokens: int) -> Tensor:
    """Which of a band's tokens hold a frame that exists, [B, tokens]."""
    some = valid.unflatten(1, (-1, band.span[0])).any(2)  # [B, token frames]
    return some.repeat_interleave(tokens // some.shape[1], dim=1, output_size=tokens)


def over_past(mask: Tensor | None, present: int) -> Tensor | None:
    """Keys that anyone may look at, [B, 1, 1, P + N]."""
    return None if mask is None else F.pad(mask, (0, present), value=True)[:, None, None]


def among_past(mask: Tensor | None) -> Tensor | None:
    """Keys that the past may look at, [B, 1, P, P]; a missing token sees itself, so that none sees nothing."""
    if mask is None:
        return None
    itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
    return (mask[:, None] | itself)[:, None]
