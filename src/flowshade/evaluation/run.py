"""Runs a suite: every clip in every look, every method, then tables and a page. Stopped runs go on where they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowshade.api import StyledRenderer, load_inverse
from flowshade.errors import PromptError
from flowshade.evaluation.control import LookPictures, accuracy, frames_until, is_monotone, recognise
from flowshade.evaluation.methods import Stopwatch, albedo_affine, closest_look, no_rays, render_stream
from flowshade.evaluation.page import write_page
from flowshade.evaluation.perceptual import Trunk, TrunkName, frechet_distance, trunks
from flowshade.evaluation.results import REPORT, RESULTS, ResultFolder, read_arrays, write_arrays
from flowshade.evaluation.scoring import AFFINE, METRICS, NO_RAYS, REFERENCE, Scored, Scorer, mean_rows
from flowshade.evaluation.sheets import write_clip_sheet, write_clip_video
from flowshade.evaluation.suites import LADDERS, Case, PredictedVideos, Suite
from flowshade.files import plain, write_json
from flowshade.gbuffer.look import LOOKS
from flowshade.inverse.stream import Inverse
from flowshade.progress import Progress
from flowshade.provenance import versions
from flowshade.renderer.prompt import CaptionBank


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is done with a suite besides rendering it."""

    window: int = 16
    """Frames rendered together."""
    seed: int = 0
    lpips_every: int = 4
    """LPIPS and the Fréchet distance look at every so many frames."""
    controls: bool = True
    """Also measure ladders of wordings and the answer to a change of prompt (where the suite can)."""
    reestimate: bool = True
    """Also have the compact inverse read normals back from every picture, which takes about as long as rendering."""
    device: str = "cpu"
    """Where metrics are computed."""


