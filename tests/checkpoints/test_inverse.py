"""The 7B inverse's files: names, strict loading, and wrong ones told apart in a sentence."""

from __future__ import annotations

import importlib.util
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flowshade.checkpoints.catalogue import alaya_inverse, cosmos_inverse
from flowshade.checkpoints.doctor import check_part, diagnose
from flowshade.checkpoints.files import open_tensors
from flowshade.checkpoints.inverse import load_diffusion_inverse
from flowshade.checkpoints.loading import find_parts, load_part
from flowshade.checkpoints.store import keys_md5
from flowshade.errors import CheckpointError
from flowshade.inverse.diffusion import DiffusionConfig
from flowshade.types import Frames
from flowshade.upstream import check_render
from tests.checkpoints.originals import (
    COSMOS_CHUNK,
    build,
    cosmos_name,
    cosmos_tokenizer_name,
    save_torchscript,
    small_inverse,
    write_inverse,
)

NAMES = {"transformer": cosmos_name, "encoder": cosmos_tokenizer_name, "decoder": cosmos_tokenizer_name}
DIT = Path("Diffusion_Renderer_Inverse_Cosmos_7B", "model.pt")
TOKENIZER = Path("Cosmos-Tokenize1-CV8x8x8-720p")
SMALL = DiffusionConfig(chunk=COSMOS_CHUNK, overlap=9, size=None, steps=2)


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, dict[str, Tensor]]]:
    """A tiny alaya-inverse as upstream lays it out, and nothing where pulled models lie."""
    monkeypatch.setenv("FLOWSHADE_MODELS", str(tmp_path / "none"))
    folder = tmp_path / "checkpoints"
    return folder, write_inverse(folder)


@pytest.mark.parametrize("role", NAMES)
def test_full_size_names_and_shapes_are_the_published_code_s(role: str) -> None:
    """Counted on the original: 569 tensors with the positions (dropped), 7.235 G values; 310 of the tokenizer."""
    part = alaya_inverse().part(role)
    with torch.device("meta"):
        state = build(alaya_inverse(), role).state_dict()
    theirs = {NAMES[role](name): value for name, value in state.items()}
    assert len(theirs) == {"transformer": 569 - 1, "encoder": 138, "decoder": 310 - 138}[role]
    assert part.fingerprint == cosmos_inverse().part(role).fingerprint == keys_md5(theirs)
    if role == "transformer":
        assert round(sum(value.numel() for value in state.values()) / 1e9, 3) == 7.235
    naming = part.keymaps[0]
    assert not naming.unknown(theirs)
    assert naming.mapping(theirs) == {name: NAMES[role](name) for name in state}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("x_embedder.proj.1.weight", "transformer.patch_embed.proj.weight"),
        ("blocks.block27.blocks.1.block.attn.to_k.1.weight", "transformer.transformer_blocks.27.attn2.norm_k.weight"),
        ("blocks.block3.blocks.2.adaLN_modulation.2.weight", "transformer.transformer_blocks.3.norm3.linear_2.weight"),
        ("pos_embedder.seq", None),
        ("blocks.block0.blocks.0.block.attn.attn_op._extra_state", None),
    ],
)
def test_names_of_the_transformer(theirs: str, ours: str | None) -> None:
    assert small_inverse().part("transformer").keymaps[0].rename(theirs) == (True, ours)


@pytest.mark.parametrize(
    ("role", "theirs", "ours"),
    [
        ("decoder", "decoder.up.2.block.1.conv1.0.conv3d.bias", "decoder.up_blocks.0.resnets.1.conv1.conv_s.bias"),
        ("encoder", "encoder.mid.attn_1.1.q.conv3d.bias", "encoder.mid_block.temp_attentions.0.to_q.bias"),
        ("encoder", "encoder.mid.block_2.nin_shortcut.conv3d.bias", "encoder.mid_block.resnets.1.conv_shortcut.bias"),
        ("encoder", "encoder.down.1.downsample.conv2.conv3d.bias", "encoder.down_blocks.1.downsamplers.0.conv2.bias"),
        ("encoder", "encoder.patcher3d.wavelets", None),
    ],
)  # fmt: skip
def test_names_of_the_tokenizer(role: str, theirs: str, ours: str | None) -> None:
    assert small_inverse().part(role).keymaps[0].rename(theirs) == (True, ours)


