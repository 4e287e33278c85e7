"""What happens between the matrix products of a transformer layer, as a few functions that can be fused.

`Kernels` has the plain versions; `InductorKernels` has PyTorch compile them, and `triton_kernels.TritonKernels` are
written by hand. All round where the plain layers round, so they agree to the last bits of the type.

Legend for shapes: B batch, N tokens, D width, H heads, C head channels, P tokens of the past. Rows of [S, B, D] belong
to S = 1 or 2 segments of the tokens: with two, the first holds the tokens before `split`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from flowshade.nn.attention import KeysValues
from flowshade.nn.fp8 import Rows8, quantise_rows
from flowshade.nn.rope import Rotation

RECOMPILATIONS = 64
"""Kinds of input that compiled functions may see; PyTorch's own limit is 8."""


class Kernels:
    """The plain versions, which run everywhere."""

    name = "torch"

    def __init__(
        self, transform: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function
    ) -> None:
        self._residual_norm = transform(residual_norm)
        self._residual_norm8 = transform(_residual_norm8)
        self._norm_turn = transform(norm_turn)
        self._rms_norm = transform(rms_norm)
        self._rows8 = transform(_rows8)
        self._gelu8 = transform(_gelu8)

    def residual_norm(
        self,
        x: Float[Tensor, "B N D"],
        update: Float[Tensor, "B M D"] | None,
        gate: Float[Tensor, "S B D"] | None,
        shift: Float[Tensor, "S B D"],
        scale: Float[Tensor, "S B D"],
        *,
        split: int,
        eps: float,
        dtype: torch.dtype,
        fp8: bool = False,
    ) -> tuple[Float[Tensor, "B N D"], Float[Tensor, "B N D"] | Rows8]:
        """x + gate update, and its layer norm times 1 + scale, plus shift.

        Args:
            x: the residual stream.
            update: of the last M tokens; None = of none.
            gate: None = 1.
            split: tokens of the first segment.
            dtype: of the normed result.
            fp8: give the normed result in 8-bit rows.
        """
        if not fp8:
            return self._residual_norm(x, update, gate, shift, scale, split, eps, dtype)
        x, *rows = self._residual_norm8(x, update, gate, shift, scale, split, eps, dtype)
        return x, Rows8(*rows)

    def norm_turn(
        self,
        qkv: Float[Tensor, "B N E"],
        q_weight: Float[Tensor, "D"],
        k_weight: Float[Tensor, "S D"],
        turn: Rotation,
        past: KeysValues | None,
        *,
        heads: int,
        split: int,
        eps: float,
    ) -> tuple[Float[Tensor, "B H N C"], KeysValues]:
        """Queries and keys RMS-normed over all heads and turned; keys and values follow those of the past.

        Args:
            qkv: queries, keys and values beside each other, E = 3 D.
            k_weight: the norm's weight, one a segment: a factor on the keys of the past goes here.
            past: keys and values to put in front, [B, H, P, C].
        """
        before = None if past is None else (past.keys.transpose(1, 2), past.values.transpose(1, 2))
        parts = self._norm_turn(qkv, q_weight, k_weight, turn.cos, turn.sin, before, heads, split, eps)
        q, keys, values = (part.transpose(1, 2) for part in parts)
        return q, KeysValues(keys, values)

    def rms_norm(self, x: Float[Tensor, "B N D"], weight: Float[Tensor, "D"], eps: float) -> Float[Tensor, "B N D"]:
        return self._rms_norm(x, weight, eps)

    def quantise(self, x: Float[Tensor, "*N K"]) -> Rows8:
        """Numbers to 8-bit rows."""
        return Rows8(*self._rows8(x))

    def gelu8(self, x: Float[Tensor, "*N K"], approximate: str) -> Rows8:
        """GELU, exact ("none") or approximated ("tanh"), in 8-bit rows."""
        return Rows8(*self._gelu8(x, approximate))


class InductorKernels(Kernels):
    """The plain versions compiled, once for every kind of input."""

    name = "inductor"

    def __init__(self) -> None:
        config: Any = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, RECOMPILATIONS)
        super().__init__(partial(torch.compile, fullgraph=True, dynamic=False))


def residual_norm(
    x: Tensor,
    update: Tensor | None,
    gate: Tensor | None,
    shift: Tensor,
    scale: Tensor,
    split: int,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """See `Kernels.residual_norm`."""
    tokens = x.shape[1]
    if update is not None:
        change = update.float()
        if update.shape[1] < tokens:
            change = F.pad(change, (0, 0, tokens - update.shape[1], 0))
        if gate is not None:
            change = change * _by_token(gate, split, tokens)
        x = (x.float() + change).to(x.dtype)
    normed = F.layer_norm(x.float(), x.shape[-1:], eps=eps)
    shift, scale = _by_token(shift, split, tokens), _by_token(scale, split, tokens)
    return x, torch.addcmul(shift, normed, 1 + scale).to(dtype)


def norm_turn(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    past: tuple[Tensor, Tensor] | None,
    heads: int,
    split: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `Kernels.norm_turn`; all [B, N, H, C], keys and values behind those of `past`."""
    q, k, v = qkv.chunk(3, -1)
    turn = Rotation(cos, sin)
    weight = _by_token(k_weight[:, None], split, qkv.shape[1])
    q = turn.apply(rms_norm(q, q_weight, eps).unflatten(-1, (heads, -1)))
    k = turn.apply(rms_norm(k, weight, eps).unflatten(-1, (heads, -1)))
    v = v.unflatten(-1, (heads, -1))
    if past is None:
        return q, k, v
    return q, torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last axis in float32; `weight` broadcasts."""
    return (F.rms_norm(x.float(), x.shape[-1:], eps=eps) * weight.float()).to(x.dtype)


def _by_token(rows: Tensor, split: int, tokens: int) -> Tensor:
    """[S, B, D] to what broadcasts against [B, N, D]."""
    if len(rows) == 1:
        return rows[0][:, None]
    first = (torch.arange(tokens, device=rows.device) < split)[:, None]
    return torch.where(first, rows[0][:, None], rows[1][:, None])


def _residual_norm8(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, normed = residual_norm(*given)
    return x, *_rows8(normed)


def _rows8(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = quantise_rows(x)
    return rows.values, rows.scale


def _gelu8(x: Tensor, approximate: str) -> tuple[Tensor, Tensor]:
    return _rows8(F.gelu(x, approximate=approximate))
