"""Upstream's files: names, prefixes, shards and pickles load strictly; wrong ones are told apart in a sentence."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from flowshade.checkpoints.catalogue import MODELS, alaya_flash, alaya_forward
from flowshade.checkpoints.doctor import check_part, diagnose
from flowshade.checkpoints.files import open_tensors
from flowshade.checkpoints.keymaps import TAEHV, clean_name
from flowshade.checkpoints.loading import examine, find_parts, load_part
from flowshade.checkpoints.store import keys_md5
from flowshade.errors import CheckpointError
from flowshade.renderer.upstream import flash_transformer, forward_transformer
from tests.checkpoints.originals import (
    SMALL,
    build,
    random_state,
    small_flash,
    small_forward,
    t5_name,
    vae_name,
    wan_name,
    write_forward,
)


@pytest.fixture
def released(tmp_path: Path) -> tuple[Path, dict[str, dict[str, Tensor]]]:
    """A tiny alaya-forward as upstream lays it out."""
    return tmp_path, write_forward(tmp_path)


ROLES = {"transformer": wan_name, "vae": vae_name, "text_encoder": t5_name}


@pytest.mark.parametrize("role", ROLES)
def test_full_size_names_and_shapes_are_the_released_ones(role: str) -> None:
    """The published fingerprints, from our networks' names put back into upstream's by a table of the tests' own."""
    part = alaya_forward().part(role)
    with torch.device("meta"):
        state = build(alaya_forward(), role).state_dict()
    state.pop("encoder.embed_tokens.weight", None)  # tied
    theirs = {ROLES[role](name): value for name, value in state.items()}
    assert keys_md5(theirs) == part.fingerprint
    naming = part.keymaps[0]
    assert not naming.unknown(theirs)
    assert naming.mapping(theirs).keys() - {"encoder.embed_tokens.weight"} == state.keys()


def test_the_base_model_s_fingerprint() -> None:
    part = alaya_forward(forward_transformer(buffer_channels=0)).part("transformer")
    assert part.build is not None
    with torch.device("meta"):
        state = part.build({}).state_dict()
    assert keys_md5({wan_name(name): value for name, value in state.items()}) == "9269f8db9040a9d860eaca435be61814"


@pytest.mark.parametrize("role", ROLES)
def test_values_arrive_under_our_names(role: str, released) -> None:
    folder, states = released
    paths = find_parts(small_forward(), folder)
    network = load_part(small_forward().part(role), paths[role], dtype=torch.float32)
    loaded = network.state_dict()
    for name, value in states[role].items():
        expected = value.bfloat16().float() if role == "text_encoder" else value.float()
        assert torch.equal(loaded[name], expected), name
    if role == "text_encoder":
        assert torch.equal(loaded["encoder.embed_tokens.weight"], loaded["shared.weight"])


def test_weights_keep_their_type_and_are_mapped(released) -> None:
    folder, _ = released
    network = load_part(small_forward().part("transformer"), folder / "model.safetensors")
    assert {parameter.dtype for parameter in network.parameters()} == {torch.bfloat16}
    assert not any(parameter.is_meta or parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("model.blocks.0.ffn.0.weight", "blocks.0.ffn.0.weight"),
        ("net.module.blocks.0.x", "blocks.0.x"),
        ("model._fsdp_wrapped_module.blocks.3._checkpoint_wrapped_module.norm3.bias", "blocks.3.norm3.bias"),
        ("_orig_mod.head.head.weight", "head.head.weight"),
        ("blocks.0.self_attn.q.weight", "blocks.0.self_attn.q.weight"),
    ],
)
def test_prefixes(name: str, clean: str) -> None:
    assert clean_name(name) == clean


@pytest.mark.parametrize("prefix", ["model.", "_fsdp_wrapped_module.", "net._orig_mod."])
@pytest.mark.parametrize("nest", [None, "generator_ema", "state_dict"])
def test_trainers_files_load(prefix: str, nest: str | None, tmp_path: Path) -> None:
    part = small_forward().part("transformer")
    ours = random_state(build(small_forward(), "transformer"))
    state = {prefix + wan_name(name): value for name, value in ours.items()}
    other = {"critic": {"x": torch.zeros(1)}, "step": 7}
    torch.save(state if nest is None else {nest: state, **other}, tmp_path / "run.pt")
    loaded = load_part(part, tmp_path / "run.pt").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in ours.items())


def write_shards(folder: Path, state: dict[str, Tensor], count: int = 3) -> Path:
    names = sorted(state)
    places = {name: f"part-{index % count:05d}-of-{count:05d}.safetensors" for index, name in enumerate(names)}
    for place in set(places.values()):
        save_file({name: state[name] for name in names if places[name] == place}, folder / place)
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index


