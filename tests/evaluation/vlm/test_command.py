"""`flowshade eval vlm` and `eval consistency` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowshade.cli import main
from flowshade.gbuffer.io import read_video, write_video
from flowshade.gbuffer.io.pictures import write_png
from tests.evaluation.vlm.conftest import SIZE, Stub, fails

KEY = "sk-very-secret-123"


@pytest.fixture
def command(contest_folders: dict[str, Path], tmp_path: Path) -> list[str]:
    methods = [f"--method={name}={contest_folders[name]}" for name in ("bright", "dark")]
    return [str(contest_folders["footage"]), "-o", str(tmp_path / "out"), *methods]


SMALL = ["--channels", "roughness", "--axes", "semantic", "--repeats", "2"]


def test_a_run_keeps_the_key_to_itself(
    stub: Stub, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("FLOWSHADE_VLM_KEY", KEY)
    asked = ["eval", "vlm", *command, *SMALL, "--base-url", stub.url, "--judge", "m", "--yes", "--price-in", "3"]
    assert main(asked) == 0
    output = capsys.readouterr()
    assert "4 questions, 16 pictures, about" in output.out
    assert "at the prices given" in output.out
    assert stub.requests[0][1]["Authorization"] == f"Bearer {KEY}"
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"plan.json", "answers.jsonl", "results.json", "results.md"}
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in output.out + output.err
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert [len(question["order"]) for question in plan["questions"]] == [2] * 4
    assert len(list((tmp_path / "out" / "grids").rglob("*.png"))) == 4  # one question of the kind


def test_nothing_is_sent_without_a_yes(stub: Stub, command: list[str], capsys) -> None:
    assert main(["eval", "vlm", *command, *SMALL, "--base-url", stub.url, "--judge", "m"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert not stub.requests


def test_a_question_is_asked_at_a_terminal(
    stub: Stub, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, sent in (("", 0), ("n", 0), ("y", 4)):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        assert main(["eval", "vlm", *command, *SMALL, "--base-url", stub.url, "--judge", "m"]) == 0
        assert len(stub.requests) == sent


def test_a_dry_run_shows_grids_and_sends_nothing(command: list[str], tmp_path: Path, capsys) -> None:
    assert main(["eval", "vlm", *command, *SMALL, "--dry-run"]) == 0
    assert "4 questions" in capsys.readouterr().out
    assert len(list((tmp_path / "out" / "grids").rglob("*.png"))) == 4
    assert not (tmp_path / "out" / "plan.json").exists()  # so that a judge can be named next


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "no judge was named"),
        (["--judge", "m", "--base-url", "nowhere"], "--base-url"),
        (["--dry-run", "--method", "nameless"], "NAME=DIR"),
        (["--dry-run", "--method", "dark=x"], "twice"),
        (["--dry-run", "--method", "none=missing"], "missing is no folder"),
        (["--dry-run", "--channels", "metallic"], "bright has no metallic of one"),
        (["--dry-run", "--clips", "three"], "no clip 'three'"),
        (["--dry-run", "--repeats", "0"], "repeats is 0"),
        (["--dry-run", "--parallel", "0"], "--parallel is 0"),
        (["--judge", "no/such-model", "--yes", "--channels", "roughness"], "cannot be loaded"),
    ],
)
def test_mistakes_are_one_sentence(command: list[str], more: list[str], said: str, capsys) -> None:
    assert main(["eval", "vlm", *command, *more]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_a_refusing_endpoint_is_one_sentence(stub: Stub, command: list[str], capsys) -> None:
    stub.default = fails(401, {"error": {"message": "Incorrect API key provided"}})
    assert main(["eval", "vlm", *command, *SMALL, "--base-url", stub.url, "--judge", "m", "--yes"]) == 2
    error = capsys.readouterr().err
    assert "status 401" in error
    assert "Incorrect API key" in error


def test_people_are_compared_with(stub: Stub, command: list[str], tmp_path: Path) -> None:
    ranks = ["clip,channel,axis,method,rank"]
    ranks += [f"{clip},roughness,semantic,{m},{n}" for clip in ("one", "two") for n, m in ((1, "bright"), (2, "dark"))]
    (tmp_path / "people.csv").write_text("\n".join(ranks))
    human = ["--human", str(tmp_path / "people.csv")]
    assert main(["eval", "vlm", *command, *SMALL, *human, "--base-url", stub.url, "--judge", "m", "--yes"]) == 0
    table = json.loads((tmp_path / "out" / "results.json").read_text())["tables"][0]
    # the stub ranks by place, so that its two repeats cancel: no order to agree with
    assert table["people"]["clips"] == 2
    assert table["people"]["kendall"]["mean"] is None


def test_consistency_writes_its_table(command: list[str], tmp_path: Path, capsys) -> None:
    assert main(["eval", "consistency", *command, "--frames", "3"]) == 0
    assert "warp_error_roughness" in capsys.readouterr().out
    assert (tmp_path / "out" / "consistency.md").exists()


def test_footage_and_results_as_pictures_and_videos(tmp_path: Path, capsys) -> None:
    """A folder of pictures as footage; videos named after clip and channel, and picture folders, as results."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for index in range(4):
        picture = (torch.rand(*SIZE, 3, generator=generator) * 255).to(torch.uint8).numpy()
        (tmp_path / "footage" / "one").mkdir(parents=True, exist_ok=True)
        write_png(tmp_path / "footage" / "one" / f"{index:04d}.png", picture)
        (tmp_path / "pictures" / "one" / "roughness").mkdir(parents=True, exist_ok=True)
        write_png(tmp_path / "pictures" / "one" / "roughness" / f"{index:04d}.png", picture[..., :1].repeat(3, -1))
    (tmp_path / "videos").mkdir()
    maps = torch.full((4, *SIZE, 3), 128, dtype=torch.uint8)
    write_video(tmp_path / "videos" / "one_roughness.mp4", maps, fps=24)
    methods = [f"--method={name}={tmp_path / name}" for name in ("pictures", "videos")]
    assert (
        main(["eval", "vlm", str(tmp_path / "footage"), "-o", str(tmp_path / "out"), *methods, *SMALL, "--dry-run"])
        == 0
    )
    assert "2 questions" in capsys.readouterr().out
    assert read_video(tmp_path / "videos" / "one_roughness.mp4").shape[0] == 4
