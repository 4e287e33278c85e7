"""What `test_pair` starts in each of two processes, with a folder: clocks that differ, and folders."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from flowshade.errors import FlowshadeError
from flowshade.training import pool as pool_module
from flowshade.training import trainer as trainer_module
from flowshade.training.processes import joined
from flowshade.training.trainer import TrainConfig, Trainer
from tests.training.small_run import several_config, small_banks, small_clip


def timed_config() -> TrainConfig:
    """A stage that only the clock ends."""
    config = several_config()
    stage = dataclasses.replace(config.stages[0], steps=10**6, seconds=0.3)
    return dataclasses.replace(config, stages=(stage,), save_seconds=9.0)


def main(folder: Path) -> None:
    with joined("cpu") as processes:
        if processes.rank:  # a clock that is ten times as fast
            clock = time.perf_counter
            trainer_module.time.perf_counter = lambda: 10 * clock()
        trainer = Trainer(timed_config(), folder / "timed", *small_banks(), processes=processes)
        trainer.run()
        save_file(trainer.models.state_dict(), folder / f"timed-{processes.rank}.safetensors")

        out = folder / ("apart" if processes.rank else "timed")  # as if each saw a disk of its own
        try:
            Trainer(timed_config(), out, *small_banks(), processes=processes).run()
        except FlowshadeError as error:
            (folder / f"apart-{processes.rank}.txt").write_text(str(error))


if __name__ == "__main__":
    torch.set_num_threads(1)
    pool_module.trace_clip = small_clip
    main(Path(sys.argv[1]))
