"""Several streams in one call: equal to one after another, whatever their pasts, prompts and buffers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flowshade.presets import debug_renderer
from flowshade.renderer.batch import push_together
from flowshade.renderer.renderer import Renderer
from flowshade.renderer.stream import Stream
from flowshade.renderer.transformer import TextContext
from flowshade.types import GBuffer
from tests.conftest import make_gbuffer


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    torch.manual_seed(0)
    renderer = Renderer(debug_renderer())
    for parameter in renderer.parameters():
        nn.init.normal_(parameter, std=0.15)
    return renderer.eval()


def text(seed: int, length: int) -> TextContext:
    return TextContext(tokens=torch.randn(1, length, 384, generator=torch.Generator().manual_seed(seed)))


def streams_of(renderer: Renderer) -> list[Stream]:
    """Three streams: new; a short past and a sun; a full past. Prompts of different length."""
    streams = [renderer.open_stream(seed) for seed in (1, 2, 3)]
    for index, (stream, pushed) in enumerate(zip(streams, (0, 1, 9))):
        stream.set_text(text(index, 3 + 4 * index))
        for window in range(pushed):
            stream.push(make_gbuffer(4, 32, 48, seed=100 * index + window))
    streams[1].set_sun(torch.tensor([0.0, 0.6, 0.8]))
    return streams


def windows_of(seed: int) -> list[GBuffer]:
    windows = [make_gbuffer(4, 32, 48, seed=seed + index) for index in range(3)]
    windows[2] = windows[2].replace(roughness=None, camera=None)
    return windows


@pytest.mark.parametrize(("dtype", "most", "mean"), [(None, 2e-4, 2e-5), (torch.bfloat16, 0.2, 0.01)])
def test_a_batch_equals_streams_one_by_one(
    renderer: Renderer, dtype: torch.dtype | None, most: float, mean: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renderer, "autocast_dtype", dtype)
    together, alone = streams_of(renderer), streams_of(renderer)
    for turn in range(3):
        windows = windows_of(1000 + 10 * turn)
        batch = push_together(renderer, together, windows, steps=2)
        for index, (stream, window) in enumerate(zip(alone, windows)):
            expected = stream.push(window, steps=2).rgb
            assert expected.std() > 0.05
            torch.testing.assert_close(batch[index].rgb, expected, rtol=0, atol=most)
            difference = (batch[index].rgb - expected).abs()
            assert difference.mean() < mean
            assert difference.flatten().quantile(0.999) < most / 2  # a pixel or two may be as far off as `most`
    assert [stream.latent_index for stream in together] == [3, 4, 12]


def test_streams_do_not_see_each_other(renderer: Renderer) -> None:
    first, second = streams_of(renderer), streams_of(renderer)
    windows = windows_of(5)
    expected = push_together(renderer, first, windows)
    poisoned = [windows[0], windows[1].replace(albedo=torch.full((4, 3, 32, 48), torch.nan)), windows[2]]
    got = push_together(renderer, second, poisoned)
    for index in (0, 2):
        torch.testing.assert_close(got[index].rgb, expected[index].rgb, rtol=0, atol=1e-6)


def test_nothing_advances_when_the_call_fails(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    streams, twins = streams_of(renderer), streams_of(renderer)

    def fail(*args: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(renderer.decoder, "step", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            push_together(renderer, streams, windows_of(7))
    for got, expected in zip(
        push_together(renderer, streams, windows_of(7)), push_together(renderer, twins, windows_of(7))
    ):
        assert torch.equal(got.rgb, expected.rgb)


def test_what_cannot_be_a_batch_is_refused(renderer: Renderer) -> None:
    streams = streams_of(renderer)
    with pytest.raises(ValueError, match="none twice"):
        push_together(renderer, [streams[0], streams[0]], windows_of(0)[:2])
    with pytest.raises(ValueError, match="expected one kind"):
        push_together(renderer, streams[:2], [make_gbuffer(4, 32, 48), make_gbuffer(4, 32, 64)])
    with pytest.raises(ValueError, match="no prompt"):
        push_together(renderer, [renderer.open_stream(0)], windows_of(0)[:1])
