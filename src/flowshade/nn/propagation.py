"""Spatial propagation: values mixed with their neighbours' by affinities that a network gives."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

DIRECTIONS = tuple((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0))
"""The eight neighbours, in the order of affinities."""


def propagate(
    values: Float[Tensor, "N C H W"], affinity: Float[Tensor, "N directions H W"], reach: int
) -> Float[Tensor, "N C H W"]:
    """One round: values plus, for each of `DIRECTIONS`, affinity times how the neighbour's differ; edges repeat.

    Spatial propagation (Cheng et al. 2018, CSPN, arXiv 1808.00150) with affinities that need not be positive: a pixel
    takes from those on its own side of an edge and moves away from those beyond.

    Args:
        values: what is mixed, all channels alike.
        affinity: of a pixel to its neighbours (`bounded`); zeros change nothing.
        reach: pixels between a pixel and its neighbours.
    """
    height, width = values.shape[-2:]
    padded = F.pad(values, (reach,) * 4, mode="replicate")
    result = values * (1 - affinity.sum(1, keepdim=True))
    for index, (y, x) in enumerate(DIRECTIONS):
        top, left = reach * (1 + y), reach * (1 + x)
        neighbour = padded[..., top : top + height, left : left + width]
        result = torch.addcmul(result, affinity[:, index : index + 1], neighbour)
    return result


def bounded(raw: Float[Tensor, "N directions H W"]) -> Float[Tensor, "N directions H W"]:
    """Affinities whose absolute values sum to less than one, so that values stay bounded; zeros stay zeros."""
    return raw / (1 + raw.abs().sum(1, keepdim=True))
