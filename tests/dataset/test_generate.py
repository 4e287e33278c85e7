"""Generated datasets: repeatable, resumable, indexed, and projected before they begin."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import pytest

from flowshade.dataset import generate as generate_module
from flowshade.dataset.generate import DatasetPlan, Projection, check_disk, generate, project
from flowshade.dataset.index import DatasetError, read_index
from flowshade.gbuffer.io import open_clip
from flowshade.gbuffer.look import LOOKS

PLAN = DatasetPlan(
    kinds=("street", "hills"), clips=2, seconds=0.25, fps=8, size=(16, 32), look="any", reference="direct", samples=1
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "set"
    generate(PLAN, folder)
    return folder


def test_the_index_lists_what_is_there(dataset: Path) -> None:
    index = read_index(dataset)
    assert [clip["path"] for clip in index["clips"]] == ["street-000000", "hills-000001"]
    assert index["frames"] == 4
    for entry, job in zip(index["clips"], PLAN.jobs()):
        with open_clip(dataset / entry["path"]) as clip:
            assert clip.info.frames == entry["frames"] == 2
            assert clip.info.caption == entry["caption"]
            assert clip.reference() is not None
        assert job.look is not None
        assert (entry["look"], entry["look_caption"]) == (job.look.name, job.look.caption())
        assert (entry["world"], entry["seed"], entry["camera"]) == (job.kind, job.seed, 0)
        assert (entry["height"], entry["width"], entry["fps"]) == (16, 32, 8)
        files = [path for path in (dataset / entry["path"]).rglob("*") if path.is_file()]
        assert entry["bytes"] == sum(path.stat().st_size for path in files)


def test_only_what_is_missing_is_recorded(dataset: Path) -> None:
    first = (dataset / "street-000000" / "clip.json").stat().st_mtime_ns
    for path in sorted((dataset / "hills-000001").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (dataset / "hills-000001").rmdir()
    seen = []
    index = generate(PLAN, dataset, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(2, 2)]
    assert len(index["clips"]) == 2
    assert (dataset / "street-000000" / "clip.json").stat().st_mtime_ns == first


def test_another_plan_is_refused(dataset: Path) -> None:
    with pytest.raises(DatasetError, match=r"another plan \(fps, look differ\)"):
        generate(dataclasses.replace(PLAN, fps=12, look="night"), dataset)


def test_plans_repeat_and_vary() -> None:
    plan = DatasetPlan(clips=30)
    jobs, again = list(plan.jobs()), list(plan.jobs())
    assert jobs == again
    assert len({job.name for job in jobs}) == 30
    assert {job.kind for job in jobs} == set(plan.kinds)
    assert len({job.look.name for job in jobs if job.look}) >= 6
    assert all(job.look is None for job in DatasetPlan(look="none").jobs())
    assert all(job.look == LOOKS["rain"] for job in DatasetPlan(look="rain").jobs())


def test_several_cameras_share_a_world() -> None:
    jobs = list(DatasetPlan(kinds=("street", "yard"), clips=5, cameras=2).jobs())
    assert [job.name for job in jobs] == [
        "street-000000", "street-000000-1", "yard-000001", "yard-000001-1", "street-000002",
    ]  # fmt: skip
    assert [job.camera for job in jobs] == [0, 1, 0, 1, 0]


def test_projection_measures_every_kind_and_leaves_out_what_is_there(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes a frame are those of the clips that are written. Each world is built once: it never changes."""
    monkeypatch.setattr(generate_module, "make_world", functools.cache(generate_module.make_world))
    projection = project(PLAN, workers=2)
    assert projection.frames == 4 and projection.workers == 2
    index = read_index(dataset)
    assert projection.bytes == pytest.approx(index["bytes"], rel=0.5)  # the first frames for all of a short clip
    assert projection.seconds_a_frame > 0
    assert project(PLAN, dataset).clips == 0
    with pytest.raises(DatasetError, match="another plan"):
        project(dataclasses.replace(PLAN, fps=12), dataset)


def test_the_index_keeps_what_was_projected(dataset: Path) -> None:
    projection = Projection(
        frames=4, bytes_a_frame=100.0, seconds_a_frame=0.5, setup_seconds=1.0, clips=2, workers=1
    )  # fmt: skip
    index = generate(PLAN, dataset, projection=projection)
    assert index["projected"] == {"frames": 4, "bytes": 400, "seconds": 4.0}
    assert index["seconds"] < 4.0


def test_a_dataset_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    projection = Projection(
        frames=10**9, bytes_a_frame=1e9, seconds_a_frame=0.5, setup_seconds=1.0, clips=2, workers=1
    )  # fmt: skip
    with pytest.raises(DatasetError, match=r"would take .* TiB and its disk has .* left.*Lower --clips"):
        check_disk(projection, tmp_path / "not" / "there")
    check_disk(dataclasses.replace(projection, frames=1, bytes_a_frame=1.0), tmp_path)


def test_particles_are_kept_where_they_belong(tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, kinds=("rooms", "yard"), look="rain", particles=True, seconds=0.125)
    index = generate(plan, tmp_path)
    assert [clip["particles"] for clip in index["clips"]] == [None, "rain"]
    assert [(tmp_path / clip["path"] / "particles").exists() for clip in index["clips"]] == [False, True]


def test_projection_in_words() -> None:
    projection = Projection(
        frames=9000, bytes_a_frame=2**20, seconds_a_frame=0.5, setup_seconds=10.0, clips=30, workers=4
    )
    assert projection.seconds == (9000 * 0.5 + 300) / 4
    assert projection.text() == (
        "30 clips, 9,000 frames: 8.8 GiB and 20.0 minutes on 4 workers\n"
        "at these rates 4,000,000 frames take 3.8 TiB and 5.8 days"
    )


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"has no dataset.json.*flowshade data generate"):
        read_index(tmp_path)
    (tmp_path / "dataset.json").write_text(json.dumps({"format": "other", "version": 3}))
    with pytest.raises(DatasetError, match="'other' version 3; expected 'flowshade-dataset' version 1"):
        read_index(tmp_path)
    with pytest.raises(DatasetError, match="unknown look 'dusk'"):
        DatasetPlan(look="dusk")
    with pytest.raises(DatasetError, match="0 clips"):
        DatasetPlan(clips=0)
    with pytest.raises(DatasetError, match="0 cameras"):
        DatasetPlan(cameras=0)
    with pytest.raises(DatasetError, match="hold no frame"):
        DatasetPlan(seconds=0.01)
