"""The plain baselines that a renderer has to beat to be worth its cost.

`AlbedoAffine` is the best a look-up could do; the other, shading from the buffers alone, is
`flowshade.gbuffer.shade.shade_without_rays`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


class AlbedoAffine:
    """The least-squares affine map from albedo (sRGB) to picture, one for each look.

    Fitted on the very pictures it is scored on unless told otherwise, so it is an upper bound for its kind.
    """

    def __init__(self) -> None:
        self._gram = torch.zeros(4, 4, dtype=torch.float64)
        self._moment = torch.zeros(4, 3, dtype=torch.float64)

    def add(self, albedo_srgb: Float[Tensor, "T 3 H W"], picture: Float[Tensor, "T 3 H W"]) -> None:
        x, y = self._rows(albedo_srgb), picture.double().movedim(1, -1).reshape(-1, 3)
        self._gram += (x.T @ x).cpu()
        self._moment += (x.T @ y).cpu()

    def solve(self) -> Float[Tensor, "4 3"]:
        """Coefficients of (r, g, b, 1); a small ridge keeps a constant albedo solvable."""
        ridge = 1e-6 * self._gram.diagonal().mean() * torch.eye(4, dtype=torch.float64)
        return torch.linalg.solve(self._gram + ridge, self._moment)

    def predict(self, albedo_srgb: Float[Tensor, "T 3 H W"]) -> Float[Tensor, "T 3 H W"]:
        frames, _, height, width = albedo_srgb.shape
        picture = self._rows(albedo_srgb) @ self.solve().to(albedo_srgb.device)
        return picture.reshape(frames, height, width, 3).movedim(-1, 1).float().clamp(0, 1)

    @staticmethod
    def _rows(albedo_srgb: Tensor) -> Tensor:
        x = albedo_srgb.double().movedim(1, -1).reshape(-1, 3)
        return torch.cat([x, torch.ones_like(x[:, :1])], 1)
