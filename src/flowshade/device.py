"""Which device a model runs on."""

from __future__ import annotations

from pathlib import Path

import torch

from flowshade.errors import FlowshadeError


def choose_device(device: torch.device | str | None) -> torch.device:
    """The device asked for; for None or "auto" a GPU when there is one.

    Raises:
        FlowshadeError: a device that is neither a CPU nor a GPU, or a GPU that is not there.
    """
    if device in (None, "auto"):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)  # pyright: ignore[reportArgumentType]
    except RuntimeError as error:
        raise FlowshadeError(f"device {device!r} is unknown; expected auto, cpu, cuda or cuda:N.") from error
    if chosen.type not in ("cpu", "cuda"):
        raise FlowshadeError(f"device {device!r} cannot be used; expected auto, cpu, cuda or cuda:N.")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise FlowshadeError(f"device {device!r} was asked for, but no CUDA GPU can be used here; try cpu.")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise FlowshadeError(f"device {device!r} was asked for, but there are {torch.cuda.device_count()} CUDA GPUs.")
    return chosen


def free_memory(device: torch.device) -> int | None:
    """Bytes that can be had on a device; of a CPU on Linux only, else None."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    listing = Path("/proc/meminfo")
    lines = listing.read_text().splitlines() if listing.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)
