"""What files do not say, found out from their values: `guess_conventions` proposes a `gbuffer.json` with its evidence.

Nothing that is proposed is used until someone states it. What the questions rest on:

- Depth of a plane: 1/z is linear across the picture whatever the camera, 1/(ray distance) is not, and neither are the
  other codes. So the code under which depth bends least on smooth surfaces is the right one.
- Normals follow from depth too. The rotation that turns stored normals into rebuilt ones is none for camera space (a
  change of signs for other axes), and the camera's for world space; a mirror in it tells left-handed worlds.
- Depth of two frames agrees in space only in the cameras' unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np

from flowshade.gbuffer.io.conventions import (
    NORMAL_SIGNS,
    SIDECAR,
    UNITS,
    ClipConventions,
    Handedness,
    Up,
    intrinsics_of_fov,
    ray_length,
    world_rotation,
)
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.reader import FORMATS, ClipReader, look_for_format, open_clip
from flowshade.types import Camera

PROPOSED_FROM = 0.6
"""Confidence from which a value is proposed."""
SAMPLE_FRAMES = 3
PLACEHOLDERS: tuple[dict[str, Any], ...] = (
    {"normals": "camera", "normal_code": "signed", "unit": "m", "up": "z", "depth_kind": "planar"},
    {"normals": "camera", "depth_code": "inverse:1"},
    {"normals": "camera"},
    {},
)
"""Statements that let any reader open its files; none of them touches the numbers that are looked at."""
SKY = 1e9
LENGTHS = ("planar", "ray")
"""Codes that have a unit."""
LIKELY_FOVS = (40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 110.0)
"""Degrees. In narrower views ray distance and planar depth are all but the same."""
STRIDE_SHARE = 40
"""Points that are compared lie a width over this apart."""
SMOOTH = 0.05
"""Largest relative change of depth between points on one surface."""
SAME_NORMAL = 0.02
"""Largest difference of normals between points on one plane."""
FLATTEST = 30
"""Percentile over points: planes bend least, and most pictures have some."""
LEAST_SLOPE = 0.004
"""Least change across a stretch, in the picture's range: along rows of a level floor every code is constant."""
FEWEST_POINTS = 200
CLOSE_TURN = 0.93
"""Mean cosine between turned and rebuilt normals from which they are the same."""
SIGN_TOLERANCE = 0.2
"""By which a best rotation may miss a pure change of signs."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One answer."""

    name: str
    """A name of `ClipConventions`."""
    value: Any
    """None = not settled."""
    confidence: float
    """0 to 1, by how much better the answer fits than the next."""
    evidence: str

    def __str__(self) -> str:
        value = "?" if self.value is None else f"{self.value:g}" if isinstance(self.value, float) else self.value
        return f"{self.name} = {value} ({100 * self.confidence:.0f}%): {self.evidence}"


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A proposal for a clip; `str` of it is a readable report."""

    path: Path
    format: str
    findings: tuple[Finding, ...]

    @property
    def conventions(self) -> ClipConventions:
        """What is proposed: the findings of enough confidence."""
        sure = {found.name: found.value for found in self.findings if self._is_sure(found)}
        return ClipConventions.of({"format": self.format, **sure}, "guess")

    def _is_sure(self, found: Finding) -> bool:
        return found.value is not None and found.confidence >= PROPOSED_FROM

    def __str__(self) -> str:
        lines = [f"{self.path}", f"  format    {self.format}"]
        for title, sure in (("proposed", True), ("unsettled", False)):
            lines += [f"  {title:<10}{found}" for found in self.findings if self._is_sure(found) == sure]
        return "\n".join(lines if self.findings else [*lines, "  nothing to find out: no normals and no depth"])

    def save(self, overwrite: bool = False) -> Path:
        """Writes `gbuffer.json` beside the clip.

        Raises:
            ClipError: there is one already.
        """
        folder = self.path if self.path.is_dir() else self.path.parent
        if (folder / SIDECAR).exists() and not overwrite:
            raise ClipError(f"{folder / SIDECAR} exists already; move it away, or overwrite it.")
        self.conventions.save(folder / SIDECAR, tuple(str(found) for found in self.findings))
        return folder / SIDECAR


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """One frame as stored, float64; sky is NaN."""

    depth: np.ndarray | None
    """[H, W]."""
    top: int
    """Depth's largest integer, 1 for floating-point numbers."""
    normal: np.ndarray | None
    """[3, H, W]: signed unit vectors in the file's own axes."""
    camera: Camera | None

    @property
    def size(self) -> tuple[int, int]:
        height, width = (self.depth if self.depth is not None else self.normal[0]).shape  # pyright: ignore
        return height, width


