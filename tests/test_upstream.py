"""Upstream's models from the command line and the Python interface, tiny and random, in upstream's files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from flowshade import load_renderer
from flowshade.checkpoints.catalogue import MODELS
from flowshade.checkpoints.pull import pull
from flowshade.cli import main
from flowshade.errors import CheckpointError, FlowshadeError, PromptError, StyleError
from flowshade.gbuffer.io import VideoReader, convert, open_clip
from flowshade.types import GBuffer
from flowshade.upstream import BUFFERS, alaya_prompts, coded_planes, output_folder
from tests.checkpoints.originals import small_flash, small_forward, write_flash, write_forward


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `models pull` would have put two tiny models."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "alaya-forward").mkdir()
    (folder / "alaya-flash").mkdir()
    write_forward(folder / "alaya-forward")
    write_flash(folder / "alaya-flash")
    return folder


@pytest.fixture(autouse=True)
def tiny_models(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "alaya-forward", small_forward())
    monkeypatch.setitem(MODELS, "alaya-flash", small_flash())
    monkeypatch.setenv("FLOWSHADE_MODELS", str(weights))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def flash_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of upstream's windows, 8 frames of 32x48 each."""
    folder = tmp_path_factory.mktemp("flash")
    for index in range(2):
        values = np.random.default_rng(index).integers(0, 256, (8, 5, 32, 48, 3), dtype=np.uint8)
        np.save(folder / f"window-{index:02d}.npy", values)
    return folder


def test_render_with_flash(flash_clip: Path, capsys) -> None:
    windows = [str(flash_clip / f"window-{index:02d}.npy") for index in range(2)]
    options = ["--model", "alaya-flash", "--device", "cpu", "--window", "8", "--compare"]
    assert main(["render", *windows, "-o", "out.mp4", "--prompt", "a street in snow", *options]) == 0
    with VideoReader("out.mp4") as video:
        assert (video.frames, video.size) == (16, (32, 48))
    record = json.loads(Path("out.json").read_text())
    assert (record["model"]["name"], record["steps"], record["frames"]) == ("alaya-flash", 4, 16)
    assert {"encode", "history", "transformer", "decode"} <= set(record["seconds_by_stage"])
    assert "lacks" not in capsys.readouterr().err
    assert main(["render", windows[1], "-o", "one.mp4", *options[:4]]) == 0
    with VideoReader("one.mp4") as video:
        assert video.frames == 8


def test_flash_takes_upstreams_planes_byte_for_byte(flash_clip: Path) -> None:
    with open_clip(flash_clip) as clip:
        planes = coded_planes(clip, 6, 10)
    stored = np.concatenate([np.load(flash_clip / f"window-{index:02d}.npy") for index in range(2)])[6:10]
    for index, name in enumerate(("albedo", "depth", "metallic", "normal", "roughness")):
        assert np.array_equal(planes[name].permute(0, 2, 3, 1).numpy(), stored[:, index])


def test_other_clips_are_coded(small_gbuffer: GBuffer, small_clip: Path) -> None:
    planes = coded_planes(small_gbuffer, 2, 4)
    assert {name: tuple(value.shape) for name, value in planes.items()} == dict.fromkeys(BUFFERS, (2, 3, 40, 64))
    depth = small_gbuffer.depth[2:4]
    assert torch.equal(planes["depth"][:, :1], (2550 / (depth + 10)).round().byte())
    with open_clip(small_clip) as clip:
        assert coded_planes(clip, 2, 4)["normal"].shape == (2, 3, 40, 64)
    with pytest.raises(FlowshadeError, match="lacks metallic; upstream's models take all of"):
        coded_planes(small_gbuffer.replace(metallic=None), 0, 4)


def test_flash_streams_through_the_python_interface(small_gbuffer: GBuffer) -> None:
    renderer = load_renderer("alaya-flash", device="cpu", steps=1)
    rendered = torch.cat([part.rgb for part in renderer.render(small_gbuffer, "snow", seed=3, window=4)])
    renderer.set_prompt("snow")
    renderer.reset(3)
    pushed = torch.cat([renderer.push(window).rgb for window in small_gbuffer.windows(4)])
    assert rendered.shape == (14, 3, 40, 64)
    assert torch.equal(pushed, rendered)
    with pytest.raises(CheckpointError, match="use: flowshade alaya"):
        load_renderer("alaya-forward")


def test_upstreams_own_command_runs(small_clip: Path, weights: Path, capsys) -> None:
    convert(small_clip, "session", format="video", stop=6)
    command = ["alaya", "--checkpoint", str(weights / "alaya-forward" / "model.safetensors"), "--style", "snowy_winter"]
    command += ["--prompt", "a street in snow", "--gbuffer_dir", "session", "--save_dir", "outputs/"]
    command += ["--num_frames", "5", "--height", "32", "--width", "48", "--seed", "0", "--cfg_scale", "5.0"]
    assert main([*command, "--num_inference_steps", "2"]) == 0
    path = Path("outputs/session_session/epoch27_snowy_winter.mp4")
    with VideoReader(path) as video:
        assert (video.frames, video.size, video.fps) == (5, (32, 48), 15)
    first = path.read_bytes()
    assert str(path) in capsys.readouterr().out
    assert main([*command, "--num_inference_steps", "2"]) == 0
    assert path.read_bytes() == first  # the same seed


