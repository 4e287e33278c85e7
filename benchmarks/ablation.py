"""What each part buys: stages of training, steps, windows and buffers, on the same held-out worlds in the same looks.

    python benchmarks/ablation.py --out out/ablation                   # the weights that ship, all tables
    python benchmarks/ablation.py --reference paths --tables missing   # one table, against path-traced pictures
    python benchmarks/ablation.py --weights flow=run/02-flow.safetensors rollout=run/03-rollout.safetensors

Tables: `stages`, a row a file of weights (a run keeps one after each stage; after `codec` the transformer is
untrained); `steps`; `windows`, in latent frames of four pictures; `missing`, buffers that the renderer does without.
The last three are of the last file given, at its own number of steps, in windows of two latent frames, and told the
sun's direction. "Alone" means it: no camera and no sun either. Both baselines of `flowshade eval` are rows of every
table and are given everything; `albedo affine` is fitted to each clip in each look.

PSNR, SSIM, LPIPS, the change of the error at window borders over that inside windows, frames a second (buffers in
memory to pictures in memory, each stream's first window left out), and differences to the first row with 95 % bootstrap
intervals over worlds. The folder gets `cells.jsonl` (a line a clip, look and row; a run that was stopped goes on there,
with more worlds or tables if asked for), `ablation.json`, and `sheet.png`: last frames of the table `missing`, worlds
and looks in turn.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flowshade.api import StyledRenderer, load_renderer
from flowshade.checkpoints.store import default_weights
from flowshade.device import choose_device
from flowshade.errors import FlowshadeError
from flowshade.evaluation.compare import Difference, compare
from flowshade.evaluation.methods import Stopwatch, albedo_affine, no_rays, render_stream
from flowshade.evaluation.perceptual import trunks
from flowshade.evaluation.results import ResultFolder
from flowshade.evaluation.scoring import AFFINE, METRICS, NO_RAYS, REFERENCE, Scorer, mean_rows
from flowshade.evaluation.suites import Case, HeldOutWorlds
from flowshade.evaluation.tables import markdown
from flowshade.evaluation.worlds import WorldSuite
from flowshade.files import plain, write_bytes, write_json
from flowshade.gbuffer.io.pictures import read_png, write_png
from flowshade.gbuffer.look import LOOKS
from flowshade.gbuffer.view import contact_sheet, to_uint8
from flowshade.provenance import hardware, versions
from flowshade.renderer.prompt import CaptionBank, PromptEncoder
from flowshade.types import CORE_CHANNELS, FRAMES_PER_LATENT, GBuffer
from flowshade.world import WORLDS

ENCODED = (*CORE_CHANNELS, "emission")
"""Channels that the compact renderer takes, besides the camera's rays."""
SHOWN = {name: METRICS[name].title for name in ("psnr", "ssim", "lpips_alex")} | {"window_ratio": "borders / inside"}
COMPARED = ("psnr", "lpips_alex")
"""Metrics whose difference to the first row is printed; the JSON has those of all."""
TABLES = ("stages", "steps", "windows", "missing")


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the renderer is given of a clip; the rest it never sees."""

    label: str
    channels: tuple[str, ...] = ENCODED
    camera: bool = True
    sun: bool = True

    def of(self, clip: GBuffer) -> GBuffer:
        """The clip without what is hidden, so that the renderer marks it absent."""
        kept = {name: value for name, value in clip.channels().items() if name in self.channels}
        return GBuffer(**kept, camera=clip.camera if self.camera else None)

    def sun_of(self, look: str) -> Tensor | None:
        """[3] towards the look's sun in the stream frame; None if it has none, or if it is hidden."""
        return LOOKS[look].sun_vector() if self.sun and LOOKS[look].has_sun else None


def without(*names: str) -> Given:
    """All but these channels."""
    kept = tuple(name for name in ENCODED if name not in names)
    return Given(label=f"without {' and '.join(names)}", channels=kept)


