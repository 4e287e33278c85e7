"""The fast path: the same network with fused projections and kernels, timed attention, CUDA graphs and 8-bit layers.

`speed_up` is called once, on a renderer whose weights are loaded; `slow_down` takes it back. Parameters keep their
names and values. Layers run fast where no gradients are asked for; the plain layers stay what training uses and what
the fast ones are tested equal to.

Legend for shapes: as in `transformer`; S segments of the tokens, past and present, that differ in modulation.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from flowshade.codec.tiny import GroupedConv
from flowshade.errors import FlowshadeError, MissingDependencyError
from flowshade.nn.attention import KeysValues
from flowshade.nn.fp8 import Linear8, Rows8, check_fp8
from flowshade.nn.graphs import CudaCapture, Graphs
from flowshade.nn.kernels import InductorKernels, Kernels
from flowshade.nn.rope import Rotation
from flowshade.nn.tuning import Tuner
from flowshade.renderer.flash import FlashRenderer
from flowshade.renderer.renderer import Renderer
from flowshade.renderer.transformer import (
    HistoryKV,
    HistoryTokens,
    TextMemory,
    WorldBlock,
    WorldTransformer,
    among_past,
    over_past,
)

KernelName = Literal["torch", "inductor", "triton"]
AttentionName = Literal["timed", "default", "cudnn", "flash", "efficient"]

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How a renderer was sped up."""

    kernels: KernelName
    graphs: bool
    fp8: bool
    attention: AttentionName
    tuner: Tuner
    """Holds what was timed and chosen so far."""


def speed_up(
    renderer: Renderer | FlashRenderer,
    *,
    kernels: KernelName | None = None,
    graphs: bool | None = None,
    fp8: bool = False,
    attention: AttentionName = "timed",
) -> Speed:
    """Has a renderer run its fast path from now on; calling it again replaces what was asked for before.

    Call it after weights are loaded and the renderer is on its device in its type; reload by `slow_down`, load,
    `speed_up`.

    Args:
        renderer: changed in place. Its parameters and their names stay.
        kernels: what runs between matrix products: `torch` (as it is), `inductor` (compiled by PyTorch, some seconds
            for every new shape) or `triton` (written by hand). None = `triton` on a GPU that has it, else `torch`.
        graphs: capture encoder, transformer and decoder as CUDA graphs, so that launching does not bound small windows.
            None = on a GPU.
        fp8: layers' matrix products in 8-bit floats with a scale a row; not the same outputs, see
            `benchmarks/flash.py`. GPUs of compute capability 8.9 and later.
        attention: PyTorch's backend; `timed` times those that take the input, once a shape.

    Raises:
        FlowshadeError: what was asked for needs a GPU, or another one.
        MissingDependencyError: `triton` was asked for and is not installed.
    """
    device, cuda = renderer.device, renderer.device.type == "cuda"
    dtype = renderer.autocast_dtype or renderer.transformer.dtype
    graphs = cuda if graphs is None else graphs
    if graphs and not cuda:
        raise FlowshadeError(f"CUDA graphs need an NVIDIA GPU, and the renderer is on {device}. Give graphs=False.")
    if fp8:
        check_fp8(device, dtype)
    kernels = kernels or ("triton" if cuda and importlib.util.find_spec("triton") else "torch")
    slow_down(renderer)
    tools = _Tools(_kernels(kernels, device), dtype, fp8, TimedAttention(attention))
    renderer.transformer.fast = FusedLayers(renderer.transformer, tools)
    if cuda:
        for codec in (renderer.encoder, renderer.decoder):
            codec.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
            for module in codec.modules():
                if isinstance(module, GroupedConv):
                    module.tuner = tools.attention.tuner
    if graphs:
        renderer.graphs = Graphs(
            CudaCapture(device), context=_uncached(renderer), keep=renderer.transformer.rotations.tensors
        )
    return Speed(kernels=kernels, graphs=graphs, fp8=fp8, attention=attention, tuner=tools.attention.tuner)


