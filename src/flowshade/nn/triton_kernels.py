# pyright: reportIndexIssue=false, reportMissingImports=false
"""`Kernels` written in Triton: one program a token, one pass over memory. Importing this needs Triton.

Each row of D channels lies in one program's registers, so D is limited by what fits there; transformers of this kind
have 256 to 10,000. Plain versions: `nn.kernels`.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from flowshade.nn.attention import KeysValues
from flowshade.nn.fp8 import FP8, FP8_MAX, LEAST_SCALE, Rows8
from flowshade.nn.kernels import Kernels
from flowshade.nn.rope import Rotation

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton runs kernels in Python, for tests without a GPU."""


@triton.jit
def _store_row8(values, pointer, scale_pointer, at, row, inside, MOST: tl.constexpr, LEAST: tl.constexpr):
    """Stores a row in 8 bits and its scale."""
    scale = tl.maximum(tl.max(tl.where(inside, tl.abs(values), 0.0), 0), LEAST) / MOST
    scaled = tl.minimum(tl.maximum(values / scale, -MOST), MOST)
    tl.store(pointer + at, scaled.to(pointer.dtype.element_ty), mask=inside)
    tl.store(scale_pointer + row, scale)


@triton.jit
def _residual_norm(
    x, update, gate, shift, scale, out, normed, normed_scale,
    tokens, skip, split, batch, gate_segment, gate_batch, norm_segment, norm_batch, scale_segment, scale_batch, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, UPDATE: tl.constexpr, GATE: tl.constexpr, SEGMENTS: tl.constexpr,
    ROWS8: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    token, stream = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    inside = columns < D
    row = (stream * tokens + token).to(tl.int64)
    segment = 0
    if SEGMENTS == 2:  # rows that serve both segments come with a stride of 0
        segment = (token >= split).to(tl.int32)
    value = tl.load(x + row * D + columns, mask=inside, other=0.0).to(tl.float32)
    if UPDATE:
        behind = (stream * (tokens - skip) + token - skip).to(tl.int64)
        change = tl.load(update + behind * D + columns, mask=inside & (token >= skip), other=0.0).to(tl.float32)
        if GATE:
            change *= tl.load(gate + segment * gate_segment + stream * gate_batch + columns, mask=inside, other=0.0)
        value = (value + change).to(out.dtype.element_ty).to(tl.float32)
        tl.store(out + row * D + columns, value.to(out.dtype.element_ty), mask=inside)
    mean = tl.sum(value, 0) / D
    centred = tl.where(inside, value - mean, 0.0)
    normal = centred * tl.rsqrt(tl.sum(centred * centred, 0) / D + eps)
    shifts = tl.load(shift + segment * norm_segment + stream * norm_batch + columns, mask=inside, other=0.0)
    scales = tl.load(scale + segment * scale_segment + stream * scale_batch + columns, mask=inside, other=0.0)
    result = shifts + normal * (1 + scales)
    if ROWS8:
        _store_row8(result, normed, normed_scale, row * D + columns, row, inside, MOST, LEAST)
    else:
        tl.store(normed + row * D + columns, result.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _rms(source, weight, columns, inside, eps, D: tl.constexpr):
    """A row over its root mean square, times a weight, rounded to the row's type."""
    value = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 0) / D + eps)
    value *= tl.load(weight + columns, mask=inside, other=0.0)
    return value.to(source.dtype.element_ty).to(tl.float32)


