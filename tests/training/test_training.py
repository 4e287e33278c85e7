"""The debug run goes through every stage; its parts are checked against plain versions."""

import dataclasses
import json
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from flowshade.checkpoints.store import default_weights, load_renderer_file
from flowshade.codec.encoding import EncodingProfile, encode_buffers
from flowshade.errors import CheckpointError, FlowshadeError
from flowshade.gbuffer.look import LOOKS
from flowshade.presets import compact_training, debug_inverse_training, debug_training
from flowshade.renderer.prompt import CaptionBank, PromptEncoder
from flowshade.renderer.transformer import TextContext
from flowshade.training import pool as pool_module
from flowshade.training.captions import LookBank, build_banks, load_banks, save_banks
from flowshade.training.checkpoint import load_checkpoint
from flowshade.training.pool import ClipPool, ClipSpec, Producers, pack_clip, trace_clip
from flowshade.training.stages import DROP_SHARES, Models, drop_buffers, forced_windows, latent_growth
from flowshade.training.start import begin_from, load_start
from flowshade.training.trainer import TrainConfig, Trainer
from flowshade.types import FRAMES_PER_LATENT, Planes, stream_frame
from tests.conftest import make_gbuffer
from tests.training.test_losses import small_vgg

PROFILE = EncodingProfile()


class WordEncoder(PromptEncoder):
    """A token for each word; no weights needed."""

    def __init__(self) -> None:
        pass

    def encode(self, texts: Sequence[str]) -> TextContext:
        words = texts[0].split() or ["nothing"]
        tokens = torch.stack([torch.full((384,), (len(word) % 13) / 13) for word in words])
        return TextContext(tokens=tokens[None], mask=torch.ones(1, len(words), dtype=torch.bool))


@pytest.fixture(scope="module")
def banks() -> tuple[LookBank, CaptionBank]:
    descriptions = {"street": ["a street", "a road with houses"], "hills": ["green hills"]}
    return build_banks(descriptions, WordEncoder(), looks=12)


def test_banks_describe_every_look_and_survive_a_round_trip(banks, tmp_path):
    looks, captions = banks
    assert looks.looks[: len(LOOKS)] == tuple(LOOKS.values())
    for index, look in enumerate(LOOKS.values()):
        assert look.caption() in [captions.texts[row] for row in looks.captions[index]]
    used = sorted(row for rows in looks.captions for row in rows)
    assert used == list(range(len(captions)))
    save_banks(tmp_path, looks, captions)
    loaded_looks, loaded_captions = load_banks(tmp_path)
    assert loaded_looks == looks
    assert loaded_captions.texts == captions.texts
    assert torch.equal(loaded_captions.tokens, captions.tokens)


def test_looks_are_drawn_only_for_the_world_their_captions_speak_of(banks):
    looks, captions = banks
    rng = np.random.default_rng(0)
    texts = {captions.texts[row].lower() for _ in range(200) for row in looks.captions[looks.draw("hills", rng)]}
    only_streets = [text for text in texts if "houses" in text and "green hills" not in text]
    canonical = {captions.texts[row].lower() for rows in looks.captions[: len(LOOKS)] for row in rows}
    assert set(only_streets) <= canonical


def packed(seed: int, spec: ClipSpec):
    gbuffer = make_gbuffer(spec.frames, *spec.size, seed=seed)
    rgb = torch.rand(spec.looks, spec.frames, 3, *spec.size, generator=torch.Generator().manual_seed(seed))
    sun = torch.nn.functional.normalize(torch.rand(spec.looks, 3), dim=1)
    return gbuffer, rgb, pack_clip(gbuffer, rgb, torch.arange(spec.looks), sun, PROFILE)


def make_pool(banks, spec: ClipSpec, capacity: int = 2) -> ClipPool:
    return ClipPool(capacity=capacity, spec=spec, profile=PROFILE, bank=banks[0], device=torch.device("cpu"))


