"""From the tensor names that others saved to ours. Tensors are renamed, never reshaped; what no rule names is an error.

Sources: the released files of Wan 2.1 and umt5-xxl as DiffSynth names them, diffusers' and transformers' classes, and
for Cosmos the published code (nv-tlabs/cosmos1-diffusion-renderer).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
"""What trainers insert anywhere in a name."""
PREFIXES = ("model.", "net.", "module.")
"""What trainers and wrappers put in front of every name."""


@dataclass(frozen=True, kw_only=True)
class KeyMap:
    """Rules from one naming to another; the first that matches a whole name decides."""

    name: str
    """Whose naming it is."""
    rules: tuple[tuple[str, str | None], ...]
    """Regular expression and replacement; None drops the tensor."""
    tied: tuple[tuple[str, str], ...] = ()
    """Further names that a tensor of ours goes by: (of the file, of the network)."""

    def rename(self, name: str) -> tuple[bool, str | None]:
        """Whether a rule knows this name, and our name for it (None = dropped)."""
        for pattern, replacement in self.rules:
            if match := re.fullmatch(pattern, name):
                return True, None if replacement is None else match.expand(replacement)
        return False, None

    def unknown(self, names: Iterable[str]) -> list[str]:
        """The names that no rule knows."""
        return [name for name in names if not self.rename(name)[0]]

    def mapping(self, names: Iterable[str]) -> dict[str, str]:
        """Our names to those of the file, without what is dropped; unknown ones are left out."""
        renamed = {name: self.rename(name)[1] for name in names}
        found = {ours: name for name, ours in renamed.items() if ours is not None}
        return found | {other: found[name] for name, other in self.tied if name in found}


@dataclass(frozen=True, kw_only=True)
class SubstringMap(KeyMap):
    """A naming whose parts are replaced one kind after another, in the names that `rules` know."""

    replacements: tuple[tuple[str, str], ...]
    """Regular expression and replacement, all applied, in this order."""

    def rename(self, name: str) -> tuple[bool, str | None]:
        known, ours = super().rename(name)
        for pattern, replacement in self.replacements if ours is not None else ():
            ours = re.sub(pattern, replacement, ours or "")
        return known, ours


def clean_name(name: str, prefixes: Iterable[str] = PREFIXES) -> str:
    """A tensor's name without what wrappers add: `model._fsdp_wrapped_module.blocks.0.x` is `blocks.0.x`."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    stripped = True
    while stripped:
        stripped = False
        for prefix in prefixes:
            if name.startswith(prefix):
                name, stripped = name.removeprefix(prefix), True
    return name


_WB = r"(weight|bias)"

WAN_TRANSFORMER = KeyMap(
    name="Wan",
    rules=(
        (rf"patch_embedding\.{_WB}", r"patch_embedding.\1"),
        (rf"text_embedding\.0\.{_WB}", r"condition_embedder.text_embedder.linear_1.\1"),
        (rf"text_embedding\.2\.{_WB}", r"condition_embedder.text_embedder.linear_2.\1"),
        (rf"time_embedding\.0\.{_WB}", r"condition_embedder.time_embedder.linear_1.\1"),
        (rf"time_embedding\.2\.{_WB}", r"condition_embedder.time_embedder.linear_2.\1"),
        (rf"time_projection\.1\.{_WB}", r"condition_embedder.time_proj.\1"),
        (rf"head\.head\.{_WB}", r"proj_out.\1"),
        (r"head\.modulation", r"norm_out.scale_shift_table"),
        (r"blocks\.(\d+)\.modulation", r"blocks.\1.scale_shift_table"),
        (rf"blocks\.(\d+)\.self_attn\.([qkv])\.{_WB}", r"blocks.\1.attn1.to_\2.\3"),
        (rf"blocks\.(\d+)\.self_attn\.o\.{_WB}", r"blocks.\1.attn1.to_out.0.\2"),
        (r"blocks\.(\d+)\.self_attn\.norm_([qk])\.weight", r"blocks.\1.attn1.norm_\2.weight"),
        (rf"blocks\.(\d+)\.cross_attn\.([qkv])\.{_WB}", r"blocks.\1.attn2.to_\2.\3"),
        (rf"blocks\.(\d+)\.cross_attn\.o\.{_WB}", r"blocks.\1.attn2.to_out.0.\2"),
        (r"blocks\.(\d+)\.cross_attn\.norm_([qk])\.weight", r"blocks.\1.attn2.norm_\2.weight"),
        (rf"blocks\.(\d+)\.norm3\.{_WB}", r"blocks.\1.norm2.\2"),  # the affine one; diffusers numbers it otherwise
        (rf"blocks\.(\d+)\.ffn\.0\.{_WB}", r"blocks.\1.ffn.net.0.proj.\2"),
        (rf"blocks\.(\d+)\.ffn\.2\.{_WB}", r"blocks.\1.ffn.net.2.\2"),
    ),
)

