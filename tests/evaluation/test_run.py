"""Whole evaluations at a tiny size with a random model: files, going on after a stop, somebody's videos, comparison."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from flowshade import api, world
from flowshade.api import StyledRenderer, load_renderer
from flowshade.cli import main
from flowshade.errors import FlowshadeError
from flowshade.evaluation import suites
from flowshade.evaluation.compare import bootstrap_interval, compare, load_and_compare
from flowshade.evaluation.long import LongRun, evaluate_long, traced_frames
from flowshade.evaluation.results import load_results
from flowshade.evaluation.run import Evaluation, evaluate
from flowshade.evaluation.suites import Case, HeldOutWorlds, PredictedVideos, RecordedClips
from flowshade.evaluation.worlds import WorldSuite
from flowshade.gbuffer.io import VideoWriter
from flowshade.gbuffer.look import LOOKS
from flowshade.renderer.prompt import WIDTH, CaptionBank

TINY = WorldSuite(worlds=2, size=(32, 48), frames=8, samples=1, looks=("sunny", "night"))
OPTIONS = Evaluation(window=4, lpips_every=4)


@pytest.fixture(scope="module")
def renderer(debug_model: Path) -> StyledRenderer:
    return load_renderer(debug_model, device="cpu")


@pytest.fixture(scope="module", autouse=True)
def few_worlds_each_built_once() -> Iterator[None]:
    """Looks are learned from two worlds; a world never changes, so that one of a seed serves all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suites, "LOOK_WORLDS", 2)
        patch.setattr(world, "make_world", functools.cache(world.make_world))
        yield


@pytest.fixture(scope="module")
def finished(renderer: StyledRenderer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("eval") / "worlds"
    evaluate(HeldOutWorlds(TINY), renderer, out, OPTIONS)
    return out


def test_every_method_is_a_row_and_numbers_exist(finished: Path) -> None:
    results = load_results(finished)
    assert list(results["methods"]) == ["reference", "albedo affine", "no rays", "debug, 2 steps"]
    model = results["methods"]["debug, 2 steps"]
    assert 0 < model["psnr"] < 40 and 0 <= model["edge_auc"] <= 1 and model["warping_error"] > 0
    assert results["methods"]["reference"]["psnr"] is None
    best = results["methods"]["reference"]["normal_reestimated"]
    assert model["normal_lost"] == pytest.approx(model["normal_reestimated"] - best, abs=1e-6) and best > 0
    assert len(results["settings"]["inverse"]) == 64
    assert len(results["rows"]) == 2 * 2 * 4
    assert results["motion"] == ["exact"]
    assert results["runtime"]["windows"] == 4 and results["runtime"]["peak_mib"] > 0
    assert list(results["controls"]["ladders"]) == ["fog", "lamps"]
    assert [item["at"] for item in results["controls"]["responses"]] == [4, 4]
    assert sum(map(sum, results["controls"]["confusion"]["reference"])) == 2 * 2 * 8


def test_the_report_needs_no_other_file(finished: Path) -> None:
    page = (finished / "report.html").read_text()
    assert "debug, 2 steps" in page and "<svg" in page and page.count("data:image/png") == 2
    assert page.count("data:video/mp4") == 2
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)


class Stopped(Exception):
    pass


def test_a_run_that_was_stopped_goes_on_at_the_next_clip(
    finished: Path, renderer: StyledRenderer, tmp_path: Path
) -> None:
    class OneClipOnly(HeldOutWorlds):
        def cases(self, index: int) -> Iterator[Case]:
            if index == 1:
                raise Stopped
            yield from super().cases(index)

    class NoFirstClip(HeldOutWorlds):
        def cases(self, index: int) -> Iterator[Case]:
            assert index == 1, "the first clip was done"
            yield from super().cases(index)

    out = tmp_path / "out"
    with pytest.raises(Stopped):
        evaluate(OneClipOnly(TINY), renderer, out, OPTIONS)
    assert not (out / "results.json").exists()
    results = evaluate(NoFirstClip(TINY), renderer, out, OPTIONS)
    assert results["rows"] == load_results(finished)["rows"]
    assert not list(out.rglob("*.tmp"))


def test_results_of_other_settings_are_not_mixed(finished: Path, renderer: StyledRenderer, tmp_path: Path) -> None:
    with pytest.raises(FlowshadeError, match="window 4, and 8 was asked for"):
        evaluate(HeldOutWorlds(TINY), renderer, finished, Evaluation(window=8, lpips_every=4))
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(FlowshadeError, match="holds no evaluation"):
        evaluate(HeldOutWorlds(TINY), renderer, tmp_path, OPTIONS)


def test_somebodys_videos_are_scored_and_a_missing_one_is_named(tmp_path: Path) -> None:
    suite = HeldOutWorlds(WorldSuite(worlds=1, size=(32, 48), frames=8, samples=1, looks=("sunny",)))
    (case,) = suite.cases(0)
    assert case.reference is not None
    videos = tmp_path / "theirs"
    videos.mkdir()
    with pytest.raises(FlowshadeError, match=r"expected street-1000000\.sunny\.mp4"):
        PredictedVideos(videos).pictures(case)
    darker = (case.reference * 255 * 0.5).round().to(torch.uint8).movedim(1, -1)
    with VideoWriter(videos / f"{case.clip}.sunny.mp4", fps=24, size=(32, 48), lossless=True) as video:
        video.append(darker)
    options = dataclasses.replace(OPTIONS, controls=False, reestimate=False)
    results = evaluate(suite, PredictedVideos(videos), tmp_path / "out", options)
    expected = -10 * torch.log10((darker.movedim(-1, 1) / 255 - case.reference).square().flatten(1).mean(1)).mean()
    assert results["methods"]["theirs"]["psnr"] == pytest.approx(float(expected), rel=1e-3)
    assert results["runtime"] is None


