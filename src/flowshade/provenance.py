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


def hardware(device: torch.device | None = None, threads: int | None = None) -> str:
    """A machine in words: a GPU, or the processor and its threads.

    Args:
        device: which is meant; by default the GPU if there is one.
        threads: how many are used on the processor, if not those of torch.
    """
    if torch.cuda.is_available() if device is None else device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {threads or torch.get_num_threads()} threads"


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
