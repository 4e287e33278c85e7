"""Cosmos DiffusionRenderer's inverse written out plainly, over its own tensor names; nothing of it is fast or shared.

It follows the description of the published code (nv-tlabs/cosmos1-diffusion-renderer) function by function and loop by
loop, so that it can be wrong only where that description is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

State = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class PlainCosmos:
    """The network as one function over a state dict in the original names."""

    state: State
    heads: int
    layers: int

    def __call__(self, x: Tensor, video: Tensor, time: Tensor, row: int, tokens: int = 1) -> Tensor:
        """[B, C, L, h, w] and [B] to [B, C, L, h, w]; the row of the table is repeated over `tokens`."""
        b, c, length, height, width = x.shape
        mask = torch.zeros(b, 1, length, height, width)
        patches = rearrange(torch.cat([x, video, mask], 1), "b c t (h p) (w q) -> b (t h w) (c p q)", p=2, q=2)
        x = patches @ self.state["x_embedder.proj.1.weight"].T
        size = length, height // 2, width // 2
        wave = timestep_wave(time, x.shape[-1])
        lora = (
            F.silu(wave @ self.state["t_embedder.1.linear_1.weight"].T) @ self.state["t_embedder.1.linear_2.weight"].T
        )
        level = rms(wave, self.state["affline_norm.weight"])
        context = self.state["context_embedding.weight"][row].expand(b, tokens, -1)
        for layer in range(self.layers):
            x = x + self.positions(size, x.shape[-1])
            for part in range(3):
                x = self.sublayer(f"blocks.block{layer}.blocks.{part}", part, x, level, lora, context, size)
        shift, scale = self.modulation("final_layer", level, lora[:, : 2 * x.shape[-1]]).chunk(2, -1)
        x = layer_norm(x) * (1 + scale[:, None]) + shift[:, None]
        x = x @ self.state["final_layer.linear.weight"].T
        t, h, w = size
        return rearrange(x, "b (t h w) (p q c) -> b c t (h p) (w q)", t=t, h=h, w=w, p=2, q=2)

    def modulation(self, name: str, level: Tensor, lora: Tensor) -> Tensor:
        first, second = (self.state[f"{name}.adaLN_modulation.{index}.weight"] for index in (1, 2))
        return F.silu(level) @ first.T @ second.T + lora

    def sublayer(
        self, name: str, part: int, x: Tensor, level: Tensor, lora: Tensor, context: Tensor, size: tuple[int, int, int]
    ) -> Tensor:
        shift, scale, gate = (value[:, None] for value in self.modulation(name, level, lora).chunk(3, -1))
        normed = layer_norm(x) * (1 + scale) + shift
        if part == 2:
            hidden = F.gelu(normed @ self.state[f"{name}.block.layer1.weight"].T)
            return x + gate * (hidden @ self.state[f"{name}.block.layer2.weight"].T)
        return x + gate * self.attention(f"{name}.block.attn", normed, normed if part == 0 else context, part, size)

    def attention(self, name: str, x: Tensor, keys_of: Tensor, part: int, size: tuple[int, int, int]) -> Tensor:
        q, k, v = (
            rearrange(of @ self.state[f"{name}.to_{which}.0.weight"].T, "b n (h d) -> b h n d", h=self.heads)
            for which, of in (("q", x), ("k", keys_of), ("v", keys_of))
        )
        q, k = rms(q, self.state[f"{name}.to_q.1.weight"]), rms(k, self.state[f"{name}.to_k.1.weight"])
        if part == 0:
            q, k = rotate(q, size), rotate(k, size)
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)
        out = rearrange(weights @ v, "b h n d -> b n (h d)")
        return out @ self.state[f"{name}.to_out.0.weight"].T

    @staticmethod
    def positions(size: tuple[int, int, int], width: int) -> Tensor:
        """A token at a time: the sinusoids of its three coordinates one after another."""
        plane = width // 6 * 2
        rows = []
        for t in range(size[0]):
            for h in range(size[1]):
                for w in range(size[2]):
                    dims = (width - 2 * plane, plane, plane)
                    rows.append(torch.cat([axis_wave(at, dim) for at, dim in zip((t, h, w), dims)]))
        return torch.stack(rows)


def axis_wave(at: int, dim: int) -> Tensor:
    half = dim // 2
    angles = torch.tensor([at * 10000 ** (-index / half) for index in range(half)])
    return torch.cat([angles.sin(), angles.cos()])


def timestep_wave(time: Tensor, width: int) -> Tensor:
    half = width // 2
    angles = time[:, None] * torch.tensor([math.exp(-math.log(10000) * index / half) for index in range(half)])
    return torch.cat([angles.cos(), angles.sin()], -1)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def layer_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-6)


def rotate(x: Tensor, size: tuple[int, int, int]) -> Tensor:
    """Rotary positions over [B, heads, N, d]: the first half of a head turns with the second."""
    d = x.shape[-1]
    plane = d // 6 * 2
    rows = []
    for t in range(size[0]):
        for h in range(size[1]):
            for w in range(size[2]):
                angles = []
                for at, dim in ((t, d - 2 * plane), (h, plane), (w, plane)):
                    angles += [at / 10000 ** (2 * index / dim) for index in range(dim // 2)]
                rows.append(torch.tensor(angles))
    cos, sin = torch.stack(rows).cos(), torch.stack(rows).sin()
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def sample(network, noise: Tensor, video: Tensor, steps: int, row: int) -> Tensor:
    """EDM's Euler steps written out (Karras et al. 2022), sigma_data 0.5, levels 80 to 0.02."""
    data = 0.5
    levels = [(80 ** (1 / 7) + i / (steps - 1) * (0.02 ** (1 / 7) - 80 ** (1 / 7))) ** 7 for i in range(steps)] + [0.0]
    x = noise * math.sqrt(80**2 + 1)
    for level, following in zip(levels[:-1], levels[1:]):
        c_skip = data**2 / (level**2 + data**2)
        c_out = level * data / math.sqrt(level**2 + data**2)
        c_in = 1 / math.sqrt(level**2 + data**2)
        time = torch.full((len(x),), 0.25 * math.log(level)).bfloat16().float()
        denoised = c_skip * x + c_out * network(c_in * x, video, time, row)
        x = x + (x - denoised) / level * (following - level)
    return x
