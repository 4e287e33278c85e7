"""The 7B's network against a plain one in the original names, the tokenizer against diffusers', at small size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_cosmos import AutoencoderKLCosmos
from diffusers.models.transformers.transformer_cosmos import CosmosLearnablePositionalEmbed, CosmosTransformer3DModel
from torch import Tensor

from flowshade.checkpoints.loading import load_part
from flowshade.inverse.cosmos import (
    BUFFER_ROWS,
    CosmosDecoder,
    CosmosEncoder,
    CosmosNetwork,
    LatentStatistics,
    SinusoidalPositions,
)
from tests.checkpoints.originals import COSMOS, TOKENIZER, cosmos_name, random_state, small_inverse
from tests.peers.cosmos import PlainCosmos

SIZE = (3, 4, 6)


def latents(seed: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, COSMOS.latent_channels, *SIZE, generator=torch.Generator().manual_seed(seed))


def telling_state(queries_and_keys: float = 1.0) -> dict[str, Tensor]:
    """Random weights under which attention is far from even; small queries and keys make their norms' epsilon count."""
    state = random_state(CosmosNetwork(COSMOS))
    for name in state:
        if name.endswith(("to_q.weight", "to_k.weight")):
            state[name] = state[name] * queries_and_keys
        elif name.endswith(("norm_q.weight", "norm_k.weight")):
            state[name] = state[name] * 10
    return state


@pytest.fixture(scope="module", params=[1.0, 0.02], ids=["", "small queries and keys"])
def pair(request, tmp_path_factory: pytest.TempPathFactory) -> tuple[CosmosNetwork, PlainCosmos]:
    """Our network, loaded from a file in the original names, and the plain one over the same file."""
    ours = telling_state(request.param)
    theirs = {cosmos_name(name): value for name, value in ours.items()}
    path: Path = tmp_path_factory.mktemp("cosmos") / "model.pt"
    torch.save(theirs, path)
    network = load_part(small_inverse().part("transformer"), path)
    assert isinstance(network, CosmosNetwork)
    return network, PlainCosmos(state=theirs, heads=COSMOS.heads, layers=COSMOS.layers)


