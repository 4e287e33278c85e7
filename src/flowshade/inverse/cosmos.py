"""The networks of Cosmos DiffusionRenderer's inverse, from diffusers' classes: a 7B transformer and a video tokenizer.

diffusers' `CosmosTransformer3DModel` is the network of Cosmos 1.0 (arXiv 2501.03575). The inverse renderer (Liang et
al. 2025, arXiv 2501.18590; nv-tlabs/cosmos1-diffusion-renderer) differs from it in four points, which `CosmosNetwork`
sets right: positions that are sinusoids and not learned, rotary frequencies that are not scaled, 1e-6 in the norms of
queries and keys, and a table of buffers in place of text. diffusers is imported when a network is built, not before.

Legend for shapes: B clips, C latent channels, T pictures, L latents over time, H W pixels, h w latent pixels, N tokens,
D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from flowshade.errors import MissingDependencyError

BUFFER_ROWS = {"albedo": 0, "metallic": 1, "roughness": 2, "normal": 3, "depth": 4}
"""Rows of the table of buffers that say which one the network should give."""
FRAMES_PER_COSMOS_LATENT = 8
"""Pictures in a latent but a clip's first, which is one picture."""
COSMOS_STRIDE = 8
"""Pixels across one latent pixel."""
PATCH = (1, 2, 2)
"""Latents in one token: over time, height and width."""
PIXEL_MULTIPLE = COSMOS_STRIDE * PATCH[1]
"""Pictures have sizes in multiples of it."""
NORM_EPSILON = 1e-6
"""Of the norms of queries and keys."""
THETA = 10000.0
"""Base of the sinusoids' frequencies."""


@dataclass(frozen=True, kw_only=True)
class CosmosConfig:
    """Sizes of a `CosmosNetwork`; the defaults are those of the released 7B."""

    heads: int = 32
    head_dim: int = 128
    layers: int = 28
    mlp_ratio: float = 4.0
    modulation_rank: int = 256
    """Of the two matrices that make shifts, scales and gates from the noise level."""
    context_dim: int = 1024
    contexts: int = 16
    """Rows of the table of buffers; those after `BUFFER_ROWS` are not used here."""
    latent_channels: int = 16
    max_size: tuple[int, int, int] = (128, 240, 240)
    """Most latents over time, height and width."""
    fps: float = 24.0
    """Pictures a second that positions in time are given for; upstream gives 24 for every video."""

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def in_channels(self) -> int:
        """Noisy latents, those of the video, and a mask of padding, which is always zero."""
        return 2 * self.latent_channels + 1


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Sizes of Cosmos' video tokenizer; the defaults are those of CV8x8x8."""

    latent_channels: int = 16
    encoder_widths: tuple[int, ...] = (128, 256, 512, 512)
    decoder_widths: tuple[int, ...] = (256, 512, 512, 512)
    layers: int = 2


class CosmosNetwork(nn.Module):
    """Noisy latents of a buffer and the latents of a video to what the denoiser is made of.

    Raises:
        MissingDependencyError: diffusers cannot be imported.
    """

    def __init__(self, config: CosmosConfig = CosmosConfig()) -> None:
        super().__init__()
        self.config = config
        self.transformer = _transformer(config)
        self.context_embedding = nn.Embedding(config.contexts, config.context_dim)

    @property
    def dtype(self) -> torch.dtype:
        return self.context_embedding.weight.dtype

    def forward(
        self, x: Float[Tensor, "B C L h w"], video: Float[Tensor, "B C L h w"], time: Float[Tensor, " B"], buffer: str
    ) -> Float[Tensor, "B C L h w"]:
        """Evaluates the network once.

        Args:
            x: noisy latents, scaled to unit variance.
            video: normalised latents of the video, at no noise.
            time: a quarter of the noise level's natural logarithm.
            buffer: one of `BUFFER_ROWS`.

        Raises:
            ValueError: latents of other shapes, or more of them than there are positions for.
        """
        self._check(x, video)
        given = torch.cat([x, video, torch.zeros_like(x[:, :1])], 1)  # [B, 2C + 1, L, h, w]
        context = self.context_embedding.weight[None, [BUFFER_ROWS[buffer]]]  # [1, 1, context_dim]
        return self.transformer(
            hidden_states=given,
            timestep=time,
            encoder_hidden_states=context.expand(len(x), -1, -1),
            fps=self.config.fps,
            return_dict=False,
        )[0]

    def _check(self, x: Tensor, video: Tensor) -> None:
        fits = x.shape == video.shape and x.ndim == 5 and x.shape[1] == self.config.latent_channels
        multiples = fits and not any(length % step for length, step in zip(x.shape[2:], PATCH))
        if not multiples or any(length > most for length, most in zip(x.shape[2:], self.config.max_size)):
            raise ValueError(
                f"CosmosNetwork got latents {tuple(x.shape)} and a video's {tuple(video.shape)}; expected the same "
                f"[B, {self.config.latent_channels}, L, h, w] with h and w even and at most {self.config.max_size}. "
                f"Give pictures in multiples of {PIXEL_MULTIPLE} pixels, and fewer or smaller ones."
            )