def test_shards_load_from_their_folder_or_index(tmp_path: Path) -> None:
    model = small_flash()
    ours = random_state(build(model, "transformer"))
    index = write_shards(tmp_path, ours)
    for path in (tmp_path, index):
        loaded = load_part(model.part("transformer"), path).state_dict()
        assert all(torch.equal(loaded[name], value) for name, value in ours.items())
    (tmp_path / "part-00001-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lists 3 shards and 1 are not beside it: part-00001"):
        open_tensors(tmp_path)


@pytest.mark.parametrize("history_buffers", [False, True])
@pytest.mark.parametrize("amplify", [False, True])
def test_flash_s_unpublished_choices_are_read_from_the_file(
    history_buffers: bool, amplify: bool, tmp_path: Path
) -> None:
    config = flash_transformer(**SMALL, history_buffers=history_buffers, amplify_history=amplify)
    ours = random_state(build(alaya_flash(config), "transformer") if not amplify else _amplified(config))
    save_file(ours, tmp_path / "transformer.safetensors")
    network = load_part(small_flash().part("transformer"), tmp_path / "transformer.safetensors")
    assert (network.config.history_buffers, network.config.amplify_history) == (history_buffers, amplify)
    assert network.patch_short.weight.shape[1] == (24 if history_buffers else 4)


def _amplified(config):
    from flowshade.renderer.transformer import WorldTransformer

    return WorldTransformer(config)


def test_a_partial_file_replaces_what_it_holds(tmp_path: Path) -> None:
    model = small_flash()
    ours = random_state(build(model, "transformer"))
    patch = {"patch_embedding.bias": torch.full_like(ours["patch_embedding.bias"], 7.0)}
    save_file(ours, tmp_path / "transformer.safetensors")
    save_file(patch, tmp_path / "transformer_partial.safetensors")
    part, over = model.part("transformer"), model.part("transformer_partial")
    overlays = ((over, tmp_path / "transformer_partial.safetensors"),)
    loaded = load_part(part, tmp_path / "transformer.safetensors", overlays=overlays).state_dict()
    assert torch.equal(loaded["patch_embedding.bias"], patch["patch_embedding.bias"])
    assert torch.equal(loaded["proj_out.weight"], ours["proj_out.weight"])
    save_file({"patch_embedding.bias": torch.zeros(3)}, tmp_path / "transformer_partial.safetensors")
    with pytest.raises(CheckpointError, match="does not fit .*patch_embedding.bias"):
        load_part(part, tmp_path / "transformer.safetensors", overlays=overlays)
    save_file({"text_sink": torch.zeros(3)}, tmp_path / "transformer_partial.safetensors")
    with pytest.raises(CheckpointError, match="something unknown .1 tensors: text_sink"):
        load_part(part, tmp_path / "transformer.safetensors", overlays=overlays)


def test_taehv_s_names_load_without_its_encoder(tmp_path: Path) -> None:
    model = small_flash()
    ours = random_state(build(model, "decoder"))
    state = {"encoder.0.weight": torch.zeros(2)}
    for name, value in ours.items():
        parts = name.split(".")
        if parts[0] == "stages":
            first = (3, 9, 15)[int(parts[1])]
            if parts[2] == "blocks":
                theirs = f"decoder.{first + int(parts[3])}.{'.'.join(parts[4:])}"
            else:
                theirs = f"decoder.{first + 4}.conv.weight" if parts[2] == "grow" else f"decoder.{first + 5}.weight"
        else:
            theirs = f"decoder.{1 if parts[0] == 'conv_in' else 22}.{parts[1]}"
        state[theirs] = value
    assert not TAEHV.unknown(state)
    save_file(state, tmp_path / "taew2_1_ft.safetensors")
    loaded = load_part(model.part("decoder"), tmp_path / "taew2_1_ft.safetensors").state_dict()
    assert loaded.keys() == ours.keys()
    assert all(torch.equal(loaded[name], value) for name, value in ours.items())


class _Code:
    def __reduce__(self):
        return print, ("code ran",)


