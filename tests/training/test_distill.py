"""Distillation from start to end on tiny models, and the promises of its loop: stops, several processes, drawing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flowshade.checkpoints.catalogue import MODELS
from flowshade.cli import main
from flowshade.errors import CheckpointError, FlowshadeError, PromptError
from flowshade.gbuffer.io import write_clip
from flowshade.renderer.memory import HistoryBand
from flowshade.renderer.teacher import TeacherConfig
from flowshade.training.distill import state
from flowshade.training.distill.clips import gather_clips, held_out
from flowshade.training.distill.flash import begin_from_teacher, widened
from flowshade.training.distill.loop import Draw, Loop, LoopConfig, learning_rate
from flowshade.training.distill.run import DistillJob, distill_codec, distill_flash, write_texts
from flowshade.training.distill.scores import there_and_back
from flowshade.training.distill.teaching import LessonFolder, list_samples, path_noise
from flowshade.training.processes import Processes
from tests.checkpoints.originals import build, small_flash, small_forward, write_flash, write_forward
from tests.conftest import make_gbuffer

SIZE = (32, 48)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, write in (("alaya-forward", write_forward), ("alaya-flash", write_flash)):
        (folder / name).mkdir()
        write(folder / name)
    return folder


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for index in range(3):
        write_clip(folder / f"clip-{index}", make_gbuffer(8, *SIZE, seed=index), 24)
    return folder


@pytest.fixture(autouse=True)
def tiny_models(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "alaya-forward", small_forward())
    monkeypatch.setitem(MODELS, "alaya-flash", small_flash())
    monkeypatch.setenv("FLOWSHADE_MODELS", str(weights))


def job(clips: Path, out: Path, **changes: Any) -> DistillJob:
    loop = LoopConfig(updates=4, batch=2, learning_rate=2e-3, warmup=2, ema=0.5, log_every=2, evaluate_every=0)
    settings: dict[str, Any] = {
        "clips": (clips,), "out": out, "size": SIZE, "frames": 8, "window": 4, "crop": (16, 32), "crop_frames": 4,
        "prompt": "a street", "styles": ("original", "snowy_winter"), "drift_frames": 16, "device": "cpu",
        "teacher_config": TeacherConfig(steps=2, window=9, overlap=5, cfg_scale=2.0),
        "loops": dict.fromkeys(("encoder", "decoder", "flow", "rollout"), loop),
    }  # fmt: skip
    return DistillJob(**{**settings, **changes})


def losses(folder: Path, name: str) -> list[float]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "train" and line["name"] == name]


def test_from_clips_to_a_student_that_renders(clips: Path, tmp_path: Path, capsys) -> None:
    codec = distill_codec(job(clips, tmp_path / "codec"))
    for stage in ("encoder", "decoder"):
        assert len(losses(codec, stage)) == 2
    folder = distill_flash(job(clips, tmp_path / "flash", codec=codec))
    scores = json.loads((tmp_path / "flash" / "scores.json").read_text())
    for steps in (4, 2, 1):
        assert 0 < scores["held out"][f"{steps} student psnr"] < 99
        assert 0 < scores["held out"][f"{steps} student latent error"] < 10
    assert scores["held out"]["2 teacher latent error"] < 1e-3, "two steps are all that this teacher takes"
    assert scores["drift"]["frames"] == 16
    assert (tmp_path / "flash" / "scores.png").is_file()
    assert "min left" in capsys.readouterr().out
    clip, video = clips / "clip-0", tmp_path / "out.mp4"
    options = ["--model", "alaya-flash", "--checkpoint", str(folder), "--device", "cpu", "--prompt", "a street"]
    assert main(["render", str(clip), "-o", str(video), *options]) == 0
    assert video.is_file()


def test_an_encoder_comes_closer_to_the_vae(clips: Path, tmp_path: Path) -> None:
    loop = LoopConfig(updates=12, batch=2, learning_rate=2e-2, warmup=3, ema=0.9, log_every=4, evaluate_every=0)
    distill_codec(job(clips, tmp_path, loops={"encoder": loop}, stages=("encoder",)))
    found = losses(tmp_path, "encoder")
    assert found[-1] < 0.7 * found[0]


def test_texts_once_made_need_no_text_encoder(clips: Path, tmp_path: Path) -> None:
    texts = write_texts(job(clips, tmp_path / "texts"))
    names = sorted(path.name for path in texts.glob("*.safetensors"))
    assert len(names) == 3  # two styles, and the negative prompt of guidance
    assert write_texts(job(clips, tmp_path / "texts")) == texts
    assert sorted(path.name for path in texts.glob("*.safetensors")) == names


def test_a_run_with_other_settings_is_refused(clips: Path, tmp_path: Path) -> None:
    distill_codec(job(clips, tmp_path, stages=("encoder",)))
    with pytest.raises(CheckpointError, match="begun with other settings .*seed 0 -> 1"):
        distill_codec(job(clips, tmp_path, stages=("encoder",), seed=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frames": 6}, "expected whole windows"),
        ({"size": (30, 48)}, "multiples of 16"),
        ({"variants": 0}, "expected 0 and 1 or more"),
        ({"stages": ("critic",)}, "expected some of encoder, decoder"),
        ({"crop": (64, 64)}, "no larger than the clip"),
    ],
)
def test_impossible_jobs_say_what_is_expected(clips: Path, tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(FlowshadeError, match=message):
        distill_codec(job(clips, tmp_path / "run", **changes))


def test_clips_are_held_out_by_name(clips: Path, tmp_path: Path) -> None:
    names = [f"clip-{index}" for index in range(400)]
    held = held_out(names)
    assert 8 <= len(held) <= 40
    assert held_out(names[:200]) == held & set(names[:200])
    found = gather_clips([clips])
    assert [clip.frames for clip in found] == [8, 8, 8] and sum(clip.held_out for clip in found) == 1
    with pytest.raises(FlowshadeError, match="one clip was found"):
        gather_clips([clips / "clip-0"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FlowshadeError, match="no clip was found"):
        gather_clips([tmp_path / "empty"])


def test_samples_take_styles_in_turn_and_want_a_caption(clips: Path) -> None:
    found = gather_clips([clips])
    samples = list_samples(found, 4, ("original", "snowy_winter"), "a street", variants=2)
    assert len(samples) == len({sample.key for sample in samples}) == 3 * 2 * 2
    assert {sample.prompt == "a street" for sample in samples} == {True, False}
    with pytest.raises(PromptError, match="has no caption"):
        list_samples(found, 4, ("original",))
    with pytest.raises(FlowshadeError, match="unknown style"):
        list_samples(found, 4, ("cubist",), "a street")
    with pytest.raises(FlowshadeError, match="the longest has 8"):
        list_samples(found, 80, ("original",), "a street")


def test_lessons_come_back_with_the_noise_they_were_made_from(clips: Path, tmp_path: Path) -> None:
    folder = LessonFolder(tmp_path, window=9, overlap=4, seed=3)
    sample = list_samples(gather_clips([clips]), 8, ("original",), "a street")[0]
    latents = torch.randn(1, 4, 3, 4, 6)
    folder.write(sample, latents, {2: latents * 2})
    lesson = folder.read(sample)
    torch.testing.assert_close(lesson.latents, latents[:, :, 1:], rtol=0, atol=2e-3)
    torch.testing.assert_close(lesson.few[2], latents[:, :, 1:] * 2, rtol=0, atol=4e-3)
    assert torch.equal(lesson.noise, path_noise(sample.seed(3), 8, 9, 4, latents)[:, :, 1:])
    assert abs(float(lesson.noise.std()) - 1) < 0.2
    assert folder.missing([sample]) == []


def test_a_widened_kernel_sees_averages() -> None:
    kernel, volume = torch.randn(5, 3, 1, 2, 2), torch.randn(1, 3, 4, 8, 8)
    wide = nn.functional.conv3d(volume, widened(kernel, (2, 4, 4)), stride=(2, 4, 4))
    small = nn.functional.conv3d(nn.functional.avg_pool3d(volume, 2), kernel, stride=(1, 2, 2))
    torch.testing.assert_close(wide, small)


def test_a_student_begins_as_its_teacher() -> None:
    teacher, student = build(small_forward(), "transformer"), build(small_flash(), "transformer")
    begin_from_teacher(student, teacher)  # pyright: ignore[reportArgumentType]
    own, given = student.state_dict(), teacher.state_dict()
    assert torch.equal(own["blocks.1.attn1.to_q.weight"], given["blocks.1.attn1.to_q.weight"])
    assert isinstance(student.config.short, HistoryBand)  # pyright: ignore[reportAttributeAccessIssue]
    smaller = build(small_forward(), "transformer")
    del smaller.blocks[1]  # pyright: ignore[reportAttributeAccessIssue, reportIndexIssue]
    with pytest.raises(CheckpointError, match="cannot begin from a teacher"):
        begin_from_teacher(student, smaller)  # pyright: ignore[reportArgumentType]


def test_streams_turn_round_at_the_ends_of_a_clip() -> None:
    assert list(there_and_back(4, 10)) == [0, 1, 2, 3, 2, 1, 0, 1, 2, 3]
    assert list(there_and_back(1, 3)) == [0, 0, 0]


class Line:
    """Learns a line from points that are drawn; its two layers let several processes split it."""

    name = "line"

    def __init__(self) -> None:
        torch.manual_seed(0)
        self._network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    @property
    def network(self) -> nn.Module:
        return self._network

    def load(self, draw: Draw) -> Tensor:
        return torch.randn(8, 3, generator=draw.generator())

    def losses(self, sample: Tensor, draw: Draw) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        error = (self._network(sample)[:, 0] - sample @ torch.tensor([1.0, -2.0, 0.5])).square().mean()
        yield error, {"scale": error.new_tensor(float(draw.shared.random()))}

    def evaluate(self, sheet: Path | None) -> dict[str, float]:
        return {"weight": float(next(self._network.parameters()).detach().sum())}


LINE = LoopConfig(updates=40, batch=4, learning_rate=1e-1, warmup=4, log_every=4, evaluate_every=8, save_seconds=0.0)


def line_loop(folder: Path, processes: Processes | None = None) -> Loop:
    processes = processes or Processes(device=torch.device("cpu"))
    folder.mkdir(parents=True, exist_ok=True)
    return Loop(Line(), LINE, folder, stage=0, seed=5, processes=processes, autocast=False)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("at", [3, 8, 21])
def test_a_run_that_is_killed_writes_the_same_log(tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    line_loop(tmp_path / "whole").run(None)
    step = Loop._step

    def dies(self: Loop, *given: Any) -> None:
        if self.update == at:
            raise Killed
        step(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", dies)
        with pytest.raises(Killed):
            line_loop(tmp_path / "cut").run(None)
    with (tmp_path / "cut" / "log.jsonl").open("a") as file:
        file.write('{"torn')
    loop = line_loop(tmp_path / "cut")
    loop.run(state.SavedState.newest(tmp_path / "cut" / "checkpoints"))

    def lines(name: str) -> list[dict]:
        text = (tmp_path / name / "log.jsonl").read_text()
        return [{k: v for k, v in json.loads(x).items() if k != "updates_per_second"} for x in text.splitlines()]

    assert lines("cut") == lines("whole")
    assert lines("whole")[-2]["loss"] < 0.5 * lines("whole")[0]["loss"]


def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    """torchrun's own launcher, gloo on CPUs, weights split over both; the states of either can be gone on from."""
    line_loop(tmp_path / "one").run(None)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python",
        sys.executable, "-m", "tests.training.distill_line", str(tmp_path / "two"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = losses(tmp_path / "one", "line"), losses(tmp_path / "two", "line")
    assert two == pytest.approx(one, rel=1e-4)
    saved = state.SavedState.newest(tmp_path / "two" / "checkpoints")
    assert saved is not None and saved.update == LINE.updates
    ours = state.SavedState.newest(tmp_path / "one" / "checkpoints")
    assert ours is not None
    alone = Processes(device=torch.device("cpu"))
    for name in ours.names:
        torch.testing.assert_close(saved.part(name, alone), ours.part(name, alone), rtol=1e-3, atol=1e-5)


def test_learning_rates_rise_and_fall() -> None:
    rates = [learning_rate(LINE, update) for update in range(LINE.updates)]
    assert rates[0] == pytest.approx(0.25 * LINE.learning_rate) and max(rates) <= LINE.learning_rate
    assert rates[-1] < 0.1 * LINE.learning_rate and rates[4:] == sorted(rates[4:], reverse=True)


def test_a_batch_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlowshadeError, match="multiple of the processes"):
        line_loop(tmp_path, Processes(device=torch.device("cpu"), count=3))