@pytest.mark.parametrize("role", [*NAMES, "statistics"])
def test_values_arrive_under_our_names(role: str, released) -> None:
    folder, states = released
    paths = find_parts(small_inverse(), folder)
    loaded = load_part(small_inverse().part(role), paths[role]).state_dict()
    assert loaded.keys() == states[role].keys()
    for name, value in states[role].items():
        assert torch.equal(loaded[name], value), name


@pytest.mark.parametrize("given", [Path(), DIT])
def test_it_loads_by_upstream_s_folder_or_by_the_transformer_s_file(given: Path, released) -> None:
    folder, _ = released
    inverse = load_diffusion_inverse(small_inverse(), folder / given, device="cpu", config=SMALL)
    assert inverse.config.name == "alaya-inverse"
    made = list(inverse.invert([Frames(rgb=torch.rand(3, 3, 16, 32))]))
    assert [part.gbuffer.frames for part in made] == [3]


def test_it_loads_in_another_type(released) -> None:
    folder, _ = released
    inverse = load_diffusion_inverse(small_inverse(), folder, device="cpu", dtype=torch.bfloat16, config=SMALL)
    assert [part.dtype for part in (inverse.network, inverse.encoder)] == [torch.bfloat16, torch.float32]
    (made,) = inverse.invert([Frames(rgb=torch.rand(2, 3, 16, 32))])
    assert made.codes["albedo"].dtype == torch.float32 and made.codes["albedo"].isfinite().all()


def test_nothing_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWSHADE_MODELS", str(tmp_path))
    with pytest.raises(CheckpointError, match="alaya-inverse lacks its transformer .* models pull alaya-inverse"):
        load_diffusion_inverse("alaya-inverse", device="cpu")


class _Code:
    def __reduce__(self):
        return print, ("code ran",)


def wrong_file(kind: str, folder: Path) -> tuple[str, str]:
    """Spoils a part of a released folder; returns its role and what must be said."""
    dit, encoder = folder / DIT, folder / TOKENIZER / "encoder.jit"
    state = torch.load(dit, weights_only=False)["model"]
    match kind:
        case "missing":
            dit.unlink()
            return "transformer", "no model.pt or .* pull it with: flowshade models pull alaya-inverse"
        case "tokenizer given as transformer":
            shutil.copy(encoder, dit)
            return "transformer", "is the encoder of Cosmos' tokenizer; expected .*inverse transformer.*the right file"
        case "transformer given as tokenizer":
            torch.save({name: value for name, value in state.items() if isinstance(value, Tensor)}, encoder)
            return "encoder", "is a transformer of Cosmos DiffusionRenderer; expected the encoder"
        case "decoder given as encoder":
            shutil.copy(folder / TOKENIZER / "decoder.jit", encoder)
            return "encoder", "is the decoder of Cosmos' tokenizer; expected the encoder"
        case "wrong number of layers":
            torch.save({name: value for name, value in state.items() if ".block1." not in name}, dit)
            return "transformer", "has 1 layers; expected 2"
        case "forward renderer":
            name = "net.x_embedder.proj.1.weight"
            torch.save(state | {name: torch.zeros(24, 84)}, dit)
            return "transformer", r"patch_embed.proj.weight is \(24, 84\) instead of \(24, 36\)"
        case "no table of buffers":
            torch.save({name: value for name, value in state.items() if "context" not in name}, dit)
            return "transformer", "context_embedding.weight is missing"
        case "truncated":
            dit.write_bytes(dit.read_bytes()[:-1000])
            return "transformer", "not a readable PyTorch file .*cut short.*download it again"
        case "truncated tokenizer":
            encoder.write_bytes(encoder.read_bytes()[:-1000])
            return "encoder", "not a readable PyTorch file .*cut short"
        case "wrong type":
            state = {name: value for name, value in state.items() if isinstance(value, Tensor)}
            torch.save({name: value.to(torch.int8) for name, value in state.items()}, dit)
            return "transformer", "holds int8 values; expected bfloat16, float16, float32"
        case "code":
            dit.write_bytes(pickle.dumps({"net.x_embedder.proj.1.weight": _Code()}, protocol=2))
            return "transformer", "holds more than tensors .* was refused: .*can run code"
        case "code in a torch file":
            torch.save(state | {"net.x_embedder.proj.1.weight": _Code()}, dit)
            return "transformer", "holds more than tensors .* was refused: .*can run code"
        case "code in the tokenizer":
            torch.save({"encoder.conv_in.0.conv3d.weight": _Code()}, encoder)
            return "encoder", "holds more than tensors .* was refused: .*can run code"
        case "statistics of other channels":
            torch.save((torch.zeros(5, 3), torch.ones(5, 3)), folder / TOKENIZER / "mean_std.pt")
            return "statistics", r"mean is \(5, 3\) instead of \(4, 8\)"
    raise AssertionError(kind)


