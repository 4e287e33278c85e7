"""Upstream's tensor names, written independently of the key maps, and tiny files in them."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from flowshade.checkpoints.catalogue import Model, alaya_flash, alaya_forward
from flowshade.codec.tiny import GroupedEncoderConfig, TinyDecoderConfig
from flowshade.codec.wan_vae import WanVAEConfig
from flowshade.renderer.transformer import TransformerConfig
from flowshade.renderer.upstream import TextEncoderConfig, flash_transformer, forward_transformer

SMALL = {
    "latent_channels": 4,
    "buffer_channels": 20,
    "heads": 2,
    "head_dim": 12,
    "rope_dims": (4, 4, 4),
    "layers": 2,
    "ffn_dim": 32,
    "text_dim": 16,
    "freq_dim": 16,
}
VAE = WanVAEConfig(base_dim=4, z_dim=4, num_res_blocks=2, latents_mean=(0.0,) * 4, latents_std=(1.0,) * 4)
TEXT = TextEncoderConfig(vocab_size=64, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4)
ENCODER = GroupedEncoderConfig(width=4, blocks=1, latent_channels=4)
DECODER = TinyDecoderConfig(latent_channels=4, widths=(8, 6, 4, 4))


def small_transformer() -> TransformerConfig:
    return forward_transformer(**SMALL)


def small_forward() -> Model:
    return alaya_forward(small_transformer(), VAE, TEXT)


def small_flash() -> Model:
    return alaya_flash(flash_transformer(**SMALL), ENCODER, DECODER, TEXT)


def wan_name(ours: str) -> str:
    """Our transformer's name as Wan saved it."""
    table = {
        "condition_embedder.text_embedder.linear_1": "text_embedding.0",
        "condition_embedder.text_embedder.linear_2": "text_embedding.2",
        "condition_embedder.time_embedder.linear_1": "time_embedding.0",
        "condition_embedder.time_embedder.linear_2": "time_embedding.2",
        "condition_embedder.time_proj": "time_projection.1",
        "norm_out.scale_shift_table": "head.modulation",
        "proj_out": "head.head",
        "scale_shift_table": "modulation",
        "attn1.": "self_attn.",
        "attn2.": "cross_attn.",
        "to_out.0": "o",
        "to_": "",
        "ffn.net.0.proj": "ffn.0",
        "ffn.net.2": "ffn.2",
        "norm2": "norm3",
    }
    for mine, theirs in table.items():
        ours = ours.replace(mine, theirs)
    return ours


def vae_name(ours: str) -> str:
    ours = re.sub(r"up_blocks\.(\d)\.resnets\.(\d)", lambda m: f"upsamples.{4 * int(m[1]) + int(m[2])}", ours)
    ours = re.sub(r"up_blocks\.(\d)\.upsamplers\.0", lambda m: f"upsamples.{4 * int(m[1]) + 3}", ours)
    table = {
        "post_quant_conv": "conv2",
        "quant_conv": "conv1",
        "conv_shortcut": "shortcut",
        "norm1.gamma": "residual.0.gamma",
        "norm2.gamma": "residual.3.gamma",
        "norm_out": "head.0",
        "conv_out": "head.2",
        "down_blocks": "downsamples",
        "mid_block.resnets.0": "middle.0",
        "mid_block.resnets.1": "middle.2",
        "mid_block.attentions.0": "middle.1",
    }
    for mine, theirs in table.items():
        ours = ours.replace(mine, theirs)
    if "conv1" in ours and ours.count(".") > 1:
        ours = ours.replace("conv1", "residual.2")
    if "conv2" in ours and ours.count(".") > 1:
        ours = ours.replace("conv2", "residual.6")
    return ours.replace("conv_in", "conv1")


def t5_name(ours: str) -> str:
    table = {
        "shared": "token_embedding",
        "encoder.final_layer_norm": "norm",
        "encoder.block": "blocks",
        "layer.0.layer_norm": "norm1",
        "layer.1.layer_norm": "norm2",
        "layer.0.SelfAttention.relative_attention_bias": "pos_embedding.embedding",
        "layer.0.SelfAttention": "attn",
        "layer.1.DenseReluDense.wi_0": "ffn.gate.0",
        "layer.1.DenseReluDense.wi_1": "ffn.fc1",
        "layer.1.DenseReluDense.wo": "ffn.fc2",
    }
    for mine, theirs in table.items():
        ours = ours.replace(mine, theirs)
    return ours


def random_state(network: nn.Module, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Different values in every tensor, so that no two can be exchanged unnoticed."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: (torch.randn(value.shape, generator=generator) * 0.2).to(dtype)
        for name, value in network.state_dict().items()
    }


def build(model: Model, role: str) -> nn.Module:
    network = model.part(role).build
    assert network is not None
    return network({})


def write_tokenizer(folder: Path) -> None:
    """Whole words, each of which is unknown but a few, with umt5's end mark."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    words = ["<pad>", "</s>", "<unk>", "a", "street", "in", "snow", "night"]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_flash(folder: Path) -> None:
    """A tiny alaya-flash: upstream's files, for the codecs our own names."""
    model = small_flash()
    states = {role: random_state(build(model, role)) for role in ("transformer", "encoder", "decoder", "text_encoder")}
    del states["text_encoder"]["encoder.embed_tokens.weight"]
    for name in ("transformer", "tiny_decoder"):
        (folder / name).mkdir(parents=True)
    write_tokenizer(folder / "tokenizer")
    save_file(states["transformer"], folder / "transformer" / "diffusion_pytorch_model.safetensors")
    partial = {name: value for name, value in states["transformer"].items() if name.startswith("patch_")}
    save_file(partial, folder / "transformer_partial.safetensors")
    save_file(states["encoder"], folder / "gbuf_small_encoder.safetensors")
    save_file(states["decoder"], folder / "tiny_decoder" / "taew2_1_ft.safetensors")
    text = {t5_name(name): value for name, value in states["text_encoder"].items()}
    torch.save(text, folder / "models_t5_umt5-xxl-enc-bf16.pth")


def write_forward(folder: Path) -> dict[str, dict[str, Tensor]]:
    """A tiny alaya-forward in upstream's files and names; returns the states under our names."""
    model = small_forward()
    states = {role: random_state(build(model, role)) for role in ("transformer", "vae", "text_encoder")}
    states["transformer"] = {name: value.bfloat16() for name, value in states["transformer"].items()}
    del states["text_encoder"]["encoder.embed_tokens.weight"]
    write_tokenizer(folder / "google" / "umt5-xxl")
    save_file({wan_name(name): value for name, value in states["transformer"].items()}, folder / "model.safetensors")
    torch.save({vae_name(name): value for name, value in states["vae"].items()}, folder / "Wan2.1_VAE.pth")
    text = {t5_name(name): value.bfloat16() for name, value in states["text_encoder"].items()}
    torch.save(text, folder / "models_t5_umt5-xxl-enc-bf16.pth")
    return states
