"""The sizes of upstream's networks: Wan 2.1's transformer over 96 channels, Flash's with a memory, umt5's encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from flowshade.errors import MissingDependencyError
from flowshade.renderer.memory import HistoryBand
from flowshade.renderer.transformer import TransformerConfig

BUFFERS = ("albedo", "depth", "metallic", "normal", "roughness")
"""The order in which upstream's networks take the buffers."""
TEXT_TOKENS = 512
"""Tokens of every prompt; rows past its end are zero and are looked at all the same."""


@dataclass(frozen=True, kw_only=True)
class TextEncoderConfig:
    """Sizes of a umt5 encoder; the defaults are umt5-xxl's."""

    vocab_size: int = 256384
    d_model: int = 4096
    d_kv: int = 64
    d_ff: int = 10240
    num_layers: int = 24
    num_heads: int = 64


def forward_transformer(**changes: Any) -> TransformerConfig:
    """AlayaRenderer's forward teacher: Wan2.1-T2V-1.3B that takes the latents of five buffers beside the noise.

    Args:
        changes: fields that differ, such as a smaller size for tests.
    """
    settings: dict[str, Any] = {
        "latent_channels": 16,
        "buffer_channels": 16 * len(BUFFERS),
        "heads": 12,
        "head_dim": 128,
        "layers": 30,
        "ffn_dim": 8960,
        "exact_gelu": False,
        "text_dim": 4096,
        "rope_dims": (44, 42, 42),
        "rope_theta": 10000.0,
        "memory": "none",
        "history_buffers": False,
        "history_width": None,
        "cross_attention_every": 1,
        "cross_attention_heads": None,
        "look_embedding": False,
    }
    return TransformerConfig(**(settings | changes))


def flash_transformer(**changes: Any) -> TransformerConfig:
    """AlayaRenderer-Flash: the teacher's network with Helios' memory of 16, 2 and 1 latent frames and the first.

    Whether the past holds the buffers' latents too and whether its keys are amplified is not published;
    `checkpoints.catalogue` reads both from the weights.
    """
    bands = {
        "long": HistoryBand(frames=16, patch=(4, 8, 8)),
        "mid": HistoryBand(frames=2, patch=(2, 4, 4)),
        "short": HistoryBand(frames=1, patch=(1, 2, 2)),
    }
    return forward_transformer(**({"memory": "full", "history_buffers": True, "keep_first": True} | bands | changes))


def text_encoder(config: TextEncoderConfig) -> nn.Module:
    """transformers' umt5 encoder with random weights.

    Raises:
        MissingDependencyError: transformers cannot be imported.
    """
    try:
        from transformers import UMT5Config, UMT5EncoderModel
    except ImportError as error:
        raise MissingDependencyError(
            f"upstream's text encoder needs transformers, which failed to import ({error}); "
            "install it with: pip install 'transformers>=5,<6'"
        ) from error
    settings = UMT5Config(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        d_kv=config.d_kv,
        d_ff=config.d_ff,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        relative_attention_num_buckets=32,
        relative_attention_max_distance=128,
        feed_forward_proj="gated-gelu",
        layer_norm_epsilon=1e-6,
        dropout_rate=0.0,
    )
    return UMT5EncoderModel(settings)