def slow_down(renderer: Renderer | FlashRenderer) -> None:
    """Back to the plain path."""
    renderer.graphs = None
    renderer.transformer.fast = None
    for codec in (renderer.encoder, renderer.decoder):
        codec.to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
        for module in codec.modules():
            if isinstance(module, GroupedConv):
                module.tuner = None


def _kernels(name: KernelName, device: torch.device) -> Kernels:
    if name == "torch":
        return Kernels()
    if name == "inductor":
        return InductorKernels()
    if importlib.util.find_spec("triton") is None:
        raise MissingDependencyError(
            "the Triton kernels need triton, which is not installed; it comes with PyTorch's CUDA wheels on Linux. "
            "Install it with: pip install triton, or give kernels='inductor'."
        )
    from flowshade.nn.triton_kernels import INTERPRETED, TritonKernels

    if device.type != "cuda" and not INTERPRETED:
        raise FlowshadeError(f"the Triton kernels need a GPU, and the renderer is on {device}. Give kernels='torch'.")
    return TritonKernels()


def _uncached(renderer: Renderer | FlashRenderer) -> Callable[[], AbstractContextManager[Any]]:
    """Autocast as the renderer has it, without the cache of cast weights, which a graph would outlive."""

    def context() -> AbstractContextManager[Any]:
        dtype, kind = renderer.autocast_dtype, renderer.device.type
        return torch.autocast(kind, dtype=dtype or torch.bfloat16, enabled=dtype is not None, cache_enabled=False)

    return context


class TimedAttention:
    """Attention by the fastest of PyTorch's kernels that take the input, or by a given one."""

    def __init__(self, name: AttentionName) -> None:
        if name not in ("timed", "default", *BACKENDS):
            raise FlowshadeError(f"unknown attention {name!r}; expected timed, default, {', '.join(BACKENDS)}.")
        self.name = name
        self.tuner = Tuner()

    def __call__(
        self, queries: Float[Tensor, "B H M C"], context: KeysValues, mask: Tensor | None
    ) -> Float[Tensor, "B M D"]:
        def run(*backends: SDPBackend) -> Tensor:
            if not backends:
                return F.scaled_dot_product_attention(queries, context.keys, context.values, attn_mask=mask)
            with sdpa_kernel(list(backends)):
                return F.scaled_dot_product_attention(queries, context.keys, context.values, attn_mask=mask)

        if self.name == "default" or queries.device.type != "cuda":
            x = run()
        elif self.name == "timed":
            candidates = {"default": run} | {name: _bound(run, backend) for name, backend in BACKENDS.items()}
            x = self.tuner.run(_attention_kind(queries, context, mask), candidates)
        else:
            x = run(BACKENDS[self.name])
        return rearrange(x, "b h n c -> b n (h c)")


def _bound(run: Callable[..., Tensor], backend: SDPBackend) -> Callable[[], Tensor]:
    return lambda: run(backend)


def _attention_kind(queries: Tensor, context: KeysValues, mask: Tensor | None) -> tuple[Any, ...]:
    masked = None if mask is None else (tuple(mask.shape), mask.dtype)
    return "attention", tuple(queries.shape), context.keys.shape[2], queries.dtype, masked


@dataclass(frozen=True)
class _Tools:
    """What the layers are built from."""

    kernels: Kernels
    dtype: torch.dtype
    fp8: bool
    attention: TimedAttention

    def linear(self, *layers: nn.Linear) -> _Joined:
        return _Joined(layers, self)