def guess_conventions(path: Path | str, *, format: str | None = None, **stated: Any) -> Guess:
    """Proposes what a clip's files do not say.

    Args:
        path: a clip.
        format: as `open_clip`.
        stated: what is known already, by the names of `ClipConventions`; it is used and not guessed again.

    Raises:
        ClipError: no clip, or one of a format that says everything itself.
    """
    path = Path(path)
    known = ClipConventions.beside(path)
    given = ClipConventions.of({name: value for name, value in stated.items() if value is not None}, "").over(known)
    given = replace(given, format=None)
    name = format or known.format or look_for_format(path).name
    with _opened(path, name, given) as reader:
        samples, coded = _samples(reader)
    findings = _normal_code(samples, coded) if given.normal_code is None else []
    code, kind = _depth_kind(samples, given) if given.depth_kind is None and given.depth_code is None else (None, [])
    findings += kind
    planar = [_planar(sample, code, given) for sample in samples]
    findings += [found for found in _normal_axes(samples, planar, given) if getattr(given, found.name) is None]
    if given.unit is None and given.depth_code is None and (code is None or code.startswith(LENGTHS)):
        findings += _unit(samples, planar)
    return Guess(path=path, format=name, findings=tuple(findings))


def _opened(path: Path, name: str, given: ClipConventions) -> ClipReader:
    """The clip's reader, with whatever it takes to open it stated for the time being."""
    if name not in FORMATS:
        raise ClipError(f"format {name!r} is unknown; expected one of {', '.join(FORMATS)}.")
    takes = FORMATS[name].options()
    fixed = {key: value for key, value in given.stated().items() if key in ("cameras", "fov", "layer", "bits", "fps")}
    first: ClipError | None = None
    for placeholders in PLACEHOLDERS:
        options = {key: value for key, value in {**placeholders, **fixed}.items() if key in takes}
        try:
            return open_clip(path, format=name, **options)
        except ClipError as error:
            first = first or error
    assert first is not None
    raise first


def _samples(reader: ClipReader) -> tuple[list[_Sample], bool]:
    """A few frames, and whether their floating-point normals are coded from 0 to 1."""
    count = min(SAMPLE_FRAMES, len(reader))
    frames = sorted({round(step * (len(reader) - 1) / max(1, count - 1)) for step in range(count)})
    samples, coded = [], False
    for frame in frames:
        stored = reader.stored(frame, frame + 1)
        camera = reader.read(frame, frame + 1).camera if reader.info.has_camera else None
        depth, top = (None, 1)
        if "depth" in stored:
            depth, top = _depth_values(*stored["depth"])
        normal = None
        if "normal" in stored:
            normal, is_coded = _signed(*stored["normal"])
            coded |= is_coded
        samples.append(_Sample(depth=depth, top=top, normal=normal, camera=camera))
    return [sample for sample in samples if sample.depth is not None or sample.normal is not None], coded


def _depth_values(planes: Any, top: int) -> tuple[np.ndarray, int]:
    depth = planes[0, 0].double().numpy().copy()
    nothing = ~np.isfinite(depth) | (depth <= 0)
    nothing |= depth == top if top > 1 else (depth >= SKY) | (depth == 65504)
    depth[nothing] = np.nan
    return depth, top