@triton.jit
def _turn(value, cos, sin, BLOCK: tl.constexpr):
    """Turns neighbouring channels."""
    even, odd = tl.split(tl.reshape(value, (BLOCK // 2, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (BLOCK,))


@triton.jit
def _norm_turn(
    qkv, q_weight, k_weight, cos, sin, q_out, k_out, v_out, tokens, past, split, eps,
    D: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, SEGMENTS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    token, stream = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    inside = columns < D
    row = (stream * tokens + token).to(tl.int64)
    behind = (stream * (past + tokens) + past + token).to(tl.int64)
    angle = token * HALF + tl.arange(0, BLOCK // 2) % HALF
    c, s = tl.load(cos + angle), tl.load(sin + angle)
    segment = 0
    if SEGMENTS == 2:
        segment = (token >= split).to(tl.int32)
    source = qkv + row * 3 * D
    q = _turn(_rms(source, q_weight, columns, inside, eps, D), c, s, BLOCK)
    tl.store(q_out + row * D + columns, q.to(q_out.dtype.element_ty), mask=inside)
    k = _turn(_rms(source + D, k_weight + segment * D, columns, inside, eps, D), c, s, BLOCK)
    tl.store(k_out + behind * D + columns, k.to(k_out.dtype.element_ty), mask=inside)
    if VALUES:
        v = tl.load(source + 2 * D + columns, mask=inside, other=0.0)
        tl.store(v_out + behind * D + columns, v, mask=inside)


@triton.jit
def _rms_norm(x, weight, out, eps, D: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < D
    value = _rms(x + row * D, weight, columns, inside, eps, D)
    tl.store(out + row * D + columns, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rows8(
    x, out, out_scale, D: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < D
    value = tl.load(x + row * D + columns, mask=inside, other=0.0).to(tl.float32)
    if GELU == "tanh":
        inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)  # sqrt(2 / pi)
        value *= tl.sigmoid(2 * inner)  # (1 + tanh(y)) / 2 = sigmoid(2 y)
    if GELU == "none":
        value *= 0.5 * (1 + tl.erf(value * 0.7071067811865476))
    value = value.to(x.dtype.element_ty).to(tl.float32)
    _store_row8(value, out, out_scale, row * D + columns, row, inside, MOST, LEAST)


class TritonKernels(Kernels):
    """One launch each."""

    name = "triton"

    def residual_norm(
        self,
        x: Tensor,
        update: Tensor | None,
        gate: Tensor | None,
        shift: Tensor,
        scale: Tensor,
        *,
        split: int,
        eps: float,
        dtype: torch.dtype,
        fp8: bool = False,
    ) -> tuple[Tensor, Tensor | Rows8]:
        x = x.contiguous()
        batch, tokens, width = x.shape
        update = None if update is None else update.contiguous()
        gate = None if gate is None else _by_stream(gate, batch)
        shift, scale = _by_stream(shift, batch), _by_stream(scale, batch)
        out = x if update is None else torch.empty_like(x)
        normed = torch.empty(x.shape, dtype=FP8 if fp8 else dtype, device=x.device)
        scales = torch.empty((*x.shape[:2], 1), dtype=torch.float32, device=x.device) if fp8 else None
        _residual_norm[(tokens, batch)](
            x, update, gate, shift, scale, out, normed, scales, tokens,
            0 if update is None else tokens - update.shape[1], split, batch,
            *_strides(gate), *_strides(shift), *_strides(scale), eps, UPDATE=update is not None,
            GATE=gate is not None, SEGMENTS=max(len(shift), 0 if gate is None else len(gate)), ROWS8=fp8,
            MOST=FP8_MAX, LEAST=LEAST_SCALE, **_row(width),
        )  # fmt: skip
        return out, normed if scales is None else Rows8(normed, scales)

    def norm_turn(
        self,
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        turn: Rotation,
        past: KeysValues | None,
        *,
        heads: int,
        split: int,
        eps: float,
    ) -> tuple[Tensor, KeysValues]:
        qkv = qkv.contiguous()
        batch, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        before = 0 if past is None else past.keys.shape[2]
        q = qkv.new_empty(batch, tokens, width)
        keys = qkv.new_empty(batch, before + tokens, width)
        values = None if past is None else torch.empty_like(keys)
        if past is not None and values is not None:
            keys[:, :before].unflatten(-1, (heads, -1)).copy_(past.keys.transpose(1, 2))
            values[:, :before].unflatten(-1, (heads, -1)).copy_(past.values.transpose(1, 2))
        _norm_turn[(tokens, batch)](
            qkv, q_weight, k_weight, turn.cos.contiguous(), turn.sin.contiguous(), q, keys, values, tokens, before,
            split, eps, HALF=width // heads // 2, SEGMENTS=len(k_weight), VALUES=values is not None, **_row(width),
        )  # fmt: skip
        values = qkv[..., 2 * width :] if values is None else values
        q, keys, values = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, keys, values))
        return q, KeysValues(keys, values)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        _rms_norm[(x[..., 0].numel(),)](x, weight, out, eps, **_row(x.shape[-1]))
        return out

    def quantise(self, x: Tensor) -> Rows8:
        return _quantised(x, "off")

    def gelu8(self, x: Tensor, approximate: str) -> Rows8:
        return _quantised(x, approximate)


def _quantised(x: Tensor, gelu: str) -> Rows8:
    x = x.contiguous()
    values = torch.empty(x.shape, dtype=FP8, device=x.device)
    scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    _rows8[(scale.numel(),)](x, values, scale, GELU=gelu, MOST=FP8_MAX, LEAST=LEAST_SCALE, **_row(x.shape[-1]))
    return Rows8(values, scale)


def _row(width: int) -> dict[str, int]:
    """How a program takes a row of this width."""
    block = triton.next_power_of_2(width)
    return {"D": width, "BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


def _by_stream(rows: Tensor, batch: int) -> Tensor:
    """[S, 1 or B, D] float32 with rows that lie in one piece."""
    rows = rows.float()
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    return rows.expand(-1, batch, -1)


def _strides(rows: Tensor | None) -> tuple[int, int]:
    """From segment to segment, if there are two, and from stream to stream."""
    if rows is None:
        return 0, 0
    return rows.stride(0) if len(rows) == 2 else 0, rows.stride(1)