class SinusoidalPositions(nn.Module):
    """Positions that are added before every block: sines and cosines of the token's place in time, height and width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        plane = width // 6 * 2
        self.dims = (width - 2 * plane, plane, plane)
        self._last: tuple[tuple[Any, ...], Tensor] | None = None

    def forward(self, hidden_states: Float[Tensor, "B E L h w"]) -> Float[Tensor, "B N D"]:
        """The positions of all tokens of a volume of latents; values in [-1, 1], not normalised."""
        size = tuple(length // step for length, step in zip(hidden_states.shape[2:], PATCH))
        key = (size, hidden_states.dtype, hidden_states.device)
        if self._last is None or self._last[0] != key:
            self._last = key, self._table(size, hidden_states.device).to(hidden_states.dtype)
        return self._last[1].expand(len(hidden_states), -1, -1)

    def _table(self, size: tuple[int, ...], device: torch.device) -> Float[Tensor, "1 N D"]:
        t, h, w = (sinusoids(length, dim, device) for length, dim in zip(size, self.dims))
        frames, height, width = size
        parts = (
            repeat(t, "t d -> t h w d", h=height, w=width),
            repeat(h, "h d -> t h w d", t=frames, w=width),
            repeat(w, "w d -> t h w d", t=frames, h=height),
        )
        return rearrange(torch.cat(parts, -1), "t h w d -> 1 (t h w) d")


def sinusoids(length: int, dim: int, device: torch.device | str = "cpu") -> Float[Tensor, "length dim"]:
    """Sines, then cosines, of positions times frequencies that fall geometrically from 1 towards 1 / `THETA`."""
    frequencies = THETA ** (-torch.arange(dim // 2, device=device, dtype=torch.float64) / (dim // 2))
    angles = torch.arange(length, device=device, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], -1).float()


class OneTokenAttention:
    """Attention to a single token: its weight is 1, whatever queries and keys are, so only its value counts."""

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, attention_mask: Tensor | None = None
    ) -> Float[Tensor, "B 1 D"]:
        """What every query gets; `encoder_hidden_states` is [B, 1, context_dim]."""
        return attn.to_out[0](attn.to_v(encoder_hidden_states))


class CosmosEncoder(nn.Module):
    """The tokenizer's first half: pictures to latents, causal in time.

    Raises:
        MissingDependencyError: diffusers cannot be imported.
    """

    def __init__(self, config: TokenizerConfig = TokenizerConfig()) -> None:
        super().__init__()
        tokenizer = _tokenizer(config)
        self.encoder, self.quant_conv = tokenizer.encoder, tokenizer.quant_conv
        _fill_wavelets(self)

    @property
    def dtype(self) -> torch.dtype:
        return self.quant_conv.weight.dtype

    def forward(self, rgb: Float[Tensor, "B 3 T H W"]) -> Float[Tensor, "B C L h w"]:
        """8 n + 1 pictures, display sRGB in [-1, 1], to n + 1 latents as the tokenizer gives them, not normalised."""
        return self.quant_conv(self.encoder(rgb))


class CosmosDecoder(nn.Module):
    """The tokenizer's second half: latents to pictures.

    Raises:
        MissingDependencyError: diffusers cannot be imported.
    """

    def __init__(self, config: TokenizerConfig = TokenizerConfig()) -> None:
        super().__init__()
        tokenizer = _tokenizer(config)
        self.post_quant_conv, self.decoder = tokenizer.post_quant_conv, tokenizer.decoder
        _fill_wavelets(self)

    @property
    def dtype(self) -> torch.dtype:
        return self.post_quant_conv.weight.dtype

    def forward(self, latents: Float[Tensor, "B C L h w"]) -> Float[Tensor, "B 3 T H W"]:
        """n + 1 latents to 8 n + 1 pictures, about [-1, 1], not clamped."""
        return self.decoder(self.post_quant_conv(latents))


class LatentStatistics(nn.Module):
    """Mean and standard deviation of the tokenizer's latents, a row a channel, one value for each latent of a clip.

    Args:
        shape: of both tensors in their file; any that holds `channels` rows.
        channels: latent channels.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, shape: tuple[int, ...], channels: int = 16) -> None:
        super().__init__()
        self.channels = channels
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("std", torch.ones(shape))

    def rows(self, positions: slice) -> tuple[Float[Tensor, "1 C L 1 1"], Float[Tensor, "1 C L 1 1"]]:
        """Mean and standard deviation of the latents at some positions of a clip, in bfloat16's precision as upstream.

        Raises:
            ValueError: positions past the last one that the file knows.
        """
        known = self.mean.numel() // self.channels
        if positions.stop > known:
            raise ValueError(
                f"statistics of {positions.stop} latents were asked for, the file has those of {known}; take chunks of "
                f"at most {FRAMES_PER_COSMOS_LATENT * (known - 1) + 1} pictures."
            )
        values = (value.reshape(self.channels, -1)[:, positions].bfloat16().float() for value in (self.mean, self.std))
        mean, std = (rearrange(value, "c l -> 1 c l 1 1") for value in values)
        return mean, std