COMPLETE = Given(label="all")
GIVEN = (
    COMPLETE,
    without("roughness", "metallic"),
    without("emission"),
    without("albedo"),
    without("normal"),
    Given(label="without camera", camera=False),
    Given(label="without sun direction", sun=False),
    Given(label="depth + normal alone", channels=("depth", "normal"), camera=False, sun=False),
    Given(label="depth alone", channels=("depth",), camera=False, sun=False),
)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to render."""

    weights: str
    """Label of the file."""
    steps: int
    window: int
    """Latent frames."""
    given: Given = COMPLETE

    @property
    def frames(self) -> int:
        """Pictures in a window."""
        return self.window * FRAMES_PER_LATENT


Tables = dict[str, dict[str, Variant]]
"""Rows of every table, by label."""


def make_tables(
    weights: Sequence[str], own_steps: int, steps: Sequence[int], windows: Sequence[int], names: Sequence[str]
) -> Tables:
    """The tables asked for; all but `stages` are of the last of the weights."""
    usual = Variant(weights=weights[-1], steps=own_steps, window=WorldSuite.window // FRAMES_PER_LATENT)
    tables = {
        "stages": {label: replace(usual, weights=label) for label in weights},
        "steps": {_counted(count, "step"): replace(usual, steps=count) for count in steps},
        "windows": {_counted(count, "latent frame"): replace(usual, window=count) for count in windows},
        "missing": {given.label: replace(usual, given=given) for given in GIVEN},
    }
    return {name: tables[name] for name in names}


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'s' * (count != 1)}"


def check_frames(frames: int, tables: Tables) -> None:
    """Clips must hold two windows or more of every length: the first one is not timed, and has no border before it.

    Raises:
        FlowshadeError: they do not.
    """
    for variant in _variants(tables):
        if frames % variant.frames or frames < 2 * variant.frames:
            raise FlowshadeError(
                f"clips have {frames} frames and a row has windows of {variant.frames}; expected twice as many frames "
                "or another multiple. Give --frames, or shorter --windows."
            )


def _variants(tables: Tables) -> list[Variant]:
    return list(dict.fromkeys(variant for rows in tables.values() for variant in rows.values()))


class Cells:
    """`cells.jsonl`: a line for every row of a table on a clip in a look, added once it is done.

    A last line without its end, as a kill during writing leaves it, is cut off.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            write_bytes(path, whole)
        self._found = {self._key(cell): cell for cell in map(json.loads, whole.splitlines())}

    @staticmethod
    def _key(cell: dict[str, Any]) -> tuple[str, str, str]:
        return cell["clip"], cell["look"], cell["method"]

    def __contains__(self, key: tuple[str, str, str]) -> bool:
        return key in self._found

    def __getitem__(self, key: tuple[str, str, str]) -> dict[str, Any]:
        return self._found[key]

    def add(self, cell: dict[str, Any]) -> None:
        cell = plain(cell)
        with self._path.open("a") as file:
            file.write(json.dumps(cell) + "\n")
        self._found[self._key(cell)] = cell


class TimeLeft:
    """A line for each cell, with the mean time of those made in this run and what is left at that rate."""

    def __init__(self, done: int, total: int) -> None:
        self._before = self._done = done
        self._total, self._began = total, time.perf_counter()

    def show(self, what: str) -> None:
        self._done += 1
        each = (time.perf_counter() - self._began) / (self._done - self._before)
        left = each * (self._total - self._done) / 60
        print(f"{self._done} of {self._total}: {what}; {each:.1f} s a cell, {left:.0f} min left", flush=True)


