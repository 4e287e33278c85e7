"""Which type things are computed in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Leaves autocast, so that what is computed inside stays float32; the meta device knows no autocast."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def autocast_enabled(device: torch.device) -> bool:
    """Whether autocast picks the types of matrix products on this device."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)
