"""Every model that can be loaded by name: its files, where they were published, and how to tell that they are right.

What upstream has not published is None or said to be unknown here, and is read from the file's shapes where they tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from flowshade.checkpoints import keymaps
from flowshade.checkpoints.files import TensorInfo
from flowshade.checkpoints.keymaps import KeyMap
from flowshade.codec.tiny import GroupedEncoder, GroupedEncoderConfig, TinyDecoder, TinyDecoderConfig
from flowshade.codec.wan_vae import WanVAE, WanVAEConfig
from flowshade.inverse.cosmos import (
    CosmosConfig,
    CosmosDecoder,
    CosmosEncoder,
    CosmosNetwork,
    LatentStatistics,
    TokenizerConfig,
)
from flowshade.renderer.transformer import TransformerConfig, WorldTransformer
from flowshade.renderer.upstream import TextEncoderConfig, flash_transformer, forward_transformer, text_encoder

FLOAT_TYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Types of weights that can be loaded; others come from a quantising tool and mean something else."""


@dataclass(frozen=True)
class Source:
    """Where a file was published."""

    repo: str
    """Owner and name of a repository on the Hugging Face hub."""
    path: str
    """The file, or with a trailing slash the folder, in it."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One file (or sharded file) of a model."""

    role: str
    about: str
    paths: tuple[str, ...]
    """Where it is looked for below the model's folder, the preferred first."""
    sources: tuple[Source, ...] = ()
    keymaps: tuple[KeyMap, ...] = ()
    """Namings it comes in."""
    build: Callable[[Mapping[str, TensorInfo]], nn.Module] | None = None
    """The network, from what the file says of its tensors under our names; None = no weights (a tokenizer)."""
    fingerprint: str | None = None
    """MD5 over names and shapes (`store.keys_md5`) of the released file, where known; of Cosmos' files, over what the
    published code gives without what the key map drops."""
    dtype: torch.dtype = torch.bfloat16
    """What it was released in, as far as its size tells."""
    gigabytes: float = 0.0
    """Published or computed size."""
    sha256: str | None = None
    """Of the released file; None = not known here."""
    overlay_of: str | None = None
    """Role of the part whose tensors this one replaces; it need not hold all of them."""
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model by name."""

    name: str
    title: str
    licence: str
    parts: tuple[Part, ...] = ()
    unknown: tuple[str, ...] = ()
    """What upstream has not published."""
    requires: tuple[tuple[str, str], ...] = ()
    """Optional packages that its networks need, and the extra that installs them."""

    def part(self, role: str) -> Part:
        return next(part for part in self.parts if part.role == role)


FINGERPRINTS = {
    "9269f8db9040a9d860eaca435be61814": "the base model Wan2.1-T2V-1.3B (16 channels)",
    "a87823c16fa5119ca6ef32cefc0be86d": "AlayaRenderer's forward transformer (96 channels)",
    "ccc42284ea13e1ad04693284c7a09be6": "Wan2.1_VAE.pth",
    "9c8818c2cbea55eca56c7b447df170da": "models_t5_umt5-xxl-enc-bf16.pth",
}
"""Released files that are recognised by names and shapes."""

WAN = "Wan-AI/Wan2.1-T2V-1.3B"


def alaya_forward(
    transformer: TransformerConfig | None = None,
    vae: WanVAEConfig | None = None,
    text: TextEncoderConfig | None = None,
) -> Model:
    """AlayaRenderer's forward teacher, at its own size or a smaller one."""
    released = transformer is None
    return Model(
        name="alaya-forward",
        title="AlayaRenderer, forward: 50 steps, 81 frames at 480x832 (arXiv 2604.02329)",
        licence="Apache-2.0 (code, and Wan 2.1's weights); the fine-tune's licence is on its model page",
        parts=(
            Part(
                role="transformer",
                about="96-channel fine-tune of Wan2.1-T2V-1.3B",
                paths=("model.safetensors", "models/train/Wan2.1-T2V-1.3B_gbuffer/model.safetensors", "transformer"),
                sources=(Source("Brian9999/stylerenderer", "model.safetensors"),),
                keymaps=(keymaps.WAN_TRANSFORMER, keymaps.WAN_TRANSFORMER_DIFFUSERS),
                build=lambda info: WorldTransformer(transformer or forward_transformer()),
                fingerprint="a87823c16fa5119ca6ef32cefc0be86d" if released else None,
                gigabytes=2.84,
            ),
            _vae(vae),
            *_text(text),
        ),
        unknown=("the type the transformer was saved in", "content hashes"),
    )


