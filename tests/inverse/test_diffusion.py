"""The 7B inverse at work: EDM against diffusers' scheduler and a plain loop, chunks that overlap, values."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from diffusers import EDMEulerScheduler
from torch import Tensor

from flowshade.color import srgb_to_linear
from flowshade.inverse.cosmos import BUFFER_ROWS, CosmosDecoder, CosmosEncoder, CosmosNetwork, LatentStatistics
from flowshade.inverse.diffusion import EDM, DiffusionConfig, DiffusionInverse, cross_fade, fit, to_gbuffer, unfit
from flowshade.inverse.stream import Inverted
from flowshade.types import CORE_CHANNELS, Frames
from tests.checkpoints.originals import COSMOS, TOKENIZER, cosmos_name, random_state
from tests.peers.cosmos import PlainCosmos, sample

SMALL = DiffusionConfig(chunk=17, overlap=9, size=None, steps=2, buffers=("albedo", "normal", "depth"), depth="inverse")


def make(config: DiffusionConfig = SMALL, **options) -> DiffusionInverse:
    networks = CosmosNetwork(COSMOS), CosmosEncoder(TOKENIZER), CosmosDecoder(TOKENIZER)
    for network in networks:
        network.load_state_dict(random_state(network))
        network.eval().requires_grad_(False)
    statistics = LatentStatistics((4, 3), 4)
    statistics.mean.copy_(torch.linspace(-0.3, 0.3, 12).view(4, 3))
    statistics.std.copy_(torch.linspace(0.5, 2, 12).view(4, 3))
    return DiffusionInverse(*networks, statistics, config, **options)


def video(frames: int, size: tuple[int, int] = (16, 32)) -> Tensor:
    return torch.rand(frames, 3, *size, generator=torch.Generator().manual_seed(3))


def codes(parts: list[Inverted], name: str = "albedo") -> Tensor:
    return torch.cat([part.codes[name] for part in parts])


def test_levels_and_steps_are_diffusers() -> None:
    scheduler = EDMEulerScheduler(sigma_max=80, sigma_min=0.02, sigma_data=0.5)
    scheduler.set_timesteps(15)
    schedule = EDM()
    ours = torch.tensor(schedule.sigmas(15))
    torch.testing.assert_close(ours, scheduler.sigmas, atol=5e-5, rtol=1e-6)
    assert schedule.start == pytest.approx(float(scheduler.init_noise_sigma), rel=1e-6)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, generator=generator) * schedule.start
    theirs = x.clone()
    for index, (sigma, following) in enumerate(zip(schedule.sigmas(15)[:-1], schedule.sigmas(15)[1:])):
        given = scheduler.scale_model_input(theirs, scheduler.timesteps[index])
        torch.testing.assert_close(schedule.scaled(x, sigma), given, atol=1e-5, rtol=1e-5)
        assert schedule.time(sigma) == pytest.approx(float(scheduler.timesteps[index]), abs=1e-5)
        output = torch.sin(3 * given)
        x = x + (following - sigma) * (x - schedule.denoised(x, output, sigma)) / sigma
        theirs = scheduler.step(output, scheduler.timesteps[index], theirs).prev_sample
    torch.testing.assert_close(x, theirs, atol=2e-5, rtol=1e-5)


def test_published_levels() -> None:
    published = [
        80,
        56.04,
        38.51,
        25.91,
        17.02,
        10.89,
        6.754,
        4.046,
        2.327,
        1.277,
        0.662,
        0.321,
        0.143,
        0.0573,
        0.02,
        0,
    ]
    assert EDM().sigmas(15) == pytest.approx(published, rel=2e-3)


@torch.no_grad()
@pytest.mark.parametrize("buffer", ["albedo", "depth"])
def test_sampling_is_the_plain_loop(buffer: str) -> None:
    inverse = make(replace(SMALL, steps=15))
    theirs = {cosmos_name(name): value for name, value in inverse.network.state_dict().items()}
    plain = PlainCosmos(state=theirs, heads=COSMOS.heads, layers=COSMOS.layers)
    generator = torch.Generator().manual_seed(0)
    noise, given = (torch.randn(1, 4, 3, 2, 4, generator=generator) for _ in range(2))
    expected = sample(plain, noise, given, 15, BUFFER_ROWS[buffer])
    torch.testing.assert_close(inverse.denoise(noise, given, buffer), expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_chunk_is_encoded_normalised_sampled_and_decoded() -> None:
    """The whole way written out, for a video of one chunk."""
    inverse, rgb = make(), video(17)
    made = codes(list(inverse.invert([Frames(rgb=rgb)])), "normal")
    mean = inverse.statistics.mean.bfloat16().float()[None, :, :, None, None]
    std = inverse.statistics.std.bfloat16().float()[None, :, :, None, None]
    z = (inverse.encoder((rgb * 2 - 1).transpose(0, 1)[None]) - mean) / std * 0.5
    inverse.reset()
    x = inverse.denoise(inverse._noise("normal", z), z, "normal")
    out = inverse.decoder(x / 0.5 * std + mean)[0].transpose(0, 1)
    torch.testing.assert_close(made, (out.clamp(-1, 1) + 1) / 2, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cuts", [(1,) * 30, (16, 2, 12), (7, 23), (18, 12)])
def test_whole_video_equals_stream(cuts: tuple[int, ...]) -> None:
    inverse, rgb = make(), video(30)
    whole = list(inverse.invert([Frames(rgb=rgb)]))
    parts = list(inverse.invert(Frames(rgb=run) for run in rgb.split(cuts)))
    for name in SMALL.buffers:
        assert torch.equal(codes(whole, name), codes(parts, name))
    assert sum(part.gbuffer.frames for part in parts) == 30


@pytest.mark.parametrize("overlap", [0, 1, 9])
@pytest.mark.parametrize("frames", [1, 9, 16, 17, 18, 25, 26, 34])
def test_any_length_gives_as_many_frames(frames: int, overlap: int) -> None:
    inverse = make(replace(SMALL, overlap=overlap, steps=1, buffers=("albedo",)))
    parts = list(inverse.invert([Frames(rgb=video(frames))]))
    assert sum(part.gbuffer.frames for part in parts) == frames
    assert parts[0].gbuffer.size == (16, 32)


def test_a_video_of_one_chunk_is_not_blended_and_the_next_fades_over() -> None:
    """Values of shared pictures lie between those of the two chunks, nearer the second one towards its end."""
    config = replace(SMALL, hold=False, buffers=("albedo",))
    inverse, rgb = make(config), video(25)
    blended = codes(list(inverse.invert([Frames(rgb=rgb)])))
    first = codes(list(make(config).invert([Frames(rgb=rgb[:17])])))
    torch.testing.assert_close(blended[:8], first[:8], atol=0, rtol=0)
    other = make(config)
    other._chunks = 1  # the noise of the second chunk
    other._size = (16, 32)
    other._waiting = [fit(picture[None], None)[0] for picture in rgb[8:]]
    second = other._invert_waiting(last=True).codes["albedo"]
    weight = (torch.arange(1, 10) / 10)[:, None, None, None]
    torch.testing.assert_close(blended[8:17], first[8:] * (1 - weight) + second[:9] * weight, atol=1e-6, rtol=0)
    torch.testing.assert_close(blended[17:], second[9:], atol=0, rtol=0)


def test_held_latents_bring_chunks_together() -> None:
    """Of the same video, the second chunk's shared pictures lie nearer the first's if it keeps to its latents."""
    rgb, away = video(25), []
    for hold in (False, True):
        inverse = make(replace(SMALL, hold=hold, buffers=("albedo",)))
        inverse.push(Frames(rgb=rgb[:17]))
        assert inverse._before is not None
        before = inverse._before.latents["albedo"]
        after = inverse._sample(inverse._encode(rgb[8:]), "albedo", 0)[:, :, 1:2]
        away.append((after - before).abs().max().item())
    assert away[1] < 1e-5 < 0.1 < away[0]


def test_shared_latents_share_their_noise() -> None:
    inverse = make()
    like = torch.zeros(1, 4, 3, 2, 4)
    first = inverse._noise("albedo", like)
    inverse._chunks = 1
    second = inverse._noise("albedo", like)
    assert torch.equal(second[:, :, :2], first[:, :, 1:])
    assert not torch.equal(second[:, :, 2], first[:, :, 2])
    assert not torch.equal(inverse._noise("normal", like), second)
    assert first.std() == pytest.approx(1, abs=0.3)


def test_the_seed_is_honoured() -> None:
    inverse, rgb = make(), video(4)
    runs = [codes(list(inverse.invert([Frames(rgb=rgb)], seed=seed))) for seed in (0, 0, 1)]
    runs.append(codes(list(inverse.invert([Frames(rgb=rgb)]))))
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[3])
    assert (runs[0] - runs[2]).abs().max() > 1e-3
    random = torch.random.get_rng_state()
    list(inverse.invert([Frames(rgb=rgb)]))
    assert torch.equal(random, torch.random.get_rng_state())  # the caller's is left alone


def test_memory_does_not_grow() -> None:
    inverse, sizes = make(replace(SMALL, steps=1, buffers=("albedo",))), []
    for run in video(40).split(8):
        inverse.push(Frames(rgb=run))
        held = 0 if inverse._before is None else sum(len(value) for value in inverse._before.codes.values())
        sizes.append(len(inverse._waiting) + held)
    assert max(sizes) <= 17 + 9
    inverse.finish()
    assert not inverse._waiting and inverse._before is None


def test_offloading_and_progress_change_nothing() -> None:
    seen: list[tuple[int, int]] = []
    plain, offloaded = make(), make(replace(SMALL, offload=True), progress=lambda *done: seen.append(done))
    rgb = video(3)
    assert torch.equal(*(codes(list(inverse.invert([Frames(rgb=rgb)]))) for inverse in (plain, offloaded)))
    assert seen == [(step, 6) for step in range(1, 7)]


def test_the_reference_s_rounding_is_another_result() -> None:
    rgb = video(3)
    results = []
    for reference in (False, True):
        inverse = make(replace(SMALL, reference=reference, steps=4))
        inverse.network.bfloat16()
        results.append(codes(list(inverse.invert([Frames(rgb=rgb)]))))
    assert 0 < (results[0] - results[1]).abs().mean() < 0.1


@pytest.mark.parametrize("size", [(16, 32), (35, 50)])
@pytest.mark.parametrize("network_size", [None, (32, 48)])
def test_values_come_back_at_the_pictures_own_size(size: tuple[int, int], network_size: tuple[int, int] | None) -> None:
    rgb = video(2, size)
    fitted = fit(rgb, network_size)
    assert all(length % 16 == 0 for length in fitted.shape[-2:])
    assert unfit(fitted, size, network_size).shape == rgb.shape
    if network_size is None:
        assert torch.equal(unfit(fitted, size, None), rgb)
    inverse = make(replace(SMALL, size=network_size, steps=1))
    (made,) = inverse.invert([Frames(rgb=rgb)])
    assert made.gbuffer.size == size


def test_values_mean_what_upstream_s_mean() -> None:
    code = torch.full((1, 3, 2, 2), 0.5)
    facing = torch.tensor([0.5, 0.5, 1.0])[None, :, None, None].repeat(1, 1, 2, 2)
    facing[..., 0] = 0.5  # no direction: no surface
    every = {"albedo": code, "normal": facing, "depth": code, "roughness": code / 2, "metallic": code}
    gbuffer = to_gbuffer(every, DiffusionConfig())
    assert gbuffer.albedo is not None and gbuffer.normal is not None and gbuffer.roughness is not None
    assert gbuffer.depth is None  # upstream does not say what its depth means
    torch.testing.assert_close(gbuffer.albedo, srgb_to_linear(code))
    assert gbuffer.normal[0, :, 0, 1].tolist() == [0, 0, 1] and not gbuffer.normal[..., 0].any()
    assert gbuffer.roughness.shape == (1, 1, 2, 2) and gbuffer.roughness[0, 0, 0, 0] == 0.25
    for code_name, metres in (("inverse", 10.0), ("linear", 5.0)):
        depth = to_gbuffer({"depth": code}, DiffusionConfig(depth=code_name)).depth  # pyright: ignore[reportArgumentType]
        assert depth is not None and depth[0, 0, 0, 0] == metres
    far = to_gbuffer({"depth": code * 0}, DiffusionConfig(depth="inverse")).depth
    assert far is not None and math.isinf(far[0, 0, 0, 0])
    with pytest.raises(ValueError, match="whose code upstream does not say"):
        to_gbuffer({"depth": code}, DiffusionConfig())


def test_a_fade_begins_with_the_old_and_ends_with_the_new() -> None:
    mixed = cross_fade(torch.zeros(3, 1, 1, 1), torch.ones(5, 1, 1, 1)).flatten()
    torch.testing.assert_close(mixed, torch.tensor([0.25, 0.5, 0.75, 1.0, 1.0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunk": 56}, "expected 8 n"),
        ({"overlap": 8}, "expected 8 n"),
        ({"overlap": 57}, "fewer shared"),
        ({"steps": 0}, "steps and a scale above 0"),
        ({"seed": -1}, "seed -1"),
        ({"depth_scale": 0.0}, "depth scale 0.0"),
        ({"size": (700, 1280)}, "multiples of 16"),
        ({"buffers": ("emission",)}, "one or more of albedo"),
    ],
)
def test_impossible_settings_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DiffusionConfig(**change)


def test_chunks_longer_than_the_statistics_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 17 pictures"):
        make(replace(SMALL, chunk=25))


def test_bad_streams_are_refused() -> None:
    inverse = make()
    inverse.push(Frames(rgb=video(1)))
    with pytest.raises(ValueError, match=r"\(16, 32\), and \(32, 16\) came"):
        inverse.push(Frames(rgb=video(1, (32, 16))))
    with pytest.raises(ValueError, match="not finite"):
        inverse.push(Frames(rgb=video(1) * torch.nan))
    with pytest.raises(ValueError, match="focal length"):
        inverse.reset(focal=-1.0)
    with pytest.raises(ValueError, match="seed is -1"):
        inverse.reset(seed=-1)


def test_an_empty_video_gives_nothing() -> None:
    assert list(make().invert([])) == []


def test_the_defaults_are_upstream_s() -> None:
    config = DiffusionConfig()
    assert (config.steps, config.chunk, config.size) == (15, 57, (704, 1280))
    assert config.latents == 8 and set(config.buffers) == set(CORE_CHANNELS)