def wrong_file(kind: str, folder: Path) -> tuple[str, str]:
    """Spoils a part of a released folder; returns its role and what must be said."""
    model, dit = folder / "model.safetensors", load_file(folder / "model.safetensors")
    vae = torch.load(folder / "Wan2.1_VAE.pth", weights_only=True)
    match kind:
        case "missing":
            model.unlink()
            return "transformer", "no model.safetensors or .* pull it with: flowshade models pull alaya-forward"
        case "VAE given as transformer":
            save_file(vae, model)
            return "transformer", "is a Wan VAE; expected 96-channel fine-tune .* Give the right file"
        case "base model of 16 channels":
            dit["patch_embedding.weight"] = dit["patch_embedding.weight"][:, :4].contiguous()
            save_file(dit, model)
            return "transformer", "whose patch_embedding takes 4 channels; expected the 24-channel fine-tune"
        case "truncated":
            model.write_bytes(model.read_bytes()[:-1000])
            return "transformer", "not a readable safetensors file .*cut short.*download it again"
        case "truncated pickle":
            path = folder / "Wan2.1_VAE.pth"
            path.write_bytes(path.read_bytes()[:-1000])
            return "vae", "not a readable PyTorch file .*cut short"
        case "code":
            with (folder / "Wan2.1_VAE.pth").open("wb") as file:
                pickle.dump({"decoder.conv1.weight": _Code()}, file)
            return "vae", "holds more than tensors .* was refused: .*can run code"
        case "code in a torch file":
            torch.save({"decoder.conv1.weight": _Code()}, folder / "Wan2.1_VAE.pth")
            return "vae", "holds more than tensors .* was refused: .*can run code"
        case "wrong type":
            save_file({name: value.to(torch.int8) for name, value in dit.items()}, model)
            return "transformer", "holds int8 values; expected bfloat16, float16, float32"
        case "wrong number of layers":
            save_file({name: value for name, value in dit.items() if not name.startswith("blocks.1.")}, model)
            return "transformer", "has 1 layers; expected 2"
        case "one tensor too many":
            save_file(dit | {"blocks.0.lora_up.weight": torch.zeros(2)}, model)
            return "transformer", "holds 1 tensors that .* does not have .blocks.0.lora_up.weight"
        case "one tensor too few":
            save_file({name: value for name, value in dit.items() if name != "head.modulation"}, model)
            return "transformer", "norm_out.scale_shift_table is missing"
        case "no tokenizer":
            (folder / "google" / "umt5-xxl" / "tokenizer.json").unlink()
            return "tokenizer", "holds none of tokenizer.json"
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "missing",
        "VAE given as transformer",
        "base model of 16 channels",
        "truncated",
        "truncated pickle",
        "code",
        "code in a torch file",
        "wrong type",
        "wrong number of layers",
        "one tensor too many",
        "one tensor too few",
        "no tokenizer",
    ],
)
def test_wrong_files_are_told_apart(kind: str, released, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    folder, _ = released
    monkeypatch.setenv("FLOWSHADE_MODELS", str(folder / "empty"))
    role, message = wrong_file(kind, folder)
    bad = [finding for finding in diagnose(small_forward(), folder) if finding.level == "bad"]
    assert [finding.what for finding in bad] == [role]
    with pytest.raises(CheckpointError, match=message):
        raise CheckpointError(bad[0].text)
    if role != "tokenizer":
        with pytest.raises(CheckpointError, match=message):
            load_part(small_forward().part(role), find_parts(small_forward(), folder)[role])
    assert "code ran" not in capsys.readouterr().out


def test_a_right_folder_has_nothing_bad(released) -> None:
    folder, _ = released
    findings = list(diagnose(small_forward(), folder))
    assert not [finding for finding in findings if finding.level == "bad"]
    assert {"torch", "memory", "disk", "transformer", "vae", "text_encoder"} <= {finding.what for finding in findings}


def test_another_type_of_float_is_only_noted(released) -> None:
    folder, _ = released
    state = load_file(folder / "model.safetensors")
    save_file({name: value.float() for name, value in state.items()}, folder / "model.safetensors")
    examined = examine(small_forward().part("transformer"), folder / "model.safetensors")
    assert not examined.problems
    assert "is float32; released as bfloat16" in examined.notes[0]


def test_a_transformer_s_path_finds_what_lies_beside_it(released, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = released
    other = folder / "elsewhere.safetensors"
    (folder / "model.safetensors").rename(other)
    assert find_parts(small_forward(), other)["transformer"] == other
    assert find_parts(small_forward(), other)["vae"] == folder / "Wan2.1_VAE.pth"
    monkeypatch.setenv("FLOWSHADE_MODELS", str(folder / "none"))
    with pytest.raises(CheckpointError, match="lacks its transformer"):
        find_parts(small_forward(), None)


def test_a_check_tells_damage(released) -> None:
    folder, states = released
    part, path = small_forward().part("vae"), folder / "Wan2.1_VAE.pth"
    before = check_part(part, path)
    values = torch.cat([value.flatten() for value in states["vae"].values()])
    assert (before.values, before.broken) == (values.numel(), 0)
    assert before.mean == pytest.approx(float(values.mean()), abs=1e-6)
    assert before.std == pytest.approx(float(values.double().std(correction=0)), rel=1e-6)
    state = {vae_name(name): value for name, value in states["vae"].items()}
    state["conv1.bias"] = state["conv1.bias"] * torch.nan
    torch.save(state, path)
    after = check_part(part, path)
    assert after.broken == states["vae"]["quant_conv.bias"].numel()
    assert after.sha256 != before.sha256 and after.fingerprint == before.fingerprint


def test_the_catalogue_is_complete() -> None:
    ours = ["compact", "compact-inverse"]
    assert list(MODELS) == [*ours, "alaya-forward", "alaya-flash", "alaya-inverse", "cosmos-inverse"]
    for model in MODELS.values():
        assert model.licence
        for part in model.parts:
            assert part.paths and part.gigabytes > 0
            assert (part.build is None) == (not part.keymaps or part.overlay_of is not None)
