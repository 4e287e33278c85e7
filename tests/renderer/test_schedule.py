"""Flow matching."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshade.renderer.schedule import FlowMatching


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 50), st.floats(0.5, 8))
def test_sigmas_fall_from_one_to_zero(steps: int, shift: float) -> None:
    sigmas = FlowMatching(shift=shift).sigmas(steps)
    assert len(sigmas) == steps + 1 and sigmas[0] == pytest.approx(1) and sigmas[-1] == 0
    assert all(a > b for a, b in zip(sigmas, sigmas[1:]))


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_euler_steps_along_the_true_velocity_end_at_x0(steps: int) -> None:
    schedule = FlowMatching(shift=3.0)
    x0, noise = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    x, sigmas = noise, schedule.sigmas(steps)
    for sigma, following in zip(sigmas, sigmas[1:]):
        torch.testing.assert_close(x, schedule.add_noise(x0, noise, torch.full((2,), sigma)), rtol=1e-4, atol=1e-5)
        x = schedule.euler_step(x, schedule.target(x0, noise), sigma, following)
    torch.testing.assert_close(x, x0, rtol=1e-4, atol=1e-5)


def test_denoised_recovers_x0() -> None:
    schedule = FlowMatching()
    x0, noise, sigmas = torch.randn(5, 2, 3), torch.randn(5, 2, 3), torch.linspace(0, 1, 5)
    x = schedule.add_noise(x0, noise, sigmas)
    torch.testing.assert_close(schedule.denoised(x, schedule.target(x0, noise), sigmas), x0, rtol=1e-4, atol=1e-5)


def test_sampled_sigmas() -> None:
    generator = torch.Generator().manual_seed(0)
    sigmas = FlowMatching().sample_sigmas(4000, generator=generator)
    assert sigmas.min() > 0 and sigmas.max() < 1 and sigmas.mean() == pytest.approx(0.5, abs=0.02)
    shifted = FlowMatching(shift=4).sample_sigmas(4000, generator=generator)
    assert shifted.mean() > 0.7
    assert FlowMatching().timesteps(torch.tensor([0.25])).item() == 250


def test_no_steps_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        FlowMatching().sigmas(0)
