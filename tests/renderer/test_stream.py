"""Streaming: equal to the whole clip, bounded, reproducible, answers at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flowshade.presets import debug_renderer
from flowshade.renderer.renderer import Renderer, RendererConfig
from flowshade.renderer.stream import Stream, stream_noise
from flowshade.renderer.transformer import TextContext, TransformerConfig
from flowshade.types import GBuffer


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    torch.manual_seed(0)
    renderer = Renderer(debug_renderer())
    for parameter in renderer.parameters():
        nn.init.normal_(parameter, std=0.15)
    return renderer.eval()


def text(seed: int = 0) -> TextContext:
    return TextContext(tokens=torch.randn(1, 6, 384, generator=torch.Generator().manual_seed(seed)))


def clip(frames: int, height: int = 32, width: int = 48, seed: int = 0) -> GBuffer:
    generator = torch.Generator().manual_seed(seed)
    albedo = torch.rand(frames, 3, height, width, generator=generator)
    return GBuffer(albedo=albedo, depth=torch.rand(frames, 1, height, width, generator=generator) * 20)


def streamed(renderer: Renderer, gbuffer: GBuffer, window: int, seed: int = 0, steps: int | None = None):
    renderer.reset(seed)
    renderer.set_text(text())
    return torch.cat([renderer.push(part, steps=steps).rgb for part in gbuffer.windows(window)])


@pytest.mark.parametrize("window", [4, 8, 16])
@pytest.mark.parametrize("steps", [1, 3])
def test_streamed_equals_whole_clip(renderer: Renderer, small_gbuffer: GBuffer, window: int, steps: int) -> None:
    gbuffer = GBuffer.cat([small_gbuffer, small_gbuffer])  # 28 frames: the past fills up
    whole = renderer.render(gbuffer, text(), window=window, steps=steps).rgb
    assert whole.shape == (28, 3, 40, 64) and whole.std() > 0.05
    torch.testing.assert_close(streamed(renderer, gbuffer, window, steps=steps), whole, rtol=0, atol=1e-4)


@pytest.mark.parametrize("frames", [1, 3, 5, 11])
@pytest.mark.parametrize("size", [(17, 31), (33, 16)])
def test_any_length_and_size(renderer: Renderer, frames: int, size: tuple[int, int]) -> None:
    gbuffer = clip(frames, *size)
    whole = renderer.render(gbuffer, text(), window=8).rgb
    assert whole.shape == (frames, 3, *size)
    assert whole.isfinite().all() and whole.min() >= 0 and whole.max() <= 1
    torch.testing.assert_close(streamed(renderer, gbuffer, 8), whole, rtol=0, atol=1e-4)


def test_a_padded_tail_equals_the_same_frames_given(renderer: Renderer) -> None:
    gbuffer = clip(6)
    tail = gbuffer[5:6]
    completed = GBuffer.cat([gbuffer, tail, tail])
    expected = renderer.render(completed, text(), window=8).rgb[:6]
    assert torch.equal(renderer.render(gbuffer, text(), window=8).rgb, expected)


def test_same_seed_same_picture_other_seed_another(renderer: Renderer) -> None:
    gbuffer = clip(8)
    first = streamed(renderer, gbuffer, 4, seed=1)
    torch.manual_seed(99)
    assert torch.equal(streamed(renderer, gbuffer, 4, seed=1), first)
    assert not torch.allclose(streamed(renderer, gbuffer, 4, seed=2), first, atol=1e-3)


def test_noise_is_a_function_of_seed_and_index() -> None:
    whole = stream_noise(5, 0, 6, (2, 3, 4))
    assert torch.equal(stream_noise(5, 2, 3, (2, 3, 4)), whole[:, :, 2:5])
    assert not torch.equal(whole[:, :, 0], whole[:, :, 1])
    assert not torch.equal(stream_noise(6, 0, 1, (2, 3, 4)), whole[:, :, :1])
    many = stream_noise(0, 0, 500, (4, 4, 4))
    assert many.mean().abs() < 0.02 and (many.std() - 1).abs() < 0.02


def test_a_prompt_changes_later_windows_only_and_at_once(renderer: Renderer) -> None:
    gbuffer = clip(12)
    steady = streamed(renderer, gbuffer, 4)
    renderer.reset()
    renderer.set_text(text())
    parts = []
    for index, window in enumerate(gbuffer.windows(4)):
        if index == 1:
            renderer.set_text(text(seed=7))
        parts.append(renderer.push(window).rgb)
    changed = torch.cat(parts)
    assert torch.equal(changed[:4], steady[:4])
    difference = (changed - steady).abs().amax((1, 2, 3))
    assert difference[4:].min() > 1e-3


def test_the_past_matters(renderer: Renderer) -> None:
    """The same window with the same noise differs when other windows came before it."""
    tail = clip(4, seed=1)
    a = streamed(renderer, GBuffer.cat([clip(8, seed=2), tail]), 4)[8:]
    b = streamed(renderer, GBuffer.cat([clip(8, seed=3), tail]), 4)[8:]
    assert (a - b).abs().max() > 1e-3


def test_the_sun_matters_and_may_be_taken_back(renderer: Renderer) -> None:
    gbuffer = clip(4)
    unknown = renderer.render(gbuffer, text()).rgb
    above = renderer.render(gbuffer, text(), sun=torch.tensor([0.0, 0, 1])).rgb
    assert (above - unknown).abs().max() > 1e-3
    renderer.reset()
    renderer.set_text(text())
    renderer.set_sun(torch.tensor([0.0, 0, 1]))
    renderer.set_sun(None)
    torch.testing.assert_close(renderer.push(gbuffer).rgb, unknown, rtol=0, atol=1e-4)


def test_state_does_not_grow(renderer: Renderer) -> None:
    renderer.reset()
    renderer.set_text(text())
    sizes = []
    for index in range(30):
        renderer.push(clip(4, seed=index))
        sizes.append(renderer.stream.state_bytes())
    assert sizes[2] > 0 and len(set(sizes[2:])) == 1


def test_streams_do_not_disturb_each_other(renderer: Renderer) -> None:
    gbuffer, other = clip(8), clip(8, seed=5)
    expected = streamed(renderer, gbuffer, 4)
    renderer.reset()
    renderer.set_text(text())
    second = renderer.open_stream(seed=3)
    second.set_text(text(seed=4))
    parts = []
    for window, elsewhere in zip(gbuffer.windows(4), other.windows(4)):
        parts.append(renderer.push(window).rgb)
        second.push(elsewhere)
        renderer.render(elsewhere, text(seed=6))
    assert torch.equal(torch.cat(parts), expected)


def test_missing_buffers_still_render(renderer: Renderer, small_gbuffer: GBuffer) -> None:
    bare = GBuffer(normal=small_gbuffer.normal, depth=small_gbuffer.depth)
    picture = renderer.render(bare, text()).rgb
    assert picture.shape == (14, 3, 40, 64) and picture.isfinite().all()


def test_the_first_camera_sets_the_stream_frame(renderer: Renderer, small_gbuffer: GBuffer) -> None:
    """Turning the whole world changes nothing that a stream can see."""
    assert small_gbuffer.camera is not None
    turned = torch.eye(4)
    turned[:2, :2] = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    camera = type(small_gbuffer.camera)(
        intrinsics=small_gbuffer.camera.intrinsics, pose=turned @ small_gbuffer.camera.pose
    )
    expected = streamed(renderer, small_gbuffer, 4)
    torch.testing.assert_close(streamed(renderer, small_gbuffer.replace(camera=camera), 4), expected, rtol=0, atol=1e-4)


def test_errors_say_what_to_do(renderer: Renderer) -> None:
    renderer.reset()
    with pytest.raises(ValueError, match="set_text"):
        renderer.push(clip(4))
    renderer.set_text(text())
    renderer.push(clip(4))
    with pytest.raises(ValueError, match=r"reset\(\)"):
        renderer.push(clip(4, height=40))
    with pytest.raises(ValueError, match="batch of 2 prompts"):
        renderer.set_text(TextContext(tokens=torch.zeros(2, 3, 384)))
    with pytest.raises(ValueError, match="multiple of 4"):
        renderer.render(clip(4), text(), window=6)
    with pytest.raises(ValueError, match="must agree"):
        RendererConfig(transformer=TransformerConfig(buffer_channels=8))


def test_a_stream_has_no_weights_of_its_own(renderer: Renderer) -> None:
    assert isinstance(renderer.stream, Stream)
    assert not any("stream" in name for name in renderer.state_dict())


@pytest.mark.parametrize("channel", ["albedo", "normal", "depth", "roughness", "metallic", "emission"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_a_bad_pixel_stays_out_of_the_memory_of_a_stream(
    renderer: Renderer, small_gbuffer: GBuffer, channel: str, value: float
) -> None:
    bad = small_gbuffer[:4].replace(emission=torch.zeros(4, 3, *small_gbuffer.size))
    values = bad.channels()[channel].clone()
    values[0, 0, 3, 5] = value
    renderer.reset(0)
    renderer.set_text(text())
    spoilt = renderer.push(bad.replace(**{channel: values})).rgb
    later = renderer.push(small_gbuffer[4:8]).rgb
    assert spoilt.isfinite().all() and later.isfinite().all() and later.std() > 0.05


def test_windows_without_pixels_or_of_integers_are_refused_and_leave_the_stream_alone(renderer: Renderer) -> None:
    renderer.reset(0)
    renderer.set_text(text())
    good = clip(4)
    bytes_ = clip(4)
    object.__setattr__(bytes_, "albedo", torch.zeros(4, 3, 32, 48, dtype=torch.uint8))  # past the tests' type checks
    for bad in (clip(0), clip(4, 0, 48), bytes_):
        with pytest.raises(ValueError, match="expected at least one frame|expected floating point"):
            renderer.push(bad)
    assert renderer.push(good).frames == 4


@pytest.mark.parametrize("sun", [[float("nan")] * 3, [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
def test_a_sun_is_a_unit_vector(renderer: Renderer, sun: list) -> None:
    with pytest.raises(ValueError, match="expected a unit vector"):
        renderer.set_sun(torch.tensor(sun))
