"""The tracer: a MuJoCo world and a camera in, G-buffers (and, with a `Look`, reference pictures) out.

    tracer = Tracer(world.model, size=(240, 416), device="cpu")
    tracer.update(data)
    gbuffer = tracer.gbuffer(camera, previous=last_camera)
    rgb = tracer.shade(look, camera, stream=stream_frame(first_pose), seed=0)  # or Tracer(..., reference="paths")

What it reads of MuJoCo: geoms of every type; colours (`rgba`, a material's unless the geom has its own) as sRGB;
textures in the roles RGB, RGBA, roughness, metallic, ORM and emissive, 2D and cube, sRGB where they hold colours;
`metallic`, `roughness` (see `roughness_of`) and `emission` (times the base colour). Geoms with 0 < alpha < 1 are
opaque. Not read: MuJoCo's own lights, normal and opacity maps, sky boxes, flexes, skins.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, get_args

import mujoco
import numpy as np
import torch
import warp as wp
from jaxtyping import Float
from torch import Tensor

from flowshade.gbuffer import (
    kernels,
    light_kernels,
    packet_kernels,
    path_kernels,
    plain_kernels,
    plain_path_kernels,
    ray_kernels,
    shade,
    wave_kernels,
)
from flowshade.gbuffer._casters import CasterMeshes
from flowshade.gbuffer._scene import SceneArrays
from flowshade.gbuffer.environment import Environment, load_environment, with_sun
from flowshade.gbuffer.look import Look
from flowshade.types import CHANNELS, Camera, GBuffer

_ROWS_A_BAND = 16  # whole tiles
_RAYS_AT_ONCE = 2**21
"""Rays that are followed together, for which there is memory (44 or 69 bytes each); at least one a pixel."""
_MAX_PIXELS = 2**27
_KEPT_LIGHTS = 64
_BRIGHTEST = 24.0  # exposed radiance at which one path is held: the tone curve has long been white
_STRIDES = (1, 2)  # of the filter's passes
_SEEDS = 1024  # shifts of the sample sequence, whose arithmetic is in single precision

Reference = Literal["direct", "paths"]
"""How `Tracer.shade` makes its picture: light in one step with one bounce (fast), or path-traced."""


class Tracer:
    """Traces one world at one picture size on one device, which holds its state: poses now and one update ago.

    Instances are numbered by geom: id + 1. On CUDA everything runs on torch's current stream; no call waits for it.
    Returned tensors are new each call and the caller's to keep.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        *,
        size: tuple[int, int],
        device: torch.device | str = "cpu",
        samples: int = 4,
        seed: int = 0,
        channels: Sequence[str] | None = None,
        groups: Sequence[int] = (0, 1, 2),
        sun_rays: int = 4,
        sky_rays: int = 12,
        threads: int | None = None,
        reference: Reference = "direct",
        paths: int = 16,
        bounces: int = 4,
        plain: bool = False,
    ) -> None:
        """
        Args:
            model: the compiled world; its geometry and materials are copied to the device here.
            size: height and width in pixels.
            device: "cpu" or a CUDA device of torch's.
            samples: material samples a pixel (1 = the centre only). Depth, instance and motion are never averaged.
            seed: turns the sample pattern; the same pattern serves every pixel and frame.
            channels: those that `gbuffer` returns; all by default.
            groups: geom groups that are seen.
            sun_rays: shadow rays a pixel when shading.
            sky_rays: hemisphere rays a pixel when shading.
            threads: bands of rows are traced on this many threads (CPU only; all cores by default). Results do not
                depend on it.
            reference: "direct" shades with `sun_rays` and `sky_rays`; "paths" traces paths (see `path_kernels`).
            paths: path samples a pixel, a multiple of 4.
            bounces: surfaces that a path may visit after the one that is seen; each gives light on.
            plain: rays of both references by the plain kernels, against geoms exactly as they are, and rays of the
                G-buffer one by one on the CPU too: slow, and what the others are tested against.

        Raises:
            ValueError: an unknown channel or reference, an impossible size or number of samples, or a geom type
                without a surface.
        """
        height, width = size
        if height < 1 or width < 1 or height * width > _MAX_PIXELS:
            raise ValueError(
                f"Tracer got size={size}; expected (height, width), each at least 1, and at most {_MAX_PIXELS} pixels."
            )
        if not 1 <= samples <= 256:
            raise ValueError(f"Tracer got samples={samples}; expected 1 to 256 material samples a pixel.")
        names = tuple(CHANNELS if channels is None else channels)
        unknown = [name for name in names if name not in CHANNELS]
        if unknown or not names:
            raise ValueError(f"Tracer got channels {list(names)}; expected some of {', '.join(CHANNELS)}.")
        if reference not in get_args(Reference):
            raise ValueError(f"Tracer got reference={reference!r}; expected one of {', '.join(get_args(Reference))}.")
        if paths < 1 or paths % path_kernels.LANES or paths > 4096 or bounces < 1:
            raise ValueError(
                f"Tracer got paths={paths}, bounces={bounces}; expected a multiple of {path_kernels.LANES} up to 4096, "
                "and at least one bounce."
            )
        _init_warp()
        self.size = (height, width)
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.channels = names
        self.samples = samples
        self.seed = seed
        self._wp_device = wp.device_from_torch(self.device)
        self._model = model
        self._plain = plain
        self._threads = 1 if self.is_cuda else max(1, threads or os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None
        self._streams: dict[int, Any] = {}
        self._kept: list[Any] = []  # arrays that structs refer to by address only
        with self.on_stream():
            self._scene = SceneArrays(model, self._wp_device, frozenset(int(group) for group in groups))
            self._allocate()
        self._updates = 0
        self._loaded: set[Any] = set()
        self._view: Any = None
        self._camera: Camera | None = None
        self._lit: Any = None
        self._lights: dict[Any, Any] = {}
        self._tables: dict[str, Any] = {}
        self._skies: dict[Environment | None, dict[str, Any]] = {}
        self.sun_rays, self.sky_rays = sun_rays, sky_rays
        self.reference: Reference = reference
        self.paths, self.bounces = paths, bounces
        self._casters: CasterMeshes | None = None
        self._ray_arrays: Any = None
        self._path_arrays: Any = None
        self._wave_arrays: Any = None

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def triangles(self) -> int:
        """In the meshes and height fields in use; each counts once, however often it is placed."""
        return self._scene.triangles

    @property
    def view(self) -> Any:
        """The camera of the last `gbuffer`, as kernels read it."""
        return self._view

    def light_meshes(self) -> list[Any]:
        """Ids of the meshes that direct light meets, largest role first: still, moving, without shadows."""
        return self._casters_now().meshes.numpy().tolist()

    # The world moves ----------------------------------------------------------------------------------------------

    def update(self, data: mujoco.MjData) -> None:
        """Takes the geoms' poses from `data`. What they were before becomes "the previous frame" of motion."""
        count = self._model.ngeom
        with self.on_stream():
            staged = self._staging.next()
            staged[: 3 * count] = torch.from_numpy(data.geom_xpos).reshape(-1)
            staged[3 * self._geoms :][: 9 * count] = torch.from_numpy(data.geom_xmat).reshape(-1)
            self._current = 1 - self._current
            target = self._poses[self._current]
            target.copy_(staged, non_blocking=True)
            self._staging.sent()
            if self._updates == 0:
                self._poses[1 - self._current].copy_(target)
            self._point_to_poses()
            self._scene.place_fixed(data.geom_xpos, data.geom_xmat)
            self._refit(build=self._updates == 0)
        self._host_poses = data.geom_xpos.copy(), data.geom_xmat.copy()
        self._casters_placed = False
        self._updates += 1

    def reset(self) -> None:
        """Forgets the previous poses: after the next update nothing has moved."""
        self._updates = 0

    # The picture --------------------------------------------------------------------------------------------------

    def gbuffer(self, camera: Camera, previous: Camera | None = None) -> GBuffer:
        """The world as `camera` sees it, [1, C, H, W] on the tracer's device.

        Args:
            camera: one frame; the G-buffer keeps it as it is. Hold it on the CPU: reading a CUDA camera waits for the
                device.
            previous: the camera of the previous frame, for motion; None = it did not move. Geoms move by the
                difference between the last two updates.
        """
        if self._updates == 0:
            raise ValueError("Tracer.gbuffer was called before any update; call update(data) first.")
        height, width = self.size
        pixels = height * width
        self._view, self._camera = self._view_of(camera), camera
        last = self._view if previous is None else self._view_of(previous)
        planes = sum(CHANNELS.values()) - 1
        values = torch.empty(planes * pixels, dtype=torch.float32, device=self.device)
        instance = torch.empty(pixels, dtype=torch.int32, device=self.device)
        out, offset = {}, 0
        for name, count in CHANNELS.items():
            if name != "instance":
                out[name] = values[offset : offset + count * pixels]
                offset += count * pixels
        flat = wp.from_torch(values)
        view = {}
        offset = 0
        for name, count in CHANNELS.items():
            if name != "instance":
                view[name] = flat[offset : offset + count * pixels]
                offset += count * pixels
        scene = self._scene.struct
        with self.on_stream():
            self._trace_centres(last, [self.hits, view["depth"], wp.from_torch(instance), view["motion"]])
            self.launch(
                kernels.resolve_materials,
                [scene, self._view],
                [
                    self._offsets, self.hits, view["albedo"], view["normal"], view["roughness"], view["metallic"],
                    view["emission"],
                ],
            )  # fmt: skip
        self._materials = {name: view[name] for name in ("albedo", "roughness", "metallic", "emission")}
        self._values = values
        out["instance"] = instance
        shaped = {name: value.view(1, CHANNELS[name], height, width) for name, value in out.items()}
        return GBuffer(**{name: shaped[name] for name in self.channels}, camera=camera)

    def _trace_centres(self, last: Any, written: list[Any]) -> None:
        """A ray through every pixel centre: on a GPU one by one, on the CPU by tiles."""
        scene = self._scene.struct
        if self._seen is None:
            self.launch(kernels.trace_centres, [scene, self._view, last], written)
            return
        self._launch_tiles(packet_kernels.trace_tiles, [scene.solids, self._view], [self._seen])
        self.launch(packet_kernels.trace_seen, [scene, self._view, last], [self._seen, *written])

    def shade(
        self, look: Look, camera: Camera | None = None, *, stream: Float[Tensor, "3 3"], seed: int = 0
    ) -> Float[Tensor, "1 3 H W"]:
        """The reference picture of the last `gbuffer`, display sRGB in [0, 1], on the tracer's device.

        Args:
            look: light and weather. Several looks may follow one `gbuffer`.
            camera: the one `gbuffer` was called with; only checked.
            stream: world to stream frame, from `flowshade.types.stream_frame`. Keep it on the CPU.
            seed: moves the sample pattern. Same seed, same picture.
        """
        if self._view is None:
            raise ValueError("Tracer.shade was called before gbuffer; call gbuffer(camera) first.")
        if camera is not None and camera is not self._camera and not _same_camera(camera, self._camera):
            raise ValueError("Tracer.shade got another camera than the last gbuffer call; call gbuffer(camera) first.")
        return self._picture(look, stream, seed, display=True)

    def radiance(self, look: Look, *, stream: Float[Tensor, "3 3"], seed: int = 0) -> Float[Tensor, "1 3 H W"]:
        """`shade` before the tone curve: exposed linear radiance, path-traced whatever `reference` is."""
        if self._view is None:
            raise ValueError("Tracer.radiance was called before gbuffer; call gbuffer(camera) first.")
        return self._picture(look, stream, seed, display=False)

    def _picture(self, look: Look, stream: Tensor, seed: int, display: bool) -> Tensor:
        height, width = self.size
        rgb = torch.empty(3 * height * width, dtype=torch.float32, device=self.device)
        material = self._materials
        surface = [material["albedo"], material["roughness"], material["metallic"]]
        with self.on_stream():
            if display and self.reference == "direct":
                light = self._light(with_sun(look), stream)
                self._shade_directly(light, surface, seed, wp.from_torch(rgb))
            else:
                light = self._light(look, stream)
                self._shade_by_paths(light, look, surface, seed, display, wp.from_torch(rgb))
        return rgb.view(1, 3, height, width)

    def _shade_directly(self, light: Any, surface: list[Any], seed: int, rgb: Any) -> None:
        lit, turn = self._lit_buffers(), seed % _SEEDS
        (self._gather_plainly if self._plain else self._gather)(light, surface, turn, lit)
        emission = self._materials["emission"]
        self.launch(light_kernels.compose, [self._view, light], [self.hits, *surface, emission, lit, rgb])
        given = [self._scene.struct, self._view, light]
        self.launch(light_kernels.compose_edges, given, [self._offsets, self.hits, lit, rgb])

    def _gather_plainly(self, light: Any, surface: list[Any], turn: int, lit: Any) -> None:
        given = [self._scene.struct, self._view, light]
        self.launch(plain_kernels.gather_light, given, [self.sun_rays, turn, self.hits, *surface, lit])
        self.launch(plain_kernels.gather_sky, given, [self.sky_rays, turn, self.hits, lit])
        self.launch(plain_kernels.gather_mirror, given, [turn, self.hits, lit])

    def _gather(self, light: Any, surface: list[Any], turn: int, lit: Any) -> None:
        """Light of the sun, lamps, and a bounce: a few lanes of rays at a time, all pixels together."""
        scene, view, hits, casters, rays = self._scene.struct, self._view, self.hits, self._casters_now(), self._rays()
        pixels = self.size[0] * self.size[1]
        self.launch(ray_kernels.start_rays, [scene, view, light], [hits, *surface, lit])
        for first, lanes in self._rounds(self.sun_rays if light.has_sun else 0, self._lanes_at_once):
            given = [first, self.sun_rays, turn, hits, lit, rays]
            self.launch_dealt(ray_kernels.trace_sun, [casters, view, light], given, lanes)
            self.launch(ray_kernels.pool_sun, [], [pixels, lanes, self.sun_rays, rays, lit])
        if light.lamp_count and any(light.lamps):
            self.launch(ray_kernels.gather_lamps, [casters, scene, view, light], [turn, hits, *surface, lit])
        mirror = self.sky_rays  # the lane after the hemisphere's
        for first, lanes in self._rounds(mirror + 1, self._lanes_at_once):
            self.launch_dealt(
                ray_kernels.trace_bounces, [casters, view], [first, mirror, turn, hits, lit, rays], lanes
            )  # fmt: skip
            around = min(lanes, mirror - first)
            given = [casters, scene, view, light]
            if around:
                self.launch_dealt(ray_kernels.bounce_sky, given, [first, mirror, turn, hits, lit, rays], around)
            if around < lanes:
                self.launch_dealt(ray_kernels.bounce_mirror, given, [mirror - first, turn, hits, lit, rays])
            if light.has_sun:
                self.launch_dealt(ray_kernels.trace_shadows, [casters, view, light], [rays], lanes)
            self.launch(ray_kernels.pool_bounces, [], [pixels, first, lanes, mirror, rays, lit])

    @staticmethod
    def _rounds(lanes: int, most: int) -> list[tuple[int, int]]:
        """First lane and number of lanes of each round, at most `most`, as even as they can be."""
        rounds = -(-lanes // most)
        edges = [lanes * k // rounds for k in range(rounds + 1)] if rounds else [0]
        return [(first, last - first) for first, last in itertools.pairwise(edges)]

    @property
    def _lanes_at_once(self) -> int:
        return max(1, min(_RAYS_AT_ONCE // (self.size[0] * self.size[1]), max(self.sky_rays + 1, self.sun_rays)))

    def _rays(self) -> Any:
        """What rays find, made at the first use."""
        if self._ray_arrays is None:
            self._ray_arrays = self._filled(ray_kernels.Rays, self.size[0] * self.size[1] * self._lanes_at_once)
        return self._ray_arrays

    def _casters_now(self) -> Any:
        """What light can meet, where it is since the last update."""
        if self._casters is None:
            self._casters = CasterMeshes(self._model, self._scene, self._wp_device)
        if not self._casters_placed:
            scene = self._scene.struct
            self._casters.place(*self._host_poses, scene.pos, scene.rot)
            self._casters_placed = True
        return self._casters.struct

    def _shade_by_paths(
        self, light: Any, look: Look, surface: list[Any], seed: int, display: bool, rgb: Any
    ) -> None:  # fmt: skip
        scene, view = self._scene.struct, self._view
        emitters, paths, now, then = self._path_buffers()
        limit = _BRIGHTEST / max(look.exposure, 1e-3)
        walk = self._walk_plainly if self._plain else self._walk
        walk(light, emitters, surface, limit, seed % _SEEDS, paths)
        self.launch(path_kernels.pool_lanes, [], [paths, now])
        for stride in _STRIDES:
            self.launch(path_kernels.smooth, [view, light], [stride, self.hits, surface[1], now, then])
            now, then = then, now
        self.launch(
            path_kernels.compose_paths,
            [scene, view, light],
            [int(display), self._offsets, self.hits, *surface, self._materials["emission"], now, rgb],
        )

    def _walk_plainly(
        self, light: Any, emitters: Any, surface: list[Any], limit: float, turn: int, paths: Any
    ) -> None:  # fmt: skip
        samples = self.paths // path_kernels.LANES
        given = [samples, self.bounces, limit, turn, self.hits, *surface, paths]
        before = [self._scene.struct, self._view, light, emitters]
        self.launch_dealt(plain_path_kernels.trace_paths, before, given, path_kernels.LANES)

    def _walk(
        self, light: Any, emitters: Any, surface: list[Any], limit: float, turn: int, paths: Any
    ) -> None:  # fmt: skip
        """Light that is aimed at, paths, and light in fog: a few lanes of rays at a time, all pixels together."""
        scene, view, hits, casters = self._scene.struct, self._view, self.hits, self._casters_now()
        walks, aims, diffuse = self._wave_buffers()
        pixels, samples = self.size[0] * self.size[1], self.paths // path_kernels.LANES
        lamps = bool(light.lamp_count and any(light.lamps))
        self.launch(wave_kernels.clear_paths, [], [paths, diffuse])
        if light.has_sun or lamps or (emitters.count and any(light.lamps)) or light.sky_aimed:
            for first, lanes in self._rounds(self.paths, self._walks_at_once):
                given = [first, lanes, samples, turn, hits, *surface, aims]
                self.launch_dealt(wave_kernels.aim_first, [scene, view, light, emitters], given, lanes)
                self.launch_dealt(wave_kernels.trace_aims, [casters, view], [aims], lanes * wave_kernels.AIMS)
                self.launch(wave_kernels.pool_first, [], [pixels, first, lanes, samples, aims, paths])
        each = max(samples, 2)
        for first, lanes in self._rounds(each * path_kernels.LANES, self._walks_at_once):
            given = [first, samples, each, turn, hits, *surface, walks]
            self.launch_dealt(wave_kernels.start_walks, [scene, view, light], given, lanes)
            for bounce in range(self.bounces):
                self.launch_dealt(wave_kernels.trace_walks, [casters, view], [walks], lanes)
                given = [first, lanes, bounce, turn, walks, aims]
                self.launch_dealt(wave_kernels.visit_walks, [casters, scene, view, light, emitters], given, lanes)
                self.launch_dealt(wave_kernels.aim_walks, [scene, view, light, emitters], given, lanes)
                self.launch_dealt(wave_kernels.trace_aims, [casters, view], [aims], lanes * wave_kernels.AIMS)
            given = [pixels, first, lanes, each, limit, walks, aims, paths, diffuse]
            self.launch(wave_kernels.pool_walks, [], given)
        self.launch(wave_kernels.end_walks, [], [paths, diffuse])
        if light.fog_density > 0 and (light.has_sun or lamps):
            for first, lanes in self._rounds(self.paths, self._walks_at_once):
                given = [first, lanes, samples, turn, hits, aims]
                self.launch_dealt(wave_kernels.aim_shafts, [scene, view, light], given, lanes)
                self.launch_dealt(wave_kernels.trace_aims, [casters, view], [aims], lanes * 2)
                self.launch(wave_kernels.pool_shafts, [], [pixels, first, lanes, samples, aims, paths])

    @property
    def _walks_at_once(self) -> int:
        each = max(self.paths // path_kernels.LANES, 2) * path_kernels.LANES
        return max(1, min(_RAYS_AT_ONCE // (self.size[0] * self.size[1] * (1 + wave_kernels.AIMS)), each))

    def _wave_buffers(self) -> Any:
        """Paths on their way, their shadow rays, and how many were diffuse; made at the first use."""
        if self._wave_arrays is None:
            pixels = self.size[0] * self.size[1]
            walks = pixels * self._walks_at_once
            self._wave_arrays = (
                self._filled(wave_kernels.Walks, walks),
                self._filled(wave_kernels.Aims, walks * wave_kernels.AIMS),
                wp.zeros(pixels * path_kernels.LANES, dtype=int, device=self._wp_device),
            )
        return self._wave_arrays

    def _path_buffers(self) -> Any:
        """Emitters, what paths find by lane, and twice that by pixel; made at the first use."""
        if self._path_arrays is None:
            pixels = self.size[0] * self.size[1]
            self._path_arrays = (
                self._emitters(),
                self._filled(path_kernels.Paths, pixels * path_kernels.LANES),
                self._filled(path_kernels.Pooled, pixels),
                self._filled(path_kernels.Pooled, pixels),
            )
        return self._path_arrays

    def _filled(self, kind: Any, count: int) -> Any:
        """A struct of arrays of `count` zeros."""
        struct = kind()
        for name, field in kind.vars.items():
            array = wp.zeros(count, dtype=field.type.dtype, device=self._wp_device)
            self._kept.append(array)
            setattr(struct, name, array)
        return struct

    def _emitters(self) -> Any:
        table = self._scene.emitters(self._model)
        share = table.power / max(table.power.sum(), 1e-12)
        listed = np.zeros(self._geoms)
        listed[table.geom] = 1
        arrays = {
            "corners": (table.corners, wp.vec3), "geom": (table.geom, int), "face": (table.face, int),
            "cumulative": (np.cumsum(share), float), "density": (share / np.maximum(table.area, 1e-12), float),
            "exact": (table.exact, int), "listed": (listed, int),
        }  # fmt: skip
        struct: Any = path_kernels.Emitters()
        for name, (values, dtype) in arrays.items():
            kind = np.int32 if dtype is int else np.float32
            padded = values if len(values) else np.zeros((1, *values.shape[1:]))
            array = wp.array(padded.astype(kind), dtype=dtype, device=self._wp_device)
            self._kept.append(array)
            setattr(struct, name, array)
        struct.count = len(table.geom)
        return struct

    def _lit_buffers(self) -> Any:
        """Light buffers, made at the first use."""
        if self._lit is None:
            pixels = self.size[0] * self.size[1]
            self._lit = self._filled(light_kernels.Lit, pixels)
        return self._lit

    def _light(self, look: Look, stream: Tensor) -> Any:
        """The look as a kernel struct, kept for the next frames of the same stream."""
        rows = tuple(tuple(row) for row in stream.tolist())
        key = (look, rows)
        if key not in self._lights:
            if len(self._lights) >= _KEPT_LIGHTS:
                self._lights.clear()
            self._lights[key] = self._make_light(look, rows)
        return self._lights[key]

    def _make_light(self, look: Look, rows: tuple[tuple[float, ...], ...]) -> Any:
        if not self._tables:
            device = self._wp_device
            lamps = self._scene.lamps
            pad = max(len(lamps.geom), 1)
            self._tables = {
                "noise": wp.array(shade.noise_map().ravel(), dtype=float, device=device),
                "star_map": wp.array(shade.star_map().ravel(), dtype=float, device=device),
                "lamp_geom": wp.array(np.resize(lamps.geom, pad), dtype=int, device=device),
                "lamp_radius": wp.array(np.resize(lamps.radius, pad), dtype=float, device=device),
                "lamp_power": wp.array(np.resize(lamps.power, (pad, 3)), dtype=wp.vec3, device=device),
            }
        light: Any = light_kernels.Light()
        for name, table in self._tables.items():
            setattr(light, name, table)
        light.lamp_count = len(self._scene.lamps.geom)
        self._point_to_sky(light, look)
        light.stream = wp.mat33(*[value for row in rows for value in row])
        sun = look.sun_vector()
        light.sun_stream = wp.vec3(*sun.tolist())
        light.sun_dir = wp.vec3(*(torch.tensor(rows).T @ sun).tolist())
        light.has_sun = int(look.has_sun)
        light.sun_radius = math.radians(look.sun_radius)
        light.disc, light.disc_radius = wp.vec3(*shade.disc_color(look)), shade.disc_radius(look)
        light.cloud = wp.vec3(*shade.cloud_color(look))
        for name in (
            "sun",
            "zenith",
            "horizon",
            "ground",
            "halo",
            "glow_left",
            "glow_right",
            "fog_color",
            "absorption",
        ):
            setattr(light, name, wp.vec3(*getattr(look, name)))
        for name in (
            "cloudiness",
            "stars",
            "fog_density",
            "fog_height",
            "snow",
            "wetness",
            "puddles",
            "autumn",
            "exposure",
        ):
            setattr(light, name, float(getattr(look, name)))
        light.lamps = wp.vec3(*(look.lamps * tint for tint in look.lamp_tint))
        light.harmonics = light_kernels.mat93(*shade.ambient_coefficients(look).flatten().tolist())
        return light

    def _point_to_sky(self, light: Any, look: Look) -> None:
        """The look's sky picture and what aims at it, uploaded once; arrays of one element where it has none."""
        sky = load_environment(look.hdri) if look.hdri else None
        if sky not in self._skies:
            self._skies[sky] = _sky_arrays(sky, self._wp_device)
        for name, array in self._skies[sky].items():
            setattr(light, name, array)
        light.sky_height = 0 if sky is None else len(sky.radiance)
        light.sky_aimed = int(sky is not None and bool(sky.share.any()))
        light.sky_turn = look.hdri_turn / 360.0 % 1.0
        light.sky_peak = math.inf if sky is None else sky.peak

    # Launching ----------------------------------------------------------------------------------------------------

    def launch(self, kernel: Any, before: list[Any], after: list[Any]) -> None:
        """Runs a kernel over all pixels: its arguments are `before`, the first pixel, `after`."""
        width = self.size[1]

        def band(row: int, rows: int) -> None:
            inputs = [*before, row * width, *after]
            wp.launch(kernel, dim=rows * width, inputs=inputs, device=self._wp_device)

        self._over_bands(kernel, band)

    def launch_dealt(self, kernel: Any, before: list[Any], after: list[Any], lanes: int = 1) -> None:
        """The same for kernels that use `light_kernels.dealt`: arguments `before`, first row, rows, `after`."""
        across = -(-self.size[1] // 32)

        def band(row: int, rows: int) -> None:
            threads = lanes * 512 * across * -(-rows // 16)
            wp.launch(kernel, dim=threads, inputs=[*before, row, rows, *after], device=self._wp_device)

        self._over_bands(kernel, band)

    def _launch_tiles(self, kernel: Any, before: list[Any], after: list[Any]) -> None:
        """The same for kernels that take the pixels of a tile together: arguments `before`, first row, `after`."""
        tile = packet_kernels.TILE
        across = -(-self.size[1] // tile)

        def band(row: int, rows: int) -> None:
            wp.launch(kernel, dim=across * -(-rows // tile), inputs=[*before, row, *after], device=self._wp_device)

        self._over_bands(kernel, band)

    def _over_bands(self, kernel: Any, band: Callable[[int, int], None]) -> None:
        """Calls `band(first row, rows)` for the whole picture, on the CPU for bands of it on all threads.

        Pixels are independent, so the result does not depend on it.
        """
        height = self.size[0]
        if self.is_cuda or self._pool is None or kernel not in self._loaded:
            band(0, height)  # loads, and at the first run ever compiles, the kernel's module: not for threads
            self._loaded.add(kernel)
            return
        bands = [(row, min(_ROWS_A_BAND, height - row)) for row in range(0, height, _ROWS_A_BAND)]
        for result in [self._pool.submit(band, *each) for each in bands]:
            result.result()

    def on_stream(self) -> Any:
        """Warp's work goes to torch's current stream, so that neither has to wait for the other."""
        if not self.is_cuda:
            return wp.ScopedDevice(self._wp_device)
        stream = torch.cuda.current_stream(self.device)
        if stream.cuda_stream not in self._streams:
            self._streams[stream.cuda_stream] = wp.stream_from_torch(stream)
        return wp.ScopedStream(self._streams[stream.cuda_stream])

    # Set-up -------------------------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        height, width = self.size
        pixels = height * width
        device = self._wp_device
        self._geoms = max(self._model.ngeom, 1)
        self._staging = _Staging(12 * self._geoms, self.is_cuda)
        self._poses = [torch.zeros(12 * self._geoms, device=self.device) for _ in range(2)]
        self._pose_views = [
            (
                wp.from_torch(poses[: 3 * self._geoms].view(-1, 3), dtype=wp.vec3),
                wp.from_torch(poses[3 * self._geoms :].view(-1, 3, 3), dtype=wp.mat33),
            )
            for poses in self._poses
        ]
        self._current = 0
        self._lower = wp.zeros(max(len(self._scene.bounded), 1), dtype=wp.vec3, device=device)
        self._upper = wp.zeros(max(len(self._scene.bounded), 1), dtype=wp.vec3, device=device)
        self._bvh: Any = None
        self._point_to_poses()
        self.hits: Any = kernels.Hits()
        self._hit_arrays = {
            "geom": wp.zeros(pixels, dtype=int, device=device),
            "shape": wp.zeros(pixels, dtype=int, device=device),
            "face": wp.zeros(pixels, dtype=int, device=device),
            "t": wp.zeros(pixels, dtype=float, device=device),
            "normal": wp.zeros(pixels, dtype=wp.vec3, device=device),
            "point": wp.zeros(pixels, dtype=wp.vec3, device=device),
            "edge": wp.zeros(pixels, dtype=int, device=device),
        }
        for name, array in self._hit_arrays.items():
            setattr(self.hits, name, array)
        tiles = not self.is_cuda and not self._plain and wp.config.version.startswith(packet_kernels.VERSIONS)
        self._seen = self._tile_buffers() if tiles else None
        self._offsets = wp.array(sample_offsets(self.samples, self.seed), dtype=wp.vec2, device=device)

    def _tile_buffers(self) -> Any:
        """What the tiles of the picture see."""
        tile = packet_kernels.TILE
        tiles = -(-self.size[0] // tile) * -(-self.size[1] // tile)
        return self._filled(packet_kernels.Seen, tiles * tile**2)

    def _point_to_poses(self) -> None:
        scene = self._scene.struct
        scene.pos, scene.rot = self._pose_views[self._current]
        scene.last_pos, scene.last_rot = self._pose_views[1 - self._current]

    def _refit(self, build: bool) -> None:
        """World bounds of the geoms into the BVH; built at the first update, refitted afterwards."""
        scene = self._scene
        if not scene.visible:
            return
        wp.launch(
            kernels.place_shapes,
            dim=len(scene.visible),
            inputs=[scene.struct.pos, scene.struct.rot, scene.centre, scene.half, len(scene.bounded)],
            outputs=[scene.shapes, self._lower, self._upper],
            device=self._wp_device,
        )
        if not scene.bounded:
            return
        if self._bvh is None or build:
            self._bvh = wp.Bvh(self._lower, self._upper)
            scene.use_bvh(self._bvh)
        else:
            self._bvh.refit()

    def _view_of(self, camera: Camera) -> Any:
        if camera.frames != 1:
            raise ValueError(
                f"Tracer got a camera of {camera.frames} frames; expected one. Slice it: camera[t : t + 1]."
            )
        fx, fy, cx, cy = camera.intrinsics[0].tolist()
        pose = camera.pose[0].tolist()
        view = kernels.View()
        view.pos = wp.vec3(pose[0][3], pose[1][3], pose[2][3])
        view.rot = wp.mat33(*[pose[i][j] for i in range(3) for j in range(3)])
        view.fx, view.fy, view.cx, view.cy = fx, fy, cx, cy
        view.height, view.width = self.size
        return view


class _Staging:
    """Host memory on its way to the device: pinned and in turns for CUDA, so that a copy need not be waited for."""

    def __init__(self, count: int, cuda: bool) -> None:
        self._buffers = [torch.zeros(count, pin_memory=cuda) for _ in range(4 if cuda else 1)]
        self._events = [torch.cuda.Event() for _ in self._buffers] if cuda else []
        self._at = 0

    def next(self) -> Tensor:
        """A buffer that no copy reads any more."""
        self._at = (self._at + 1) % len(self._buffers)
        if self._events:
            self._events[self._at].synchronize()
        return self._buffers[self._at]

    def sent(self) -> None:
        """The copy of the last buffer has been queued."""
        if self._events:
            self._events[self._at].record()


def _sky_arrays(sky: Environment | None, device: Any) -> dict[str, Any]:
    """Arrays by their names in `light_kernels.Light`."""
    if sky is None:
        empty = np.zeros(3, np.float32)
        colours = {"sky": empty, "soft_sky": empty}
        numbers = {"sky_rows": empty, "sky_columns": empty, "sky_share": empty}
    else:
        colours = {"sky": sky.radiance, "soft_sky": sky.soft}
        numbers = {"sky_rows": sky.rows, "sky_columns": sky.columns, "sky_share": sky.share}
    return {
        **{name: wp.array(values.reshape(-1, 3), dtype=wp.vec3, device=device) for name, values in colours.items()},
        **{name: wp.array(values.ravel(), dtype=float, device=device) for name, values in numbers.items()},
    }


def _same_camera(a: Camera, b: Camera | None) -> bool:
    return (
        b is not None
        and torch.equal(a.pose.cpu(), b.pose.cpu())
        and torch.equal(a.intrinsics.cpu(), b.intrinsics.cpu())
    )


def _init_warp() -> None:
    """Starts Warp without its greeting, to compile for the very GPU; what the user has set is left alone.

    Binaries are what can be compiled ahead (`tools/offline.py`); PTX the driver would have to translate once more.
    """
    if wp.config.log_level == wp.LOG_INFO:
        wp.config.log_level = wp.LOG_WARNING
    if wp.config.cuda_output is None:
        wp.config.cuda_output = "cubin"
    if torch.cuda.is_available():
        wp.init()
        return
    # Without a GPU Warp's native code writes a warning to stderr, which no setting turns off.
    with tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        try:
            os.dup2(held.fileno(), 2)
            wp.init()
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        held.seek(0)
        for line in held.read().decode(errors="replace").splitlines(keepends=True):
            if "NVIDIA CUDA driver" not in line:
                sys.stderr.write(line)


def sample_offsets(samples: int, seed: int = 0) -> np.ndarray:
    """[samples, 2] positions within a pixel, in [-0.5, 0.5]: a Hammersley set, mirrored for odd seeds.

    One sample is the centre; four are the rotated grid.
    """
    if samples == 1:
        return np.zeros((1, 2), np.float32)
    if samples == 4:
        points = np.array([[-0.125, -0.375], [0.375, -0.125], [0.125, 0.375], [-0.375, 0.125]])
    else:
        bits = (samples - 1).bit_length()
        reversed_bits = [int(f"{index:0{bits}b}"[::-1], 2) for index in range(samples)]
        points = np.stack([np.arange(samples) / samples, np.array(reversed_bits) / 2**bits], -1)
        points += np.array([0.5 / samples, 0.5 / 2**bits]) - 0.5
    return (points * ((-1, 1) if seed % 2 else (1, 1))).astype(np.float32)