def alaya_flash(
    transformer: TransformerConfig | None = None,
    encoder: GroupedEncoderConfig | None = None,
    decoder: TinyDecoderConfig | None = None,
    text: TextEncoderConfig | None = None,
) -> Model:
    """AlayaRenderer-Flash, at its own size or a smaller one."""

    def network(info: Mapping[str, TensorInfo]) -> nn.Module:
        return WorldTransformer(flash_config_of(transformer or flash_transformer(), info))

    return Model(
        name="alaya-flash",
        title="AlayaRenderer-Flash: 4 steps, windows of 16 frames at 448x832, endless (arXiv 2607.18703)",
        licence="see its model page",
        parts=(
            Part(
                role="transformer",
                about="1.3B with memory, HeliosTransformer3DModel",
                paths=("transformer", "transformer.safetensors"),
                keymaps=(keymaps.HELIOS,),
                build=network,
                gigabytes=3.1,
            ),
            Part(
                role="transformer_partial",
                about="buffer and memory patches, output table and text sink, over the transformer's",
                paths=("transformer_partial.safetensors",),
                keymaps=(keymaps.HELIOS,),
                gigabytes=0.3,
                overlay_of="transformer",
            ),
            Part(
                role="encoder",
                about="grouped buffer encoder",
                paths=("gbuf_small_encoder.safetensors",),
                keymaps=(GROUPED_ENCODER,),
                build=lambda info: GroupedEncoder(encoder or GroupedEncoderConfig()),
                dtype=torch.float32,
                gigabytes=0.037,
            ),
            Part(
                role="decoder",
                about="TAEW2.1 picture decoder",
                paths=("tiny_decoder/taew2_1_ft.safetensors", "taew2_1_ft.safetensors"),
                keymaps=(keymaps.TAEHV, TINY_DECODER),
                build=lambda info: TinyDecoder(decoder or TinyDecoderConfig()),
                dtype=torch.float32,
                gigabytes=0.045,
            ),
            *_text(text),
        ),
        unknown=(
            "where the files are published (give them with --checkpoint, or pull --repo OWNER/NAME)",
            "whether the past holds 16 or 96 channels and amplified keys (read from the file)",
            "names and layout of the text sink, of the grouped encoder, and of the decoder's fine-tune",
        ),
    )


def alaya_inverse(network: CosmosConfig | None = None, tokenizer: TokenizerConfig | None = None) -> Model:
    """AlayaRenderer's inverse, at its own size or a smaller one."""
    return Model(
        name="alaya-inverse",
        title="AlayaRenderer, inverse: 7B, 15 steps a buffer, 57 frames at 704x1280 (arXiv 2604.02329)",
        licence="see its model page; NVIDIA Open Model License (Cosmos' tokenizer)",
        parts=(
            _cosmos_transformer(
                "AlayaRenderer's fine-tune of", Source("Brian9999/world_inverse_renderer", "model.pt"), network
            ),
            *_cosmos_tokenizer(tokenizer),
        ),
        unknown=(
            "the name, the inner layout and the type of the fine-tune's file (one of another name: --checkpoint PATH)",
            *_COSMOS_UNKNOWN,
        ),
        requires=_COSMOS_REQUIRES,
    )


def cosmos_inverse(network: CosmosConfig | None = None, tokenizer: TokenizerConfig | None = None) -> Model:
    """NVIDIA's Cosmos DiffusionRenderer, inverse, at its own size or a smaller one."""
    return Model(
        name="cosmos-inverse",
        title="Cosmos DiffusionRenderer, inverse: 7B, 15 steps a buffer, 57 frames at 704x1280 (arXiv 2501.18590)",
        licence="see its model page; NVIDIA Open Model License (Cosmos' tokenizer)",
        parts=(
            _cosmos_transformer("", Source("nvidia/Diffusion_Renderer_Inverse_Cosmos_7B", "model.pt"), network),
            *_cosmos_tokenizer(tokenizer),
        ),
        unknown=_COSMOS_UNKNOWN,
        requires=_COSMOS_REQUIRES,
    )


_COSMOS_UNKNOWN = (
    "scale and direction of the depth that it gives",
    "the layout of mean_std.pt beyond being a pair of tensors; content hashes of the tokenizer",
)
_COSMOS_REQUIRES = (("diffusers", "cosmos"),)
_COSMOS_FOLDER = "Diffusion_Renderer_Inverse_Cosmos_7B"
_COSMOS_TOKENIZER = "Cosmos-Tokenize1-CV8x8x8-720p"


def _cosmos_transformer(relation: str, source: Source, config: CosmosConfig | None) -> Part:
    return Part(
        role="transformer",
        about=f"{relation} Cosmos DiffusionRenderer's inverse transformer".strip(),
        paths=("model.pt", f"{_COSMOS_FOLDER}/model.pt", f"checkpoints/{_COSMOS_FOLDER}/model.pt", "model.safetensors"),
        sources=(source,),
        keymaps=(keymaps.COSMOS_INVERSE,),
        build=lambda info: CosmosNetwork(config or CosmosConfig()),
        fingerprint="aa0768addd55318073a7d267a566b7d8" if config is None else None,
        dtype=torch.float32,
        gigabytes=28.9,
    )