def _signed(planes: Any, top: int) -> tuple[np.ndarray, bool]:
    values = planes[0].double().numpy() / top
    coded = top > 1 or _off_unit(2 * values - 1) < _off_unit(values)
    signed = 2 * values - 1 if coded else values.copy()
    length = np.linalg.norm(signed, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        signed = np.where(length > 0.4, signed / length, np.nan)
    return signed, coded and top == 1


def _off_unit(values: np.ndarray) -> float:
    return float(np.median(np.abs(np.linalg.norm(values, axis=0) - 1)))


def _normal_code(samples: Sequence[_Sample], coded: bool) -> list[Finding]:
    """Only floating-point normals have two codes."""
    if not coded:
        return []
    evidence = "normals are unit vectors once decoded from (n+1)/2, and are none as they are"
    return [Finding(name="normal_code", value="half", confidence=0.95, evidence=evidence)]


# Depth: functions of the stored value that are linear across a plane if the value is what the name says.


def _codes(sample: _Sample, given: ClipConventions) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    codes: dict[str, Callable[[np.ndarray], np.ndarray]] = {"planar": lambda value: 1 / value}
    for fov, intrinsics in _views(sample, given):
        length = ray_length(intrinsics, sample.size)[0, 0].double().numpy()
        codes[f"ray {fov:g}"] = lambda value, length=length: length / value
    largest = sample.top if sample.top > 1 else 1.0
    codes["depth buffer"] = lambda value: value / largest
    with np.errstate(invalid="ignore"):
        if sample.depth is not None and np.nanmax(sample.depth) <= largest:
            codes["inverse"] = lambda value: (value / largest) / np.maximum(1 - value / largest, 1e-9)
    return codes


def _views(sample: _Sample, given: ClipConventions) -> list[tuple[float, Any]]:
    """Fields of view to try, with their intrinsics: the stated one, or likely ones."""
    if sample.camera is not None:
        focal = float(sample.camera.intrinsics[0, 0])
        fov = float(np.degrees(2 * np.arctan(sample.size[1] / 2 / focal)))
        return [(fov, sample.camera.intrinsics)]
    fovs = LIKELY_FOVS if given.fov is None else (given.fov,)
    return [(fov, intrinsics_of_fov(fov, sample.size)) for fov in fovs]


def _bend(values: np.ndarray, sample: _Sample) -> float:
    """How far values are from linear across smooth surfaces: second differences over first ones; NaN if too few."""
    stride = max(1, sample.size[1] // STRIDE_SHARE)
    shares = []
    least = LEAST_SLOPE * float(np.subtract(*np.nanpercentile(values, (95, 5))))
    for axis in (0, 1):
        low, middle, high = _triples(values, stride, axis)
        bend, slope = np.abs(low - 2 * middle + high), np.abs(high - low)
        fine = _is_smooth(sample, stride, axis) & (slope > least)
        shares.append(bend[fine] / slope[fine])
    found = np.concatenate(shares)
    return float(np.percentile(found, FLATTEST)) if found.size >= FEWEST_POINTS else float("nan")


def _triples(values: np.ndarray, stride: int, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    moved = np.moveaxis(values, axis, -1)
    return moved[..., : -2 * stride], moved[..., stride:-stride], moved[..., 2 * stride :]


def _is_smooth(sample: _Sample, stride: int, axis: int) -> np.ndarray:
    assert sample.depth is not None
    low, middle, high = _triples(sample.depth, stride, axis)
    with np.errstate(invalid="ignore"):
        smooth = np.maximum(np.abs(low - middle), np.abs(high - middle)) < SMOOTH * 4 * np.abs(middle)
        if sample.normal is not None:
            flat = [np.abs(a - b).max(0) < SAME_NORMAL for a, b in _neighbours(sample.normal, stride, axis)]
            smooth &= flat[0] & flat[1]
    return smooth


def _neighbours(normal: np.ndarray, stride: int, axis: int) -> list[tuple[np.ndarray, np.ndarray]]:
    low, middle, high = _triples(normal, stride, axis + 1)
    return [(low, middle), (high, middle)]


def _depth_kind(samples: Sequence[_Sample], given: ClipConventions) -> tuple[str | None, list[Finding]]:
    """The code of `_codes` that fits best, and what follows from it."""
    scores: dict[str, list[float]] = {}
    for sample in samples:
        if sample.depth is not None:
            for name, code in _codes(sample, given).items():
                with np.errstate(invalid="ignore", divide="ignore"):
                    scores.setdefault(name, []).append(_bend(code(sample.depth), sample))
    settled = {name: float(np.mean(values)) for name, values in scores.items() if np.isfinite(values).all()}
    if len(settled) < 2:
        return None, []
    best = min(settled, key=settled.__getitem__)
    others = {name: score for name, score in settled.items() if name.split()[0] != best.split()[0]}
    second = min(others, key=others.__getitem__)
    ratio = (settled[second] + 1e-12) / (settled[best] + 1e-12)
    confidence = float(np.clip(1 - 1 / ratio, 0, 0.99))
    evidence = (
        f"on smooth surfaces it bends by {settled[best]:.1e} as {_words(best)}, by {settled[second]:.1e} as "
        f"{_words(second)}"
    )
    if best == "planar":
        return best, [Finding(name="depth_kind", value="planar", confidence=confidence, evidence=evidence)]
    if best.startswith("ray"):
        found = [Finding(name="depth_kind", value="ray", confidence=confidence, evidence=evidence)]
        fov = float(best.split()[1])
        if given.fov is None and samples[0].camera is None:
            hint = "the field of view under which ray distances bend least, to the next ten degrees"
            found.append(Finding(name="fov", value=fov, confidence=min(confidence, 0.5), evidence=hint))
        return best, found
    unknown = "S is not known" if best == "inverse" else _buffer(samples)
    return best, [Finding(name="depth_code", value=None, confidence=confidence, evidence=f"{evidence}; {unknown}")]


def _words(code: str) -> str:
    if code.startswith("ray"):
        return f"ray distance at {code.split()[1]} degrees"
    return {
        "planar": "planar distance",
        "inverse": "S/(z+S), code inverse:S",
        "depth buffer": "a depth buffer or disparity",
    }[code]


def _buffer(samples: Sequence[_Sample]) -> str:
    """Which way round a depth buffer runs: what lies low in the picture is mostly nearer."""
    depth = next(sample.depth for sample in samples if sample.depth is not None)
    half = depth.shape[0] // 2
    nearer_is_larger = np.nanmedian(depth[half:]) > np.nanmedian(depth[:half])
    code = "reversed-z:NEAR,FAR or disparity:K" if nearer_is_larger else "z-buffer:NEAR,FAR"
    return f"nearer is {'larger' if nearer_is_larger else 'smaller'}, so give {code}"


def _planar(sample: _Sample, code: str | None, given: ClipConventions) -> np.ndarray | None:
    """Planar depth, at least but for its scale, as far as it is known how; else None."""
    if sample.depth is None or given.depth_code not in (None, "linear"):
        return None
    code = code or given.depth_kind or "planar"
    if code == "planar":
        return sample.depth
    if code == "inverse":
        value = sample.depth / (sample.top if sample.top > 1 else 1)
        return np.where(value < 1, (1 - value) / value, np.nan)
    if not code.startswith("ray"):
        return None
    fov = float(code.split()[1]) if " " in code else given.fov
    views = _views(sample, given if fov is None else replace(given, fov=fov))
    return sample.depth / ray_length(views[0][1], sample.size)[0, 0].double().numpy()


# Normals: rebuilt from depth, and the rotation that leads from the stored ones to them.


def rebuilt_normals(depth: np.ndarray, intrinsics: Sequence[float]) -> np.ndarray:
    """Camera-space normals (OpenGL axes) of the surface that planar depth describes.

    Args:
        depth: [H, W], any unit; NaN = sky.
        intrinsics: fx, fy, cx, cy in pixels.

    Returns:
        [3, H, W] unit vectors towards the camera; NaN at sky and at the picture's border.
    """
    fx, fy, cx, cy = intrinsics
    rows, columns = np.mgrid[: depth.shape[0], : depth.shape[1]] + 0.5
    points = np.stack([(columns - cx) / fx * depth, -(rows - cy) / fy * depth, -depth])
    right, up = np.full_like(points, np.nan), np.full_like(points, np.nan)
    right[:, :, 1:-1] = points[:, :, 2:] - points[:, :, :-2]
    up[:, 1:-1] = points[:, :-2] - points[:, 2:]
    normal = np.cross(right, up, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return normal / np.linalg.norm(normal, axis=0)


def _normal_axes(
    samples: Sequence[_Sample], planar: Sequence[np.ndarray | None], given: ClipConventions
) -> list[Finding]:
    turns = [
        turn
        for sample, depth in zip(samples, planar, strict=True)
        if sample.normal is not None and depth is not None and (turn := _turn(sample, depth, given)) is not None
    ]
    if not turns:
        return _axes_without_depth(samples)
    matrices, cosines = zip(*turns, strict=True)
    cosine = float(np.mean(cosines))
    if cosine < CLOSE_TURN:
        evidence = f"no rotation turns stored normals into those rebuilt from depth (mean cosine {cosine:.2f})"
        return [Finding(name="normals", value=None, confidence=0.0, evidence=evidence)]
    return _camera_space(matrices, cosine) or _world_space(samples, matrices, cosine)


def _turn(sample: _Sample, depth: np.ndarray, given: ClipConventions) -> tuple[np.ndarray, float] | None:
    """The orthogonal matrix (mirrors allowed) from stored to rebuilt normals, and the mean cosine it reaches."""
    assert sample.normal is not None
    best: tuple[np.ndarray, float] | None = None
    for _, intrinsics in _views(sample, given):
        rebuilt = rebuilt_normals(depth, intrinsics[0].tolist())
        fine = np.isfinite(rebuilt).all(0) & np.isfinite(sample.normal).all(0)
        fine &= _inside(sample.normal)
        if fine.sum() < FEWEST_POINTS:
            return None
        stored, wanted = sample.normal[:, fine], rebuilt[:, fine]
        left, strengths, right = np.linalg.svd(wanted @ stored.T / stored.shape[1])
        if strengths[1] < 0.02:
            return None  # one plane only: any turn about its normal would do
        matrix = _settled_turn(left, strengths, right, sample)
        cosine = float((wanted * (matrix @ stored)).sum(0).mean())
        if best is None or cosine > best[1]:
            best = matrix, cosine
    return best


def _settled_turn(left: np.ndarray, strengths: np.ndarray, right: np.ndarray, sample: _Sample) -> np.ndarray:
    """Two planes leave the sign of the third direction open: then what the camera or plain axes say is taken."""
    matrix = left @ right
    if strengths[2] > 0.003:
        return matrix
    mirrored = left @ np.diag([1.0, 1.0, -1.0]) @ right
    return min((matrix, mirrored), key=lambda option: _strangeness(option, sample))


def _strangeness(matrix: np.ndarray, sample: _Sample) -> float:
    """Distance to the nearest change of signs, or to the nearest world seen from this camera."""
    plain = [np.diag(signs) for signs in NORMAL_SIGNS.values()]
    if sample.camera is not None:
        pose = sample.camera.pose[0, :3, :3].double().numpy()
        plain += [pose.T @ world_rotation(up, hand).double().numpy() for up, hand in _worlds()]
    return min(float(np.abs(matrix - option).max()) for option in plain)


def _worlds() -> list[tuple[Up, Handedness]]:
    return list(product(get_args(Up), get_args(Handedness)))


def _inside(normal: np.ndarray) -> np.ndarray:
    """Pixels whose four neighbours have the same normal: away from silhouettes, where rebuilt ones are wrong."""
    inside = np.ones(normal.shape[1:], bool)
    for axis, step in product((1, 2), (1, -1)):
        with np.errstate(invalid="ignore"):
            inside &= np.abs(np.roll(normal, step, axis) - normal).max(0) < 0.1
    return inside


def _camera_space(matrices: Sequence[np.ndarray], cosine: float) -> list[Finding]:
    for axes, signs in NORMAL_SIGNS.items():
        miss = max(float(np.abs(matrix - np.diag(signs)).max()) for matrix in matrices)
        if miss < SIGN_TOLERANCE:
            evidence = f"with {axes} axes they agree with normals rebuilt from depth (mean cosine {cosine:.3f})"
            confidence = float(np.clip(cosine * (1 - miss), 0, 0.99))
            return [
                Finding(name="normals", value="camera", confidence=confidence, evidence=evidence),
                Finding(name="normal_axes", value=axes, confidence=confidence, evidence=evidence),
            ]
    return []


def _world_space(samples: Sequence[_Sample], matrices: Sequence[np.ndarray], cosine: float) -> list[Finding]:
    sign = float(np.mean([np.linalg.det(matrix) for matrix in matrices]))
    hand: Handedness = "right" if sign > 0 else "left"
    evidence = f"they agree with normals rebuilt from depth only when turned (mean cosine {cosine:.3f})"
    found = [Finding(name="normals", value="world", confidence=min(0.95, cosine), evidence=evidence)]
    mirrored = "without" if hand == "right" else "with"
    found.append(
        Finding(name="handedness", value=hand, confidence=0.9, evidence=f"the turn is one {mirrored} a mirror")
    )
    cameras = [sample.camera for sample in samples if sample.camera is not None]
    if len(cameras) == len(matrices):
        worlds = [c.pose[0, :3, :3].double().numpy() @ m for c, m in zip(cameras, matrices, strict=True)]
        misses = {
            up: max(float(np.abs(world - world_rotation(up, hand).double().numpy()).max()) for world in worlds)
            for up in get_args(Up)
        }
        up = min(misses, key=misses.__getitem__)
        if misses[up] < 2 * SIGN_TOLERANCE:
            text = f"with the cameras, a world of {up} up misses the turn by {misses[up]:.2f}"
            return [*found, Finding(name="up", value=up, confidence=0.95 - misses[up], evidence=text)]
        text = f"no axis fits the turn between normals and cameras (best: {up}, off by {misses[up]:.2f})"
        return [*found, Finding(name="up", value=None, confidence=0.0, evidence=text)]
    return found + _floor_axis(samples)


def _floor_axis(samples: Sequence[_Sample]) -> list[Finding]:
    """Floors are the commonest surface: the axis that most normals point along, upwards."""
    normals = np.concatenate([s.normal.reshape(3, -1) for s in samples if s.normal is not None], 1)
    normals = normals[:, np.isfinite(normals).all(0)]
    if not normals.size:
        return []
    shares = {axis: float((normals[index] > 0.95).mean()) for index, axis in enumerate("xyz")}
    up, runner_up = sorted(shares, key=shares.__getitem__, reverse=True)[:2]
    confidence = 0.8 * (shares[up] - shares[runner_up]) / max(shares[up], 1e-9)
    evidence = (
        f"{100 * shares[up]:.0f}% of the surfaces face along +{up}, {100 * shares[runner_up]:.0f}% along +{runner_up}"
    )
    return [Finding(name="up", value=up if confidence > 0 else None, confidence=confidence, evidence=evidence)]


def _axes_without_depth(samples: Sequence[_Sample]) -> list[Finding]:
    """Surfaces that are seen face the camera: in camera space one axis has one sign almost everywhere."""
    normals = [sample.normal[2][np.isfinite(sample.normal[2])] for sample in samples if sample.normal is not None]
    if not normals:
        return []
    z = np.concatenate(normals)
    if not z.size:
        return []
    towards, away = float((z > -0.2).mean()), float((z < 0.2).mean())
    if max(towards, away) > 0.99 and abs(towards - away) > 0.02:
        value = None if towards > away else "opencv"
        sign = "+Z" if towards > away else "-Z"
        evidence = f"{100 * max(towards, away):.1f}% have {sign} towards the viewer, as in camera space; Y needs depth"
        found = [Finding(name="normals", value="camera", confidence=0.7, evidence=evidence)]
        return [*found, Finding(name="normal_axes", value=value, confidence=0.6 if value else 0.0, evidence=evidence)]
    evidence = f"Z points both ways ({100 * towards:.0f}% towards the viewer), as in world space"
    return [Finding(name="normals", value="world", confidence=0.7, evidence=evidence), *_floor_axis(samples)]


# Unit: two frames agree in space only at the cameras' scale; without cameras, scenes are of some usual size.


def _unit(samples: Sequence[_Sample], planar: Sequence[np.ndarray | None]) -> list[Finding]:
    depths = [depth for depth in planar if depth is not None]
    if not depths:
        return []
    pairs = [(s, d) for s, d in zip(samples, planar, strict=True) if s.camera is not None and d is not None]
    for (first, near), (second, far) in zip(pairs, pairs[1:], strict=False):
        errors = {unit: _disagreement(first, near, second, far, UNITS[unit]) for unit in ("m", "cm", "mm", "in", "ft")}
        errors = {unit: error for unit, error in errors.items() if np.isfinite(error)}
        if len(errors) > 1:
            best, runner_up = sorted(errors, key=errors.__getitem__)[:2]
            confidence = float(np.clip(1 - errors[best] / max(errors[runner_up], 1e-9), 0, 0.98))
            evidence = (
                f"frames lie on one another to {100 * errors[best]:.2g}% of depth in {best}, to "
                f"{100 * errors[runner_up]:.2g}% in {runner_up}"
            )
            if confidence >= PROPOSED_FROM:
                return [Finding(name="unit", value=best, confidence=confidence, evidence=evidence)]
    return [_usual_size(float(np.nanmedian(np.concatenate([depth.ravel() for depth in depths]))), samples)]


def _usual_size(median: float, samples: Sequence[_Sample]) -> Finding:
    integers = any(sample.top > 1 for sample in samples)
    unit = "m" if median < 150 else "mm" if integers else "cm"
    evidence = f"the median distance is {median:.4g}, which scenes have in {unit}; cameras that move would tell"
    return Finding(name="unit", value=unit, confidence=0.5, evidence=evidence)


def _disagreement(first: _Sample, near: np.ndarray, second: _Sample, far: np.ndarray, metres: float) -> float:
    """Median relative difference between the second frame's depth and the first one's, carried over to its camera."""
    assert first.camera is not None and second.camera is not None
    pose, other = (sample.camera.pose[0].double().numpy() for sample in (first, second))  # pyright: ignore
    if np.linalg.norm(pose[:3, 3] - other[:3, 3]) < 1e-3 * metres * np.nanmedian(near):
        return float("nan")  # a camera that does not move sees no scale
    fx, fy, cx, cy = first.camera.intrinsics[0].tolist()
    rows, columns = np.mgrid[: near.shape[0], : near.shape[1]] + 0.5
    points = np.stack([(columns - cx) / fx * near, -(rows - cy) / fy * near, -near]).reshape(3, -1) * metres
    moved = other[:3, :3].T @ (pose[:3, :3] @ points + pose[:3, 3:] - other[:3, 3:])
    fx, fy, cx, cy = second.camera.intrinsics[0].tolist()
    with np.errstate(invalid="ignore", divide="ignore"):
        column, row = cx + fx * moved[0] / -moved[2], cy - fy * moved[1] / -moved[2]
        inside = (moved[2] < 0) & (column >= 0) & (column < near.shape[1]) & (row >= 0) & (row < near.shape[0])
    if inside.sum() < FEWEST_POINTS:
        return float("nan")
    seen = far[row[inside].astype(int), column[inside].astype(int)] * metres
    differences = np.abs(seen / -moved[2][inside] - 1)
    differences = differences[np.isfinite(differences)]
    return float(np.median(differences)) if differences.size >= FEWEST_POINTS else float("nan")