def test_pool_gives_back_what_was_packed(banks):
    spec = ClipSpec(size=(32, 48), frames=8, looks=2)
    gbuffer, rgb, clip = packed(0, spec)
    pool = make_pool(banks, spec)
    pool.put(clip)
    batch = pool.draw(3, 2, np.random.default_rng(0))
    camera = gbuffer.camera
    assert camera is not None
    expected = encode_buffers(gbuffer, PROFILE, stream_frame(camera.pose[0])).values[0]
    emission = PROFILE.slices["emission"]
    assert (batch.planes.values[:, :, emission] == batch.planes.values[0, 0, emission].flatten()[0]).all()
    for name in set(PROFILE.names) - {"emission"}:
        tolerance = {"depth": 1 / 65535, "rays": 1e-5}.get(name, 1.001 / 255)
        planes = PROFILE.slices[name]
        for row in batch.planes.values:
            torch.testing.assert_close(row[:, planes], expected[:, planes], atol=tolerance, rtol=0)
    for row, picture in enumerate(batch.rgb):
        errors = [(picture - look).abs().max() for look in rgb]
        assert min(errors) <= 0.5 / 255 + 1e-6, f"row {row} is none of the clip's looks"


def test_pool_switches_look_sun_and_caption_together(banks):
    spec = ClipSpec(size=(16, 16), frames=16, looks=2)
    pool = make_pool(banks, spec)
    _, rgb, clip = packed(0, spec)
    pool.put(clip)
    batch = pool.draw(64, 4, np.random.default_rng(1), switch=1.0)
    switched = 0
    for row in range(64):
        for latent in range(4):
            frames = slice(latent * FRAMES_PER_LATENT, (latent + 1) * FRAMES_PER_LATENT)
            look = [int((batch.rgb[row, frames] - rgb[k, frames]).abs().max() < 0.01) for k in range(2)].index(1)
            assert torch.equal(batch.sun[row, latent], clip.sun[look])
            assert int(batch.caption[row, latent]) in banks[0].captions[look]
            switched += latent > 0 and not torch.equal(batch.sun[row, latent], batch.sun[row, latent - 1])
    assert 10 < switched < 60


def test_oldest_clip_is_replaced(banks):
    spec = ClipSpec(size=(16, 16), frames=4, looks=1)
    pool = make_pool(banks, spec, capacity=2)
    clips = [packed(seed, spec)[2] for seed in range(3)]
    for clip in clips:
        pool.put(clip)
    assert len(pool) == 2
    seen = {round(float(pool.draw(1, 1, np.random.default_rng(seed)).rgb.mean()), 5) for seed in range(40)}
    means = [round(float((clip.rgb.float() / 255).mean()), 5) for clip in clips]
    assert seen == set(means[1:])


def test_large_clips_lie_apart_and_a_batch_of_them_has_as_many_pixels(banks):
    spec = ClipSpec(size=(16, 16), frames=8, looks=2, large_share=0.4, large_size=(32, 32), large_looks=1)
    pool = make_pool(banks, spec, capacity=3)
    for seed in range(3):
        pool.put(packed(seed, spec)[2])
    assert pool.draw(4, 1, np.random.default_rng(0), large=1.0).rgb.shape == (4, 4, 3, 16, 16)  # none is large yet
    large = packed(7, dataclasses.replace(spec, size=(32, 32), looks=1))[2]
    pool.put(large)
    assert (len(pool), pool.received) == (4, 4)
    rng = np.random.default_rng(0)
    batch = pool.draw(4, 2, rng, large=1.0, switch=1.0)
    assert batch.rgb.shape == (1, 8, 3, 32, 32)
    torch.testing.assert_close(batch.rgb[0], large.rgb[0].float() / 255)
    assert torch.equal(batch.sun[0, 0], large.sun[0])
    sizes = [pool.draw(4, 1, rng, large=0.25).rgb.shape[-1] for _ in range(80)]
    assert 8 < sizes.count(32) < 36
    assert {pool.draw(4, 1, rng).rgb.shape[-1] for _ in range(20)} == {16}


def test_some_clips_are_traced_large(banks):
    spec = ClipSpec(size=(16, 16), frames=4, looks=2, samples=1, large_share=1.0, large_size=(32, 48))
    clip = trace_clip("street", 3, banks[0], spec, PROFILE, "cpu")
    assert clip.rgb.shape == (1, 4, 3, 32, 48)


def test_workers_never_share_a_seed(banks):
    producers = Producers(pool=make_pool(banks, ClipSpec()), workers=3, first_seed=30_000)
    runs = [[next(seeds) for _ in range(5)] for seeds in [producers.seeds(worker) for worker in range(3)]]
    flat = [seed for run in runs for _, seed in run]
    assert sorted(flat) == list(range(30_000, 30_015))


