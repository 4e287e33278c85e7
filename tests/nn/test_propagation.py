"""Values mixed with their neighbours'."""

from __future__ import annotations

import pytest
import torch

from flowshade.nn.propagation import DIRECTIONS, bounded, propagate


@pytest.mark.parametrize("reach", [1, 3])
def test_propagation_is_a_sum_over_neighbours(reach: int):
    values, affinity = torch.rand(1, 2, 7, 9), torch.randn(1, 8, 7, 9)
    mixed = propagate(values, affinity, reach)
    for row, column in ((3, 4), (0, 0), (6, 8)):
        here = values[0, :, row, column]
        expected = here.clone()
        for index, (y, x) in enumerate(DIRECTIONS):
            at = min(max(row + reach * y, 0), 6), min(max(column + reach * x, 0), 8)
            expected += affinity[0, index, row, column] * (values[0, :, at[0], at[1]] - here)
        torch.testing.assert_close(mixed[0, :, row, column], expected, atol=1e-5, rtol=1e-5)
    sharper = propagate(torch.tensor([[[[0.0, 0.2, 0.8, 1.0]]]]), _towards(reach=1), 1)
    torch.testing.assert_close(sharper, torch.tensor([[[[0.0, 0.0, 1.0, 1.0]]]]))


def _towards(reach: int) -> torch.Tensor:
    """Affinities that take the left neighbour's value in the left half and the right one's in the right."""
    affinity = torch.zeros(1, 8, 1, 4)
    affinity[:, DIRECTIONS.index((0, -1)), :, :2] = 1
    affinity[:, DIRECTIONS.index((0, 1)), :, 2:] = 1
    return affinity


def test_bounded_affinities_keep_values_in_range():
    values, raw = torch.rand(2, 3, 8, 9), 100 * torch.randn(2, 8, 8, 9)
    affinity = bounded(raw)
    assert (affinity.abs().sum(1) < 1).all()
    assert (affinity.sign() == raw.sign()).all()
    assert propagate(values, affinity, 2).abs().max() < 3
    assert torch.equal(propagate(values, bounded(0 * raw), 2), values)
