"""How distances are written as numbers: linear, inverse, a depth buffer's code, disparity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from flowshade.gbuffer.io.errors import ClipError

DepthCodeKind = Literal["linear", "inverse", "unit", "far", "disparity", "reversed-z", "z-buffer"]
EXPECTED = (
    "inverse:METRES (s/(z+s)), unit:METRES (metres a step, 0.001 for millimetres), far:METRES (metres at the largest "
    "value), disparity:K (z = K/value), reversed-z:NEAR,FAR or reversed-z:NEAR (no far plane), z-buffer:NEAR,FAR, "
    "or linear (distances as they are)"
)


@dataclass(frozen=True)
class DepthCode:
    """How depth is stored. `top` is the largest integer (255, 65535), or 1 for floating-point files.

    - `linear`: the distance itself, in the clip's unit (floating-point files only).
    - `inverse:S`: value / top = S / (z + S), S in metres; 0 is sky.
    - `unit:M`: value times M metres (0.001 for millimetres); 0 and top mean nothing was hit.
    - `far:M`: value / top times M metres; top is sky.
    - `disparity:K`: z = K / value, K in metres times value's unit (focal length times baseline; 1 for 1/z); 0 is sky.
    - `reversed-z:NEAR,FAR`: a depth buffer with 1 at NEAR metres and 0 at FAR (or at infinity); 0 is sky.
    - `z-buffer:NEAR,FAR`: a depth buffer with 0 at NEAR metres and 1 at FAR; 1 is sky.
    """

    kind: DepthCodeKind
    metres: float = 1.0
    """S, M, K or NEAR."""
    far: float = math.inf
    """FAR in metres, of depth buffers."""

    @staticmethod
    def parse(text: str) -> DepthCode:
        kind, _, rest = text.partition(":")
        try:
            numbers = [float(number) for number in rest.split(",")] if rest else []
        except ValueError:
            numbers = [math.nan]
        expected = {"linear": (0,), "reversed-z": (1, 2), "z-buffer": (2,)}.get(kind, (1,))
        if (
            kind not in get_args(DepthCodeKind)
            or len(numbers) not in expected
            or not all(number > 0 for number in numbers)
            or math.inf in numbers[:1]
            or (len(numbers) == 2 and not numbers[0] < numbers[1])
            or (kind == "z-buffer" and math.isinf(numbers[1]))
        ):
            raise ClipError(f"depth code {text!r} is unknown; expected {EXPECTED}.")
        return DepthCode(kind, *numbers)  # pyright: ignore[reportArgumentType]

    def __str__(self) -> str:
        if self.kind == "linear":
            return "linear"
        far = "" if math.isinf(self.far) else f",{self.far:g}"
        return f"{self.kind}:{self.metres:g}{far}"

    def decode(self, values: Shaped[Tensor, "T 1 H W"], top: float) -> Float[Tensor, "T 1 H W"]:
        """Stored numbers -> metres (`linear`: as stored), inf = sky."""
        stored = values.to(torch.float64)
        code = stored / top
        near, far = self.metres, self.far
        if self.kind == "linear":
            depth = stored
        elif self.kind == "inverse":
            depth = (near * (1 - code) / code).masked_fill(code == 0, torch.inf)
        elif self.kind == "unit":
            nothing = (stored == 0) | (stored == top) if top > 1 else stored == 0
            depth = (stored * near).masked_fill(nothing, torch.inf)
        elif self.kind == "far":
            depth = (code * near).masked_fill(stored == top, torch.inf)
        elif self.kind == "disparity":
            depth = (near / stored).masked_fill(stored == 0, torch.inf)
        elif self.kind == "reversed-z":
            depth = near / (near / far + code * (1 - near / far))
            depth = depth.masked_fill(code <= 0, torch.inf)
        else:
            depth = near / (1 - code * (1 - near / far))
            depth = depth.masked_fill(code >= 1, torch.inf)
        return depth.float()

    def encode(self, depth: Float[Tensor, "T 1 H W"], top: int) -> Int[Tensor, "T 1 H W"]:
        """Metres -> nearest integers; what lies beyond the code's reach becomes sky.

        Raises:
            ClipError: `linear`, which integers cannot hold.
        """
        depth = depth.to(torch.float64)
        near, far = self.metres, self.far
        if self.kind == "linear":
            raise ClipError("depth code linear cannot be written as integers; use unit:METRES or inverse:METRES.")
        if self.kind == "inverse":
            return (top * near / (depth + near)).round().int()
        if self.kind in ("unit", "far"):
            step = near if self.kind == "unit" else near / top
            return (depth / step).round().clamp(0, top).int()
        if self.kind == "disparity":
            return (near / depth).round().clamp(0, top).int()
        reversed_code = ((near / depth - near / far) / (1 - near / far)).clamp(0, 1)
        return (top * (reversed_code if self.kind == "reversed-z" else 1 - reversed_code)).round().int()
