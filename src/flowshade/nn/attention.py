"""Attention and feed-forward layers, named as diffusers names those of Wan and Helios."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from flowshade.nn.rope import Rotation


@dataclass(frozen=True)
class KeysValues:
    """What a layer's queries look at; keys are already normed and turned."""

    keys: Float[Tensor, "B H N D"]
    values: Float[Tensor, "B H N D"]

    @staticmethod
    def cat(parts: list[KeysValues]) -> KeysValues:
        return KeysValues(torch.cat([part.keys for part in parts], 2), torch.cat([part.values for part in parts], 2))


class Attention(nn.Module):
    """Multi-head attention with queries and keys RMS-normed across all heads together.

    Args:
        dim: channels of the queries' tokens.
        heads: number of heads.
        head_dim: channels of one head.
        kv_dim: channels of the keys' tokens; `dim` when None.
        amplify_history: learn a factor from 1 to 10 a head for the keys of the past (Helios).
    """

    MAX_HISTORY_SCALE = 10.0

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        *,
        kv_dim: int | None = None,
        eps: float = 1e-6,
        amplify_history: bool = False,
    ) -> None:
        super().__init__()
        self.heads = heads
        inner = heads * head_dim
        self.to_q = nn.Linear(dim, inner)
        self.to_k = nn.Linear(kv_dim or dim, inner)
        self.to_v = nn.Linear(kv_dim or dim, inner)
        self.to_out = nn.ModuleList([nn.Linear(inner, dim)])
        self.norm_q = nn.RMSNorm(inner, eps=eps)
        self.norm_k = nn.RMSNorm(inner, eps=eps)
        self.history_key_scale = nn.Parameter(torch.ones(heads)) if amplify_history else None

    def queries(self, x: Float[Tensor, "B N C"], rotation: Rotation | None = None) -> Float[Tensor, "B H N D"]:
        return self._heads(_rms_norm(self.norm_q, self.to_q(x)), rotation)

    def keys_values(self, x: Float[Tensor, "B N C"], rotation: Rotation | None = None) -> KeysValues:
        return KeysValues(self._heads(_rms_norm(self.norm_k, self.to_k(x)), rotation), self._heads(self.to_v(x), None))

    def amplify(self, past: KeysValues) -> KeysValues:
        """The keys of the past as the present sees them."""
        if self.history_key_scale is None:
            return past
        return KeysValues((past.keys * self.history_factor()[:, None, None]).type_as(past.keys), past.values)

    def history_factor(self) -> Float[Tensor, "H"]:
        """What a head's keys of the past are multiplied with; only with `amplify_history`."""
        assert self.history_key_scale is not None
        return 1 + torch.sigmoid(self.history_key_scale) * (self.MAX_HISTORY_SCALE - 1)

    def attend(
        self, queries: Float[Tensor, "B H N D"], context: KeysValues, mask: Bool[Tensor, "B 1 M S"] | None = None
    ) -> Float[Tensor, "B N C"]:
        """Mask: True where a query may look; None = everywhere."""
        x = F.scaled_dot_product_attention(queries, context.keys, context.values, attn_mask=mask)
        return self.to_out[0](rearrange(x, "b h n d -> b n (h d)"))

    def _heads(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        x = x.unflatten(-1, (self.heads, -1))
        if rotation is not None:
            x = rotation.apply(x)
        return x.transpose(1, 2)


def _rms_norm(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    weight = norm.weight
    return F.rms_norm(x.float(), norm.normalized_shape, weight.float(), norm.eps).type_as(x)


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them, exact or approximated by tanh."""

    def __init__(self, dim: int, inner: int, *, exact: bool) -> None:
        super().__init__()
        self.approximate = "none" if exact else "tanh"
        self.net = nn.ModuleList([_Projection(dim, inner), nn.Identity(), nn.Linear(inner, dim)])

    def forward(self, x: Float[Tensor, "B N C"]) -> Float[Tensor, "B N C"]:
        return self.net[2](F.gelu(self.net[0](x), approximate=self.approximate))


class _Projection(nn.Module):
    """A linear layer one level down, where diffusers keeps it (`net.0.proj`)."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)