def test_workers_wait_between_clips_once_the_pool_is_filled(banks, monkeypatch):
    """No clip is traced ahead: at most one for each worker after the fill, until the interval has passed."""
    spec = ClipSpec(size=(16, 16), frames=4, looks=1)
    clip, traced = packed(0, spec)[2], []
    monkeypatch.setattr(pool_module, "trace_clip", lambda *given: traced.append(given) or clip)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    producers = Producers(pool=make_pool(banks, spec), workers=2, interval=1e6)
    clips, permits = queue.Queue(), threading.Semaphore(producers.workers)
    for target, arguments in [
        (producers._receive, (clips, permits)),
        *((pool_module._produce, (worker, producers, clips, permits)) for worker in range(2)),
    ]:
        threading.Thread(target=target, args=arguments, daemon=True).start()
    producers.fill(10)
    received = producers.pool.received
    time.sleep(0.3)
    assert received <= producers.pool.received <= received + 1
    assert len(traced) <= producers.pool.received + 1
    producers.stop()


def test_dropping_leaves_depth_or_normal_and_zeroes_what_is_gone():
    rng = np.random.default_rng(0)
    planes = Planes(values=torch.ones(400, 4, PROFILE.planes, 2, 2), present=torch.ones(400, 7, dtype=torch.bool))
    drop_buffers(planes, 0.5, PROFILE, rng)
    depth, normal = PROFILE.names.index("depth"), PROFILE.names.index("normal")
    assert (planes.present[:, depth] | planes.present[:, normal]).all()
    assert 0.3 < (~planes.present).any(1).float().mean() < 0.6
    for index, name in enumerate(PROFILE.names):
        gone = ~planes.present[:, index]
        assert (planes.values[gone][:, :, PROFILE.slices[name]] == 0).all()
        assert (planes.values[~gone][:, :, PROFILE.slices[name]] == 1).all()
    assert set(DROP_SHARES) == set(PROFILE.names)
    others = [index for index in range(7) if index not in (depth, normal)]
    bare = planes.present[:, depth] & planes.present[:, normal] & ~planes.present[:, others].any(1)
    assert 0.05 < bare.float().mean() < 0.18  # a fifth of a half, and some by chance


@pytest.mark.parametrize("window", [1, 2, 3])
def test_forced_windows_hold_their_own_past(window):
    latents = torch.arange(2 * 6, dtype=torch.float32).view(2, 1, 6, 1, 1) + 1
    windows = forced_windows(latents, latents * 10, window, capacity=4)
    count = 6 // window
    for clip in range(2):
        for index in range(count):
            row = clip * count + index
            start = index * window
            assert windows.target[row].flatten().tolist() == latents[clip, 0, start : start + window].flatten().tolist()
            past = latents[clip, 0, :start].flatten().tolist()[-4:]
            assert windows.past[row].flatten().tolist() == [0.0] * (4 - len(past)) + past
            assert windows.past_features[row].flatten().tolist() == [0.0] * (4 - len(past)) + [10 * x for x in past]
            assert windows.valid[row].tolist() == [False] * (4 - len(past)) + [True] * len(past)


def _only(bank: LookBank, name: str) -> LookBank:
    """The same bank with one look in every place."""
    return dataclasses.replace(bank, looks=(LOOKS[name],) * len(bank.looks))


def test_traced_clip_is_deterministic_and_lit_differently_by_each_look(banks):
    spec = ClipSpec(size=(32, 48), frames=4, looks=2, samples=1)
    first, again = (trace_clip("street", 3, banks[0], spec, PROFILE, "cpu") for _ in range(2))
    for name, value in first.tensors().items():
        assert torch.equal(value, again.tensors()[name]), name
    assert first.rgb.float().std() > 5
    if first.look[0] != first.look[1]:
        assert (first.rgb[0].float() - first.rgb[1].float()).abs().mean() > 1
    day, night = (trace_clip("street", 3, _only(banks[0], name), spec, PROFILE, "cpu") for name in ("sunny", "night"))
    assert night.rgb.float().mean() < day.rgb.float().mean() / 2
    sky = first.depth == -32768
    assert 0 < sky.float().mean() < 1


@pytest.fixture(scope="module")
def debug_run(banks, tmp_path_factory) -> Path:
    """The debug preset on clips of a third of its pixels."""
    out, config = tmp_path_factory.mktemp("run"), debug_training()
    clips = dataclasses.replace(config.clips, size=(32, 48))
    Trainer(dataclasses.replace(config, clips=clips), out, *banks).run()
    return out


def log_of(out: Path, stage: str) -> list[dict]:
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("stage") == stage]


