"""Runs the stages of a plan one after another, unattended, and hands over what they wrote, part by part.

    python3 tools/campaign.py start tools/one-gpu.toml /tmp/out      # returns at once; the stages go on by themselves
    python3 tools/campaign.py collect /tmp/out there --seconds 500   # waits so long at most, then packs what is new
    cat there/part.* | tar x -C results                              # wherever the parts were brought

For a machine that is lent for half an hour, in calls that end after minutes: it needs nothing but Python. A stage that
fails or takes longer than it may is noted and the next one begins. A plan is TOML:

    leave = ["*/checkpoint.safetensors"]       # never packed
    prelude = "..."                            # before the text of every command; optional, as the next one
    before_packing = "..."                     # a command
    [[stages]]
    name = "train"                             # what it prints goes to train.txt
    seconds = 900                              # then it is killed, with all that it started
    command = "..."                            # by bash, where the campaign was started; $OUT is its folder
    after = "trace"                            # optional: only if that stage ended well; "!trace": only if it did not

`campaign.jsonl` says how every stage ended; `done` is written last. The exit status of `collect` is 0 once all stages
are over and everything is packed, 1 while there is more to come, and 3 if nothing runs that would bring it.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PART = 15 * 2**20
"""Bytes of a part."""
PACKED = "packed.json"
PID = "campaign.pid"
LOG = "campaign.jsonl"
UNPACKED = (PACKED, PID, "plan.toml", "part.tar", "*.tmp")
PACKING_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A command with a limit."""

    name: str
    seconds: float
    command: str
    after: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Stages in their order, and what of theirs is handed over."""

    stages: tuple[Stage, ...]
    leave: tuple[str, ...] = ()
    prelude: str = ""
    before_packing: str = ""

    @staticmethod
    def read(path: Path) -> Plan:
        values: dict[str, Any] = tomllib.loads(path.read_text())
        try:
            stages = tuple(Stage(**stage) for stage in values.pop("stages", []))
            plan = Plan(stages=stages, leave=tuple(values.pop("leave", ())), **values)
        except TypeError as error:
            sys.exit(f"{path} is not a plan ({error}); expected what `python3 tools/campaign.py --help` describes.")
        before: set[str] = set()
        for stage in stages:
            if stage.name in before or (stage.after and stage.after.removeprefix("!") not in before):
                sys.exit(
                    f"{path}: stage {stage.name!r} comes twice or after {stage.after!r}, which is no stage before it."
                )
            before.add(stage.name)
        if not stages:
            sys.exit(f"{path} holds no stages; expected one or more [[stages]].")
        return plan


def start(plan: Path, out: Path) -> None:
    """Begins a campaign in a folder of its own and a process session of its own."""
    Plan.read(plan)
    if (out / PID).exists():
        sys.exit(f"{out} holds a campaign already; collect it, or give another folder.")
    out.mkdir(parents=True, exist_ok=True)
    (out / "plan.toml").write_bytes(plan.read_bytes())
    with (out / "campaign.txt").open("w") as log:
        command = [sys.executable, __file__, "run", str(out)]
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    (out / PID).write_text(str(process.pid))
    print(f"campaign {process.pid} runs; next: python3 tools/campaign.py collect {out} DIR")


def run(out: Path) -> None:
    """All stages; `start` calls it in the background."""
    ended: dict[str, int] = {}
    plan = Plan.read(out / "plan.toml")
    for stage in plan.stages:
        wanted, name = not stage.after.startswith("!"), stage.after.removeprefix("!")
        if name and (ended[name] == 0) != wanted:
            ended[stage.name] = -1
            _note(out, stage=stage.name, left_out=f"after {stage.after}")
            continue
        _note(out, stage=stage.name, begun=time.time())
        started = time.monotonic()
        with (out / f"{stage.name}.txt").open("w") as log:
            ended[stage.name] = _bash(plan.prelude + stage.command, out, stage.seconds, log)
        _note(out, stage=stage.name, status=ended[stage.name], seconds=round(time.monotonic() - started, 1))
    (out / "done").touch()


def _bash(command: str, out: Path, seconds: float, log: Any) -> int:
    """The command's exit status; 124 if it was killed for its time."""
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", command],
        stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "OUT": str(out), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return 124


