"""The inverse: whole clip equals stream, memory is bounded, only the past is seen."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from flowshade.checkpoints.store import load_inverse_file, load_state, save_inverse, save_state
from flowshade.inverse.network import VALUES, ConvGRU, Estimate, InverseNetwork
from flowshade.inverse.stream import Inverse
from flowshade.presets import compact_inverse, debug_inverse

FIELDS = ("albedo", "normal", "depth", "roughness", "metallic", "error", "sky")


@pytest.fixture
def network() -> InverseNetwork:
    torch.manual_seed(0)
    network = InverseNetwork(debug_inverse()).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)  # fresh weights hardly let the past through
            if not parameter.any():
                parameter.normal_(std=0.2)  # what begins as nothing
    return network


def joined(parts: list[Estimate]) -> Estimate:
    return Estimate(**{name: torch.cat([getattr(part, name) for part in parts], 1) for name in FIELDS})


@pytest.mark.parametrize("cuts", [(1,) * 9, (4, 5), (2, 6, 1), (8, 1)])
@torch.no_grad()
def test_whole_clip_equals_stream(network: InverseNetwork, cuts: tuple[int, ...]):
    rgb = torch.rand(2, 9, 3, 32, 48)
    focal = torch.tensor([1.2, 0.0])
    whole, _ = network(rgb, focal)
    parts, state = [], None
    for run in rgb.split(cuts, 1):
        estimate, state = network(run, focal, state)
        parts.append(estimate)
    streamed = joined(parts)
    for name in FIELDS:
        torch.testing.assert_close(getattr(streamed, name), getattr(whole, name), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_what_comes_later_changes_nothing_before(network: InverseNetwork):
    rgb = torch.rand(1, 6, 3, 32, 48)
    other = rgb.clone()
    other[:, 4:] = torch.rand(1, 2, 3, 32, 48)
    first, second = network(rgb)[0], network(other)[0]
    torch.testing.assert_close(first.depth[:, :4], second.depth[:, :4])
    assert (first.depth[:, 4:] - second.depth[:, 4:]).abs().max() > 1e-4


@torch.no_grad()
def test_the_past_is_used_and_does_not_grow(network: InverseNetwork):
    rgb = torch.rand(1, 12, 3, 32, 48)
    state, sizes = None, []
    for frame in rgb.split(1, 1):
        estimate, state = network(frame, None, state)
        sizes.append(state.layers[0].keys.shape[2])
    tokens = 2 * 3
    assert sizes == [tokens * min(count, network.config.remembered) for count in range(1, 13)]
    assert (estimate.depth - network(rgb[:, -1:])[0].depth).abs().max() > 1e-4


@torch.no_grad()
def test_a_known_focal_length_matters_and_streams_of_a_batch_do_not_mix(network: InverseNetwork):
    rgb = torch.rand(1, 2, 3, 32, 48).expand(3, -1, -1, -1, -1)
    depth = network(rgb, torch.tensor([0.0, 0.7, 2.0]))[0].depth
    assert (depth[0] - depth[1]).abs().max() > 1e-5
    assert (depth[1] - depth[2]).abs().max() > 1e-5
    torch.testing.assert_close(network(rgb[:1], None)[0].depth[0], depth[0])


@torch.no_grad()
def test_values_lie_in_their_ranges(network: InverseNetwork):
    estimate, _ = network(torch.rand(1, 2, 3, 32, 48))
    for name in ("albedo", "roughness", "metallic"):
        assert getattr(estimate, name).min() >= 0 and getattr(estimate, name).max() <= 1
    torch.testing.assert_close(estimate.normal.norm(dim=2), torch.ones(1, 2, 32, 48))
    assert estimate.error.shape[2] == 5


def test_gradients_reach_every_parameter(network: InverseNetwork):
    estimate, _ = network(torch.rand(1, 3, 3, 32, 48), torch.tensor([1.0]))
    torch.stack([getattr(estimate, name).square().mean() for name in FIELDS]).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in network.parameters())


def test_a_gated_unit_with_a_shut_gate_keeps_what_it_has():
    gru = ConvGRU(4, 3)
    with torch.no_grad():
        gru.gates.bias.fill_(-50)
        gru.gates.weight.zero_()
    kept = torch.randn(1, 3, 2, 2)
    torch.testing.assert_close(gru(torch.randn(1, 5, 4, 2, 2), kept), kept[:, None].expand(-1, 5, -1, -1, -1))


@pytest.mark.parametrize("shape", [(1, 0, 3, 32, 48), (1, 1, 3, 30, 48), (1, 1, 4, 32, 48)])
def test_pictures_of_a_wrong_shape_are_refused(network: InverseNetwork, shape: tuple[int, ...]):
    with pytest.raises(ValueError, match="multiples of 16"):
        network(torch.zeros(shape))


@torch.no_grad()
def test_what_refines_begins_as_nothing_and_old_files_load(tmp_path):
    torch.manual_seed(0)
    plain = Inverse(dataclasses.replace(debug_inverse(), refined=False)).eval()
    refined = Inverse(debug_inverse()).eval()
    state = {**refined.state_dict(), **plain.state_dict()}
    added = state.keys() - plain.state_dict().keys()
    assert added and not any(state[name].any() for name in added if "hidden" not in name)
    refined.load_state_dict(state)
    rgb = torch.rand(1, 3, 3, 32, 48)
    for name in FIELDS:
        assert torch.equal(getattr(refined.network(rgb)[0], name), getattr(plain.network(rgb)[0], name))
    save_inverse(plain, tmp_path / "new.safetensors", dtype=torch.float32)
    tensors, metadata = load_state(tmp_path / "new.safetensors")
    config = {name: value for name, value in json.loads(metadata["config"]).items() if name != "refined"}
    save_state(tensors, tmp_path / "old.safetensors", {**metadata, "config": json.dumps(config)})
    old = load_inverse_file(tmp_path / "old.safetensors")
    assert not old.config.refined
    assert torch.equal(old.network(rgb)[0].normal, plain.network(rgb)[0].normal)


def test_the_model_that_ships_is_small():
    count = sum(parameter.numel() for parameter in InverseNetwork(compact_inverse()).parameters())
    assert 2.7e6 < count < 3.2e6
    assert VALUES == 15
