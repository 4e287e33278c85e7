"""Renderers on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from flowshade.checkpoints.store import (
    config_from_dict,
    fingerprint,
    keys_md5,
    load_renderer_file,
    load_state,
    read_metadata,
    save_renderer,
    save_state,
)
from flowshade.errors import CheckpointError
from flowshade.files import WriteError
from flowshade.presets import compact_renderer, debug_renderer
from flowshade.renderer.renderer import Renderer, RendererConfig


@pytest.fixture
def renderer() -> Renderer:
    torch.manual_seed(0)
    return Renderer(debug_renderer())


def test_float32_comes_back_exactly(renderer: Renderer, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    digest = save_renderer(renderer, path, dtype=torch.float32, extra={"step": "12"})
    loaded = load_renderer_file(path)
    assert loaded.config == renderer.config and not loaded.training
    assert fingerprint(loaded.state_dict()) == fingerprint(renderer.state_dict()) == digest
    assert read_metadata(path)["step"] == "12"
    assert [item.name for item in tmp_path.iterdir()] == ["model.safetensors"]


def test_bfloat16_halves_the_matrices_and_keeps_the_vectors(renderer: Renderer, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_renderer(renderer, path)
    loaded = load_renderer_file(path).state_dict()
    stored, _ = load_state(path)
    for name, value in renderer.state_dict().items():
        assert loaded[name].dtype == torch.float32
        assert stored[name].dtype == (torch.bfloat16 if value.ndim > 1 else torch.float32)
        assert torch.equal(loaded[name], value.to(stored[name].dtype).float())


def test_loading_leaves_random_numbers_alone(renderer: Renderer, tmp_path: Path) -> None:
    save_renderer(renderer, tmp_path / "model.safetensors")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_renderer_file(tmp_path / "model.safetensors")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("config", [compact_renderer(), debug_renderer()])
def test_configurations_survive_json(config: RendererConfig) -> None:
    assert config_from_dict(RendererConfig, json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_configurations_from_before_a_field_was_added() -> None:
    config = debug_renderer()
    values = json.loads(json.dumps(dataclasses.asdict(config)))
    del values["transformer"]["keep_first"]
    assert config_from_dict(RendererConfig, values) == config
    del values["transformer"]["heads"]
    with pytest.raises(ValueError, match=r"misses \['heads'\]"):
        config_from_dict(RendererConfig, values)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="found nothing"):
        load_renderer_file(tmp_path / "absent.safetensors")
    with pytest.raises(CheckpointError, match="found a folder"):
        load_renderer_file(tmp_path)


def test_other_formats_and_cut_files(renderer: Renderer, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"not a model")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        load_renderer_file(path)
    save_renderer(renderer, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        load_renderer_file(path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="format is None"):
        load_renderer_file(path)


def test_damage_is_noticed(renderer: Renderer, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_renderer(renderer, path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="damaged"):
        load_renderer_file(path)


def altered(path: Path, state: dict[str, Tensor], **changes: str) -> None:
    _, metadata = load_state(path)
    save_state(state, path, {**metadata, "fingerprint": fingerprint(state), **changes})


def test_wrong_tensors_are_named(renderer: Renderer, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_renderer(renderer, path)
    state, _ = load_state(path)
    state["decoder.half_out.weight"] = state["decoder.half_out.weight"][:1].clone()
    state["decoder.surplus"] = state.pop("decoder.latent_mean")
    altered(path, state)
    with pytest.raises(CheckpointError) as caught:
        load_renderer_file(path)
    message = str(caught.value)
    assert "missing 1: decoder.latent_mean" in message and "unknown 1: decoder.surplus" in message
    assert re.search(r"other shapes 1: decoder.half_out.weight: \(1, .*instead of \(24, ", message)


def test_a_wrong_configuration_is_a_sentence(renderer: Renderer, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_renderer(renderer, path)
    state, metadata = load_state(path)
    config = json.loads(metadata["config"])
    altered(path, state, config=json.dumps({**config, "novelty": 1}))
    with pytest.raises(CheckpointError, match=r"unknown fields \['novelty'\]"):
        load_renderer_file(path)
    altered(path, state, config="{")
    with pytest.raises(CheckpointError, match="cannot be used"):
        load_renderer_file(path)


def test_a_failed_save_leaves_the_old_file(renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    save_renderer(renderer, path)
    before = path.read_bytes()

    def fail(state: dict, target: Path, metadata: dict) -> None:
        Path(target).write_bytes(b"half a fi")
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(WriteError, match="disk full"):
        save_renderer(renderer, path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["model.safetensors"]


def test_saving_needs_a_folder_and_free_names(renderer: Renderer, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Make it first"):
        save_renderer(renderer, tmp_path / "nowhere" / "model.safetensors")
    with pytest.raises(ValueError, match="reserved"):
        save_renderer(renderer, tmp_path / "model.safetensors", extra={"config": ""})


def test_fingerprint_sees_names_shapes_types_and_values() -> None:
    base = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    variants = [
        base,
        {"a": torch.zeros(3, 2), "b": torch.ones(1)},
        {"c": torch.zeros(2, 3), "b": torch.ones(1)},
        {"a": torch.zeros(2, 3, dtype=torch.float16), "b": torch.ones(1)},
        {"a": torch.zeros(2, 3), "b": torch.ones(1) + 1e-6},
    ]
    assert len({fingerprint(variant) for variant in variants}) == len(variants)
    assert fingerprint(dict(reversed(base.items()))) == fingerprint(base)


def wan_shapes(in_channels: int) -> dict[str, Tensor]:
    """Names and shapes of Wan2.1-T2V-1.3B, without storage."""
    dim, ffn = 1536, 8960
    shapes: dict[str, tuple[int, ...]] = {"patch_embedding.weight": (dim, in_channels, 1, 2, 2)}

    def linear(name: str, outputs: int, inputs: int) -> None:
        shapes.update({f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)})

    shapes["patch_embedding.bias"] = (dim,)
    for name, outputs, inputs in (
        ("text_embedding.0", dim, 4096),
        ("text_embedding.2", dim, dim),
        ("time_embedding.0", dim, 256),
        ("time_embedding.2", dim, dim),
        ("time_projection.1", 6 * dim, dim),
        ("head.head", 64, dim),
    ):
        linear(name, outputs, inputs)
    shapes["head.modulation"] = (1, 2, dim)
    for block in (f"blocks.{index}" for index in range(30)):
        shapes[f"{block}.modulation"] = (1, 6, dim)
        for attention in ("self_attn", "cross_attn"):
            for part in "qkvo":
                linear(f"{block}.{attention}.{part}", dim, dim)
            shapes.update({f"{block}.{attention}.norm_{part}.weight": (dim,) for part in "qk"})
        shapes.update({f"{block}.norm3.{part}": (dim,) for part in ("weight", "bias")})
        linear(f"{block}.ffn.0", ffn, dim)
        linear(f"{block}.ffn.2", dim, ffn)
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("channels", "published"),
    [(16, "9269f8db9040a9d860eaca435be61814"), (96, "a87823c16fa5119ca6ef32cefc0be86d")],
)
def test_keys_md5_equals_published_hashes(channels: int, published: str) -> None:
    state = wan_shapes(channels)
    assert len(state) == 825
    assert keys_md5(state) == published


def test_keys_md5_by_hand() -> None:
    expected = hashlib.md5(b"a,a:2_3").hexdigest()
    assert keys_md5({"a": torch.zeros(2, 3)}) == expected
