"""Where a result came from: versions and hardware, in words."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

import torch


def versions() -> dict[str, str]:
    """What results depend on: versions of the package, Python and libraries, and the hardware."""
    names = ("flowshade", "torch", "numpy", "warp-lang", "mujoco-core", "av", "transformers")
    return {name: _version(name) for name in names} | {"python": platform.python_version(), "hardware": hardware()}


def hardware() -> str:
    """The machine in words: the GPU if there is one, else the processor and how many threads torch uses."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{_processor()}, {torch.get_num_threads()} threads"


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        from flowshade import __version__

        return __version__ if name == "flowshade" else "not installed"
