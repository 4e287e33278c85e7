"""Options reach the run that they start; mistakes are told before it begins."""

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from flowshade.checkpoints.store import default_weights
from flowshade.cli import main
from flowshade.errors import FlowshadeError
from flowshade.evaluation.suites import LADDERS
from flowshade.presets import compact_training, debug_training
from flowshade.renderer.prompt import WIDTH, PromptEncoder
from flowshade.renderer.transformer import TextContext
from flowshade.training import run
from flowshade.training.captions import LookBank, load_banks
from flowshade.training.processes import Processes
from tests.evaluation.test_perceptual import counting_trunk


class RecordedTrainer:
    """Remembers what it was made of and trains nothing."""

    made: list[tuple] = []

    def __init__(self, *arguments) -> None:
        self.made.append(arguments)

    def run(self) -> Path:
        return Path("trained.safetensors")


@pytest.fixture
def made(monkeypatch) -> list[tuple]:
    monkeypatch.setattr(RecordedTrainer, "made", [])
    monkeypatch.setattr(run, "Trainer", RecordedTrainer)
    monkeypatch.setattr(run, "load_banks", lambda folder: ("looks of", folder))
    monkeypatch.setattr(run, "check_start", lambda path, expected: None)
    return RecordedTrainer.made


OPTIONS = ["--start", "a", "--seed", "3", "--scale-time", "0.5", "--stages", "flow", "codec", "--device", "cpu"]


def test_options_reach_the_run(made, capsys) -> None:
    assert main(["train", "compact", "-o", "out", "--captions", "bank", *OPTIONS]) == 0
    config, *rest = made[0]
    alone = Processes(device=torch.device("cpu"))
    assert rest == [Path("out"), "looks of", Path("bank"), Path("a"), None, alone]
    codec, _, flow, _ = compact_training().stages
    halved = tuple(dataclasses.replace(stage, seconds=stage.seconds / 2) for stage in (codec, flow))
    assert config == dataclasses.replace(compact_training(), stages=halved, seed=3, device="cpu")
    assert "trained renderer: trained.safetensors" in capsys.readouterr().out


def test_settings_reach_the_run(made) -> None:
    assert main(["train", "debug", "-o", "out", "--captions", "bank", "--set", "rollout.lpips=0.0", "interval=3"]) == 0
    assert made[0][0].interval == 3.0 and made[0][0].device
    assert main(["train", "debug", "-o", "out", "--captions", "bank", "--set", "rollout.steps=x"]) == 2


def test_weights_of_another_kind_are_refused_before_captions_are_made(tmp_path: Path, capsys) -> None:
    start = str(default_weights().with_name("compact-inverse.safetensors"))
    assert main(["train", "debug", "-o", str(tmp_path / "out"), "--start", start]) == 2
    assert "holds weights of the inverse and this run trains the renderer" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_module_is_the_command(tmp_path: Path) -> None:
    """For launchers that start a module; `nonsense` is found before anything is made."""
    command = [sys.executable, "-m", "flowshade.training", "nonsense", "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown training preset 'nonsense'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_preset_runs_whole_and_makes_its_captions_once(made, monkeypatch, tmp_path) -> None:
    written = []
    monkeypatch.setattr(run, "write_captions", lambda folder, seed: written.append((folder, seed)))
    run.train("debug", tmp_path, seed=5)
    (tmp_path / "captions").mkdir()
    for name in ("captions.safetensors", "looks.json"):
        (tmp_path / "captions" / name).touch()
    run.train("debug", tmp_path, seed=5)
    assert written == [(tmp_path / "captions", 5)]
    assert [config for config, *_ in made] == [dataclasses.replace(debug_training(), seed=5)] * 2


def test_captions_alone(monkeypatch, capsys) -> None:
    written = []
    monkeypatch.setattr(run, "write_captions", lambda folder, seed: written.append((folder, seed)))
    assert main(["train", "captions", "-o", "bank", "--seed", "2"]) == 0
    assert written == [(Path("bank"), 2)]
    assert capsys.readouterr().err == ""


class Lengths(PromptEncoder):
    """Without weights: a token a word."""

    def __init__(self) -> None:
        pass

    def encode(self, texts: Sequence[str]) -> TextContext:
        words = 2 + len(texts[0].split())
        return TextContext(tokens=torch.ones(1, words, WIDTH), mask=torch.ones(1, words, dtype=torch.bool))


def test_captions_hold_what_an_evaluation_tells_too(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("flowshade.renderer.prompt.PromptEncoder", Lengths)
    monkeypatch.setattr(run, "world_descriptions", lambda kinds: {kind: [f"a {kind}"] for kind in kinds})
    monkeypatch.setattr(run.Trunk, "load", lambda name: counting_trunk())
    run.write_captions(tmp_path)
    looks, captions = load_banks(tmp_path)
    told = [caption for ladder in LADDERS for caption in ladder.captions]
    assert all(caption in captions.texts for caption in told)
    for rows in looks.captions:
        assert max(rows) < len(captions) - len(told)  # training draws none of them


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["debgu"], "unknown training preset 'debgu'; expected one of captions, debug, compact"),
        (["debug", "--stages", "flwo"], "stages flwo were asked for; expected some of codec, regression, flow"),
        (["debug", "--scale-time", "0"], "the time factor is 0.0; expected a positive number"),
        (["debug", "--seed", "-1"], "the seed is -1; expected 0 or more"),
        (["debug", "--device", "gpu"], "device 'gpu' is unknown"),
        (["debug", "--device", "meta"], "device 'meta' cannot be used"),
        (["debug", "--start", "nowhere"], "nothing to begin from at nowhere"),
        (["debug", "--start", __file__], "is not a readable safetensors file"),
        (["debug", "--captions", "nowhere"], "look bank nowhere/looks.json does not exist"),
    ],
)
def test_mistakes_are_sentences(options: list[str], message: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *options, "-o", "out"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_a_folder_is_found_at_once(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FlowshadeError, match="is a file"):
        run.train("debug", tmp_path / "file")
    with pytest.raises(FlowshadeError, match="is a file"):
        run.write_captions(tmp_path / "file")


@pytest.mark.parametrize("content", ["{}", "{", "[]", '{"looks": [{"a": 1}], "captions": [], "kinds": []}'])
def test_a_damaged_look_bank_is_named(tmp_path, content: str) -> None:
    (tmp_path / "looks.json").write_text(content)
    with pytest.raises(FlowshadeError, match=r"looks\.json cannot be read"):
        LookBank.load(tmp_path / "looks.json")