class _Joined:
    """Linear layers over one input as one matrix product.

    Where the weights have the type that products run in, the layers' own parameters become views of the joined ones, so
    nothing is kept twice; otherwise it is a copy in that type, made once instead of at every call.
    """

    def __init__(self, layers: Sequence[nn.Linear], tools: _Tools) -> None:
        self._tools = tools
        self._eight: Linear8 | None = None
        weight, bias = _join(layers, "weight"), _join(layers, "bias")
        if tools.fp8:
            self._eight = Linear8(weight, bias, tools.dtype)
        self._weight, self._bias = weight.to(tools.dtype), bias.to(tools.dtype)

    def __call__(self, x: Tensor | Rows8) -> Tensor:
        if self._eight is not None:
            return self._eight(self._tools.kernels.quantise(x) if isinstance(x, Tensor) else x)
        assert isinstance(x, Tensor)
        return F.linear(x.to(self._weight.dtype), self._weight, self._bias)

    def gelu(self, x: Tensor | Rows8, approximate: str) -> Tensor | Rows8:
        """The layer and a GELU; the result in 8 bits if layers are, else the GELU inside the product if faster."""
        if self._eight is not None:
            return self._tools.kernels.gelu8(self(x), approximate)
        assert isinstance(x, Tensor)
        candidates: dict[str, Callable[[], Tensor]] = {
            "apart": lambda: F.gelu(F.linear(x, self._weight, self._bias), approximate=approximate)
        }
        if approximate == "tanh" and x.device.type == "cuda":  # there, the kind that cuBLAS has
            candidates["inside"] = lambda: self._gelu_inside(x)
        kind = ("linear and gelu", tuple(x.shape), tuple(self._weight.shape), x.dtype)
        return self._tools.attention.tuner.run(kind, candidates)

    def _gelu_inside(self, x: Tensor) -> Tensor:
        rows: Tensor = torch.ops.aten._addmm_activation(self._bias, x.flatten(0, -2), self._weight.t(), use_gelu=True)
        return rows.unflatten(0, x.shape[:-1])


def _join(layers: Sequence[nn.Linear], name: str) -> Tensor:
    parameters: list[nn.Parameter] = [getattr(layer, name) for layer in layers]
    if len(parameters) == 1:
        return parameters[0].detach()
    joined = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, joined.split([len(parameter) for parameter in parameters])):
        parameter.data = part
    return joined


class _TextLayer:
    """A layer's cross-attention."""

    def __init__(self, block: WorldBlock, tools: _Tools) -> None:
        assert block.attn2 is not None and block.norm2 is not None
        attention, norm = block.attn2, block.norm2
        self.queries, self.out = tools.linear(attention.to_q), tools.linear(_out(attention.to_out))
        self.heads = attention.heads
        self.weight = attention.norm_q.weight.detach().float()
        self.norm_eps, self.eps = norm.eps, attention.norm_q.eps or torch.finfo(tools.dtype).eps
        # A weight and a bias are a modulation that is always the same.
        self.scale = norm.weight.detach().float()[None, None] - 1
        self.shift = norm.bias.detach().float()[None, None]


