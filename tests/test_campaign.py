"""`tools/campaign.py`: stages run by themselves, and all that they wrote arrives once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import time
import tomllib
from io import BytesIO
from pathlib import Path

CAMPAIGN = Path(__file__).parents[1] / "tools" / "campaign.py"

PLAN = """
leave = ["run/checkpoint*"]
prelude = "word=hello; "
before_packing = "echo so far > $OUT/now"

[[stages]]
name = "first"
seconds = 20
command = "echo $word; mkdir $OUT/run; head -c 40000000 /dev/zero > $OUT/run/weights; touch $OUT/run/checkpoint"

[[stages]]
name = "stuck"
seconds = 0.5
command = "sleep 60"

[[stages]]
name = "instead"
seconds = 20
after = "!stuck"
command = "echo instead"

[[stages]]
name = "never"
seconds = 20
after = "stuck"
command = "echo never"

[[stages]]
name = "broken"
seconds = 20
command = "false | cat; echo not reached"

[[stages]]
name = "last"
seconds = 20
command = "while ! test -e $OUT/go; do sleep 0.05; done; echo last"
"""


def campaign(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CAMPAIGN), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def contents(folder: Path) -> dict[str, bytes]:
    whole = b"".join(path.read_bytes() for path in sorted(folder.glob("part.*")))
    with tarfile.open(fileobj=BytesIO(whole)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # pyright: ignore


def test_stages_go_on_and_are_collected_in_parts(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    out = tmp_path / "out"
    assert campaign("start", tmp_path / "plan.toml", out).returncode == 0
    assert campaign("start", tmp_path / "plan.toml", out).returncode == 1  # the first goes on
    until = time.monotonic() + 30
    while not (out / "last.txt").exists() and time.monotonic() < until:
        time.sleep(0.05)
    first = campaign("collect", out, tmp_path / "a", "--parts", 2)
    assert first.returncode == 1, first.stdout + first.stderr
    (out / "go").touch()
    second = campaign("collect", out, tmp_path / "b", "--seconds", 30)
    assert second.returncode == 0, second.stdout + second.stderr
    some, rest = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert some["first.txt"] == b"hello\n" and some["instead.txt"] == b"instead\n" and some["broken.txt"] == b""
    assert some["now"] == b"so far\n" and "now" not in rest and "never.txt" not in {*some, *rest}
    assert "run/weights" not in some and rest["run/weights"] == bytes(40_000_000)  # had no room at first
    assert rest["last.txt"] == b"last\n" and "done" in rest and "first.txt" not in rest
    assert "run/checkpoint" not in {*some, *rest}
    assert all(path.stat().st_size <= 15 * 2**20 for path in tmp_path.glob("?/part.*"))
    log = [json.loads(line) for line in rest["campaign.jsonl"].splitlines()]
    ended = {line["stage"]: line["status"] for line in log if "status" in line}
    assert ended == {"first": 0, "stuck": 124, "instead": 0, "broken": 1, "last": 0}


def test_the_plans_of_the_project_can_be_read() -> None:
    plans = list(CAMPAIGN.parent.glob("*.toml"))
    assert plans
    for path in plans:
        plan = tomllib.loads(path.read_text())
        assert set(plan) <= {"leave", "prelude", "before_packing", "stages"}
        for stage in plan["stages"]:
            assert set(stage) <= {"name", "seconds", "command", "after"}
            command = plan.get("prelude", "") + stage["command"]
            for script in re.findall(r"(?:benchmarks|tools)/\w+\.py", command):
                assert (CAMPAIGN.parents[1] / script).is_file(), script
            subprocess.run(["bash", "-n", "-c", command], check=True)


def test_nothing_that_runs_is_told_at_once(tmp_path: Path) -> None:
    started = time.monotonic()
    nowhere = campaign("collect", tmp_path / "out", tmp_path / "a", "--seconds", 50)
    assert nowhere.returncode == 3 and "no campaign runs" in nowhere.stdout
    assert time.monotonic() - started < 20


def test_plans_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for text, message in {
        "": "no stages",
        '[[stages]]\nname = "a"\nseconds = 1\ncommand = ""\nafter = "b"': "no stage before it",
        '[[stages]]\nname = "a"\ncommand = ""': "seconds",
        'leaf = []\n[[stages]]\nname = "a"\nseconds = 1\ncommand = ""': "leaf",
    }.items():
        (tmp_path / "plan.toml").write_text(text)
        refused = campaign("start", tmp_path / "plan.toml", tmp_path / "out")
        assert refused.returncode == 1 and message in refused.stderr, refused.stderr
        assert not (tmp_path / "out").exists()
