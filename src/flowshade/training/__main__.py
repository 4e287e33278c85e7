"""`python -m flowshade.training` is `flowshade train`, for launchers that start a module, such as torchrun."""

from __future__ import annotations

import sys

from flowshade.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