_BLOCK = (
    r"scale_shift_table",
    rf"attn[12]\.(?:to_[qkv]|to_out\.0)\.{_WB}",
    r"attn[12]\.norm_[qk]\.weight",
    rf"norm2\.{_WB}",
    rf"ffn\.net\.(?:0\.proj|2)\.{_WB}",
)
_DIFFUSERS_TRANSFORMER = (
    rf"patch_embedding\.{_WB}",
    rf"condition_embedder\.(?:text_embedder|time_embedder)\.linear_[12]\.{_WB}",
    rf"condition_embedder\.time_proj\.{_WB}",
    rf"proj_out\.{_WB}",
    *(rf"blocks\.\d+\.{name}" for name in _BLOCK),
)

WAN_TRANSFORMER_DIFFUSERS = KeyMap(
    name="diffusers' WanTransformer3DModel",
    rules=(
        (r"scale_shift_table", r"norm_out.scale_shift_table"),
        *((name, r"\g<0>") for name in _DIFFUSERS_TRANSFORMER),
    ),
)

HELIOS = KeyMap(
    name="diffusers' HeliosTransformer3DModel",
    rules=(
        (r"norm_out\.scale_shift_table", r"\g<0>"),
        (rf"patch_(?:short|mid|long)\.{_WB}", r"\g<0>"),
        (r"blocks\.\d+\.attn1\.history_key_scale", r"\g<0>"),
        *((name, r"\g<0>") for name in _DIFFUSERS_TRANSFORMER),
    ),
)

_RESIDUAL = (
    (r"residual\.0\.gamma", "norm1.gamma"),
    (rf"residual\.2\.{_WB}", r"conv1.\g<last>"),
    (r"residual\.3\.gamma", "norm2.gamma"),
    (rf"residual\.6\.{_WB}", r"conv2.\g<last>"),
    (rf"shortcut\.{_WB}", r"conv_shortcut.\g<last>"),
)


def _residual_rules(prefix: str, ours: str) -> tuple[tuple[str, str], ...]:
    """A residual block's rules below a prefix; `\\g<last>` is weight or bias."""
    last = re.compile(prefix).groups + 1
    return tuple(
        (rf"{prefix}\.{theirs}", f"{ours}.{name.replace('<last>', f'<{last}>')}") for theirs, name in _RESIDUAL
    )


def _upsampling_rules() -> tuple[tuple[str, str], ...]:
    """The decoder's flat list, four entries a stage: three residual blocks and what doubles the size."""
    rules: list[tuple[str, str]] = []
    for index in range(15):
        stage, slot = divmod(index, 4)
        if slot < 3:
            rules += _residual_rules(rf"decoder\.upsamples\.{index}", f"decoder.up_blocks.{stage}.resnets.{slot}")
        else:
            theirs, ours = rf"decoder\.upsamples\.{index}\.", f"decoder.up_blocks.{stage}.upsamplers.0."
            rules.append((rf"{theirs}(resample\.1|time_conv)\.{_WB}", rf"{ours}\1.\2"))
    return tuple(rules)


WAN_VAE = KeyMap(
    name="Wan",
    rules=(
        (rf"conv1\.{_WB}", r"quant_conv.\1"),
        (rf"conv2\.{_WB}", r"post_quant_conv.\1"),
        (rf"(encoder|decoder)\.conv1\.{_WB}", r"\1.conv_in.\2"),
        (r"(encoder|decoder)\.head\.0\.gamma", r"\1.norm_out.gamma"),
        (rf"(encoder|decoder)\.head\.2\.{_WB}", r"\1.conv_out.\2"),
        *_residual_rules(r"(encoder|decoder)\.middle\.0", r"\1.mid_block.resnets.0"),
        *_residual_rules(r"(encoder|decoder)\.middle\.2", r"\1.mid_block.resnets.1"),
        (r"(encoder|decoder)\.middle\.1\.norm\.gamma", r"\1.mid_block.attentions.0.norm.gamma"),
        (rf"(encoder|decoder)\.middle\.1\.(to_qkv|proj)\.{_WB}", r"\1.mid_block.attentions.0.\2.\3"),
        *_residual_rules(r"encoder\.downsamples\.(\d+)", r"encoder.down_blocks.\1"),
        (rf"encoder\.downsamples\.(\d+)\.(resample\.1|time_conv)\.{_WB}", r"encoder.down_blocks.\1.\2.\3"),
        *_upsampling_rules(),
    ),
)

