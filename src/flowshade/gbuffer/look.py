"""How a scene is lit and weathered: the `Look`, its words, and the small grid words can name.

A look is a plain description in numbers; `shade.py` turns it and a G-buffer into the reference picture. Every
value a caption names comes from a short list (eight sun directions, three heights, and so on), so the canonical
caption and the buffers together define the picture.

Units: directions in degrees in the stream frame (see `flowshade.types.stream_frame`); light linear Rec.709, where a
white diffuse surface under irradiance pi leaves with radiance 1; distances in metres.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

Rgb = tuple[float, float, float]
Choice = TypeVar("Choice")

AZIMUTHS: dict[float, str] = {
    0.0: "straight ahead",
    45.0: "the front right",
    90.0: "the right",
    135.0: "the back right",
    180.0: "behind",
    -135.0: "the back left",
    -90.0: "the left",
    -45.0: "the front left",
}
"""Where the sun or the moon stands, in degrees to the right of the stream's first camera."""

ELEVATIONS: dict[float, str] = {8.0: "low on the horizon", 32.0: "halfway up the sky", 60.0: "high in the sky"}
"""Heights of the sun or the moon, degrees above the horizon."""

FOGS: dict[float, str] = {0.0006: "clear air", 0.012: "a light haze", 0.03: "thin fog", 0.06: "thick fog"}
"""Fog densities, extinction per metre at ground level."""

SNOWS: dict[float, str] = {0.0: "no snow", 0.5: "a dusting of snow", 1.0: "deep snow"}
WETNESSES: dict[float, str] = {0.0: "dry ground", 0.5: "damp ground", 1.0: "wet ground"}
LAMPS: dict[float, str] = {0.0: "lamps off", 0.5: "dim lamps", 1.0: "bright lamps"}
CLOUDS: dict[float, str] = {0.0: "a clear sky", 0.35: "scattered clouds", 1.0: "a closed cloud cover"}
PUDDLES: dict[float, str] = {0.0: "no puddles", 0.5: "a few puddles", 1.0: "puddles everywhere"}
WATERS: dict[float, str] = {0.5: "clear water", 1.0: "murky water"}