KINDS = (
    "missing", "tokenizer given as transformer", "transformer given as tokenizer", "decoder given as encoder",
    "wrong number of layers", "forward renderer", "no table of buffers", "truncated", "truncated tokenizer",
    "wrong type", "code", "code in a torch file", "code in the tokenizer", "statistics of other channels",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_files_are_told_apart(kind: str, released, capsys) -> None:
    folder, _ = released
    role, message = wrong_file(kind, folder)
    bad = [finding for finding in diagnose(small_inverse(), folder) if finding.level == "bad"]
    assert [finding.what for finding in bad] == [role]
    with pytest.raises(CheckpointError, match=message):
        raise CheckpointError(bad[0].text)
    with pytest.raises(CheckpointError, match=message):
        load_diffusion_inverse(small_inverse(), folder, device="cpu", config=SMALL)
    assert "code ran" not in capsys.readouterr().out


def test_a_right_folder_has_nothing_bad(released) -> None:
    folder, _ = released
    findings = list(diagnose(small_inverse(), folder))
    assert not [finding for finding in findings if finding.level == "bad"]
    assert {"transformer", "encoder", "decoder", "statistics"} <= {finding.what for finding in findings}


def test_without_diffusers_the_doctor_says_what_installs_it(released, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = released
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "diffusers" else find(name))
    bad = [finding for finding in diagnose(small_inverse(), folder) if finding.level == "bad"]
    assert [finding.what for finding in bad] == ["diffusers"]
    assert "pip install 'flowshade[cosmos]'" in bad[0].text


def test_a_torchscript_s_program_is_not_run(tmp_path: Path) -> None:
    save_torchscript({"encoder.conv_in.0.conv3d.bias": torch.ones(2)}, tmp_path / "renamed.pt")
    file = open_tensors(tmp_path / "renamed.pt")
    assert list(file.info) == ["encoder.conv_in.0.conv3d.bias"]
    assert torch.equal(file.get("encoder.conv_in.0.conv3d.bias"), torch.ones(2))


def test_owners_of_weights_get_a_small_result_to_compare(released) -> None:
    folder, _ = released
    first, second = (check_render(small_inverse(), find_parts(small_inverse(), folder)) for _ in range(2))
    assert first == second and float(first["std"]) > 1


def test_a_check_leaves_out_what_is_dropped(released) -> None:
    folder, states = released
    part = small_inverse().part("transformer")
    theirs = {cosmos_name(name): value for name, value in states["transformer"].items()}
    assert check_part(part, folder / DIT).fingerprint == keys_md5(theirs)


def test_doctor_says_whether_the_weights_fit(released, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = released

    def room() -> list[tuple[str, str]]:
        return [(item.level, item.text) for item in diagnose(small_inverse(), folder) if item.what == "room"]

    ((level, text),) = room()
    assert level == "good" and "its weights fit on" in text
    monkeypatch.setattr("flowshade.checkpoints.inverse.free_memory", lambda device: 1000)
    ((level, text),) = room()
    assert level == "note" and "GiB free" in text
