"""Flow matching: straight paths from noise to latents, and how to walk them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

TIMESTEPS = 1000
"""Timestep of pure noise; a network is told sigma times this."""


@dataclass(frozen=True, kw_only=True)
class FlowMatching:
    """x_sigma = (1 - sigma) x0 + sigma noise; the network predicts the velocity noise - x0 (Lipman et al., 2023)."""

    shift: float = 1.0
    """Moves steps towards noise: sigma -> shift sigma / (1 + (shift - 1) sigma) (Esser et al., 2024)."""

    def sigmas(self, steps: int) -> list[float]:
        """`steps` + 1 noise levels from 1 down to 0.

        Raises:
            ValueError: fewer than one step.
        """
        if steps < 1:
            raise ValueError(f"got {steps} steps; expected 1 or more.")
        return [self._shifted(1 - index / steps) for index in range(steps)] + [0.0]

    def sample_sigmas(
        self,
        count: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
        mean: float = 0.0,
        std: float = 1.0,
    ) -> Float[Tensor, "B"]:
        """Noise levels to train at: logit-normal, then shifted."""
        normal = torch.randn(count, generator=generator, device=device) * std + mean
        return self._shifted(torch.sigmoid(normal))

    def timesteps(self, sigmas: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
        """What the network is told, [0, 1000]."""
        return sigmas * TIMESTEPS

    def add_noise(
        self, x0: Float[Tensor, "B *shape"], noise: Float[Tensor, "B *shape"], sigmas: Float[Tensor, "B"]
    ) -> Float[Tensor, "B *shape"]:
        sigmas = _like(sigmas, x0)
        return (1 - sigmas) * x0 + sigmas * noise

    def target(self, x0: Float[Tensor, "B *shape"], noise: Float[Tensor, "B *shape"]) -> Float[Tensor, "B *shape"]:
        """The velocity to predict."""
        return noise - x0

    def denoised(
        self, x: Float[Tensor, "B *shape"], velocity: Float[Tensor, "B *shape"], sigmas: Float[Tensor, "B"]
    ) -> Float[Tensor, "B *shape"]:
        """The x0 that a velocity at x points to."""
        return x - _like(sigmas, x) * velocity

    def euler_step(
        self, x: Float[Tensor, "B *shape"], velocity: Float[Tensor, "B *shape"], sigma: float, next_sigma: float
    ) -> Float[Tensor, "B *shape"]:
        """One deterministic step from one noise level to the next; differentiable."""
        return x + (next_sigma - sigma) * velocity

    def _shifted(self, sigma):  # float -> float, Tensor -> Tensor
        return self.shift * sigma / (1 + (self.shift - 1) * sigma)


def _like(sigmas: Tensor, x: Tensor) -> Tensor:
    return sigmas.to(x.dtype).view(-1, *[1] * (x.ndim - 1))