class RandomSource(Protocol):
    """The part of `random.Random` that captions and sampling use."""

    def random(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Look:
    """Light, weather and camera response of a picture: from `LOOKS`, `sample_look` or `dataclasses.replace`."""

    name: str = "custom"
    """The family it belongs to: a key of `LOOKS`, which captions use, or anything else."""

    sun_azimuth: float = 0.0
    """Degrees in the stream frame: 0 = straight ahead of the first camera, 90 = to its right."""
    sun_elevation: float = 45.0
    """Degrees above the horizon."""
    sun: Rgb = (0.0, 0.0, 0.0)
    """Irradiance on a surface facing the sun (the moon, if `moon`); zero = no direct light."""
    sun_radius: float = 0.6
    """Angular radius in degrees; larger makes softer shadows."""
    moon: bool = False
    """The directional light is the moon."""

    zenith: Rgb = (0.2, 0.35, 0.7)
    """Radiance of the sky overhead."""
    horizon: Rgb = (0.6, 0.7, 0.85)
    """Radiance of the sky at the horizon."""
    ground: Rgb = (0.15, 0.14, 0.12)
    """Radiance from below the horizon where nothing is modelled."""
    halo: Rgb = (0.0, 0.0, 0.0)
    """Radiance of the wide glow around the sun, at its centre."""
    glow_left: Rgb = (0.0, 0.0, 0.0)
    """Radiance of a coloured glow low in the sky, on the left of the stream frame."""
    glow_right: Rgb = (0.0, 0.0, 0.0)
    """The same on the right."""
    cloudiness: float = 0.0
    """[0, 1]: 0 = clear, 1 = closed cover."""
    stars: float = 0.0
    """Radiance of the brightest stars."""

    hdri: str = ""
    """Path of an equirectangular picture (.hdr, .exr) that is the sky instead; see `flowshade.gbuffer.environment`.
    The sky's colours above then only light particles and fog."""
    hdri_turn: float = 0.0
    """Degrees that it is turned to the right in the stream frame."""
    words: str = ""
    """What captions say of the light where no family describes it."""

    fog_density: float = 0.0006
    """Extinction per metre at ground level."""
    fog_height: float = 40.0
    """Metres over which fog thins by a factor e; what a view ray sees of the sky follows from it."""
    fog_color: Rgb = (0.6, 0.7, 0.85)
    """Radiance of fog that nothing shines through; also the radiance of deep water."""
    absorption: Rgb = (0.0, 0.0, 0.0)
    """Absorption per metre of red, green and blue (water)."""
    water: float = 0.0
    """[0, 1]: 0 = air; more = murkier water. Named by captions; the optics are in the other fields."""

    snow: float = 0.0
    """[0, 1]: share of upward-facing surfaces under snow."""
    wetness: float = 0.0
    """[0, 1]: darkens and smooths upward-facing surfaces most."""
    puddles: float = 0.0
    """[0, 1]: how much of level ground stands under a film of water."""
    autumn: float = 0.0
    """[0, 1]: greens turn orange."""
    lamps: float = 0.0
    """Scales emissive surfaces and the light they cast."""
    lamp_tint: Rgb = (1.0, 1.0, 1.0)
    """Multiplies the colour of emissive surfaces and the light they cast."""

    exposure: float = 1.0
    """Linear factor before the tone curve (always the one of `shade.py`: ACES as fitted by Narkowicz, then sRGB)."""

    @property
    def has_sun(self) -> bool:
        """Whether a sun or moon shines directly, so that `sun_vector` means something."""
        return max(self.sun) > 0

    def sun_vector(self) -> Tensor:
        """[3] unit vector towards the sun in the stream frame (+X right, +Y ahead, +Z up)."""
        azimuth, elevation = math.radians(self.sun_azimuth), math.radians(self.sun_elevation)
        flat = math.cos(elevation)
        return torch.tensor([math.sin(azimuth) * flat, math.cos(azimuth) * flat, math.sin(elevation)])

    def caption(self, rng: RandomSource | None = None) -> str:
        """Words for this look.

        Without `rng` the canonical caption: one wording, which states every parameter that varies. With one,
        any of many wordings: full ones with every parameter in other words, partial ones, short ones ("golden hour")
        and the plain name. Short ones leave parameters open on purpose.
        """
        if rng is None:
            return _sentence(self)
        kind = rng.random()
        if self.name not in _WORDS or kind < 0.5:
            return _sentence(self, rng)
        if kind < 0.7:
            return _sentence(self, rng, keep=0.5)
        if kind < 0.8:
            return self.name
        return _pick(rng, _WORDS[self.name].short)


# Families: a few free choices each, everything else follows from them. ------------------------------------------------


def _mix(a: Rgb, b: Rgb, t: float) -> Rgb:
    return (a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t, a[2] + (b[2] - a[2]) * t)


def _sunny(*, azimuth: float, elevation: float = 32.0, clouds: float = 0.0, fog: float = 0.0006) -> Look:
    height = min(elevation / 60.0, 1.0)
    return Look(
        name="sunny",
        sun_azimuth=azimuth,
        sun_elevation=elevation,
        sun=_mix((3.2, 2.6, 1.8), (3.9, 3.6, 3.2), height),
        sun_radius=0.5,
        zenith=(0.13, 0.29, 0.72),
        horizon=(0.46, 0.63, 0.92),
        ground=(0.22, 0.21, 0.18),
        halo=(0.40, 0.34, 0.24),
        cloudiness=clouds,
        fog_density=fog,
        fog_color=(0.52, 0.66, 0.88),
        exposure=0.90,
    )


def _overcast(*, wetness: float = 0.0, fog: float = 0.0006) -> Look:
    return Look(
        name="overcast",
        zenith=(0.62, 0.66, 0.72),
        horizon=(0.52, 0.55, 0.60),
        ground=(0.14, 0.14, 0.14),
        cloudiness=1.0,
        fog_density=fog,
        fog_color=(0.53, 0.56, 0.61),
        wetness=wetness,
        exposure=0.85,
    )


def _sunset(*, azimuth: float, clouds: float = 0.35, fog: float = 0.0006) -> Look:
    return Look(
        name="sunset",
        sun_azimuth=azimuth,
        sun_elevation=8.0,
        sun=(3.6, 1.55, 0.50),
        sun_radius=0.9,
        zenith=(0.13, 0.14, 0.30),
        horizon=(0.62, 0.30, 0.22),
        ground=(0.10, 0.08, 0.08),
        halo=(1.8, 0.75, 0.22),
        cloudiness=clouds,
        fog_density=fog,
        fog_color=(0.60, 0.33, 0.24),
        lamps=0.5,
        exposure=0.95,
    )


def _night(*, azimuth: float, elevation: float = 32.0, lamps: float = 1.0, fog: float = 0.0006) -> Look:
    return Look(
        name="night",
        sun_azimuth=azimuth,
        sun_elevation=elevation,
        sun=(0.25, 0.32, 0.48),
        sun_radius=0.6,
        moon=True,
        zenith=(0.008, 0.014, 0.040),
        horizon=(0.030, 0.044, 0.090),
        ground=(0.008, 0.009, 0.013),
        halo=(0.03, 0.04, 0.06),
        stars=0.5,
        fog_density=fog,
        fog_color=(0.027, 0.039, 0.078),
        lamps=lamps,
        lamp_tint=(1.0, 0.68, 0.36),
        exposure=2.0,
    )


def _fog(*, fog: float = 0.03, wetness: float = 0.5) -> Look:
    return Look(
        name="fog",
        zenith=(0.60, 0.63, 0.66),
        horizon=(0.55, 0.58, 0.60),
        ground=(0.16, 0.16, 0.16),
        cloudiness=1.0,
        fog_density=fog,
        fog_height=60.0,
        fog_color=(0.52, 0.55, 0.57),
        wetness=wetness,
        lamps=0.5,
        exposure=0.95,
    )


def _snow(*, azimuth: float, elevation: float = 32.0, snow: float = 1.0, fog: float = 0.0006) -> Look:
    return Look(
        name="snow",
        sun_azimuth=azimuth,
        sun_elevation=elevation,
        sun=(1.15, 1.08, 1.0),
        sun_radius=2.5,
        zenith=(0.50, 0.58, 0.70),
        horizon=(0.62, 0.66, 0.72),
        ground=(0.40, 0.42, 0.46),
        halo=(0.2, 0.19, 0.17),
        cloudiness=0.35,
        fog_density=max(fog, 0.002) if fog < 0.01 else fog,
        fog_color=(0.62, 0.66, 0.72),
        snow=snow,
        exposure=0.72,
    )


def _autumn(*, azimuth: float, elevation: float = 32.0, fog: float = 0.0006) -> Look:
    return Look(
        name="autumn",
        sun_azimuth=azimuth,
        sun_elevation=elevation,
        sun=(3.1, 2.35, 1.45),
        sun_radius=1.2,
        zenith=(0.22, 0.33, 0.55),
        horizon=(0.70, 0.66, 0.60),
        ground=(0.20, 0.17, 0.13),
        halo=(0.5, 0.38, 0.2),
        cloudiness=0.35,
        fog_density=fog,
        fog_color=(0.70, 0.65, 0.57),
        autumn=1.0,
        exposure=0.82,
    )


def _neon(*, magenta_left: bool = True, wetness: float = 1.0, fog: float = 0.0006) -> Look:
    magenta: Rgb = (1.35, 0.08, 0.90)
    cyan: Rgb = (0.04, 0.85, 1.20)
    return Look(
        name="neon",
        zenith=(0.016, 0.010, 0.034),
        horizon=(0.09, 0.05, 0.15),
        ground=(0.020, 0.012, 0.028),
        glow_left=magenta if magenta_left else cyan,
        glow_right=cyan if magenta_left else magenta,
        cloudiness=0.0,
        fog_density=fog,
        fog_color=(0.085, 0.045, 0.14),
        wetness=wetness,
        lamps=1.0,
        lamp_tint=(1.1, 0.45, 1.15),
        exposure=1.7,
    )


def _underwater(*, azimuth: float, water: float = 0.5) -> Look:
    return Look(
        name="underwater",
        sun_azimuth=azimuth,
        sun_elevation=60.0,
        sun=(1.3, 2.2, 2.1),
        sun_radius=6.0,
        zenith=(0.12, 0.46, 0.50),
        horizon=(0.010, 0.10, 0.17),
        ground=(0.006, 0.04, 0.065),
        halo=(0.30, 0.75, 0.70),
        fog_density=0.022 * water,
        fog_height=60.0,
        fog_color=(0.006, 0.095, 0.165),
        absorption=(0.13 * water, 0.018 * water, 0.012 * water),
        water=water,
        exposure=1.35,
    )


def _rain(*, puddles: float = 1.0, lamps: float = 0.5, fog: float = 0.012) -> Look:
    return Look(
        name="rain",
        zenith=(0.34, 0.37, 0.42),
        horizon=(0.30, 0.33, 0.37),
        ground=(0.08, 0.08, 0.085),
        cloudiness=1.0,
        fog_density=fog,
        fog_color=(0.29, 0.32, 0.36),
        wetness=1.0,
        puddles=puddles,
        lamps=lamps,
        lamp_tint=(1.0, 0.85, 0.62),
        exposure=0.95,
    )


def _indoor(*, lamps: float = 1.0, warm: bool = True) -> Look:
    return Look(
        name="indoor",
        zenith=(0.10, 0.14, 0.24),
        horizon=(0.20, 0.22, 0.28),
        ground=(0.05, 0.05, 0.06),
        fog_color=(0.18, 0.20, 0.26),
        lamps=lamps,
        lamp_tint=(1.0, 0.82, 0.60) if warm else (0.86, 0.95, 1.0),
        exposure=0.8,
    )


@dataclass(frozen=True)
class _Family:
    build: Callable[..., Look]
    choices: dict[str, tuple[Any, ...]]


_ALL_AZIMUTHS = tuple(AZIMUTHS)
_FAMILIES: dict[str, _Family] = {
    "sunny": _Family(
        _sunny, {"azimuth": _ALL_AZIMUTHS, "elevation": (32.0, 60.0), "clouds": (0.0, 0.35), "fog": (0.0006, 0.012)}
    ),
    "overcast": _Family(_overcast, {"wetness": (0.0, 0.5, 1.0), "fog": (0.0006, 0.012)}),
    "sunset": _Family(_sunset, {"azimuth": _ALL_AZIMUTHS, "clouds": (0.0, 0.35), "fog": (0.0006, 0.012)}),
    "night": _Family(
        _night, {"azimuth": _ALL_AZIMUTHS, "elevation": (32.0, 60.0), "lamps": (0.0, 0.5, 1.0), "fog": (0.0006, 0.012)}
    ),
    "fog": _Family(_fog, {"fog": (0.03, 0.06), "wetness": (0.0, 0.5, 1.0)}),
    "snow": _Family(
        _snow, {"azimuth": _ALL_AZIMUTHS, "elevation": (32.0, 60.0), "snow": (0.5, 1.0), "fog": (0.0006, 0.012)}
    ),
    "autumn": _Family(_autumn, {"azimuth": _ALL_AZIMUTHS, "elevation": (32.0, 60.0), "fog": (0.0006, 0.012)}),
    "neon": _Family(_neon, {"magenta_left": (True, False), "wetness": (0.0, 1.0), "fog": (0.0006, 0.012)}),
    "underwater": _Family(_underwater, {"azimuth": _ALL_AZIMUTHS, "water": (0.5, 1.0)}),
    "rain": _Family(_rain, {"puddles": (0.5, 1.0), "lamps": (0.0, 0.5, 1.0), "fog": (0.0006, 0.012, 0.03)}),
    "indoor": _Family(_indoor, {"lamps": (0.5, 1.0), "warm": (True, False)}),
}

LOOKS: dict[str, Look] = {
    "sunny": _sunny(azimuth=-45.0, elevation=60.0),
    "overcast": _overcast(),
    "sunset": _sunset(azimuth=45.0),
    "night": _night(azimuth=-45.0),
    "fog": _fog(),
    "snow": _snow(azimuth=45.0),
    "autumn": _autumn(azimuth=-90.0),
    "neon": _neon(),
    "underwater": _underwater(azimuth=45.0),
    "rain": _rain(),
    "indoor": _indoor(),
}
"""The canonical looks, by name."""


def sample_look(rng: RandomSource, name: str | None = None) -> Look:
    """A look from the grid that words can name: of family `name`, or of a random one.

    Raises ValueError for a name that is no key of `LOOKS`.
    """
    if name is None:
        name = _pick(rng, tuple(_FAMILIES))
    if name not in _FAMILIES:
        raise ValueError(f"sample_look got the name {name!r}; expected one of {', '.join(_FAMILIES)}.")
    family = _FAMILIES[name]
    return family.build(**{key: _pick(rng, values) for key, values in family.choices.items()})


def _pick(rng: RandomSource, values: tuple[Choice, ...]) -> Choice:
    return values[min(int(rng.random() * len(values)), len(values) - 1)]


def mix_looks(first: Look, second: Look, share: float) -> Look:
    """A look between two: every number in proportion, directions the short way round; its family is the nearer one's.

    Args:
        first: what `share` = 0 gives.
        second: what `share` = 1 gives.
        share: [0, 1] how much of the second.

    Raises:
        ValueError: `share` is outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise ValueError(f"mix_looks got share={share}; expected 0 (all of the first) to 1 (all of the second).")
    if share in (0, 1):
        return second if share else first
    nearer = second if share > 0.5 else first
    values: dict[str, Any] = {}
    for field in fields(Look):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if isinstance(a, (str, bool)):
            values[field.name] = getattr(nearer, field.name)
        elif isinstance(a, tuple):
            values[field.name] = _mix(a, b, share)
        else:
            values[field.name] = a + (b - a) * share
    # A look without sun has no direction to mix in.
    lit = [look for look in (first, second) if look.has_sun] or [first]
    turn = (lit[-1].sun_azimuth - lit[0].sun_azimuth + 180.0) % 360.0 - 180.0
    values["sun_azimuth"] = (lit[0].sun_azimuth + turn * share + 180.0) % 360.0 - 180.0
    values["sun_elevation"] = lit[0].sun_elevation + (lit[-1].sun_elevation - lit[0].sun_elevation) * share
    return Look(**values)


def mixture_caption(first: Look, second: Look, share: float, rng: RandomSource | None = None) -> str:
    """Words for `mix_looks(first, second, share)`: both looks' own, and how much of each there is.

    Near 0 and 1 only one of them is named. With `rng` both are worded freely.
    """
    if share < 0.1 or share > 0.9:
        return (second if share > 0.5 else first).caption(rng)
    words = [look.caption(rng).rstrip(".") for look in (first, second)]
    more, less = words if share <= 0.5 else words[::-1]
    less = less[0].lower() + less[1:]
    link = "half" if abs(share - 0.5) < 0.08 else "a little" if min(share, 1 - share) < 0.3 else "partly"
    return f"{more}, {link} {less}." if link != "half" else f"Half {words[0][0].lower()}{words[0][1:]}, half {less}."


# Words ----------------------------------------------------------------------------------------------------------------
#
# A caption is a lead ("Bright sun from the front left, high in the sky") and clauses ("clear air", "dry ground").
# Each is a list of wordings, the canonical one first. `{sun}` and `{height}` stand for the nearest grid value.


@dataclass(frozen=True)
class _Words:
    lead: tuple[str, ...]
    short: tuple[str, ...]
    clauses: tuple[str, ...]
    """What varies within the family besides the lead's own slots, in the order it is said."""


_WORDS: dict[str, _Words] = {
    "sunny": _Words(
        lead=(
            "bright sun from {sun}, {height}",
            "a sunny day with the sun {from} {sun}, {height}",
            "strong daylight from {sun}, the sun {height}",
            "sunshine coming from {sun}, sun {height}, crisp shadows",
            "a fine day, sunlight from {sun}, {height}",
        ),
        short=(
            "a sunny day",
            "sunshine",
            "bright daylight with hard shadows",
            "blue sky and sun",
            "a beautiful summer day",
            "nice weather",
            "midday sun",
        ),
        clauses=("clouds", "fog", "dry"),
    ),
    "overcast": _Words(
        lead=(
            "an overcast day with flat grey light",
            "dull grey daylight under a closed cloud cover",
            "soft shadowless light from an overcast sky",
            "a grey, cloudy day, diffuse light",
            "a sunless sky, even light from above",
        ),
        short=(
            "overcast",
            "a grey day",
            "cloudy weather",
            "flat light",
            "no sun today",
            "it looks like rain",
            "dull and grey",
        ),
        clauses=("fog", "wetness"),
    ),
    "sunset": _Words(
        lead=(
            "sunset, a warm orange sun from {sun}, low on the horizon",
            "golden hour with the sun {from} {sun}, low",
            "evening light, the setting sun {from} {sun}",
            "a dramatic sunset, long shadows, the sun low {from} {sun}",
            "dusk, the last orange sunlight from {sun}, long shadows",
        ),
        short=(
            "golden hour",
            "at sunset",
            "evening light",
            "long shadows at dusk",
            "the sun is going down",
            "warm orange light",
            "a red evening sky",
        ),
        clauses=("clouds", "fog", "dry"),
    ),
    "night": _Words(
        lead=(
            "night, moonlight from {sun}, the moon {height}",
            "a moonlit night, the moon {from} {sun}, {height}",
            "a dark, starry night with the moon {from} {sun}, {height}",
            "late at night, pale blue moonlight from {sun}, {height}",
            "nighttime under the moon, which stands {height}, light from {sun}",
        ),
        short=(
            "at night",
            "in the dark",
            "moonlight",
            "midnight",
            "a starry night",
            "after dark",
            "night falls and the lamps come on",
        ),
        clauses=("lamps", "fog", "dry"),
    ),
    "fog": _Words(
        lead=(
            "a foggy day without sun",
            "grey fog and soft light",
            "a misty morning, no sun",
            "dim, diffuse light in fog",
            "everything fades into grey mist",
        ),
        short=(
            "foggy",
            "mist",
            "in the fog",
            "poor visibility",
            "a misty morning",
            "like walking in a cloud",
            "pea soup",
        ),
        clauses=("fog", "wetness"),
    ),
    "snow": _Words(
        lead=(
            "winter, pale sun from {sun}, {height}",
            "a cold winter day, weak sunlight from {sun}, {height}",
            "a snowy landscape, soft sun {from} {sun}, {height}",
            "white winter light, the sun {from} {sun}, {height}",
            "snow everywhere, a pale sun {height}, light from {sun}",
        ),
        short=(
            "snow",
            "it is snowing and cold",
            "winter",
            "a white winter day",
            "covered in snow",
            "freezing cold",
            "like a Christmas card",
        ),
        clauses=("snow", "fog"),
    ),
    "autumn": _Words(
        lead=(
            "autumn, orange leaves, warm sun from {sun}, {height}",
            "an autumn day with golden foliage, the sun {from} {sun}, {height}",
            "fall colours, mellow sunlight from {sun}, {height}",
            "October light from {sun}, the sun {height}, trees and grass turned orange",
            "leaves have turned orange and gold, sun {from} {sun}, {height}",
        ),
        short=(
            "autumn",
            "fall foliage",
            "an October afternoon",
            "golden leaves",
            "Indian summer",
            "orange and brown trees",
            "the leaves are turning",
        ),
        clauses=("fog", "dry"),
    ),
    "neon": _Words(
        lead=(
            "a neon night, magenta light from the {magenta}, cyan light from the {cyan}",
            "night in the city, magenta glow on the {magenta}, cyan glow on the {cyan}",
            "cyberpunk night, {magenta} side lit magenta, {cyan} side lit cyan",
            "neon signs light the night, pink-purple from the {magenta}, blue-green from the {cyan}",
            "dark sky, neon colours: magenta {magenta}, cyan {cyan}",
        ),
        short=(
            "neon",
            "cyberpunk",
            "neon lights at night",
            "like Blade Runner",
            "a night club district",
            "magenta and cyan",
            "synthwave",
        ),
        clauses=("fog", "wetness"),
    ),
    "underwater": _Words(
        lead=(
            "underwater, light from above and {sun}",
            "at the bottom of the sea, sunlight filtering down from {sun}",
            "submerged in blue-green water, light from {sun}",
            "beneath the surface, the sun above and {from} {sun}",
            "a flooded world, dim blue light from {sun}",
        ),
        short=(
            "underwater",
            "deep in the sea",
            "flooded",
            "like Atlantis",
            "below the waves",
            "scuba diving",
            "at the bottom of a lake",
        ),
        clauses=("water",),
    ),
    "rain": _Words(
        lead=(
            "rain under a dark grey sky",
            "a rainy day, heavy clouds",
            "pouring rain from a leaden sky",
            "wet weather, rain, everything glistens",
            "steady rain and dull light",
        ),
        short=(
            "rain",
            "it is raining",
            "a downpour",
            "bring an umbrella",
            "wet and grey",
            "rainy",
            "cats and dogs",
            "after the storm broke",
        ),
        clauses=("puddles", "fog", "lamps"),
    ),
    "indoor": _Words(
        lead=(
            "{tone} lamplight in the evening",
            "evening, {tone} light from lamps",
            "lit by {tone} lamps, dusk outside",
            "an evening indoors, {tone} lamps",
            "{tone} artificial light, a dark blue sky outside",
        ),
        short=(
            "indoor",
            "lamplight",
            "an evening at home",
            "cosy",
            "the lights are on",
            "artificial light",
            "lamps only",
        ),
        clauses=("lamps",),
    ),
}

_CLAUSES: dict[str, tuple[str, ...]] = {
    "clear air": ("clear air", "no haze", "good visibility", "crisp air"),
    "a light haze": ("a light haze", "hazy air", "slightly misty", "some haze in the distance"),
    "thin fog": ("thin fog", "light fog", "moderate fog", "fog in the distance"),
    "thick fog": ("thick fog", "dense fog", "very thick mist", "heavy fog close by"),
    "no snow": ("no snow", "without snow"),
    "a dusting of snow": ("a dusting of snow", "a little snow on the ground", "patchy snow", "a thin layer of snow"),
    "deep snow": ("deep snow", "thick snow on everything", "a heavy blanket of snow", "lots of snow"),
    "dry ground": ("dry ground", "everything dry", "no rain", "dry surfaces"),
    "damp ground": ("damp ground", "slightly wet ground", "a bit of drizzle has fallen", "moist surfaces"),
    "wet ground": ("wet ground", "soaked, reflecting ground", "after heavy rain", "shiny wet surfaces"),
    "lamps off": ("lamps off", "no lights on", "all lamps dark", "without street lights"),
    "dim lamps": ("dim lamps", "faint lights", "weak lamps", "lamps glowing softly"),
    "bright lamps": ("bright lamps", "lamps shining brightly", "warm street lights on", "well lit by lamps"),
    "a clear sky": ("a clear sky", "no clouds", "a cloudless sky", "an empty sky"),
    "scattered clouds": ("scattered clouds", "some clouds", "a few clouds in the sky", "a partly cloudy sky"),
    "a closed cloud cover": ("a closed cloud cover", "clouds everywhere"),
    "no puddles": ("no puddles", "the water has drained away"),
    "a few puddles": ("a few puddles", "some puddles on the ground", "water in the hollows"),
    "puddles everywhere": ("puddles everywhere", "large puddles", "flooded ground that mirrors the sky"),
    "clear water": ("clear water", "good visibility under water", "clean, transparent water"),
    "murky water": ("murky water", "poor visibility under water", "dark, dirty water"),
}


def _nearest(grid: dict[float, str], value: float) -> str:
    return grid[min(grid, key=lambda key: abs(key - value))]


def _azimuth_words(degrees: float) -> str:
    return AZIMUTHS[min(AZIMUTHS, key=lambda key: abs((degrees - key + 180.0) % 360.0 - 180.0))]


def _clause(look: Look, kind: str) -> str:
    """The canonical wording of one parameter."""
    if kind == "dry":
        kind = "wetness"
    grids: dict[str, tuple[dict[float, str], float]] = {
        "clouds": (CLOUDS, look.cloudiness),
        "fog": (FOGS, look.fog_density),
        "snow": (SNOWS, look.snow),
        "wetness": (WETNESSES, look.wetness),
        "lamps": (LAMPS, look.lamps),
        "water": (WATERS, look.water),
        "puddles": (PUDDLES, look.puddles),
    }
    grid, value = grids[kind]
    return _nearest(grid, value)


def _lead(look: Look, template: str) -> str:
    sun = _azimuth_words(look.sun_azimuth)
    where = {"behind": "behind us", "straight ahead": "straight ahead"}
    left = look.glow_left[0] > look.glow_right[0]
    return template.format(
        sun=where.get(sun, sun),
        height=_nearest(ELEVATIONS, look.sun_elevation),
        magenta="left" if left else "right",
        cyan="right" if left else "left",
        tone="warm" if look.lamp_tint[0] > look.lamp_tint[2] else "cool",
        **{"from": "" if sun in where else "to"},
    ).replace("  ", " ")


def _sentence(look: Look, rng: RandomSource | None = None, keep: float = 1.0) -> str:
    """Lead and clauses as one sentence; canonical without `rng`, else reworded and with each clause kept at `keep`."""
    words = _WORDS.get(look.name)
    if words is None and look.words:
        kinds = {
            "fog": look.fog_density > 0,
            "snow": look.snow > 0,
            "wetness": look.wetness > 0,
            "lamps": look.lamps > 0,
        }
        words = _Words(lead=(look.words,), short=(), clauses=tuple(kind for kind, seen in kinds.items() if seen))
    if words is None:
        lead = "sun from {sun}, {height}" if look.has_sun else "no direct sun"
        words = _Words(lead=(lead,), short=(), clauses=("clouds", "fog", "snow", "wetness", "lamps"))
    clauses = [_clause(look, kind) for kind in words.clauses]
    template = words.lead[0]
    if rng is not None:
        template = _pick(rng, words.lead)
        clauses = [_pick(rng, _CLAUSES[clause]) for clause in clauses if keep >= 1.0 or rng.random() < keep]
    text = ", ".join([_lead(look, template), *clauses])
    return text[0].upper() + text[1:] + ("." if rng is None or rng.random() < 0.5 else "")
