"""Examples and benchmarks run: with the debug model and small pictures, through the same code."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from flowshade import GBuffer, load_renderer
from flowshade.checkpoints.store import save_inverse
from flowshade.gbuffer.io import VideoReader, write_clip
from flowshade.inverse.stream import Inverse
from flowshade.presets import debug_inverse

ROOT = Path(__file__).resolve().parent.parent


def load(path: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    name = path.replace("/", "_").removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_render_clip(small_clip: Path, debug_model: Path, tmp_path: Path, monkeypatch) -> None:
    example = load("examples/render_clip.py", monkeypatch)
    monkeypatch.setattr(example, "load_renderer", lambda name: load_renderer(debug_model, device="cpu"))
    example.main(str(small_clip), str(tmp_path / "out.mp4"), "a plaza", "sunset")
    with VideoReader(tmp_path / "out.mp4") as video:
        assert (video.frames, video.size) == (14, (40, 64))


def test_live_world(debug_model: Path, tmp_path: Path, monkeypatch) -> None:
    example = load("examples/live_world.py", monkeypatch)
    monkeypatch.setattr(example, "load_renderer", lambda name: load_renderer(debug_model, device="cpu"))
    monkeypatch.setattr(example, "SIZE", (32, 48))
    example.main(str(tmp_path / "out.mp4"), 0.3)
    with VideoReader(tmp_path / "out.mp4") as video:
        assert (video.frames, video.size, video.fps) == (8, (32, 48), 24)


def test_demo_runs_the_verbs_it_shows(tmp_path: Path, monkeypatch, capsys) -> None:
    demo = load("examples/demo.py", monkeypatch)
    commands: list[list[str]] = []
    monkeypatch.setattr(demo, "flowshade", lambda args: commands.append(args) or 0)
    demo.demo(tmp_path / "with space")
    assert [command[0] for command in commands] == ["inspect", "render", "world", "render"]
    assert str(tmp_path / "with space" / "street-clip") in commands[2]
    assert (demo.CLIPS / "blender-plaza").is_dir()
    monkeypatch.setattr(demo, "flowshade", lambda args: 2)
    with pytest.raises(SystemExit, match="2"):
        demo.demo(tmp_path)


def test_render_benchmark(tmp_path: Path, monkeypatch, capsys) -> None:
    benchmark = load("benchmarks/render.py", monkeypatch)
    options = ["--preset", "debug", "--device", "cpu", "--size", "32x48", "--window", "4", "8", "--windows", "2"]
    monkeypatch.setattr(sys, "argv", ["render.py", *options, "--json", str(tmp_path / "out.json")])
    benchmark.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(rows) == 4  # header, rule, two windows
    assert len({row.count("|") for row in rows}) == 1
    results = json.loads((tmp_path / "out.json").read_text())
    assert [result["window"] for result in results] == [4, 8]
    for result in results:
        assert set(result["stages_ms"]) == {"encode", "history", "transformer", "decode"}
        assert result["first_frame_ms"] > 0
        assert result["p99_ms"] >= result["median_ms"] > 0
        assert result["peak_memory_mib"] > 0


def test_render_benchmark_counts_tracing(tmp_path: Path, monkeypatch) -> None:
    benchmark = load("benchmarks/render.py", monkeypatch)
    options = ["--preset", "debug", "--device", "cpu", "--size", "32x48", "--window", "4", "--windows", "2"]
    monkeypatch.setattr(sys, "argv", ["render.py", *options, "--world", "rooms", "--json", str(tmp_path / "out.json")])
    windows = benchmark.traced("rooms", (32, 48), 4, torch.device("cpu"))
    first, second = next(windows), next(windows)
    assert first.frames == second.frames == 4 and not torch.equal(first.depth, second.depth)
    benchmark.main()
    (result,) = json.loads((tmp_path / "out.json").read_text())
    assert result["world"] == "rooms" and result["median_ms"] > sum(result["stages_ms"].values()) > 0


def test_trace_benchmark_with_two_processes(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--size", "16x32", "--world", "rooms", "--what", "buffers", "--threads", "1"]
    command = [sys.executable, str(ROOT / "benchmarks/trace.py"), *options, "--frames", "6"]
    command += ["--processes", "1", "2", "--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(rows) == 4 and len({row.count("|") for row in rows}) == 1  # header, rule, one process, two
    one, two = json.loads((tmp_path / "out.json").read_text())
    assert (one["processes"], one["frames"], two["processes"]) == (1, 6, 2) and "2 processes" in two["what"]
    assert 6 < two["frames"] <= 12  # the first has all six, and the other what it had by then
    assert two["frames_per_second"] > 0 and two["p99_ms"] >= two["median_ms"] > 0


def test_trace_benchmark_says_that_a_process_ended() -> None:
    options = ["--device", "cpu", "--size", "0x32", "--world", "rooms", "--what", "buffers", "--frames", "2"]
    command = [sys.executable, str(ROOT / "benchmarks/trace.py"), *options, "--processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "expected (height, width), each at least 1" in done.stderr and "ended with exit code 1" in done.stderr


@pytest.mark.parametrize("memory", ["full", "one_way"])
def test_flash_benchmark(memory: str, tmp_path: Path, monkeypatch, capsys) -> None:
    benchmark = load("benchmarks/flash.py", monkeypatch)
    monkeypatch.setattr(benchmark, "WARM_UP", 2)
    options = ["--tiny", "--device", "cpu", "--size", "32x48", "--windows", "2", "--window", "4", "--steps", "1"]
    monkeypatch.setattr("sys.argv", ["flash.py", *options, "--memory", memory, "--json", str(tmp_path / "r.json")])
    benchmark.main()
    out = capsys.readouterr().out
    assert "tiny, 32x48, float32" in out
    plain, fast = json.loads((tmp_path / "r.json").read_text())
    assert (plain["variant"], fast["variant"]) == ("plain", "torch")
    for result in (plain, fast):
        assert (result["window"], result["steps"], result["memory"]) == (4, 1, memory) and not result["failure"]
        assert set(result["reached"]) == {"encode", "history", "transformer", "decode"}
        assert f"| {memory} | 1 | 4 | {result['variant']} |" in out
        assert result["growth_mib"] == 0 and result["differs"] < 1e-5


def save_debug_inverse(path: Path) -> Path:
    torch.manual_seed(0)
    save_inverse(Inverse(debug_inverse()), path)
    return path


def test_invert_benchmark(tmp_path: Path, monkeypatch, capsys) -> None:
    benchmark = load("benchmarks/invert.py", monkeypatch)
    model = save_debug_inverse(tmp_path / "inverse.safetensors")
    options = ["--device", "cpu", "--size", "32x48", "--window", "1", "3", "--windows", "2", "--model", str(model)]
    benchmark.main([*options, "--json", str(tmp_path / "out.json")])
    assert "| debug-inverse | 32x48 | 3 |" in capsys.readouterr().out
    results = json.loads((tmp_path / "out.json").read_text())
    assert [result["window"] for result in results] == [1, 3]
    assert all(result["p99_ms"] >= result["median_ms"] > 0 for result in results)


def test_round_trip_benchmark(small_gbuffer: GBuffer, debug_model: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    benchmark = load("benchmarks/round_trip.py", monkeypatch)
    model = save_debug_inverse(tmp_path / "inverse.safetensors")
    write_clip(tmp_path / "clip", small_gbuffer[:4], 24, rgb=torch.rand(4, 3, *small_gbuffer.size))
    options = ["--clip", str(tmp_path / "clip"), "--model", str(debug_model), "--inverse", str(model)]
    benchmark.main([*options, "--sheet", str(tmp_path / "sheet.png")])
    out = capsys.readouterr().out
    assert "| true buffers |" in out and "| estimated buffers |" in out
    assert (tmp_path / "sheet.png").is_file()
