"""The Python interface: streaming equals rendering, seeds, prompts, and mistakes as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from flowshade import Frames, GBuffer, StyledRenderer, load_renderer, open_clip
from flowshade.api import choose_device, keyframes_from, plan_segments
from flowshade.errors import CheckpointError, FlowshadeError, PromptError, StyleError
from flowshade.gbuffer.io import ClipReader
from flowshade.timing import StageTimer


@pytest.fixture(scope="module")
def renderer(debug_model: Path) -> StyledRenderer:
    return load_renderer(debug_model, device="cpu")


def joined(frames: Iterator[Frames]) -> torch.Tensor:
    return torch.cat([part.rgb for part in frames])


def test_pushing_equals_rendering(renderer: StyledRenderer, small_gbuffer: GBuffer) -> None:
    rendered = joined(renderer.render(small_gbuffer, "a quiet street", "snow", seed=3, window=4))
    renderer.set_prompt("a quiet street", "snow")
    renderer.reset(3)
    pushed = torch.cat([renderer.push(window).rgb for window in small_gbuffer.windows(4)])
    assert rendered.shape == (14, 3, 40, 64)
    assert rendered.std() > 0.01
    assert torch.equal(pushed, rendered)


def test_every_source_of_a_clip_gives_the_same(
    renderer: StyledRenderer, small_gbuffer: GBuffer, small_clip: Path
) -> None:
    by_path = joined(renderer.render(small_clip, "fog"))
    with open_clip(small_clip) as reader:
        by_reader = joined(renderer.render(reader, "fog"))
        in_memory = joined(renderer.render(reader.read(), "fog"))
    assert torch.equal(by_path, by_reader)
    assert torch.equal(by_path, in_memory)


def test_a_clip_opened_by_name_is_closed(
    renderer: StyledRenderer, small_clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    monkeypatch.setattr(ClipReader, "close", lambda reader: closed.append(reader))
    for _ in renderer.stream(small_clip, "fog", window=4):
        assert not closed
    assert len(closed) == 1
    begun = renderer.stream(small_clip, "fog", window=4)
    next(begun)
    begun.close()  # type: ignore[attr-defined]
    assert len(closed) == 2
    with pytest.raises(FlowshadeError, match="window is 3 frames"):
        renderer.stream(small_clip, "fog", window=3)
    assert len(closed) == 3


def test_a_clip_that_somebody_opened_stays_open(
    renderer: StyledRenderer, small_clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, closed = open_clip(small_clip), []
    monkeypatch.setattr(ClipReader, "close", lambda reader: closed.append(reader))
    joined(renderer.render(reader, "fog", window=4))
    assert not closed


def test_same_seed_same_pictures(renderer: StyledRenderer, small_gbuffer: GBuffer) -> None:
    first = joined(renderer.render(small_gbuffer, "rain", seed=1))
    assert torch.equal(first, joined(renderer.render(small_gbuffer, "rain", seed=1)))
    assert not torch.equal(first, joined(renderer.render(small_gbuffer, "rain", seed=2)))


def test_prompt_style_sun_and_steps_matter(renderer: StyledRenderer, debug_model: Path, small_gbuffer: GBuffer) -> None:
    plain = joined(renderer.render(small_gbuffer, "rain"))
    assert not torch.equal(plain, joined(renderer.render(small_gbuffer, "sunny morning")))
    assert not torch.equal(plain, joined(renderer.render(small_gbuffer, "rain", "night")))
    assert not torch.equal(plain, joined(renderer.render(small_gbuffer, "rain", sun=torch.tensor([0.0, 0.6, 0.8]))))
    assert not torch.equal(
        plain, joined(load_renderer(debug_model, device="cpu", steps=4).render(small_gbuffer, "rain"))
    )
    assert torch.equal(plain, joined(renderer.render(small_gbuffer, "rain", "original")))


def test_a_prompt_keyframe_changes_what_follows_and_nothing_before(
    renderer: StyledRenderer, small_gbuffer: GBuffer
) -> None:
    plain = joined(renderer.render(small_gbuffer, "a bright day", window=4))
    changed = joined(renderer.render(small_gbuffer, "a bright day", window=4, prompts_at={9: "deep night"}))
    assert torch.equal(changed[:8], plain[:8])  # frame 9 lies in the group that begins with 8
    assert not torch.equal(changed[8:], plain[8:])


def test_a_keyframe_inside_a_window_splits_it(renderer: StyledRenderer, small_gbuffer: GBuffer) -> None:
    windows = list(renderer.stream(small_gbuffer, "a", window=8, prompts_at={4: "b"}))
    assert [(window.start, window.frames.frames) for window in windows] == [(0, 4), (4, 8), (12, 2)]


def test_start_frames_and_size(renderer: StyledRenderer, small_gbuffer: GBuffer) -> None:
    calls: list[tuple[int, int]] = []
    part = joined(
        renderer.render(
            small_gbuffer, "x", start=4, frames=6, size=(32, 48), window=4, progress=lambda *call: calls.append(call)
        )
    )
    assert part.shape == (6, 3, 32, 48)
    assert calls == [(4, 6), (6, 6)]


def test_rendering_streams(renderer: StyledRenderer, small_clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_clip(small_clip) as reader:
        asked: list[tuple[int, int]] = []
        original = reader.read
        monkeypatch.setattr(reader, "read", lambda a, b: (asked.append((a, b)), original(a, b))[1])
        frames = renderer.render(reader, "x", window=4)
        assert asked == []
        next(frames)
        assert asked == [(0, 4)]


def test_stages_are_timed_from_outside(renderer: StyledRenderer, small_gbuffer: GBuffer) -> None:
    timer = StageTimer("cpu")
    list(renderer.stream(small_gbuffer, "x", window=4, timer=timer))
    totals = timer.totals()
    assert {"read", "encode", "history", "transformer", "decode"} <= set(totals)
    assert all(seconds > 0 for seconds in totals.values())
    assert "forward" not in vars(renderer.model.transformer)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"window": 6}, FlowshadeError, "window is 6 frames; expected a multiple of 4"),
        ({"start": 14}, FlowshadeError, "frames 14 to 14 were asked for, the clip has 14"),
        ({"start": 4, "frames": 11}, FlowshadeError, "frames 4 to 15 were asked for, the clip has 14"),
        ({"style": "sunshine"}, StyleError, "unknown style 'sunshine'"),
        ({"prompts_at": {14: "x"}}, PromptError, "for frame 14; expected 0 to 13"),
        ({"prompts_at": {8: "rain " * 300}}, PromptError, "302 tokens"),
    ],
)
def test_mistakes_are_found_before_the_first_frame(
    renderer: StyledRenderer, small_gbuffer: GBuffer, options: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        renderer.render(small_gbuffer, "x", **options)


def test_loading_mistakes(debug_model: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="unknown model 'compcat'; expected 'compact', 'alaya-flash' or the path"):
        load_renderer("compcat")
    with pytest.raises(CheckpointError, match="no weights at"):
        load_renderer(tmp_path / "none.safetensors")
    with pytest.raises(FlowshadeError, match="steps is 0"):
        load_renderer(debug_model, device="cpu", steps=0)
    with pytest.raises(FlowshadeError, match="device 'gpu' is unknown"):
        choose_device("gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(FlowshadeError, match="no CUDA GPU can be used here; try cpu"):
        choose_device("cuda")
    assert choose_device("auto") == torch.device("cpu")


def test_keyframes_move_to_the_first_frame_of_their_group() -> None:
    assert keyframes_from({3: "a", 4: "b", 11: "c"}, 0, 12) == {0: "a", 4: "b", 8: "c"}
    assert keyframes_from({3: "a", 4: "b", 11: "c"}, 6, 12) == {6: "b", 10: "c"}  # groups count from the start
    segments = plan_segments({0: "a", 8: "b"}, 14)
    assert [(part.start, part.stop, part.caption) for part in segments] == [(0, 8, "a"), (8, 14, "b")]


def test_a_prompt_that_would_never_be_seen_is_refused(renderer: StyledRenderer, small_gbuffer: GBuffer) -> None:
    with pytest.raises(PromptError, match="would never be seen"):
        renderer.render(small_gbuffer, "sunny", prompts_at={2: "fog"})
    with pytest.raises(PromptError, match="two prompts fall on frames 4 to 7"):
        keyframes_from({4: "a", 6: "b"}, 0, 14)
    assert keyframes_from({0: "a", 3: "b"}, 4, 14) == {4: "b"}


@pytest.mark.parametrize("size", [(0, 16), (-1, 5)])
def test_impossible_sizes_are_found_before_the_first_frame(
    renderer: StyledRenderer, small_gbuffer: GBuffer, size: tuple[int, int]
) -> None:
    with pytest.raises(FlowshadeError, match="expected \\(height, width\\)"):
        renderer.render(small_gbuffer, size=size)


def test_other_types_of_numbers_are_refused(debug_model: Path) -> None:
    with pytest.raises(FlowshadeError, match="expected torch.float32"):
        load_renderer(debug_model, device="cpu", dtype=torch.int8)


def test_the_fast_path_renders_the_same(debug_model: Path, small_gbuffer: GBuffer) -> None:
    plain = load_renderer(debug_model, device="cpu")
    fast = load_renderer(debug_model, device="cpu", fast=True)
    assert plain.model.transformer.fast is None and fast.model.transformer.fast is not None
    for renderer in (plain, fast):
        renderer.set_prompt("a street at night")
    expected = plain.push(small_gbuffer).rgb
    assert expected.std() > 0.01
    torch.testing.assert_close(fast.push(small_gbuffer).rgb, expected, atol=1e-4, rtol=1e-4)
    if not torch.cuda.is_available():
        with pytest.raises(FlowshadeError, match="fp8 needs an NVIDIA GPU"):
            load_renderer(debug_model, device="cpu", fp8=True)