class Ablation:
    """Every row of every table on every clip in every look.

    Args:
        suite: the held-out worlds.
        renderers: by label, in the order of the tables.
        tables: their rows.
        out: the folder; a run of the same settings is continued.
        seed: of the streams' noise.
        lpips_every: LPIPS looks at every so many frames.
        device: where everything runs.
    """

    def __init__(
        self,
        suite: HeldOutWorlds,
        renderers: dict[str, StyledRenderer],
        tables: Tables,
        out: Path,
        *,
        seed: int = 0,
        lpips_every: int = 4,
        device: str = "cpu",
    ) -> None:
        self._trunks, self.note = trunks(device)
        self._trunks.pop("vgg", None)
        self._suite, self._renderers, self._tables = suite, renderers, tables
        self._seed, self._every = seed, lpips_every
        shared = {"seed": seed, "lpips": sorted(self._trunks), "lpips_every": lpips_every, "hardware": hardware()}
        self._settings = shared | suite.settings()
        self._folder = ResultFolder(out, self._settings)
        self._cells = Cells(out / "cells.jsonl")
        self._methods = self._all_methods()

    def key(self, variant: Variant) -> str:
        """What a variant's cells are called: the same for the same weights under another label."""
        fingerprint = self._renderers[variant.weights].fingerprint[:16]
        return f"{fingerprint}, {variant.steps} steps, {variant.window} latents, {variant.given.label}"

    def _all_methods(self) -> dict[str, Callable[[Case], tuple[Tensor, Stopwatch, int]]]:
        """By key: a case to pictures, their times, and the frames between borders."""
        usual = WorldSuite.window
        methods = {self.key(variant): self._streaming(variant) for variant in _variants(self._tables)}
        methods[NO_RAYS] = lambda case: (*_timed(lambda: no_rays(case, self._suite.looks), case), usual)
        methods[AFFINE] = lambda case: (_needed(albedo_affine(case)), Stopwatch(), usual)
        return methods

    def _streaming(self, variant: Variant) -> Callable[[Case], tuple[Tensor, Stopwatch, int]]:
        def stream(case: Case) -> tuple[Tensor, Stopwatch, int]:
            renderer, watch = self._renderers[variant.weights], Stopwatch()
            own = renderer.steps
            renderer.steps = variant.steps
            try:
                pictures = render_stream(
                    renderer,
                    variant.given.of(case.gbuffer),
                    {0: case.caption},
                    window=variant.frames,
                    seed=self._seed,
                    sun=variant.given.sun_of(case.look),
                    watch=watch,
                )
            finally:
                renderer.steps = own
            return pictures, watch, variant.frames

        return stream

    def run(self) -> dict[str, Any]:
        """Makes the cells that are not there yet, then the tables and the sheet; what `ablation.json` holds."""
        wanted = [
            (clip, look, key) for clip in self._suite.clips for look in self._suite.looks for key in self._methods
        ]
        done = {cell for cell in wanted if cell in self._cells}
        progress = TimeLeft(len(done), len(wanted))
        for index, clip in enumerate(self._suite.clips):
            if all(cell in done for cell in wanted if cell[0] == clip):
                continue
            for case in self._suite.cases(index):
                self._case(case, progress)
        results = self._results()
        write_json(self._folder.path / "ablation.json", results)
        if "missing" in self._tables:
            self._write_sheet(self._tables["missing"])
        return plain(results)

    def _case(self, case: Case, progress: TimeLeft) -> None:
        reference = _needed(case.reference)
        self._keep(case.clip, case.look, REFERENCE, reference)
        scorers: dict[int, Scorer] = {}
        for key, method in self._methods.items():
            if (case.clip, case.look, key) in self._cells:
                continue
            pictures, watch, window = method(case)
            if window not in scorers:
                scorers[window] = Scorer(case, window=window, trunks=self._trunks, lpips_every=self._every)
            row = scorers[window].score(key, pictures.to(reference.device)).row
            self._keep(case.clip, case.look, key, pictures)
            self._cells.add(row | {"seconds": watch.seconds, "timed": watch.frames})
            progress.show(f"{case.clip}, {case.look}, {key.partition(', ')[2] or key}: {row['psnr']:.2f} dB")

    def _picture(self, clip: str, look: str, key: str) -> Path:
        return self._folder.clips / f"{clip}.{look}.{re.sub(r'[^a-z0-9]+', '-', key)}.png"

    def _keep(self, clip: str, look: str, key: str, pictures: Tensor) -> None:
        write_png(self._picture(clip, look, key), to_uint8(pictures[-1:].cpu())[0].numpy())

    def _results(self) -> dict[str, Any]:
        return {
            "date": date.today().isoformat(),
            "hardware": hardware(),
            "versions": versions(),
            "settings": self._settings,
            "clips": self._suite.clips,
            "weights": {label: renderer.fingerprint for label, renderer in self._renderers.items()},
            "notes": [self.note] if self.note else [],
            "tables": {name: self._table(name, rows) for name, rows in self._tables.items()},
        }

    def _table(self, name: str, variants: dict[str, Variant]) -> dict[str, Any]:
        """One table: its rows on every clip, their means, speeds, and differences to the first row."""
        keys = {label: self.key(variant) for label, variant in variants.items()} | {NO_RAYS: NO_RAYS, AFFINE: AFFINE}
        cells = [
            self._cells[clip, look, key] | {"method": label}
            for label, key in keys.items()
            for clip in self._suite.clips
            for look in self._suite.looks
        ]
        table = {"suite": f"ablation, {name}", "methods": mean_rows(cells, lambda cell: cell["method"]), "rows": cells}
        table["runtime"] = {label: _runtime(cells, label) for label in keys}
        first = next(iter(keys))
        table["differences"] = {
            label: [] if label == first or len(self._suite.clips) < 2 else compare(table, table, (first, label))
            for label in keys
        }
        return table | {"differences": {label: [*map(asdict, found)] for label, found in table["differences"].items()}}

    def _write_sheet(self, variants: dict[str, Variant]) -> None:
        """Rows: what is given; columns: the reference, all buffers, these. Worlds and looks in turn."""
        tiles, labels = [], []
        clips, looks = self._suite.clips, self._suite.looks
        complete = self.key(next(iter(variants.values())))
        for number, (label, variant) in enumerate(variants.items()):
            clip, look = clips[number % len(clips)], looks[(number + number // len(clips)) % len(looks)]
            tiles += [
                torch.from_numpy(read_png(self._picture(clip, look, key)))
                for key in (REFERENCE, complete, self.key(variant))
            ]
            labels += [f"{clip}, {look}: {REFERENCE}", COMPLETE.label, label]
        write_png(self._folder.path / "sheet.png", contact_sheet(tiles, 3, labels).numpy())


def _needed(pictures: Tensor | None) -> Tensor:
    assert pictures is not None, "held-out worlds have every buffer, cameras and reference pictures"
    return pictures


def _timed(make: Callable[[], Tensor | None], case: Case) -> tuple[Tensor, Stopwatch]:
    """Pictures, and the time they took from buffers in memory to pictures in memory."""
    began = time.perf_counter()
    pictures = _needed(make()).cpu()
    return pictures, Stopwatch([time.perf_counter() - began], [case.gbuffer.frames])


def _runtime(cells: Sequence[dict[str, Any]], label: str) -> dict[str, Any]:
    watch = Stopwatch()
    for cell in cells:
        if cell["method"] == label:
            watch.add(Stopwatch(cell["seconds"], cell["timed"]))
    return {name: value for name, value in watch.summary().items() if name != "peak_mib"}


def table_text(name: str, table: dict[str, Any]) -> str:
    """A table of `Ablation.run` as markdown."""
    first = next(iter(table["methods"]))
    head = [name, *SHOWN.values(), "FPS", *(f"{SHOWN[metric]} - that of {first}" for metric in COMPARED)]
    rows = [head]
    for label, means in table["methods"].items():
        differences = {found["metric"]: Difference(**found) for found in table["differences"][label]}
        fps = table["runtime"][label].get("fps")
        rows.append(
            [
                label,
                *(_number(means[metric], metric) for metric in SHOWN),
                "-" if fps is None else f"{fps:.1f}",
                *(_interval(differences.get(metric)) for metric in COMPARED),
            ]
        )
    return markdown(rows)


def _number(value: float | None, metric: str) -> str:
    return "-" if value is None else f"{value:.{METRICS[metric].digits}f}"


def _interval(found: Difference | None) -> str:
    if found is None:
        return "-"
    change, low, high = (
        f"{value:+.{METRICS[found.metric].digits}f}" for value in (found.difference, found.low, found.high)
    )
    return f"{change} ({low} to {high})"


def parse_weights(texts: Sequence[str]) -> dict[str, Path]:
    """LABEL=FILE, or a file that is called as it is named. Raises: FlowshadeError for a label given twice."""
    found: dict[str, Path] = {}
    for text in texts:
        label, _, path = text.rpartition("=")
        label = label or Path(path).stem
        if label in found or label in (NO_RAYS, AFFINE):
            raise FlowshadeError(f"--weights has {label!r} twice; expected different labels. Give LABEL=FILE.")
        found[label] = Path(path)
    return found


def load_all(weights: dict[str, Path], captions: Path | None, device: str) -> dict[str, StyledRenderer]:
    """Renderers by label, that share a prompt encoder, or a caption bank."""
    encoder = PromptEncoder(device) if captions is None else CaptionBank.load(captions).to(device)
    return {label: load_renderer(path, device=device, encoder=encoder) for label, path in weights.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", nargs="+", default=[f"shipped={default_weights()}"], metavar="LABEL=FILE")
    parser.add_argument("--tables", nargs="+", default=TABLES, choices=TABLES)
    parser.add_argument("--steps", type=int, nargs="+", default=(1, 2, 4))
    parser.add_argument("--windows", type=int, nargs="+", default=(1, 2, 4, 8), help="latent frames")
    parser.add_argument("--worlds", type=int, default=4)
    parser.add_argument("--kinds", nargs="+", default=WorldSuite.kinds, choices=tuple(WORLDS))
    parser.add_argument("--looks", nargs="+", default=("sunny", "night"), choices=tuple(LOOKS))
    parser.add_argument("--frames", type=int, default=64)
    parser.add_argument("--size", type=int, nargs=2, default=WorldSuite.size, metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--reference", default=WorldSuite.reference, choices=("direct", "paths"))
    parser.add_argument("--seed", type=int, default=0, help="of the streams' noise")
    parser.add_argument("--lpips-every", type=int, default=4, help="LPIPS looks at every so many frames")
    parser.add_argument("--captions", type=Path, help="caption bank, for machines without the prompt encoder")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("out/ablation"))
    options = parser.parse_args(arguments)
    suite = WorldSuite(
        worlds=options.worlds,
        kinds=tuple(options.kinds),
        looks=tuple(options.looks),
        size=tuple(options.size),
        frames=options.frames,
        reference=options.reference,
    )
    device = str(choose_device(options.device))
    renderers = load_all(parse_weights(options.weights), options.captions, device)
    own_steps = [*renderers.values()][-1].steps
    tables = make_tables(list(renderers), own_steps, options.steps, options.windows, options.tables)
    check_frames(suite.frames, tables)
    ablation = Ablation(
        HeldOutWorlds(suite, device),
        renderers,
        tables,
        options.out,
        seed=options.seed,
        lpips_every=options.lpips_every,
        device=device,
    )
    results = ablation.run()
    height, width = suite.size
    print(
        f"\n{results['date']}, {results['hardware']}, torch {torch.__version__}; {suite.worlds} worlds "
        f"({', '.join(suite.kinds)}) of {suite.frames} frames of {height}x{width}, {', '.join(suite.looks)}; "
        f"reference: {suite.reference}\n"
    )
    for name, table in results["tables"].items():
        print(table_text(name, table))
    print("\n".join([*results["notes"], f"scores and sheet: {options.out}"]))


if __name__ == "__main__":
    main()