def _note(out: Path, **values: Any) -> None:
    with (out / LOG).open("a") as log:
        log.write(json.dumps(values) + "\n")


def collect(out: Path, target: Path, seconds: float, parts: int) -> int:
    """Waits, shows how far the campaign is, and packs what is new; returns the exit status."""
    until = time.monotonic() + seconds
    while (runs := _runs(out)) and time.monotonic() < until:
        time.sleep(min(1.0, max(until - time.monotonic(), 0.0)))
    done = (out / "done").exists()  # asked last: a campaign that just ended has written it
    if not done and not runs:
        print(f"no campaign runs in {out}, and none is over; start one, or read {out / 'campaign.txt'}.", flush=True)
    if not out.is_dir():
        return 3
    log = out / LOG
    print(log.read_text() if log.exists() else "nothing begun yet", flush=True)
    plan = Plan.read(out / "plan.toml") if (out / "plan.toml").exists() else Plan(stages=())
    if plan.before_packing and not done:
        with (out / "before_packing.txt").open("w") as text:
            _bash(plan.prelude + plan.before_packing, out, PACKING_SECONDS, text)
    left = _pack(out, target, plan.leave, parts)
    return int(left or not done) if done or runs else 3


def _runs(out: Path) -> bool:
    """Whether the campaign's process lives."""
    try:
        pid = int((out / PID).read_text())
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def _pack(out: Path, target: Path, leave: tuple[str, ...], parts: int) -> bool:
    """Writes files that are new or changed, small ones first, as parts of one archive; whether some had no room."""
    packed = out / PACKED
    before: dict[str, list[int]] = json.loads(packed.read_text()) if packed.exists() else {}
    new: list[tuple[int, str, list[int]]] = []
    for path in out.rglob("*"):
        name = str(path.relative_to(out))
        if not path.is_file() or any(fnmatch.fnmatch(name, pattern) for pattern in (*UNPACKED, *leave)):
            continue
        state = [path.stat().st_size, path.stat().st_mtime_ns]
        if before.get(name) != state:
            new.append((state[0], name, state))
    room, taken = parts * PART - 2**20, []
    archive = out / "part.tar"
    with tarfile.open(archive, "w") as tar:
        for size, name, state in sorted(new):
            room -= size + 2048  # headers and padding
            if room < 0:
                break
            tar.add(out / name, name)
            before[name] = state
            taken.append(name)
    target.mkdir(parents=True, exist_ok=True)
    with archive.open("rb") as whole:
        for index, piece in enumerate(iter(lambda: whole.read(PART), b"")):
            (target / f"part.{index:02d}").write_bytes(piece)
    archive.unlink()
    (out / f"{PACKED}.tmp").write_text(json.dumps(before))
    (out / f"{PACKED}.tmp").replace(packed)
    print(f"packed {len(taken)} of {len(new)} new files: {', '.join(taken)[:1000]}", flush=True)
    return len(taken) < len(new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    starting = verbs.add_parser("start", help="begin a plan's stages in the background")
    starting.add_argument("plan", type=Path, help="a TOML file")
    running = verbs.add_parser("run", help="what `start` starts: all stages, in the foreground")
    collecting = verbs.add_parser("collect", help="wait for results and pack them")
    collecting.add_argument("--seconds", type=float, default=0.0, help="to wait at most")
    collecting.add_argument("--parts", type=int, default=8, help="of 15 MiB, at most")
    for verb in (starting, running, collecting):
        verb.add_argument("out", type=Path, help="the campaign's folder")
    collecting.add_argument("target", type=Path, help="a folder for the parts")
    options = parser.parse_args()
    if options.verb == "start":
        start(options.plan, options.out.resolve())
    elif options.verb == "run":
        run(options.out)
    else:
        sys.exit(collect(options.out.resolve(), options.target, options.seconds, options.parts))


if __name__ == "__main__":
    main()