@torch.no_grad()
@pytest.mark.parametrize("level", [1.1, 0.0, -0.98])  # a quarter of the logarithm of 80, 1 and 0.02
@pytest.mark.parametrize("buffer", list(BUFFER_ROWS))
def test_the_network_is_the_plain_one(pair, buffer: str, level: float) -> None:
    network, plain = pair
    x, video, time = latents(0, 2), latents(1, 2), torch.full((2,), level)
    expected = plain(x, video, time, BUFFER_ROWS[buffer])
    assert expected.std() > 0.1
    torch.testing.assert_close(network(x, video, time, buffer), expected, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_one_token_stands_for_all(pair) -> None:
    network, plain = pair
    time = torch.zeros(1)
    expected = plain(latents(0), latents(1), time, BUFFER_ROWS["normal"], tokens=7)
    torch.testing.assert_close(network(latents(0), latents(1), time, "normal"), expected, atol=2e-5, rtol=1e-4)


def spoil_scale(network: CosmosNetwork) -> None:
    network.transformer.rope.t_ntk_factor = 2.0 ** (4 / 2)


def spoil_norms(network: CosmosNetwork) -> None:
    for block in network.transformer.transformer_blocks:
        block.attn1.norm_q.eps = block.attn1.norm_k.eps = 1e-5


def spoil_positions(network: CosmosNetwork) -> None:
    network.transformer.learnable_pos_embed = CosmosLearnablePositionalEmbed(COSMOS.width, COSMOS.max_size, (1, 2, 2))


@torch.no_grad()
@pytest.mark.parametrize("spoil", [spoil_scale, spoil_norms, spoil_positions])
def test_each_correction_counts(spoil) -> None:
    """diffusers' class without it is another network, by more than the tolerance above."""
    state = telling_state(0.02)
    outputs = []
    for change in (None, spoil):
        network = CosmosNetwork(COSMOS)
        network.load_state_dict(state)
        if change is not None:
            change(network)
        outputs.append(network(latents(0), latents(1), torch.zeros(1), "depth"))
    assert (outputs[0] - outputs[1]).abs().max() > 1e-3


@torch.no_grad()
def test_diffusers_class_with_text_tokens_and_no_mask_gives_the_same(pair) -> None:
    """The way of the description: 32 channels, the mask's columns cut off, the row given as text."""
    network, _ = pair
    config = network.config
    other: CosmosTransformer3DModel = CosmosTransformer3DModel(
        in_channels=2 * config.latent_channels, out_channels=config.latent_channels, num_attention_heads=config.heads,
        attention_head_dim=config.head_dim, num_layers=config.layers, mlp_ratio=config.mlp_ratio,
        text_embed_dim=config.context_dim, adaln_lora_dim=config.modulation_rank, max_size=config.max_size,
        rope_scale=(1.0, 1.0, 1.0), concat_padding_mask=False,
    )  # fmt: skip
    other.learnable_pos_embed = SinusoidalPositions(config.width)  # pyright: ignore[reportAttributeAccessIssue]
    state = network.transformer.state_dict()
    state["patch_embed.proj.weight"] = state["patch_embed.proj.weight"][:, : 4 * 2 * config.latent_channels]
    other.load_state_dict(state)
    for name, module in other.named_modules():
        if name.endswith(("norm_q", "norm_k")):
            module.eps = 1e-6  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    row = network.context_embedding.weight[None, [BUFFER_ROWS["albedo"]]].expand(1, 5, -1)
    given = torch.cat([latents(0), latents(1)], 1)
    expected = other(given, torch.zeros(1), row, fps=24, return_dict=False)[0]
    ours = network(latents(0), latents(1), torch.zeros(1), "albedo")
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_the_tokenizer_s_halves_are_diffusers_whole() -> None:
    whole = AutoencoderKLCosmos(
        latent_channels=TOKENIZER.latent_channels,
        encoder_block_out_channels=TOKENIZER.encoder_widths,
        decode_block_out_channels=TOKENIZER.decoder_widths,
        num_layers=TOKENIZER.layers,
    )
    state = random_state(whole)
    whole.load_state_dict(state)
    encoder, decoder = CosmosEncoder(TOKENIZER), CosmosDecoder(TOKENIZER)
    for half in (encoder, decoder):
        half.load_state_dict({name: state[name] for name in half.state_dict()})
    rgb = torch.rand(1, 3, 9, 16, 32) * 2 - 1
    z = whole.encode(rgb).latent_dist.mode()
    torch.testing.assert_close(encoder(rgb), z, atol=0, rtol=0)
    torch.testing.assert_close(decoder(z), whole.decode(z).sample, atol=0, rtol=0)
    assert decoder(z).shape == rgb.shape


def test_diffusers_is_not_spoilt_by_a_first_import_without_memory() -> None:
    """Networks are built on meta before they are loaded; diffusers makes its table of filters when it is imported."""
    code = (
        "import torch\n"
        "from flowshade.inverse.cosmos import CosmosEncoder\n"
        "with torch.device('meta'):\n    encoder = CosmosEncoder()\n"
        "from diffusers.models.autoencoders.autoencoder_kl_cosmos import AutoencoderKLCosmos, _WAVELETS\n"
        "assert not any(value.is_meta for value in [*_WAVELETS.values(), *encoder.buffers()])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_positions_are_sines_then_cosines_of_time_height_and_width() -> None:
    positions = SinusoidalPositions(24)
    assert positions.dims == (8, 8, 8)
    table = positions(torch.zeros(1, 1, 3, 4, 4))[0].unflatten(0, (3, 2, 2))
    angles = torch.tensor([2 * 10000 ** (-index / 4) for index in range(4)])
    torch.testing.assert_close(table[2, 1, 0, :8], torch.cat([angles.sin(), angles.cos()]))
    torch.testing.assert_close(table[2, 1, 0, 8:16], torch.cat([(angles / 2).sin(), (angles / 2).cos()]))
    torch.testing.assert_close(table[2, 1, 0, 16:], torch.tensor([0.0] * 4 + [1.0] * 4))


def test_the_released_widths_divide_as_published() -> None:
    assert SinusoidalPositions(4096).dims == (1368, 1364, 1364)


def test_latents_that_do_not_fit_are_refused() -> None:
    network = CosmosNetwork(COSMOS)
    for shape in ((1, 4, 3, 5, 6), (1, 3, 3, 4, 6), (1, 4, 17, 4, 6)):
        with pytest.raises(ValueError, match="multiples of 16 pixels"):
            network(torch.zeros(shape), torch.zeros(shape), torch.zeros(1), "depth")


@pytest.mark.parametrize("shape", [(4, 3), (12,), (1, 4, 3, 1, 1)])
def test_statistics_come_in_any_shape_of_the_same_rows(shape: tuple[int, ...]) -> None:
    statistics = LatentStatistics(shape, 4)
    statistics.mean.copy_(torch.arange(12.0).reshape(shape) + 0.001)
    mean, _ = statistics.rows(slice(1, 3))
    assert mean.shape == (1, 4, 2, 1, 1)
    assert mean[0, 2, 0, 0, 0] == 7.0  # in bfloat16's precision
    with pytest.raises(ValueError, match="the file has those of 3; take chunks of at most 17 pictures"):
        statistics.rows(slice(0, 4))