def test_debug_run_learns_in_every_stage_and_leaves_what_it_says(debug_run):
    codec = log_of(debug_run, "codec")
    assert codec[-1]["psnr"] > codec[0]["psnr"] + 1.5  # dB
    assert log_of(debug_run, "regression")[-1]["flow"] < log_of(debug_run, "regression")[0]["flow"]
    assert log_of(debug_run, "flow")[-1]["flow"] < 2.2
    assert log_of(debug_run, "rollout")[-1]["step"] == debug_training().stages[-1].steps
    for index, stage in enumerate(debug_training().stages):
        renderer = load_renderer_file(debug_run / f"{index:02d}-{stage.name}.safetensors")
        assert all(value.isfinite().all() for value in renderer.state_dict().values())
        assert (debug_run / f"{index:02d}-{stage.name}.png").stat().st_size > 1000


def test_latents_are_normalised_after_the_codec_stage(debug_run):
    decoder = load_renderer_file(debug_run / "00-codec.safetensors").decoder
    assert (decoder.latent_std > 0).all()
    assert not torch.equal(decoder.latent_std, torch.ones_like(decoder.latent_std))


def rollouts(**changes) -> TrainConfig:
    config = debug_training()
    stage = dataclasses.replace(config.stages[-1], steps=4, **changes)
    return dataclasses.replace(config, stages=(stage,), log_every=2)


def test_a_run_goes_on_from_a_file_that_holds_a_renderer_alone(banks, debug_run, tmp_path, monkeypatch):
    config = rollouts(latent=0.0, lpips=0.1)
    monkeypatch.setattr(pool_module, "trace_clip", lambda kind, seed, *rest: packed(seed, config.clips)[2])
    file = debug_run / "03-rollout.safetensors"
    start = load_renderer_file(file)
    trainer = Trainer(config, tmp_path, *banks, file, small_vgg())
    models = trainer.models
    assert isinstance(models, Models)
    for name, value in start.state_dict().items():
        assert torch.equal(models.renderer.state_dict()[name], value), name
    encoder = {name: value.clone() for name, value in models.picture_encoder.state_dict().items()}
    trained = load_renderer_file(trainer.run())
    assert not torch.equal(trained.decoder.half_in.weight, start.decoder.half_in.weight)
    for name, value in models.picture_encoder.state_dict().items():
        assert torch.equal(value, encoder[name]), name
    last = log_of(tmp_path, "rollout")[-1]
    assert last["lpips"] > 0 and last["growth"] >= 0 and "latent" not in last


def test_a_start_that_lacks_what_stages_need_or_is_another_model_is_refused_before_anything_is_written(
    banks, debug_run, tmp_path
):
    start, out = debug_run / "03-rollout.safetensors", tmp_path / "run"
    with pytest.raises(CheckpointError, match="picture_encoder"):
        Trainer(rollouts(), out, *banks, start)
    with pytest.raises(CheckpointError, match="instead of .* belong to another configuration"):
        Trainer(dataclasses.replace(rollouts(latent=0.0), models=compact_training().models), out, *banks, start)
    with pytest.raises(CheckpointError, match="inverse"):
        Trainer(debug_inverse_training(), out, *banks, start)
    with pytest.raises(FlowshadeError, match="no trunk was given"):
        Trainer(rollouts(latent=0.0, lpips=0.1), out, *banks, start)
    assert not out.exists()


def test_latents_may_be_small_but_not_grow():
    unit = torch.randn(8, 4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert latent_growth(unit * 0.9) == 0
    assert abs(latent_growth(unit * 2).item() - 9) < 0.3  # (4 - 1) squared


def test_the_shipped_weights_fit_the_preset():
    models, stages = compact_training().models.build(), compact_training().stages
    assert isinstance(models, Models)
    fresh = begin_from(models, load_start(default_weights()), what="shipped", lacking=models.may_lack(stages[-1:]))
    new = ("picture_encoder.", "renderer.decoder.spread.", "renderer.decoder.glow.")  # since the weights were trained
    assert fresh and all(name.startswith(new) for name in fresh)
    expected = load_renderer_file(default_weights()).decoder.half_in.weight
    assert torch.equal(models.renderer.decoder.half_in.weight, expected)


def test_other_safetensors_files_are_refused_as_checkpoints(debug_run):
    with pytest.raises(ValueError, match="no training checkpoint"):
        load_checkpoint(debug_run / "00-codec.safetensors")
