"""Upstream's tensor names, written independently of the key maps, and tiny files in them."""

from __future__ import annotations

import io
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from flowshade.checkpoints.catalogue import Model, alaya_flash, alaya_forward, alaya_inverse
from flowshade.codec.tiny import GroupedEncoderConfig, TinyDecoderConfig
from flowshade.codec.wan_vae import WanVAEConfig
from flowshade.inverse.cosmos import CosmosConfig, TokenizerConfig
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


COSMOS = CosmosConfig(
    heads=2, head_dim=12, layers=2, mlp_ratio=2, modulation_rank=4, context_dim=6, latent_channels=4,
    max_size=(16, 24, 24),
)  # fmt: skip
TOKENIZER = TokenizerConfig(latent_channels=4, encoder_widths=(4, 4, 6, 6), decoder_widths=(4, 6, 6, 6), layers=1)
COSMOS_CHUNK = 17
"""Pictures of a small chunk: 3 latents."""


def small_inverse() -> Model:
    return alaya_inverse(COSMOS, TOKENIZER)


def cosmos_name(ours: str) -> str:
    """Our name for a tensor of the 7B inverse as Cosmos saved it."""
    ours = ours.removeprefix("transformer.")
    part = re.search(r"\.(?:norm|attn)([123])\.|\.(ff)\.", ours)
    number = "" if part is None else str(2 if part[2] else int(part[1]) - 1)
    ours = re.sub(r"transformer_blocks\.(\d+)\.", rf"blocks.block\1.blocks.{number}.", ours)
    table = {
        "norm_out.linear_": "final_layer.adaLN_modulation.",
        "proj_out": "final_layer.linear",
        "patch_embed.proj": "x_embedder.proj.1",
        "time_embed.t_embedder": "t_embedder.1",
        "time_embed.norm": "affline_norm",
        "ff.net.0.proj": "block.layer1",
        "ff.net.2": "block.layer2",
        "to_q.": "to_q.0.",
        "to_k.": "to_k.0.",
        "to_v.": "to_v.0.",
        "norm_q.": "to_q.1.",
        "norm_k.": "to_k.1.",
        "attn1.": "block.attn.",
        "attn2.": "block.attn.",
    }
    for mine, theirs in table.items():
        ours = ours.replace(mine, theirs)
    return re.sub(r"norm[123]\.linear_", "adaLN_modulation.", ours)


def cosmos_tokenizer_name(ours: str) -> str:
    """Our name for a tensor of the tokenizer as Cosmos saved it: every convolution is a wrapped one."""
    ours = re.sub(r"up_blocks\.(\d)", lambda m: f"up.{2 - int(m[1])}", ours).replace("down_blocks", "down")
    ours = re.sub(r"mid_block\.resnets\.(\d)", lambda m: f"mid.block_{int(m[1]) + 1}", ours)
    ours = ours.replace("mid_block.attentions.0", "mid.attn_1.0").replace("mid_block.temp_attentions.0", "mid.attn_1.1")
    ours = re.sub(r"\.attentions\.(\d)", r".attn.\1.0", ours)
    ours = re.sub(r"\.temp_attentions\.(\d)", r".attn.\1.1", ours)
    ours = ours.replace("resnets", "block").replace("downsamplers.0", "downsample").replace("upsamplers.0", "upsample")
    if ".norm." in ours:
        return ours
    ours = re.sub(r"conv_s\.(weight|bias)$", r"0.conv3d.\1", ours)
    ours = re.sub(r"conv_t\.(weight|bias)$", r"1.conv3d.\1", ours)
    ours = ours.replace("to_out.0", "proj_out").replace("conv_shortcut", "nin_shortcut")
    ours = re.sub(r"to_([qkv])\.", r"\1.", ours)
    return ours if "conv3d" in ours else re.sub(r"(weight|bias)$", r"conv3d.\1", ours)


class _Holder(nn.Module):
    """Tensors under dotted names, as a TorchScript archive keeps them."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()
        for name, value in state.items():
            head, dot, rest = name.partition(".")
            if not dot:
                self.register_buffer(head, value)
            elif head not in self._modules:
                self.add_module(
                    head, _Holder({n[len(head) + 1 :]: v for n, v in state.items() if n.startswith(f"{head}.")})
                )

    def forward(self, x: Tensor) -> Tensor:
        return x


def save_torchscript(state: dict[str, Tensor], path: Path) -> None:
    torch.jit.save(torch.jit.script(_Holder(state)), str(path))


def write_inverse(folder: Path) -> dict[str, dict[str, Tensor]]:
    """A tiny alaya-inverse in upstream's folders, files and names; returns the states under our names."""
    model = small_inverse()
    states = {role: random_state(build(model, role)) for role in ("transformer", "encoder", "decoder")}
    for name in ("Diffusion_Renderer_Inverse_Cosmos_7B", "Cosmos-Tokenize1-CV8x8x8-720p"):
        (folder / name).mkdir(parents=True)
    original = {f"net.{cosmos_name(name)}": value for name, value in states["transformer"].items()}
    extra = {
        "net.pos_embedder.seq": torch.arange(24.0),
        "logvar.0.freqs": torch.zeros(3),
        "net.blocks.block0.blocks.0.block.attn.attn_op._extra_state": io.BytesIO(b"state"),
        "net.blocks.block1.blocks.0.block.attn.attn_op._extra_state": torch.zeros(0, dtype=torch.uint8),
    }
    torch.save({"model": original | extra}, folder / "Diffusion_Renderer_Inverse_Cosmos_7B" / "model.pt")
    tokenizer = folder / "Cosmos-Tokenize1-CV8x8x8-720p"
    for role, fixed in (("encoder", "encoder.patcher3d"), ("decoder", "decoder.unpatcher3d")):
        state = {cosmos_tokenizer_name(name): value for name, value in states[role].items()}
        save_torchscript(state | {f"{fixed}.wavelets": torch.ones(2)}, tokenizer / f"{role}.jit")
    generator = torch.Generator().manual_seed(1)
    channels = TOKENIZER.latent_channels
    mean, spread = (torch.randn(channels, 3, generator=generator) * 0.2 for _ in range(2))
    states["statistics"] = {"mean": mean.flatten(), "std": (spread.exp()).flatten()}
    torch.save(tuple(states["statistics"].values()), tokenizer / "mean_std.pt")
    return states