class _Layer:
    """One layer's weights as the fast path wants them."""

    def __init__(self, block: WorldBlock, tools: _Tools) -> None:
        attention = block.attn1
        self.qkv = tools.linear(attention.to_q, attention.to_k, attention.to_v)
        self.out = tools.linear(_out(attention.to_out))
        self.heads = attention.heads
        self.eps = attention.norm_q.eps or torch.finfo(tools.dtype).eps
        self.q_weight = attention.norm_q.weight.detach().float()
        k_weight = attention.norm_k.weight.detach().float()
        self.k_weight = k_weight[None]
        self.factor: Tensor | None = None
        """Of every head's keys of the past, [H]."""
        if attention.history_key_scale is not None:
            self.factor = attention.history_factor().detach().float()
            # Turning is linear and a head's factor is one number, so the norm's weight can carry it.
            self.k_weight = torch.stack(
                [k_weight * self.factor.repeat_interleave(len(k_weight) // self.heads), k_weight]
            )
        self.up, self.down = tools.linear(block.ffn.net[0].proj), tools.linear(block.ffn.net[2])  # pyright: ignore
        self.approximate = block.ffn.approximate
        self.text = _TextLayer(block, tools) if block.attn2 is not None else None

    def k_weights(self, segments: int) -> Float[Tensor, "S D"]:
        """The keys' norm's weight, one a segment; one segment is the present."""
        return self.k_weight if segments == 2 else self.k_weight[-1:]

    def amplified(self, keys: Float[Tensor, "B H P C"]) -> Float[Tensor, "B H P C"]:
        return keys if self.factor is None else (keys * self.factor[:, None, None]).type_as(keys)


def _out(layers: nn.ModuleList) -> nn.Linear:
    layer = layers[0]
    assert isinstance(layer, nn.Linear)
    return layer


@dataclass(frozen=True)
class _Modulated:
    """Every layer's modulations, and where the present begins."""

    rows: Float[Tensor, "Y S B 6 D"]
    """Shift, scale, gate of attention, then of feed-forward; one a layer and segment; float32."""
    out: Float[Tensor, "1 B 2 D"]
    """Shift and scale of the output norm."""
    split: int
    """Tokens of the past."""

    def last_segment(self) -> _Modulated:
        return _Modulated(self.rows[:, -1:], self.out, 0)


class FusedLayers:
    """All layers of a `WorldTransformer` for inference: `transformer.FastLayers`.

    The residual stream is read and written once between matrix products: adding an update and norming for the next
    product are one kernel, over the border of layers too. Past and present stay one tensor.
    """

    def __init__(self, transformer: WorldTransformer, tools: _Tools) -> None:
        self._tools = tools
        self._config = transformer.config
        blocks = transformer.typed_blocks
        self._layers = [_Layer(block, tools) for block in blocks]
        self._tables = torch.stack([block.scale_shift_table.detach().float() for block in blocks])  # [Y, 1, 6, D]
        self._out_table = transformer.norm_out.scale_shift_table.detach().float()  # [1, 2, D]

    def present(
        self,
        x: Float[Tensor, "B N D"],
        temb: Float[Tensor, "B D"],
        modulation: Float[Tensor, "B 6 D"],
        turn: Rotation,
        text: TextMemory,
        past: HistoryKV | None,
    ) -> Float[Tensor, "B N D"]:
        mask = None if past is None else over_past(past.mask, x.shape[1])
        return self._run(x, self._modulated([modulation], temb, 0), turn, text, mask, past)

    def joint(
        self,
        x: Float[Tensor, "B N D"],
        temb: Float[Tensor, "B D"],
        modulation: Float[Tensor, "B 6 D"],
        turn: Rotation,
        text: TextMemory,
        past: HistoryTokens,
        past_modulation: Float[Tensor, "B 6 D"],
    ) -> Float[Tensor, "B N D"]:
        modulated = self._modulated([past_modulation, modulation], temb, past.tokens.shape[1])
        mask = over_past(past.mask, x.shape[1])
        both = torch.cat([past.tokens, x], 1)
        return self._run(both, modulated, Rotation.cat([past.rotation, turn]), text, mask, None)

    def remember(self, past: HistoryTokens, modulation: Float[Tensor, "B 6 D"]) -> HistoryKV:
        x, mask, kept = past.tokens, among_past(past.mask), []
        rows = self._tables[:, None] + modulation  # [Y, 1, B, 6, D]
        normed = self._norm(x, None, None, rows[0], 0, 0)[1]
        for index, layer in enumerate(self._layers):
            queries, context = self._attended(layer, normed, past.rotation, 1, 0, None)
            kept.append(KeysValues(layer.amplified(context.keys), context.values.contiguous()))
            if index == len(self._layers) - 1:
                break
            update = layer.out(self._tools.attention(queries, context, mask))
            x, normed = self._norm(x, update, rows[index][:, :, 2], rows[index], 3, 0)
            update = layer.down(layer.up.gelu(normed, layer.approximate))
            x, normed = self._norm(x, update, rows[index][:, :, 5], rows[index + 1], 0, 0)
        return HistoryKV(tuple(kept), past.mask)

    def _modulated(self, modulations: Sequence[Tensor], temb: Tensor, split: int) -> _Modulated:
        rows = self._tables[:, None] + torch.stack(list(modulations))  # [Y, S, B, 6, D]
        return _Modulated(rows, (self._out_table + temb.float()[:, None])[None], split)

    def _run(
        self,
        x: Tensor,
        modulated: _Modulated,
        turn: Rotation,
        text: TextMemory,
        mask: Tensor | None,
        past: HistoryKV | None,
    ) -> Tensor:
        tools, last = self._tools, len(self._layers) - 1
        normed = self._norm(x, None, None, modulated.rows[0], 0, modulated.split)[1]
        for index, layer in enumerate(self._layers):
            split, segments = modulated.split, modulated.rows.shape[1]
            before = None if past is None else past.layers[index]
            queries, context = self._attended(layer, normed, turn, segments, split, before)
            if index == last and split:  # nothing looks at the past any more
                queries, x, modulated, split = queries[:, :, split:], x[:, split:], modulated.last_segment(), 0
            rows = modulated.rows[index]
            update = layer.out(tools.attention(queries, context, mask))
            x, normed = self._read(layer, x, update, rows, split, text, index)
            update = layer.down(layer.up.gelu(normed, layer.approximate))
            gate = rows[:, :, 5]
            if index < last:
                x, normed = self._norm(x, update, gate, modulated.rows[index + 1], 0, split)
            else:
                x, normed = self._norm(x, update, gate, modulated.out, 0, split, fp8=False, dtype=x.dtype)
        assert isinstance(normed, Tensor)
        return normed

    def _attended(
        self, layer: _Layer, normed: Any, turn: Rotation, segments: int, split: int, past: KeysValues | None
    ) -> tuple[Tensor, KeysValues]:
        """Queries, and the keys and values that they look at."""
        return self._tools.kernels.norm_turn(
            layer.qkv(normed),
            layer.q_weight,
            layer.k_weights(segments),
            turn,
            past,
            heads=layer.heads,
            split=split,
            eps=layer.eps,
        )

    def _read(
        self, layer: _Layer, x: Tensor, update: Tensor, rows: Tensor, split: int, text: TextMemory, index: int
    ) -> tuple[Tensor, Any]:
        """Adds self-attention's update and what the text says; gives the stream and its norm for feed-forward."""
        gate, reader = rows[:, :, 2], layer.text
        if reader is None:
            return self._norm(x, update, gate, rows, 3, split)
        context = text.layers[index]
        assert context is not None
        kernels, dtype, fp8 = self._tools.kernels, self._tools.dtype, self._tools.fp8
        x, normed = kernels.residual_norm(
            x, update, gate, reader.shift, reader.scale, split=split, eps=reader.norm_eps, dtype=dtype, fp8=fp8
        )
        first = 0 if self._config.history_reads_text else split
        normed = normed.last_rows(first) if isinstance(normed, Rows8) else normed[:, first:]
        queries = kernels.rms_norm(reader.queries(normed), reader.weight, reader.eps)
        queries = rearrange(queries, "b n (h c) -> b h n c", h=reader.heads)
        update = reader.out(self._tools.attention(queries, context, text.mask))
        return self._norm(x, update, None, rows, 3, split)

    def _norm(
        self,
        x: Tensor,
        update: Tensor | None,
        gate: Tensor | None,
        rows: Float[Tensor, "S B R D"],
        at: int,
        split: int,
        *,
        fp8: bool | None = None,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Any]:
        """x + gate update, and its norm by the shift and scale at `at` and after."""
        return self._tools.kernels.residual_norm(
            x,
            update,
            gate,
            rows[:, :, at],
            rows[:, :, at + 1],
            split=split,
            eps=self._config.eps,
            dtype=dtype or self._tools.dtype,
            fp8=self._tools.fp8 if fp8 is None else fp8,
        )