WAN_VAE_DIFFUSERS = KeyMap(
    name="diffusers' AutoencoderKLWan",
    rules=(
        (rf"(post_)?quant_conv\.{_WB}", r"\g<0>"),
        (rf"(encoder|decoder)\.(conv_in|conv_out)\.{_WB}", r"\g<0>"),
        (r"(encoder|decoder)\.norm_out\.gamma", r"\g<0>"),
        (r"(encoder|decoder)\.(down_blocks|mid_block|up_blocks)\..*\.(weight|bias|gamma)", r"\g<0>"),
    ),
)

UMT5 = KeyMap(
    name="Wan's umt5 encoder",
    rules=(
        (r"token_embedding\.weight", "shared.weight"),
        (r"norm\.weight", "encoder.final_layer_norm.weight"),
        (r"blocks\.(\d+)\.norm1\.weight", r"encoder.block.\1.layer.0.layer_norm.weight"),
        (r"blocks\.(\d+)\.attn\.([qkvo])\.weight", r"encoder.block.\1.layer.0.SelfAttention.\2.weight"),
        (
            r"blocks\.(\d+)\.pos_embedding\.embedding\.weight",
            r"encoder.block.\1.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
        (r"blocks\.(\d+)\.norm2\.weight", r"encoder.block.\1.layer.1.layer_norm.weight"),
        (r"blocks\.(\d+)\.ffn\.gate\.0\.weight", r"encoder.block.\1.layer.1.DenseReluDense.wi_0.weight"),
        (r"blocks\.(\d+)\.ffn\.fc1\.weight", r"encoder.block.\1.layer.1.DenseReluDense.wi_1.weight"),
        (r"blocks\.(\d+)\.ffn\.fc2\.weight", r"encoder.block.\1.layer.1.DenseReluDense.wo.weight"),
    ),
    tied=(("shared.weight", "encoder.embed_tokens.weight"),),
)

UMT5_TRANSFORMERS = KeyMap(
    name="transformers' UMT5EncoderModel",
    rules=((r"encoder\.embed_tokens\.weight", None), (r"(shared|encoder)\..*weight", r"\g<0>")),
    tied=(("shared.weight", "encoder.embed_tokens.weight"),),
)

_TAEHV_STAGES = (3, 9, 15)
"""Where a decoder's stages begin in TAEHV's flat list: three blocks, a doubling, growth in time, a convolution."""


def _taehv_rules() -> tuple[tuple[str, str | None], ...]:
    rules: list[tuple[str, str | None]] = [
        (r"encoder\..*", None),
        (rf"decoder\.1\.{_WB}", r"conv_in.\1"),
        (rf"decoder\.22\.{_WB}", r"conv_out.\1"),
    ]
    for stage, first in enumerate(_TAEHV_STAGES):
        for block in range(3):
            theirs, ours = rf"decoder\.{first + block}\.", f"stages.{stage}.blocks.{block}."
            rules.append((rf"{theirs}conv\.([024])\.{_WB}", rf"{ours}conv.\1.\2"))
        rules.append((rf"decoder\.{first + 4}\.conv\.weight", f"stages.{stage}.grow.weight"))
        rules.append((rf"decoder\.{first + 5}\.weight", f"stages.{stage}.conv.weight"))
    return tuple(rules)


TAEHV = KeyMap(name="TAEHV", rules=_taehv_rules())

_COSMOS_BLOCK = r"blocks\.block(\d+)\.blocks\."
_OUR_BLOCK = r"transformer.transformer_blocks.\1."


def _cosmos_block_rules() -> tuple[tuple[str, str], ...]:
    """A block's three parts, self-attention, cross-attention and feed-forward; the original counts them from 0."""
    rules: list[tuple[str, str]] = []
    for part in range(3):
        theirs, number = f"{_COSMOS_BLOCK}{part}", part + 1
        rules.append((rf"{theirs}\.adaLN_modulation\.([12])\.weight", rf"{_OUR_BLOCK}norm{number}.linear_\2.weight"))
        if part == 2:
            rules.append((rf"{theirs}\.block\.layer1\.weight", rf"{_OUR_BLOCK}ff.net.0.proj.weight"))
            rules.append((rf"{theirs}\.block\.layer2\.weight", rf"{_OUR_BLOCK}ff.net.2.weight"))
            continue
        attention, ours = rf"{theirs}\.block\.attn\.", rf"{_OUR_BLOCK}attn{number}."
        rules.append((rf"{attention}to_([qkv])\.0\.weight", rf"{ours}to_\2.weight"))
        rules.append((rf"{attention}to_([qk])\.1\.weight", rf"{ours}norm_\2.weight"))
        rules.append((rf"{attention}to_out\.0\.weight", rf"{ours}to_out.0.weight"))
    return tuple(rules)


COSMOS_INVERSE = KeyMap(
    name="Cosmos DiffusionRenderer",
    rules=(
        (r".*\._extra_state|(pos_embedder|logvar|conditioner)\..*", None),  # computed, or of training alone
        (r"x_embedder\.proj\.1\.weight", "transformer.patch_embed.proj.weight"),
        (r"t_embedder\.1\.linear_([12])\.weight", r"transformer.time_embed.t_embedder.linear_\1.weight"),
        (r"affline_norm\.weight", "transformer.time_embed.norm.weight"),
        (r"final_layer\.adaLN_modulation\.([12])\.weight", r"transformer.norm_out.linear_\1.weight"),
        (r"final_layer\.linear\.weight", "transformer.proj_out.weight"),
        (r"context_embedding\.weight", r"\g<0>"),
        *_cosmos_block_rules(),
    ),
)

_COSMOS_LEVELS = 3
"""Of the tokenizer's decoder, which the original counts from the finest."""
_COSMOS_REPLACEMENTS = (
    (r"\.down\.(\d+)\.", r".down_blocks.\1."),
    *((rf"\.up\.{level}\.", f".up_blocks.{_COSMOS_LEVELS - 1 - level}.") for level in range(_COSMOS_LEVELS)),
    (r"\.block\.(\d+)\.", r".resnets.\1."),
    (r"\.attn\.(\d+)\.0\.", r".attentions.\1."),
    (r"\.attn\.(\d+)\.1\.", r".temp_attentions.\1."),
    (r"\.downsample\.", ".downsamplers.0."),
    (r"\.upsample\.", ".upsamplers.0."),
    (r"mid\.block_1\.", "mid_block.resnets.0."),
    (r"mid\.block_2\.", "mid_block.resnets.1."),
    (r"mid\.attn_1\.0\.", "mid_block.attentions.0."),
    (r"mid\.attn_1\.1\.", "mid_block.temp_attentions.0."),
    (r"\.([qkv])\.conv3d\.", r".to_\1."),
    (r"\.proj_out\.conv3d\.", ".to_out.0."),
    (r"\.0\.conv3d\.", ".conv_s."),
    (r"\.1\.conv3d\.", ".conv_t."),
    (r"nin_shortcut\.conv3d\.", "conv_shortcut."),
    (r"\.conv3d\.", "."),
)
_COSMOS_ENDS = r"(.*\.)?(conv3d|norm)\.(weight|bias)"
COSMOS_ENCODER = SubstringMap(
    name="Cosmos' tokenizer",
    rules=(
        (r"encoder\.patcher3d\..*", None),
        (rf"(encoder\.(conv_in|down|mid|norm_out|conv_out)|quant_conv)\.{_COSMOS_ENDS}", r"\g<0>"),
    ),
    replacements=_COSMOS_REPLACEMENTS,
)
COSMOS_DECODER = SubstringMap(
    name="Cosmos' tokenizer",
    rules=(
        (r"decoder\.unpatcher3d\..*", None),
        (rf"(decoder\.(conv_in|mid|up|norm_out|conv_out)|post_quant_conv)\.{_COSMOS_ENDS}", r"\g<0>"),
    ),
    replacements=_COSMOS_REPLACEMENTS,
)
COSMOS_STATISTICS = KeyMap(name="a pair of tensors", rules=((r"0|mean", "mean"), (r"1|std", "std")))