def evaluate(
    suite: Suite,
    method: StyledRenderer | PredictedVideos,
    out: Path,
    options: Evaluation,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Scores a renderer, or somebody's videos, beside the baselines and the reference itself.

    Args:
        suite: which clips.
        method: a loaded renderer, or videos.
        out: the folder; a run of the same settings that was stopped is continued, clip by clip.
        options: further settings.
        progress: called with cases done and in all.

    Returns:
        What `results.json` holds.

    Raises:
        FlowshadeError: the folder holds something else, a video is missing, or a caption bank lacks what is told.
    """
    if isinstance(method, StyledRenderer) and isinstance(method.encoder, CaptionBank):
        _check_captions(method.encoder, suite, options)
    found, note = trunks(options.device)
    notes = [note] if note else []
    inverse = load_inverse(device=options.device) if options.reestimate else None
    assert inverse is None or isinstance(inverse, Inverse)
    settings = _settings(suite, method, options, found)
    settings["inverse"] = None if inverse is None else inverse.fingerprint
    folder = ResultFolder(out, settings)
    runner = _Runner(suite, method, folder, options, found, inverse, progress)
    for index, clip in enumerate(suite.clips):
        if not folder.done(clip):
            runner.clip(index)
        runner.count(index + 1)
    training = look_training(suite, folder) if options.controls else []
    results = summarise(suite, folder, settings, notes, training)
    write_json(out / RESULTS, results)
    write_page(out / REPORT, plain(results), folder.clips)
    return plain(results)


def _check_captions(bank: CaptionBank, suite: Suite, options: Evaluation) -> None:
    """Whether a bank holds everything that a renderer will be told."""
    for look in suite.looks:
        bank.check(LOOKS[look].caption())
    try:
        for ladder in suite.ladders if options.controls else ():
            for caption in ladder.captions:
                bank.check(caption)
    except PromptError as error:
        raise PromptError(f"{error} Or measure no ladders of wordings: --no-controls.") from error


def _settings(
    suite: Suite, method: StyledRenderer | PredictedVideos, options: Evaluation, found: dict[TrunkName, Trunk]
) -> dict[str, Any]:
    who: dict[str, Any] = (
        {"videos": str(method.folder)}
        if isinstance(method, PredictedVideos)
        else {"model": method.name, "fingerprint": method.fingerprint, "steps": method.steps}
    )
    if isinstance(method, StyledRenderer) and isinstance(method.encoder, CaptionBank):
        who["captions"] = "bank"  # half floats: scores differ in their last digits
    shared = {"suite": suite.name, "window": options.window, "seed": options.seed, "lpips": sorted(found)}
    more = {"lpips_every": options.lpips_every, "controls": options.controls}
    return {**shared, **who, **more, **suite.settings()}


class _Runner:
    """One clip after another."""

    def __init__(
        self,
        suite: Suite,
        method: StyledRenderer | PredictedVideos,
        folder: ResultFolder,
        options: Evaluation,
        found: dict[TrunkName, Trunk],
        inverse: Inverse | None,
        progress: Progress,
    ) -> None:
        self._suite, self._method, self._folder = suite, method, folder
        self._options, self._trunks, self._inverse, self._progress = options, found, inverse, progress
        self._each = 1 if suite.name == "cycles" else len(suite.looks)
        self._renderer = method if isinstance(method, StyledRenderer) else None
        self.name = f"{method.name}, {method.steps} steps" if isinstance(method, StyledRenderer) else method.name

    def count(self, clips: int) -> None:
        self._progress(clips * self._each, len(self._suite.clips) * self._each)

    def clip(self, index: int) -> None:
        """Renders and scores a clip in every look, and writes what came of it."""
        scored: list[Scored] = []
        shown: list[tuple[Case, Tensor]] = []
        watch = Stopwatch()
        told: dict[str, str] = {}
        source = ""
        for number, case in enumerate(self._suite.cases(index)):
            scorer = Scorer(
                case,
                window=self._options.window,
                trunks=self._trunks,
                lpips_every=self._options.lpips_every,
                inverse=self._inverse,
            )
            source = scorer.motion_source
            caption = self._caption(case)
            told[case.look] = caption
            made = self._made(case, caption, watch)
            scored += [scorer.score(name, pictures) for name, pictures in made.items()]
            shown.append((case, made[self.name]))
            self._progress(index * self._each + number + 1, len(self._suite.clips) * self._each)
        clip = shown[0][0].clip
        write_clip_sheet(self._folder.clips / f"{clip}.png", shown)
        write_clip_video(self._folder.clips / f"{clip}.mp4", shown)
        scores = {
            "rows": [item.row for item in scored],
            "motion": source,
            "told": told,
            "seconds": watch.seconds,
            "frames": watch.frames,
            "peak_mib": watch.peak_mib,
            "controls": self._controls(index, shown),
        }
        self._folder.save(clip, scores, _features(scored))

    def _caption(self, case: Case) -> str:
        if case.caption or self._renderer is None:
            return case.caption
        renderer = self._renderer
        window = self._options.window

        def render(look: str, clip: Any) -> Tensor:
            captions = {0: LOOKS[look].caption()}
            return render_stream(renderer, clip, captions, window=window, seed=self._options.seed)

        return LOOKS[closest_look(case, self._suite.looks, render, window)].caption()

    def _made(self, case: Case, caption: str, watch: Stopwatch) -> dict[str, Tensor]:
        """Pictures of every method that applies to a case."""
        made: dict[str, Tensor | None] = {REFERENCE: case.reference, AFFINE: albedo_affine(case)}
        made[NO_RAYS] = no_rays(case, self._suite.looks)
        if isinstance(self._method, PredictedVideos):
            made[self.name] = self._method.pictures(case)
        else:
            made[self.name] = self._stream(case, {0: caption}, watch)
        return {name: pictures for name, pictures in made.items() if pictures is not None}

    def _stream(self, case: Case, captions: dict[int, str], watch: Stopwatch | None = None) -> Tensor:
        assert self._renderer is not None
        return render_stream(
            self._renderer, case.gbuffer, captions, window=self._options.window, seed=self._options.seed, watch=watch
        )

    def _controls(self, index: int, shown: Sequence[tuple[Case, Tensor]]) -> dict[str, Any]:
        if self._renderer is None or not self._options.controls or len(shown) < 2:
            return {}
        return {"ladders": self._ladders(index), "response": self._response(shown)}

    def _ladders(self, index: int) -> dict[str, Any]:
        """How much of a thing pictures show, a number a wording, for the renderer and the reference."""
        if not self._suite.ladders:
            return {}
        found, last = {}, self._options.window - 1
        clip, references = self._suite.ladder_frames(index, last)
        shown, case = clip[last:], Case(clip="", look="", caption="", gbuffer=clip, fps=1.0)
        for ladder in self._suite.ladders:
            outputs = [self._stream(case, {0: caption})[last:] for caption in ladder.captions]
            found[ladder.name] = {
                "words": list(ladder.words),
                REFERENCE: [ladder.measure(picture, shown) for picture in references[ladder.name]],
                self.name: [ladder.measure(picture, shown) for picture in outputs],
            }
        return found

    def _response(self, shown: Sequence[tuple[Case, Tensor]]) -> dict[str, Any]:
        """Frames until a change from the first look to the next one, half-way through the clip, shows."""
        (first, before), (second, after) = shown[:2]
        at = first.gbuffer.frames // 2 // self._options.window * self._options.window
        if not at:
            return {}
        changed = self._stream(first, {0: first.caption, at: second.caption})
        frames = {f"{share:.0%}": frames_until(changed, before, after, at, share) for share in (0.5, 0.8)}
        return {"from": first.look, "to": second.look, "at": at, "frames": frames, "left": changed.shape[0] - at}


def _features(scored: Sequence[Scored]) -> dict[str, np.ndarray]:
    """Features by kind, look and method."""
    features = {}
    for item in scored:
        key = f"{item.row['look']}|{item.row['method']}"
        features[f"look|{key}"] = item.looks.numpy().astype(np.float32)
        if item.pooled is not None:
            features[f"pooled|{key}"] = item.pooled.numpy().astype(np.float32)
    return features


def look_training(suite: Suite, folder: ResultFolder) -> list[LookPictures]:
    """The suite's pictures for training the classifier of looks; made once and kept in the folder."""
    path = folder.path / "looks.npz"
    if not path.exists():
        made = {f"{item.world}|{item.look}": item.features.numpy() for item in suite.look_pictures()}
        write_arrays(path, made)
    found = read_arrays(path)
    names = {key: key.split("|") for key in found}
    return [
        LookPictures(world=world, look=look, method=REFERENCE, features=torch.from_numpy(found[key]))
        for key, (world, look) in names.items()
    ]


def summarise(
    suite: Suite,
    folder: ResultFolder,
    settings: dict[str, Any],
    notes: list[str],
    training: Sequence[LookPictures] = (),
) -> dict[str, Any]:
    """Everything that follows from the clips' files."""
    loaded = {clip: folder.load(clip) for clip in suite.clips}
    rows = [row for scores, _ in loaded.values() for row in scores["rows"]]
    methods = mean_rows(rows, lambda row: row["method"])
    features = {clip: values for clip, (_, values) in loaded.items()}
    for method, distance in _frechet(features, list(methods)).items():
        methods[method]["frechet"] = distance
    watch = Stopwatch()
    for scores, _ in loaded.values():
        watch.add(Stopwatch(scores["seconds"], scores["frames"], scores["peak_mib"]))
    by_look = mean_rows(rows, lambda row: (row["look"], row["method"]))
    return {
        "suite": suite.name,
        "date": date.today().isoformat(),
        "settings": settings,
        "versions": versions(),
        "notes": notes,
        "metrics": {name: metric.title for name, metric in METRICS.items()},
        "clips": suite.clips,
        "looks": list(dict.fromkeys(row["look"] for row in rows)),
        "frames": sum(row["frames"] for row in rows) // max(len(methods), 1),
        "motion": sorted({scores["motion"] for scores, _ in loaded.values()}),
        "told": {clip: scores["told"] for clip, (scores, _) in loaded.items()},
        "methods": methods,
        "by_look": [{"look": look, "method": method} | values for (look, method), values in by_look.items()],
        "runtime": watch.summary() if watch.seconds or "model" in settings else None,
        "controls": _summarise_controls(
            features, [scores["controls"] for scores, _ in loaded.values()], suite.looks, training
        ),
        "rows": rows,
    }


def _frechet(features: dict[str, dict[str, np.ndarray]], methods: list[str]) -> dict[str, float]:
    """Fréchet distance of every method to the reference, over all clips and looks."""

    def pooled(method: str) -> Tensor | None:
        found = [x for values in features.values() for key, x in values.items() if _is_of(key, "pooled", method)]
        return torch.from_numpy(np.concatenate(found)).float() if found else None

    reference = pooled(REFERENCE)
    if reference is None or reference.shape[0] < 2:
        return {}
    others = {name: pooled(name) for name in methods if name != REFERENCE}
    return {name: frechet_distance(x, reference) for name, x in others.items() if x is not None and x.shape[0] > 1}


def _is_of(key: str, kind: str, method: str) -> bool:
    parts = key.split("|", 2)
    return (parts[0], parts[2]) == (kind, method)


def _summarise_controls(
    features: dict[str, dict[str, np.ndarray]],
    controls: Sequence[dict[str, Any]],
    looks: Sequence[str],
    training: Sequence[LookPictures],
) -> dict[str, Any]:
    pictures = [
        LookPictures(world=clip, look=look, method=method, features=torch.from_numpy(x))
        for clip, values in features.items()
        for (kind, look, method), x in ((key.split("|", 2), x) for key, x in values.items())
        if kind == "look" and look in looks
    ]
    summary: dict[str, Any] = {}
    worlds = {item.world for item in (*pictures, *training)}
    enough = len(worlds) > 1 and len({item.look for item in pictures}) > 1
    if enough and any(item.method == REFERENCE for item in pictures):
        confusion = recognise(pictures, looks, training)
        summary["confusion"] = confusion
        summary["recognised"] = {method: accuracy(matrix) for method, matrix in confusion.items()}
    summary["ladders"] = _mean_ladders([item["ladders"] for item in controls if item.get("ladders")])
    summary["responses"] = [item["response"] for item in controls if item.get("response")]
    return summary


def _mean_ladders(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over clips, and in how many clips every step of the ladder gave more."""
    summary, units = {}, {ladder.name: ladder.unit for ladder in LADDERS}
    for name in dict.fromkeys(name for item in found for name in item):
        ladders = [item[name] for item in found if name in item]
        methods = {}
        for method in (key for key in ladders[0] if key != "words"):
            kept = [item[method] for item in ladders if all(value is not None for value in item[method])]
            if kept:
                monotone = sum(is_monotone(values) for values in kept)
                methods[method] = {"mean": np.mean(kept, 0).tolist(), "monotone": monotone, "clips": len(kept)}
        summary[name] = {"words": ladders[0]["words"], "unit": units[name], "methods": methods}
    return summary
