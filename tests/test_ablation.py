"""`benchmarks/ablation.py` at a tiny size: hidden buffers stay hidden, rows are what they say, stopped runs go on."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from flowshade.api import StyledRenderer, load_renderer
from flowshade.errors import FlowshadeError
from flowshade.evaluation.compare import compare
from flowshade.evaluation.metrics import psnr
from flowshade.evaluation.suites import Case, HeldOutWorlds
from flowshade.evaluation.worlds import WorldSuite
from flowshade.gbuffer.io.pictures import read_png
from flowshade.gbuffer.look import LOOKS
from flowshade.types import GBuffer
from tests.test_examples import load

TINY = WorldSuite(worlds=2, size=(32, 48), frames=16, samples=4, looks=("sunny",))
OPTIONS = ["--worlds", "2", "--size", "32", "48", "--frames", "16", "--looks", "sunny", "--windows", "1", "2"]
OPTIONS += ["--lpips-every", "8", "--device", "cpu"]


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        yield load("benchmarks/ablation.py", patch)


@pytest.fixture(scope="module")
def renderer(debug_model: Path) -> StyledRenderer:
    return load_renderer(debug_model, device="cpu")


@pytest.fixture(scope="module")
def finished(benchmark: ModuleType, debug_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ablation") / "out"
    benchmark.main([*OPTIONS, "--weights", f"early={debug_model}", str(debug_model), "--out", str(out)])
    return out


def rendered(benchmark: ModuleType, renderer: StyledRenderer, case: Case, given, out: Path) -> torch.Tensor:
    tables = {"missing": {given.label: benchmark.Variant(weights="debug", steps=1, window=1, given=given)}}
    ablation = benchmark.Ablation(HeldOutWorlds(TINY), {"debug": renderer}, tables, out)
    pictures, watch, window = next(iter(ablation._methods.values()))(case)
    assert (window, watch.frames) == (4, [4])
    return pictures


def test_no_hidden_value_reaches_the_pictures(
    benchmark: ModuleType, renderer: StyledRenderer, small_gbuffer: GBuffer, tmp_path: Path
) -> None:
    """Each buffer is given other values in turn: pictures must change exactly in the rows that have it."""
    clip = small_gbuffer[:8].replace(emission=torch.full((8, 3, *small_gbuffer.size), 0.5))
    case = Case(clip="a", look="sunny", caption=LOOKS["sunny"].caption(), gbuffer=clip, fps=24)
    assert clip.camera is not None
    moved = replace(clip.camera, pose=clip.camera.pose.flip(0) @ torch.diag(torch.tensor([1.0, -1, -1, 1])))
    changed = {name: clip.replace(**{name: value.roll(5, -1)}) for name, value in clip.channels().items()}
    changed["emission"] = clip.replace(emission=torch.full_like(clip.emission, 3.0))  # pyright: ignore
    others = {name: replace(case, gbuffer=other) for name, other in changed.items()}
    others["camera"] = replace(case, gbuffer=clip.replace(camera=moved))
    others["sun"] = replace(case, look="sunset")  # another sun under the same caption
    for given in benchmark.GIVEN:
        shown = {*given.channels, *(["camera"] if given.camera else []), *(["sun"] if given.sun else [])}
        pictures = rendered(benchmark, renderer, case, given, tmp_path)
        for name, other in others.items():
            same = torch.equal(rendered(benchmark, renderer, other, given, tmp_path), pictures)
            assert same == (name not in shown), f"{given.label}: {name}"


def test_rows_are_what_they_say(finished: Path, renderer: StyledRenderer) -> None:
    results = json.loads((finished / "ablation.json").read_text())
    tables = results["tables"]
    assert list(tables) == ["stages", "steps", "windows", "missing"]
    assert list(tables["stages"]["methods"]) == ["early", "debug", "no rays", "albedo affine"]
    usual = tables["missing"]["methods"]["all"]
    for table, row in (("stages", "early"), ("steps", "2 steps"), ("windows", "2 latent frames")):
        assert tables[table]["methods"][row] == usual
    case = next(HeldOutWorlds(TINY).cases(0))
    assert case.reference is not None
    renderer.reset(0)
    renderer.set_prompt(case.caption, sun=LOOKS["sunny"].sun_vector())
    streams = {}
    for name, frames in (("2 latent frames", 8), ("1 latent frame", 4)):
        renderer.reset(0)
        streams[name] = torch.cat([renderer.push(window).rgb for window in case.gbuffer.windows(frames)])
        row = next(row for row in tables["windows"]["rows"] if (row["clip"], row["method"]) == (case.clip, name))
        assert row["psnr"] == pytest.approx(float(psnr(streams[name], case.reference).mean()), abs=1e-4)
        assert (row["timed"], len(row["seconds"])) == ([frames] * (16 // frames - 1), 16 // frames - 1)
    assert not torch.equal(*streams.values())
    found = {item["metric"]: item for item in tables["steps"]["differences"]["2 steps"]}
    assert found["psnr"]["difference"] == pytest.approx(
        usual["psnr"] - tables["steps"]["methods"]["1 step"]["psnr"], abs=1e-9
    )
    assert compare(tables["steps"], tables["steps"], ("1 step", "no rays"))[0].clips == 2
    assert tables["missing"]["runtime"]["depth alone"]["windows"] == 2
    assert read_png(finished / "sheet.png").shape[0] > 9 * 32  # a row for each of what is given


def test_a_run_that_was_stopped_goes_on_where_it_was(
    benchmark: ModuleType, finished: Path, debug_model: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    whole = [json.loads(line) for line in (finished / "cells.jsonl").read_text().splitlines()]
    kept = [json.dumps(row) + "\n" for row in whole[:-3]]
    out = tmp_path / "out"
    out.mkdir()
    (out / "settings.json").write_bytes((finished / "settings.json").read_bytes())
    (out / "cells.jsonl").write_text("".join(kept) + '{"clip": "str')
    (out / "clips").mkdir()
    for picture in (finished / "clips").iterdir():
        (out / "clips" / picture.name).write_bytes(picture.read_bytes())
    monkeypatch.setattr(sys, "argv", ["ablation.py"])
    benchmark.main([*OPTIONS, "--weights", f"early={debug_model}", str(debug_model), "--out", str(out)])
    made = [line for line in capsys.readouterr().out.splitlines() if " min left" in line]
    assert [line.split(":")[0] for line in made] == [f"{len(whole) - left} of {len(whole)}" for left in (2, 1, 0)]
    again = [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]
    assert [row | {"seconds": 0} for row in again] == [row | {"seconds": 0} for row in whole]
    with pytest.raises(FlowshadeError, match="holds results of frames 16"):
        benchmark.main([*OPTIONS, "--weights", str(debug_model), "--out", str(out), "--frames", "32"])


def test_what_cannot_be_measured_is_refused(benchmark: ModuleType, debug_model: Path, tmp_path: Path) -> None:
    with pytest.raises(FlowshadeError, match="clips have 8 frames and a row has windows of 8"):
        benchmark.main([*OPTIONS, "--weights", str(debug_model), "--frames", "8", "--out", str(tmp_path / "a")])
    with pytest.raises(FlowshadeError, match="'debug' twice"):
        benchmark.main([*OPTIONS, "--weights", str(debug_model), f"debug={debug_model}"])
    assert not (tmp_path / "a").exists()
