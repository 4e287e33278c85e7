"""A whole run: what is asked and shown, how it is kept, stopped and gone on with, and what comes out."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flowshade.errors import FlowshadeError
from flowshade.evaluation.vlm.client import Endpoint, EndpointError, HttpJudge, Reply, Turn
from flowshade.evaluation.vlm.clips import Contest
from flowshade.evaluation.vlm.layout import BAR, GAP
from flowshade.evaluation.vlm.report import markdown, results, write_results
from flowshade.evaluation.vlm.run import CONTROL, Plan, Prices, Run, Trial, damaged, make_plan
from flowshade.gbuffer.io import write_clip
from tests.evaluation.vlm.conftest import Stub, fails, labels_of, pictures_of, ranked, says, small_gbuffer

METHODS = ("bright", "dark", "grey")


def contest_of(folders: dict[str, Path], methods: tuple[str, ...] = METHODS) -> Contest:
    return Contest.find(folders["footage"], {name: folders[name] for name in methods})


def plan_of(folders: dict[str, Path], **changes) -> Plan:
    settings = {"channels": ("roughness",), "axes": ("semantic", "temporal"), "repeats": 3, "pictures": 2}
    return make_plan(contest_of(folders), Trial(**(settings | changes)), {"model": "m"})


def judge_of(stub: Stub, **options) -> HttpJudge:
    endpoint = Endpoint(base_url=stub.url, model="m", timeout=5.0, tries=2, **options)
    return HttpJudge(endpoint, sleep=lambda seconds: None)


def run_all(plan: Plan, out: Path, judge, parallel: int = 1) -> dict:
    run = Run(plan, out)
    with run.answers() as file:
        run.ask(judge, file, parallel=parallel, progress=lambda done, total: None)
        return dict(file.answers)


def brightness(body: dict) -> dict[str, float]:
    """What a judge that really looks sees: the mean of each tile, by label, in the first picture."""
    picture = np.asarray(Image.open(io.BytesIO(pictures_of(body)[0])))
    names = ["RGB", *labels_of(body)]
    height, width = 48, 80  # tiles are not enlarged
    columns = (picture.shape[1] - GAP) // (width + GAP)
    seen = {}
    for index, name in enumerate(names):
        row, column = divmod(index, columns)
        y, x = GAP + row * (height + BAR + GAP) + BAR, GAP + column * (width + GAP)
        seen[name] = float(picture[y : y + height, x : x + width].mean())
    return seen


def prefers_bright(body: dict) -> str:
    seen = brightness(body)
    order = sorted(labels_of(body), key=lambda label: -seen[label])
    return json.dumps({"ranks": {label: order.index(label) + 1 for label in order}})


@pytest.mark.parametrize("parallel", [1, 4])
def test_ranks_go_back_to_methods_whatever_their_order(
    stub: Stub, contest_folders: dict[str, Path], tmp_path: Path, parallel: int
) -> None:
    stub.default = says(prefers_bright)
    plan = plan_of(contest_folders, repeats=6)
    answers = run_all(plan, tmp_path / "out", judge_of(stub), parallel)
    assert len(answers) == len(plan.questions) == 2 * 2 * 6
    assert len({tuple(question.order) for question in plan.questions}) > 2
    assert all(answer.ranks == {"bright": 1, "grey": 2, "dark": 3} for answer in answers.values())
    found = results(plan, answers)
    assert found["answers"] == {"ranked": 24, "malformed": 0, "refused": 0}
    for table in found["tables"]:
        assert {name: rank["mean"] for name, rank in table["ranks"].items()} == {"bright": 1, "grey": 2, "dark": 3}
        assert table["repeats_agree"]["mean"] == 1
    # six repeats put three methods twice in every place, so places are alike however methods differ
    assert [place["mean"] for place in found["place"]["ranks"]] == pytest.approx([2, 2, 2])
    assert found["tokens"] == {"tokens_in": 24_000, "tokens_out": 480}


def test_a_judge_that_does_not_look_is_found_out(stub: Stub, contest_folders: dict[str, Path], tmp_path: Path) -> None:
    plan = plan_of(contest_folders, control=True, repeats=4)
    answers = run_all(plan, tmp_path / "out", judge_of(stub))  # ranks by place
    found = results(plan, answers)
    assert [place["mean"] for place in found["place"]["ranks"]] == [1, 2, 3, 4]
    for axis in ("semantic", "temporal"):
        assert found["control"]["below_original"][axis]["mean"] == pytest.approx(0.5)
    for table in found["tables"]:
        assert [rank["mean"] for rank in table["ranks"].values()] == pytest.approx([2.5] * 4)
        assert table["repeats_agree"]["mean"] < 0
    assert CONTROL in found["methods"]


def test_the_control_is_mirrored_and_flickers() -> None:
    pictures = np.zeros((3, 4, 6, 3), np.uint8)
    pictures[:, :, 0] = 200
    broken = damaged(pictures)
    assert (broken[0, :, -1] > broken[1, :, -1]).all()
    assert (broken[0, :, -1] == broken[2, :, -1]).all()
    assert (broken[:, :, 0] == 20).all()


def test_malformed_answers_are_asked_again_with_the_reason_then_counted_as_missing(
    stub: Stub, contest_folders: dict[str, Path], tmp_path: Path
) -> None:
    plan = plan_of(contest_folders, axes=("semantic",), repeats=1)
    stub.script = [
        says('{"ranks": {"A": 1, "B": 2}}'),
        says(ranked),
        says("A!"),
        says("", refusal="no"),
        says('{"ranks": {"ours": 1}}'),
    ]
    answers = list(run_all(plan, tmp_path / "out", judge_of(stub)).values())
    assert [answer.status for answer in answers] == ["ranked", "malformed"]
    assert [len(answer.attempts) for answer in answers] == [2, 3]
    assert answers[1].ranks is None
    assert answers[0].attempts[0]["problem"] == "there is no rank for C."
    said = stub.requests[1][2]["messages"]
    assert [message["role"] for message in said] == ["system", "user", "assistant", "user"]
    assert "there is no rank for C." in said[-1]["content"]
    found = results(plan, {answer.key: answer for answer in answers})
    assert found["answers"] == {"ranked": 1, "malformed": 1, "refused": 0}
    assert found["tables"][0]["clips"] == 1
    assert found["asked_again"] == 3


def test_nothing_usable_is_still_a_report(stub: Stub, contest_folders: dict[str, Path], tmp_path: Path) -> None:
    stub.default = says("", refusal="I will not")
    plan = plan_of(contest_folders, asks=1, control=True)
    found = results(plan, run_all(plan, tmp_path / "out", judge_of(stub)))
    assert found["answers"]["refused"] == len(plan.questions)
    write_results(tmp_path / "out", found)
    assert "No answer could be used" in (tmp_path / "out" / "results.md").read_text()


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_run_that_fails_keeps_its_answers_and_goes_on(
    stub: Stub, contest_folders: dict[str, Path], tmp_path: Path, parallel: int
) -> None:
    plan, out = plan_of(contest_folders), tmp_path / "out"
    stub.script = [says(ranked)] * 5
    stub.default = fails(500)
    with pytest.raises(EndpointError, match="failed 2 times"):
        run_all(plan, out, judge_of(stub), parallel)
    kept = [json.loads(line)["key"] for line in (out / "answers.jsonl").read_text().splitlines()]
    assert len(kept) == len(set(kept)) == 5
    stub.requests.clear()
    stub.default = says(ranked)
    answers = run_all(plan, out, judge_of(stub), parallel)
    assert len(stub.requests) == len(plan.questions) - 5
    assert set(answers) == {question.key for question in plan.questions}
    stub.requests.clear()
    run_all(plan, out, judge_of(stub))
    assert not stub.requests


def test_a_torn_line_is_asked_again(stub: Stub, contest_folders: dict[str, Path], tmp_path: Path) -> None:
    plan, out = plan_of(contest_folders), tmp_path / "out"
    run_all(plan, out, judge_of(stub))
    path = out / "answers.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    stub.requests.clear()
    assert len(run_all(plan, out, judge_of(stub))) == len(plan.questions)
    assert len(stub.requests) == 1
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_line_that_is_no_answer_is_named(stub: Stub, contest_folders: dict[str, Path], tmp_path: Path) -> None:
    plan, out = plan_of(contest_folders), tmp_path / "out"
    run_all(plan, out, judge_of(stub))
    path = out / "answers.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], '{"key": 1}', *lines[2:]]) + "\n")
    with pytest.raises(FlowshadeError, match="line 2 is no answer"):
        Run(plan, out).answers()


def test_two_runs_cannot_share_a_folder(contest_folders: dict[str, Path], tmp_path: Path) -> None:
    run = Run(plan_of(contest_folders), tmp_path / "out")
    with run.answers(), pytest.raises(FlowshadeError, match="written by another run"):
        run.answers()


@pytest.mark.parametrize("changed", ["seed", "input", "judge"])
def test_another_run_does_not_mix_in(
    stub: Stub, contest_folders: dict[str, Path], tmp_path: Path, changed: str
) -> None:
    out = tmp_path / "out"
    run_all(plan_of(contest_folders), out, judge_of(stub))
    plan, name = plan_of(contest_folders), "judge"
    if changed == "seed":
        plan, name = plan_of(contest_folders, seed=1), "trial, questions"
    elif changed == "input":
        write_clip(contest_folders["grey"] / "two", small_gbuffer(value=0.4), 24, overwrite=True)
        plan, name = plan_of(contest_folders), "inputs"
    else:
        plan = make_plan(plan.contest, plan.trial, {"model": "another"})
    with pytest.raises(FlowshadeError, match=f"differs in {name};"):
        Run(plan, out)


def test_the_estimate_counts_what_is_left(stub: Stub, contest_folders: dict[str, Path], tmp_path: Path) -> None:
    plan = plan_of(contest_folders)
    prices = Prices(per_million_in=2.0, per_million_out=10.0, picture_tokens=1000)
    everything = plan.estimate([], prices)
    assert (everything.requests, everything.pictures) == (12, 24)
    assert 24_000 < everything.tokens_in < 24_000 + 12 * 600
    expected = (everything.tokens_in * 2 + everything.tokens_out * 10) / 1e6
    assert everything.price == pytest.approx(expected)
    height, width = plan.grids["one"].size
    by_patches = plan.estimate([], Prices())
    assert by_patches.tokens_in - everything.tokens_in == 24 * (-(-height // 28) * -(-width // 28) - 1000)
    assert plan.estimate([question.key for question in plan.questions], prices).requests == 0


def test_methods_that_lack_something_are_named_or_left_out(contest_folders: dict[str, Path], tmp_path: Path) -> None:
    (contest_folders["dark"] / "two").rename(tmp_path / "elsewhere")
    with pytest.raises(FlowshadeError, match="dark has no roughness of two"):
        plan_of(contest_folders)
    plan = plan_of(contest_folders, incomplete=True)
    assert {question.clip for question in plan.questions} == {"one"}
    assert plan.notes == ("dark has no roughness of two; the clip is left out for that channel",)
    with pytest.raises(FlowshadeError, match="no clip has metallic from every method"):
        plan_of(contest_folders, incomplete=True, channels=("metallic",))


def test_other_lengths_are_compared_as_far_as_they_go_and_said(contest_folders: dict[str, Path]) -> None:
    write_clip(contest_folders["dark"] / "two", small_gbuffer(frames=4, value=0.1), 24, overwrite=True)
    plan = plan_of(contest_folders)
    assert any("two: lengths differ" in note and "first 4" in note for note in plan.notes)
    assert max(max(question.frames) for question in plan.questions if question.clip == "two") < 4


def test_one_method_is_no_contest_but_a_control_makes_one(contest_folders: dict[str, Path]) -> None:
    contest = contest_of(contest_folders, ("grey",))
    with pytest.raises(FlowshadeError, match="two or more"):
        make_plan(contest, Trial(channels=("roughness",)), {})
    assert make_plan(contest, Trial(channels=("roughness",), control=True), {}).methods == ("grey", CONTROL)


def test_a_factor_of_depth_changes_no_picture(contest_folders: dict[str, Path]) -> None:
    from flowshade.evaluation.vlm.clips import OpenClip

    contest = contest_of(contest_folders, ("grey", "dark"))
    for method, factor in (("grey", 1.0), ("dark", 37.0)):
        gbuffer = small_gbuffer()
        depth = gbuffer.depth * factor
        depth[..., :40] *= 4
        write_clip(contest.results[method]["one"], gbuffer.replace(depth=depth), 24, overwrite=True)
    with OpenClip(contest, "one") as opened:
        shown = opened.shown("depth", [0, 3], (48, 80))
    assert (shown["grey"] == shown["dark"]).all()
    assert shown["grey"].unique().numel() == 2


KILLED = """
import sys
from pathlib import Path
from flowshade.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_killed_process_goes_on_where_it_was(stub: Stub, contest_folders: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["eval", "vlm", str(contest_folders["footage"]), "-o", str(out), "--base-url", stub.url, "--judge", "m"]
    for name in METHODS:
        command += ["--method", f"{name}={contest_folders[name]}"]
    command += ["--channels", "roughness", "--axes", "semantic", "--yes"]

    def after_three(handler, body) -> None:
        time.sleep(60)

    stub.script, stub.default = [says(ranked)] * 3, after_three
    started = subprocess.Popen([sys.executable, "-c", KILLED, *command], stdout=subprocess.DEVNULL)
    while len(stub.requests) < 4 and started.poll() is None:
        time.sleep(0.05)
    os.kill(started.pid, signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL
    assert len((out / "answers.jsonl").read_text().splitlines()) == 3
    stub.requests.clear()
    stub.default = says(ranked)
    done = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True, text=True, check=True)
    assert len(stub.requests) == 5
    assert "8 questions: 8 ranked" in done.stdout
    assert json.loads((out / "results.json").read_text())["answers"]["ranked"] == 8


def test_results_can_be_read(stub: Stub, contest_folders: dict[str, Path], tmp_path: Path) -> None:
    stub.default = says(prefers_bright)
    plan = plan_of(contest_folders)
    found = results(plan, run_all(plan, tmp_path / "out", judge_of(stub)))
    text = markdown(found)
    assert "| bright | 1.00 (1.00 to 1.00) |" in text
    assert "Friedman: chi-square 4.00, p 0.135 (rough: only 2 clips)" in text
    assert "Mean rank by place" in text


class Scripted:
    """A judge without a server."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    def ask(self, turns: list[Turn]) -> Reply:
        return Reply(text=self.texts.pop(0))


def test_any_judge_will_do(contest_folders: dict[str, Path], tmp_path: Path) -> None:
    plan = plan_of(contest_folders, axes=("semantic",), repeats=1)
    answers = run_all(plan, tmp_path / "out", Scripted(*['{"ranks": {"A": 1, "B": 1, "C": 1}}'] * 2))
    assert [answer.ranks for answer in answers.values()] == [dict.fromkeys(METHODS, 2.0)] * 2