def _transformer(config: CosmosConfig) -> Any:
    try:
        with torch.device("cpu"):  # a module's own tables are made where it is first imported
            from diffusers.models.transformers.transformer_cosmos import CosmosTransformer3DModel
    except ImportError as error:
        raise _missing(error) from error
    transformer: Any = CosmosTransformer3DModel(
        in_channels=config.in_channels,
        out_channels=config.latent_channels,
        num_attention_heads=config.heads,
        attention_head_dim=config.head_dim,
        num_layers=config.layers,
        mlp_ratio=config.mlp_ratio,
        text_embed_dim=config.context_dim,
        adaln_lora_dim=config.modulation_rank,
        max_size=config.max_size,
        patch_size=PATCH,
        rope_scale=(1.0, 1.0, 1.0),
        concat_padding_mask=False,  # the mask is among `in_channels`: diffusers' own way needs torchvision
        extra_pos_embed_type="learnable",  # "an addition before every block", which is then replaced
    )
    transformer.learnable_pos_embed = SinusoidalPositions(config.width)
    for block in transformer.transformer_blocks:
        for attention in (block.attn1, block.attn2):
            attention.norm_q.eps = attention.norm_k.eps = NORM_EPSILON  # diffusers builds them with 1e-5
        block.attn2.set_processor(OneTokenAttention())
    return transformer


def _tokenizer(config: TokenizerConfig) -> Any:
    try:
        with torch.device("cpu"):  # the table of filters is made where the module is first imported
            from diffusers.models.autoencoders.autoencoder_kl_cosmos import AutoencoderKLCosmos
    except ImportError as error:
        raise _missing(error) from error
    return AutoencoderKLCosmos(
        latent_channels=config.latent_channels,
        encoder_block_out_channels=config.encoder_widths,
        decode_block_out_channels=config.decoder_widths,
        num_layers=config.layers,
    )


def _fill_wavelets(half: nn.Module) -> None:
    """Gives the fixed filters' signs their values: no file holds them, and a network built on meta has none."""
    for module in half.modules():
        if isinstance(getattr(module, "_arange", None), Tensor) and module._arange.is_meta:
            module._arange = torch.arange(2, device="cpu")


def _missing(error: ImportError) -> MissingDependencyError:
    return MissingDependencyError(
        f"the 7B inverse needs diffusers, which failed to import ({error}); "
        "install it with: pip install 'flowshade[cosmos]'"
    )
