"""Our transformer against diffusers' classes for Helios and Wan, tiny and random: the same weights, the same result.

`golden/helios.safetensors` holds what diffusers computed, so that the equality is checked where diffusers is not
installed too; `python tests/renderer/golden/make_helios.py` writes it again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from flowshade.renderer.memory import History, HistoryBand, HistoryMemory
from flowshade.renderer.transformer import TextContext, TransformerConfig, WorldTransformer

BANDS = {
    "long": HistoryBand(frames=16, patch=(4, 8, 8)),
    "mid": HistoryBand(frames=2, patch=(2, 4, 4)),
    "short": HistoryBand(frames=1, patch=(1, 2, 2)),
}
SHARED = {"text_dim": 12, "freq_dim": 32, "ffn_dim": 48}
GOLDEN = Path(__file__).parent / "golden" / "helios.safetensors"


def ours(
    *, channels: int, buffers: int = 0, rope_dims: tuple[int, int, int] = (4, 6, 6), **changes: Any
) -> WorldTransformer:
    """The settings that make us Helios."""
    settings = {
        "latent_channels": channels,
        "buffer_channels": buffers,
        "heads": 2,
        "head_dim": 16,
        "layers": 2,
        "rope_dims": rope_dims,
        "rope_theta": 10000.0,
        "memory": "full",
        "history_buffers": buffers > 0,
        "history_width": None,
        "cross_attention_every": 1,
        "cross_attention_heads": None,
        "look_embedding": False,
        "exact_gelu": False,
        **BANDS,
        **SHARED,
    }
    return WorldTransformer(TransformerConfig(**(settings | changes))).eval()


def shaken(theirs: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 0.6)
    return theirs.eval()


def helios_inputs(channels: int, size: tuple[int, int]) -> dict[str, Tensor]:
    """A window of 3 latent frames, a past of 19 and the stream's first frame, all with their buffers."""
    shapes = {"window": 3, "past": 19, "first": 1}
    inputs = {name: torch.randn(2, channels, frames, *size) for name, frames in shapes.items()}
    return inputs | {"text": torch.randn(2, 5, 12), "timestep": torch.tensor([900.0, 250.0])}


def helios_output(theirs: nn.Module, given: dict[str, Tensor], *, keep_first: bool) -> Tensor:
    """diffusers' answer, with the frames numbered as its pipeline numbers them."""
    first = 1 if keep_first else 0
    index = torch.arange(first + 22)[None].expand(2, -1)
    past = given["past"]
    short, short_index = past[:, :, 18:], index[:, first + 18 : first + 19]
    if keep_first:
        short, short_index = torch.cat([given["first"], short], 2), torch.cat([index[:, :1], short_index], 1)
    with torch.no_grad():
        return theirs(
            given["window"],
            given["timestep"],
            given["text"],
            indices_hidden_states=index[:, first + 19 :],
            indices_latents_history_long=index[:, first : first + 16],
            indices_latents_history_mid=index[:, first + 16 : first + 18],
            indices_latents_history_short=short_index,
            latents_history_long=past[:, :, :16],
            latents_history_mid=past[:, :, 16:18],
            latents_history_short=short,
            return_dict=False,
        )[0]


def our_output(model: WorldTransformer, given: dict[str, Tensor], *, keep_first: bool) -> Tensor:
    channels = model.config.latent_channels

    def parts(volume: Tensor) -> tuple[Tensor, Tensor | None]:
        return volume[:, :channels], volume[:, channels:] if model.config.buffer_channels else None

    memory = HistoryMemory(19, keep_first=keep_first)
    if keep_first:
        memory.append(*parts(given["first"]))
    memory.append(*parts(given["past"]))
    latents, buffers = parts(given["window"])
    with torch.no_grad():
        history = model.encode_history(memory.view())
        return model(latents, given["timestep"], TextContext(tokens=given["text"]), buffers, history_kv=history)