def test_styles_in_one_batch(small_clip: Path, capsys) -> None:
    convert(small_clip, "session", format="video", stop=5)
    command = ["alaya", "--gbuffer_dir", "session", "--save_dir", "out", "--height", "32", "--width", "48"]
    command += ["--num_inference_steps", "1", "--cfg_scale", "1", "--reference"]
    assert main([*command, "--styles", "original", "underwater", "--prompt", "A street; the scene is dim."]) == 0
    names = {path.name for path in Path("out/session_session").iterdir()}
    assert names == {"epoch27_original.mp4", "epoch27_underwater.mp4"}
    assert "the clip has 5 frames; 81 were asked for" in capsys.readouterr().err
    assert main([*command, "--styles", "sunny", "--prompt", "x"]) == 2
    assert "unknown style 'sunny'; expected one of original, bright_sunny" in capsys.readouterr().err
    assert main(command) == 2
    assert "there is no caption; give --prompt TEXT, or --caption_csv" in capsys.readouterr().err


def test_prompts_as_upstream_finds_them(tmp_path: Path) -> None:
    nothing = {
        "style": None,
        "prompt": None,
        "styles": None,
        "styles_json": None,
        "caption_csv": None,
        "clip": "clip_0052",
    }
    assert alaya_prompts(**nothing | {"style": "snow", "prompt": "as it is"}) == {"snow": "as it is"}
    table = tmp_path / "captions.csv"
    table.write_text('video,prompt\n"day/clip_0052/clip_0052_rgb.mp4","A man; the scene is dim."\n')
    words = tmp_path / "styles.json"
    words.write_text('{"plain": null, "red": "all is red"}')
    found = alaya_prompts(**nothing | {"caption_csv": table, "styles_json": words})
    assert found == {"plain": "A man; the scene is dim.", "red": "A man; all is red"}
    with pytest.raises(PromptError, match="no caption for clip_9 in 1 rows"):
        alaya_prompts(**nothing | {"caption_csv": table, "clip": "clip_9"})
    with pytest.raises(StyleError, match="is not a styles file"):
        alaya_prompts(**nothing | {"prompt": "x", "styles_json": table})
    assert output_folder("2025-12-28 15-53-24/clip_0052") == "2025-12-28_15-53-24_clip52"
    assert output_folder("test_dataset") == "test_dataset_test_dataset"


def test_models_list_check_and_doctor(weights: Path, capsys) -> None:
    assert main(["models", "list"]) == 0
    out = capsys.readouterr().out
    assert {"compact", "alaya-forward", "alaya-flash"} <= set(out.split())
    assert "Brian9999/stylerenderer" in out
    for name in ("alaya-forward", "alaya-flash"):
        assert main(["doctor", name]) == 0
        assert main(["models", "check", name]) == 0
        first = capsys.readouterr().out
        assert main(["models", "check", name]) == 0
        assert capsys.readouterr().out in first  # nothing random
        assert "sha256" in first and "render mean" in first
    (weights / "alaya-flash" / "tokenizer" / "tokenizer.json").rename(weights / "moved.json")
    assert main(["doctor", "alaya-flash"]) == 2
    captured = capsys.readouterr()
    (weights / "moved.json").rename(weights / "alaya-flash" / "tokenizer" / "tokenizer.json")
    assert "BAD  tokenizer" in captured.out and "1 of " in captured.err
    assert main(["doctor", "alaya"]) == 2
    assert (
        "unknown model 'alaya'; expected one of compact, compact-inverse, alaya-forward, alaya-flash"
        in capsys.readouterr().err
    )


def test_pulling_says_what_it_cannot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLOWSHADE_MODELS", str(tmp_path))
    with pytest.raises(CheckpointError, match="is published is not known here; give its repository with --repo"):
        pull(MODELS["alaya-flash"])
    with pytest.raises(CheckpointError, match="comes with the package"):
        pull(MODELS["compact"])


def test_pulling_takes_what_is_missing_and_keeps_its_commit(
    weights: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    asked: list[tuple[str, str | None]] = []

    class Hub:
        error: Exception | None = None

        def model_info(self, repo: str, revision: str | None = None):
            asked.append((repo, revision))
            if self.error is not None:
                raise self.error
            return type("Info", (), {"sha": revision or "c0ffee"})()

    def snapshot(repo: str, *, revision: str, allow_patterns: object, local_dir: Path) -> None:
        for path in (weights / "alaya-forward").rglob("*"):
            target = local_dir / path.relative_to(weights / "alaya-forward")
            wanted = any(path.match(f"*{part.strip('*/')}*") for part in _patterns(allow_patterns))
            if path.is_file() and (wanted or path.name == "tokenizer.json"):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setenv("FLOWSHADE_MODELS", str(tmp_path))
    folder = pull(MODELS["alaya-forward"])
    assert json.loads((folder / "revisions.json").read_text()) == {
        "Brian9999/stylerenderer": "c0ffee",
        "Wan-AI/Wan2.1-T2V-1.3B": "c0ffee",
    }
    (folder / "Wan2.1_VAE.pth").unlink()
    asked.clear()
    pull(MODELS["alaya-forward"])
    assert asked == [("Wan-AI/Wan2.1-T2V-1.3B", "c0ffee")]  # the rest is there, and the commit is the same
    (folder / "Wan2.1_VAE.pth").unlink()
    for error in (OSError("no route"), HfHubHTTPError.__bases__[0]("no route")):
        monkeypatch.setattr(Hub, "error", error)
        with pytest.raises(CheckpointError, match="vae could not be downloaded .*no route.* Check the network"):
            pull(MODELS["alaya-forward"])


def _patterns(given: object) -> list[str]:
    return [given] if isinstance(given, str) else list(given)  # pyright: ignore
