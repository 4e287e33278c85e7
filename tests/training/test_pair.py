"""Two processes whose clocks or folders differ."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flowshade.training.checkpoint import load_checkpoint


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what two processes did (`pair_run`)."""
    out = tmp_path_factory.mktemp("pair")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        "-m", "tests.training.pair_run", str(out),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_time_is_up_for_all_when_it_is_for_the_first(pair: Path) -> None:
    """The second one's clock runs ten times as fast; had it left earlier, the first would have waited in vain."""
    assert load_checkpoint(pair / "timed" / "checkpoint.safetensors").progress.stage is None
    one, other = (load_file(pair / f"timed-{rank}.safetensors") for rank in range(2))
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(other[name], value), name


def test_processes_that_see_other_folders_are_told(pair: Path) -> None:
    for rank in range(2):
        message = (pair / f"apart-{rank}.txt").read_text()
        assert "process 0: {'stage': None" in message and "process 1: {'stage': 'regression'" in message
        assert "Give a folder that all of them see" in message
    assert not list((pair / "apart").iterdir())
