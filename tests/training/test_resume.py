"""A run that was stopped and goes on equals one that was not, bit for bit, without workers on a CPU."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from flowshade.checkpoints.store import load_renderer_file, load_state
from flowshade.codec.encoding import EncodingProfile
from flowshade.errors import CheckpointError, FlowshadeError
from flowshade.presets import TRAININGS, debug_inverse_training
from flowshade.training import pool as pool_module
from flowshade.training.checkpoint import load_checkpoint
from flowshade.training.pool import ClipPool, Producers
from flowshade.training.run import export_average
from flowshade.training.settings import differing
from flowshade.training.start import load_start
from flowshade.training.trainer import Trained, Trainer
from tests.training.small_run import SPEC, before_update, small_banks, small_clip, small_config

CHECKPOINT = "checkpoint.safetensors"
CLOCK = {"seconds", "updates_per_second", "pairs_per_second", "log_bytes"}
"""What depends on the clock, the lengths of lines included."""


class Stopped(BaseException):
    pass


def stop() -> None:
    raise Stopped


@pytest.fixture(autouse=True)
def small_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "trace_clip", small_clip)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module, "trace_clip", small_clip)
        Trainer(small_config(), out, *small_banks()).run()
    return out


def contents(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        metadata = {name: json.loads(value) for name, value in file.metadata().items() if name != "format"}
    metadata["progress"] = {name: value for name, value in metadata["progress"].items() if name not in CLOCK}
    return tensors, metadata


def log_of(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in CLOCK} for line in lines if line["event"] == "train"]


def assert_same_run(out: Path, whole: Path) -> None:
    (tensors, metadata), (expected, told) = contents(out / CHECKPOINT), contents(whole / CHECKPOINT)
    assert metadata == told
    assert tensors.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(tensors[name], value), name
    for stage in ("00-codec", "01-regression", "02-flow", "03-rollout"):
        weights = load_state(out / f"{stage}.safetensors")[0]
        for name, value in load_state(whole / f"{stage}.safetensors")[0].items():
            assert torch.equal(weights[name], value), name
        assert (out / f"{stage}.png").read_bytes() == (whole / f"{stage}.png").read_bytes()
    assert log_of(out) == log_of(whole)


def test_a_stopped_run_equals_a_whole_one(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First by `kill -9`; then by stops, counted in updates since the last start, in a clip of the rollout's too."""
    command = [sys.executable, "-m", "tests.training.small_run", str(tmp_path), "3"]
    assert subprocess.run(command, capture_output=True).returncode == -9
    assert load_checkpoint(tmp_path / CHECKPOINT).progress.step == 3
    for at in (0, 4, 3, 5):
        with monkeypatch.context() as patch:
            patch.setattr(Trained, "update", before_update(at, stop))
            with pytest.raises(Stopped):
                Trainer(small_config(), tmp_path, *small_banks()).run()
        with (tmp_path / "log.jsonl").open("a") as file:
            file.write('{"torn')
        torch.manual_seed(99)  # whatever ran in between
    Trainer(small_config(), tmp_path, *small_banks()).run()
    assert_same_run(tmp_path, whole)