def close(actual: Tensor, expected: Tensor) -> None:
    """Float error of two orders of summation, through two layers."""
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * expected.std().item())


@pytest.mark.parametrize("size", [(8, 16), (6, 10)], ids=["divides", "is padded"])
@pytest.mark.parametrize("amplify", [False, True], ids=["", "amplified"])
@pytest.mark.parametrize("keep_first", [False, True], ids=["", "first frame"])
@pytest.mark.parametrize("guidance", [True, False], ids=["", "past reads text"])
def test_full_memory_equals_helios(size: tuple[int, int], amplify: bool, keep_first: bool, guidance: bool) -> None:
    pytest.importorskip("diffusers")
    from diffusers.models.transformers.transformer_helios import HeliosTransformer3DModel

    theirs = shaken(
        HeliosTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=16,
            in_channels=12,
            out_channels=4,
            num_layers=2,
            rope_dim=(4, 6, 6),
            is_amplify_history=amplify,
            guidance_cross_attn=guidance,
            **SHARED,
        )
    )
    model = ours(channels=4, buffers=8, amplify_history=amplify, keep_first=keep_first, history_reads_text=not guidance)
    model.load_state_dict(theirs.state_dict(), strict=True)
    given = helios_inputs(12, size)
    expected = helios_output(theirs, given, keep_first=keep_first)
    close(our_output(model, given, keep_first=keep_first), expected)
    changed = given | {"past": given["past"].roll(1, 2), "first": -given["first"]}
    other = helios_output(theirs, changed, keep_first=keep_first)
    assert (other - expected).abs().max() > 0.01 * expected.std()  # the past was heard


def golden_cases() -> list[str]:
    with safe_open(GOLDEN, framework="pt") as file:
        return sorted(json.loads(file.metadata()["cases"]))


@pytest.mark.parametrize("case", golden_cases())
def test_full_memory_equals_what_helios_gave(case: str) -> None:
    with safe_open(GOLDEN, framework="pt") as file:
        settings = json.loads(file.metadata()["cases"])[case]
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    model = ours(
        channels=4,
        buffers=8,
        amplify_history=settings["amplify"],
        keep_first=settings["keep_first"],
        history_reads_text=not settings["guidance"],
        layers=1,
        heads=1,
        ffn_dim=16,
    )
    state = {name.removeprefix("state."): value for name, value in tensors.items() if name.startswith("state.")}
    if not settings["amplify"]:
        state = {name: value for name, value in state.items() if "history_key_scale" not in name}
    model.load_state_dict(state, strict=True)
    given = {name.removeprefix("given."): value for name, value in tensors.items() if name.startswith("given.")}
    close(our_output(model, given, keep_first=settings["keep_first"]), tensors[f"expected.{case}"])


def test_no_memory_equals_wan() -> None:
    pytest.importorskip("diffusers")
    from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

    theirs = shaken(
        WanTransformer3DModel(
            num_attention_heads=2, attention_head_dim=16, in_channels=10, out_channels=4, num_layers=2, **SHARED
        )
    )
    model = ours(channels=4, buffers=6, rope_dims=(8, 4, 4), memory="none")  # how Wan shares 16 channels
    state = theirs.state_dict()
    state["norm_out.scale_shift_table"] = state.pop("scale_shift_table")
    model.load_state_dict(state, strict=True)
    latents, buffers, tokens = torch.randn(2, 4, 3, 8, 12), torch.randn(2, 6, 3, 8, 12), torch.randn(2, 5, 12)
    timestep = torch.tensor([900.0, 250.0])
    with torch.no_grad():
        expected = theirs(torch.cat([latents, buffers], 1), timestep, tokens, return_dict=False)[0]
        actual = model(latents, timestep, TextContext(tokens=tokens), buffers)
    close(actual, expected)
    with pytest.raises(ValueError, match="has no memory"):
        model.encode_history(History(latents=latents))