def _cosmos_tokenizer(config: TokenizerConfig | None) -> tuple[Part, Part, Part]:
    channels = (config or TokenizerConfig()).latent_channels

    def part(role: str, about: str, name: str, **rest: Any) -> Part:
        folders = ("", f"{_COSMOS_TOKENIZER}/", f"../{_COSMOS_TOKENIZER}/", f"checkpoints/{_COSMOS_TOKENIZER}/")
        paths = tuple(f"{folder}{name}" for folder in folders)
        return Part(role=role, about=about, paths=paths, sources=(Source(f"nvidia/{_COSMOS_TOKENIZER}", name),), **rest)

    encoder = part(
        "encoder",
        "the encoder of Cosmos' tokenizer",
        "encoder.jit",
        keymaps=(keymaps.COSMOS_ENCODER,),
        build=lambda info: CosmosEncoder(config or TokenizerConfig()),
        fingerprint="00a9fedac935c2978f57498e0e944e2c" if config is None else None,
        gigabytes=0.09,
    )
    decoder = part(
        "decoder",
        "the decoder of Cosmos' tokenizer",
        "decoder.jit",
        keymaps=(keymaps.COSMOS_DECODER,),
        build=lambda info: CosmosDecoder(config or TokenizerConfig()),
        fingerprint="85d82602b78a9c28303106dff58080d8" if config is None else None,
        gigabytes=0.13,
    )
    statistics = part(
        "statistics",
        "mean and standard deviation of the tokenizer's latents",
        "mean_std.pt",
        keymaps=(keymaps.COSMOS_STATISTICS,),
        build=lambda info: LatentStatistics(statistics_shape(info, channels), channels),
        gigabytes=0.00001,
    )
    return encoder, decoder, statistics


def statistics_shape(info: Mapping[str, TensorInfo], channels: int) -> tuple[int, ...]:
    """The shape that a file gives its latents' statistics, if it is one of `channels` rows; else the plainest."""
    mean = info.get("mean")
    fits = mean is not None and torch.Size(mean.shape).numel() % channels == 0
    return mean.shape if mean is not None and fits else (channels, 8)


def flash_config_of(config: TransformerConfig, info: Mapping[str, TensorInfo]) -> TransformerConfig:
    """A configuration with what the weights tell: channels of the past, and whether its keys are amplified."""
    short = info.get("patch_short.weight")
    if short is not None:
        channels = short.shape[1]
        if channels in (config.latent_channels, config.latent_channels + config.buffer_channels):
            config = dataclasses.replace(config, history_buffers=channels > config.latent_channels)
    amplified = any(name.endswith(".history_key_scale") for name in info)
    return dataclasses.replace(config, amplify_history=amplified)


def _vae(config: WanVAEConfig | None) -> Part:
    return Part(
        role="vae",
        about="Wan 2.1's VAE",
        paths=("Wan2.1_VAE.pth", "models/Wan-AI/Wan2.1-T2V-1.3B/Wan2.1_VAE.pth", "vae"),
        sources=(Source(WAN, "Wan2.1_VAE.pth"),),
        keymaps=(keymaps.WAN_VAE, keymaps.WAN_VAE_DIFFUSERS),
        build=lambda info: WanVAE(config or WanVAEConfig()),
        fingerprint="ccc42284ea13e1ad04693284c7a09be6" if config is None else None,
        dtype=torch.float32,
        gigabytes=0.51,
    )


def _text(config: TextEncoderConfig | None) -> tuple[Part, Part]:
    name = "models_t5_umt5-xxl-enc-bf16.pth"
    encoder = Part(
        role="text_encoder",
        about="umt5-xxl's encoder",
        paths=(name, f"models/Wan-AI/Wan2.1-T2V-1.3B/{name}", "text_encoder"),
        sources=(Source(WAN, name),),
        keymaps=(keymaps.UMT5, keymaps.UMT5_TRANSFORMERS),
        build=lambda info: text_encoder(config or TextEncoderConfig()),
        fingerprint="9c8818c2cbea55eca56c7b447df170da" if config is None else None,
        gigabytes=11.4,
    )
    tokenizer = Part(
        role="tokenizer",
        about="umt5-xxl's tokenizer",
        paths=("google/umt5-xxl", "models/Wan-AI/Wan2.1-T2V-1.3B/google/umt5-xxl", "tokenizer"),
        sources=(Source(WAN, "google/umt5-xxl/"),),
        gigabytes=0.02,
    )
    return encoder, tokenizer


GROUPED_ENCODER = KeyMap(
    name="Flowshade's GroupedEncoder",
    rules=((r"(conv_in|conv_out|merge)\.(weight|bias)|blocks\.\d+\.conv\..*", r"\g<0>"),),
)
TINY_DECODER = KeyMap(name="Flowshade's TinyDecoder", rules=((r"(conv_in|conv_out|stages)\..*", r"\g<0>"),))

COMPACT = Model(
    name="compact", title="Flowshade's own: 2 steps, any size, CPU and GPU; in the package", licence="Apache-2.0"
)
COMPACT_INVERSE = Model(
    name="compact-inverse",
    title="Flowshade's own way back, video to G-buffers: any size, CPU and GPU; in the package",
    licence="Apache-2.0",
)
MODELS = {
    model.name: model
    for model in (COMPACT, COMPACT_INVERSE, alaya_forward(), alaya_flash(), alaya_inverse(), cosmos_inverse())
}
"""Models by name."""
