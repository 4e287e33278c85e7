"""What `test_two_processes_learn_what_one_does` starts in each process, with a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from flowshade.training.processes import joined
from tests.training.test_distill import line_loop

if __name__ == "__main__":
    with joined("cpu") as processes:
        line_loop(Path(sys.argv[1]), processes).run(None)