def test_clips_with_pictures_of_another_renderer(renderer: StyledRenderer, tmp_path: Path) -> None:
    examples = Path(__file__).resolve().parents[2] / "examples" / "clips"
    suite = RecordedClips("cycles", [examples], looks=("sunny", "overcast"), frames=4, size=(32, 56))
    results = evaluate(suite, renderer, tmp_path / "out", OPTIONS)
    assert results["clips"] == ["blender-plaza"] and results["motion"] == ["DIS flow"]
    assert set(results["methods"]) == {"reference", "albedo affine", "no rays", "debug, 2 steps"}
    assert "ground" in results["told"]["blender-plaza"]["as filmed"]


def test_clips_without_pictures(small_clip: Path, renderer: StyledRenderer, tmp_path: Path) -> None:
    with pytest.raises(FlowshadeError, match="holds no reference pictures"):
        RecordedClips("cycles", [small_clip], looks=("sunny",))
    with pytest.raises(FlowshadeError, match="no clip was found"):
        RecordedClips("files", [tmp_path], looks=("sunny",))
    with pytest.raises(FlowshadeError, match="no clips were given"):
        RecordedClips("files", [], looks=("sunny",))
    results = evaluate(
        RecordedClips("files", [small_clip.parent], looks=("sunny",), frames=8), renderer, tmp_path, OPTIONS
    )
    model = results["methods"]["debug, 2 steps"]
    assert model["psnr"] is None and model["edge_precision"] is not None and model["window_ratio"] is not None


def test_comparison_finds_a_difference_and_none_with_itself(finished: Path) -> None:
    same = load_and_compare(finished, finished)
    assert all((item.difference, item.verdict) == (0, "no difference shown") for item in same)
    results = load_results(finished)
    against = compare(results, results, ("albedo affine", "reference"))
    edges = next(item for item in against if item.metric == "edge_auc")
    assert edges.low <= edges.difference <= edges.high and edges.clips == 2
    with pytest.raises(FlowshadeError, match="no method 'nobody'"):
        compare(results, results, ("nobody", "reference"))


def test_the_bootstrap_interval_is_that_of_the_mean() -> None:
    values = np.random.default_rng(0).normal(5.0, 2.0, 400)
    low, high = bootstrap_interval(values)
    assert low == pytest.approx(values.mean() - 1.96 * 2 / 20, abs=0.04)
    assert high == pytest.approx(values.mean() + 1.96 * 2 / 20, abs=0.04)
    assert bootstrap_interval(np.full(5, 3.0)) == (3, 3)


LONG = LongRun(frames=32, loop=True, size=(32, 48), samples=1, window=4, every=2)


def test_a_loop_shows_the_same_buffers_on_the_way_back() -> None:
    frames = {number: (gbuffer, shown) for number, gbuffer, shown in traced_frames(LONG, "cpu")}
    assert len(frames) == 32
    for name, channel in frames[3][0].channels().items():
        if name != "motion":  # the way back runs the other way
            assert torch.equal(channel, frames[28][0].channels()[name]), name
    first, again = frames[2][1], frames[29][1]
    assert first is not None and again is not None and torch.equal(first, again)


def test_a_long_run_that_compares_too_seldom_is_refused_at_once() -> None:
    with pytest.raises(FlowshadeError, match="samples none of the last 9; expected every 9 or fewer"):
        LongRun(frames=64, window=16, every=27)


def test_the_reference_of_a_long_run_may_be_path_traced() -> None:
    direct, paths = (
        dict(enumerate(shown for _, _, shown in traced_frames(dataclasses.replace(LONG, reference=kind), "cpu")))[0]
        for kind in ("direct", "paths")
    )
    assert direct is not None and paths is not None and 0.001 < (direct - paths).abs().mean() < 0.2


def test_a_long_stream_is_measured(renderer: StyledRenderer, tmp_path: Path) -> None:
    results = evaluate_long(renderer, LONG, tmp_path)
    assert results["methods"]["reference"]["drift_red"] == 0
    assert results["methods"]["albedo affine"]["drift_red"] == pytest.approx(0, abs=1e-6)
    assert set(results["revisit"]) == {"pairs", "no rays", "albedo affine", "debug, 2 steps"}
    assert results["revisit"]["albedo affine"]["ssim"] == pytest.approx(1)
    assert results["runtime"]["windows"] == 7
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "results.json").read_text())["frames"] == 32


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    """Knows one look, and the empty caption with which renderers begin."""
    texts = ("", LOOKS["sunny"].caption())
    tokens = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(0)).half()
    CaptionBank(texts=texts, tokens=tokens, offsets=torch.tensor([0, 2, 8])).save(tmp_path / "captions.safetensors")
    return tmp_path


def test_the_command_line_without_the_prompt_encoder(
    debug_model: Path, bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "PromptEncoder", None)
    out = tmp_path / "out"
    options = ["--worlds", "2", "--frames", "4", "--size", "32x48", "--looks", "sunny", "--captions", str(bank)]
    command = ["eval", "worlds", "-o", str(out), "--model", str(debug_model), "--device", "cpu", "--window", "4"]
    assert main([*command, *options]) == 2
    error = capsys.readouterr().err
    assert "the caption bank holds 2 captions and not" in error and "--no-controls" in error
    assert main([*command, *options, "--no-controls"]) == 0
    said = capsys.readouterr().out
    assert "| debug, 2 steps |" in said and "report.html" in said
    assert main(["eval", "compare", str(out), str(out)]) == 0
    assert "no difference shown" in capsys.readouterr().out
    assert main([*command, "--looks", "sunshine"]) == 2
    assert "unknown look 'sunshine'" in capsys.readouterr().err