def test_the_inverse_goes_on_exactly_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = debug_inverse_training()
    stages = (dataclasses.replace(config.stages[0], steps=9),)
    config = dataclasses.replace(config, clips=SPEC, stages=stages, save_seconds=0.0, log_every=3)
    for name, stops in (("whole", ()), ("cut", (6,))):
        for at in stops:
            with monkeypatch.context() as patch:
                patch.setattr(Trained, "update", before_update(at, stop))
                with pytest.raises(Stopped):
                    Trainer(config, tmp_path / name, *small_banks()).run()
        Trainer(config, tmp_path / name, *small_banks()).run()
    (tensors, metadata), (expected, told) = (contents(tmp_path / name / CHECKPOINT) for name in ("cut", "whole"))
    assert metadata == told and log_of(tmp_path / "cut") == log_of(tmp_path / "whole")
    for name, value in expected.items():
        assert torch.equal(tensors[name], value), name


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped in its second stage."""
    out = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module, "trace_clip", small_clip)
        patch.setattr(Trained, "update", before_update(6, stop))
        with pytest.raises(Stopped):
            Trainer(small_config(), out, *small_banks()).run()
    return out


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))


def test_other_settings_are_refused_with_what_differs(stopped: Path) -> None:
    config, banks = small_config(), small_banks()
    fewer = dataclasses.replace(config, stages=config.stages[1:])
    with pytest.raises(CheckpointError, match=r"order codec regression flow rollout -> regression flow rollout; "):
        Trainer(fewer, stopped, *banks)
    faster = dataclasses.replace(config.stages[2], learning_rate=1.0)
    changed = dataclasses.replace(config, seed=4, stages=(*config.stages[:2], faster, config.stages[3]))
    with pytest.raises(CheckpointError, match=r"\(seed 0 -> 4; stages\.flow\.learning_rate 0\.002 -> 1\.0\)"):
        Trainer(changed, stopped, *banks)
    with pytest.raises(CheckpointError, match=r"clips\.frames 16 -> 32"):
        Trainer(dataclasses.replace(config, clips=dataclasses.replace(SPEC, frames=32)), stopped, *banks)
    with pytest.raises(CheckpointError, match=r"captions \w+ -> \w+"):
        Trainer(config, stopped, banks[0], dataclasses.replace(banks[1], texts=("a", "b", "c", "e")))
    Trainer(dataclasses.replace(config, save_seconds=9.0, log_every=3), stopped, *banks)  # these are free


def rewrite(path: Path, change) -> None:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata())
    change(tensors, metadata)
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, m: t.pop("model.renderer.decoder.half_in.weight"), "model.*half_in.weight is missing"),
        (lambda t, m: t.pop("average.renderer.decoder.half_in.weight"), "average.*half_in.weight is missing"),
        (
            lambda t, m: t.update({"optimiser.renderer.encoder.out.bias.exp_avg": torch.zeros(3)}),
            r"optimiser.*out.bias.exp_avg is \(3,\) instead of \(16,\)",
        ),
        (lambda t, m: t.pop("optimiser.renderer.encoder.out.bias.step"), "optimiser.*out.bias.step is missing"),
        (lambda t, m: t.pop("random.0.cpu"), r"damaged training checkpoint .*random\.0\.cpu"),
        (lambda t, m: t.update({"more": torch.zeros(1)}), "damaged training checkpoint"),
        (lambda t, m: m.update(progress="{"), "damaged training checkpoint"),
        (lambda t, m: m.update(progress='{"stage": "polish"}'), "damaged training checkpoint .stage 'polish'"),
        (lambda t, m: m.update(processes="[]"), "damaged training checkpoint"),
        (lambda t, m: m.pop("format"), "another version of Flowshade .no format stated.*--start"),
    ],
)
def test_a_wrong_checkpoint_is_refused_whole(stopped: Path, change, message: str) -> None:
    rewrite(stopped / CHECKPOINT, change)
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    with pytest.raises(CheckpointError, match=message):
        Trainer(small_config(), stopped, *small_banks())
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before


def test_a_checkpoint_cut_short_is_refused(stopped: Path) -> None:
    path = stopped / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        Trainer(small_config(), stopped, *small_banks())


def test_a_run_begins_from_the_averages_of_an_older_version(stopped: Path) -> None:
    path = stopped / CHECKPOINT
    average = load_checkpoint(path).average
    rewrite(path, lambda tensors, metadata: metadata.pop("format"))
    state = load_start(path)
    assert state.keys() == average.keys()
    assert all(torch.equal(state[name], value) for name, value in average.items())


def test_a_run_that_is_not_over_shows_its_averages(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRAININGS, "small", small_config)
    export_average("small", stopped, stopped / "now.safetensors")
    average = load_checkpoint(stopped / CHECKPOINT).average
    renderer = load_renderer_file(stopped / "now.safetensors")
    for name, value in renderer.state_dict().items():
        torch.testing.assert_close(value, average[f"renderer.{name}"], rtol=0, atol=0)
    with pytest.raises(CheckpointError, match="no training checkpoint"):
        export_average("small", stopped / "nowhere", stopped / "then.safetensors")
    with pytest.raises(CheckpointError):
        export_average("debug-inverse", stopped, stopped / "then.safetensors")
    assert not (stopped / "then.safetensors").exists()


def test_a_stage_is_run_once(tmp_path: Path) -> None:
    config = small_config()
    with pytest.raises(FlowshadeError, match="codec, codec was asked for; expected one or more, each once"):
        dataclasses.replace(config, stages=config.stages[:1] * 2)
    with pytest.raises(FlowshadeError, match="none"):
        dataclasses.replace(config, stages=())


def make_producers(workers: int = 0, rank: int = 0, count: int = 1, capacity: int = 3) -> Producers:
    bank, profile = small_banks()[0], EncodingProfile()
    pool = ClipPool(capacity=capacity, spec=SPEC, profile=profile, bank=bank, device=torch.device("cpu"))
    return Producers(pool=pool, workers=workers, first_seed=rank, stride=count)


@pytest.mark.parametrize("clips", [0, 2, 9])
def test_the_pool_is_what_it_was_and_only_what_it_holds_is_traced(clips: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again, traced = make_producers(), make_producers(), []
    first.fill(clips)
    monkeypatch.setattr(pool_module, "trace_clip", lambda *given: traced.append(given[1]) or small_clip(*given))
    again.go_on(first.begun)
    assert len(traced) == len(first.pool) and traced == sorted(traced)
    for producers in (first, again):
        producers.fill(clips + 2)
    for old, new in ((first.pool._small, again.pool._small), (first.pool._large, again.pool._large)):
        assert (old.valid, old.received) == (new.valid, new.received)
        for name, value in old.store.items():
            assert torch.equal(value[old.valid], new.store[name][old.valid])
    assert first.begun == again.begun == first.pool.received == again.pool.received == clips + 2


def test_a_run_with_workers_goes_on_with_the_next_seeds() -> None:
    producers = make_producers(workers=2)
    producers.go_on(17)
    one, other = producers.seeds(0), producers.seeds(1)
    assert [next(one)[1], next(other)[1], next(other)[1], next(one)[1]] == [17, 18, 19, 20]
    assert len(producers.pool) == 0


def test_processes_share_no_seed_and_see_every_kind() -> None:
    worlds = [[make_producers(rank=rank, count=2)._world(index) for index in range(4)] for rank in range(2)]
    assert sorted(seed for some in worlds for _, seed in some) == list(range(8))
    assert all({kind for kind, _ in some} == set(SPEC.kinds) for some in worlds)


def test_pairs_are_counted_as_they_were_traced() -> None:
    producers = make_producers()
    producers.fill(9)
    large = producers.pool._large.received
    assert 0 < large < 9
    assert producers.pool.pairs == SPEC.frames * (large * SPEC.large_looks + (9 - large) * SPEC.looks)


def test_what_differs_is_named_by_path() -> None:
    before = {"seed": 1, "clips": {"size": [1, 2], "looks": 2}, "gone": {"a": 1}}
    now = {"seed": 1, "clips": {"size": [1, 3], "looks": 2}, "new": 5}
    assert differing(before, now) == ["clips.size [1, 2] -> [1, 3]", "gone something -> nothing", "new nothing -> 5"]
    assert differing(now, now) == []
