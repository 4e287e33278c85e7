"""The report: one HTML file with tables, plots, sheets and short clips inside it, and the same tables as Markdown."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from flowshade.evaluation.plots import line_plot, matrix_plot
from flowshade.evaluation.scoring import METRICS
from flowshade.evaluation.tables import Table, html_table, number
from flowshade.files import write_text

STYLE = """
body{font:14px/1.45 system-ui,sans-serif;max-width:1280px;margin:24px auto;padding:0 16px;color:#222}
table{border-collapse:collapse;margin:8px 0 20px}td,th{padding:3px 10px;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}img,video{max-width:100%}.plots{display:flex;flex-wrap:wrap;gap:16px}
.note{background:#fff4d6;padding:6px 10px}code{background:#f3f3f3}
"""


def method_table(results: dict[str, Any]) -> Table:
    """Methods down, metrics across; metrics that no method has are left out."""
    names = [name for name in METRICS if any(row.get(name) is not None for row in results["methods"].values())]
    head = ["method", *(METRICS[name].title for name in names)]
    return [head] + [
        [method, *(number(row.get(name), METRICS[name].digits) for name in names)]
        for method, row in results["methods"].items()
    ]


def look_table(results: dict[str, Any], metric: str) -> Table:
    """Methods down, looks across; empty where no method has the metric."""
    values = {(row["look"], row["method"]): row.get(metric) for row in results["by_look"]}
    if all(value is None for value in values.values()):
        return []
    looks, digits = results["looks"], METRICS[metric].digits
    rows = [
        [method, *(number(values.get((look, method)), digits) for look in looks)]
        for method in results["methods"]
        if any(values.get((look, method)) is not None for look in looks)
    ]
    return [[METRICS[metric].title, *looks], *rows]


def control_table(results: dict[str, Any]) -> Table:
    """How often looks are recognised, by method."""
    found = results["controls"].get("recognised", {})
    return [["recognised", "share of frames"], *([m, number(v, 3)] for m, v in found.items())] if found else []


def ladder_tables(results: dict[str, Any]) -> list[Table]:
    """For each ladder: methods down, wordings across, and in how many clips every step gave more."""
    tables = []
    for name, ladder in results["controls"].get("ladders", {}).items():
        rows = [
            [method, *(f"{value:.4f}" for value in found["mean"]), f"{found['monotone']} of {found['clips']}"]
            for method, found in ladder["methods"].items()
        ]
        tables.append([[f"{name}: {ladder['unit']}", *ladder["words"], "monotone clips"], *rows])
    return tables


def runtime_table(runtime: dict[str, Any] | None) -> Table:
    """Frames a second, window times and memory."""
    return [list(runtime), [str(value) for value in runtime.values()]] if runtime else []


def write_page(path: Path, results: dict[str, Any], clips: Path) -> None:
    """The report of a suite: everything in `results` that is for people, with each clip's sheet and video.

    Args:
        path: the HTML file; it appears whole or not at all.
        results: what `results.json` holds.
        clips: the folder with NAME.png and NAME.mp4.
    """
    parts = [_head(results), "<h2>Methods</h2>", html_table(method_table(results))]
    parts.append("<p>Means over clips and looks. The reference's own row says what the world and its light do.</p>")
    parts += [
        html_table(look_table(results, name)) for name in ("psnr", "ssim", "lpips_alex") if len(results["looks"]) > 1
    ]
    if results["runtime"]:
        parts += ["<h2>Runtime</h2>", html_table(runtime_table(results["runtime"]))]
    parts += _controls(results["controls"], results["settings"]["looks"])
    parts.append("<h2>Clips</h2>")
    parts += [_clip(name, clips) for name in results["clips"]]
    write_html(path, f"Evaluation: {results['suite']}", parts)


def _head(results: dict[str, Any]) -> str:
    settings = ", ".join(f"{name} {_brief(value)}" for name, value in results["settings"].items())
    versions = ", ".join(f"{name} {value}" for name, value in results["versions"].items())
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in results["notes"])
    return (
        f"<h1>Evaluation: {escape(results['suite'])}</h1><p>{escape(results['date'])}, {results['frames']} frames. "
        f"{escape(settings)}</p><p>{escape(versions)}</p>{notes}"
    )


def _brief(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)[:16]


def _controls(controls: dict[str, Any], looks: Sequence[str]) -> list[str]:
    parts: list[str] = []
    if controls.get("confusion"):
        parts += ["<h2>Looks recognised</h2><p>Row: asked for; column: recognised by a classifier that saw reference "]
        parts += ["pictures of other worlds only.</p>", html_table(control_table({"controls": controls}))]
        plots = [matrix_plot(method, looks, counts) for method, counts in controls["confusion"].items()]
        parts.append(f'<div class="plots">{"".join(plots)}</div>')
    if controls.get("ladders"):
        parts.append("<h2>More of it</h2><p>Means over clips.</p>")
        parts += [html_table(table) for table in ladder_tables({"controls": controls})]
        plots = []
        for name, ladder in controls["ladders"].items():
            lines = {method: found["mean"] for method, found in ladder["methods"].items()}
            plots.append(line_plot(f"{name}: {ladder['unit']}", range(len(ladder["words"])), lines, ladder["words"]))
        parts.append(f'<div class="plots">{"".join(plots)}</div>')
    if controls.get("responses"):
        head = ["prompt changes", "at frame", "half of the way after", "80 % after"]
        rows = [
            [f"{item['from']} to {item['to']}", str(item["at"]), *map(_frames, item["frames"].values())]
            for item in controls["responses"]
        ]
        parts += ["<h2>Frames until a change shows</h2>", html_table([head, *rows])]
    return parts


def _frames(value: int | None) -> str:
    return "never" if value is None else f"{value} frames"


def _clip(name: str, clips: Path) -> str:
    picture, video = clips / f"{name}.png", clips / f"{name}.mp4"
    parts = [f"<h3>{escape(name)}</h3>"]
    if video.exists():
        parts.append(f'<video controls loop muted src="{_inline(video, "video/mp4")}"></video>')
    if picture.exists():
        parts.append(f'<p><img alt="sheet of {escape(name)}" src="{_inline(picture, "image/png")}"></p>')
    return "".join(parts)


def _inline(path: Path, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def write_html(path: Path, title: str, parts: Sequence[str]) -> None:
    """One self-contained HTML file, whole or not at all."""
    body = "\n".join(part for part in parts if part)
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"<body>{body}</body></html>\n"
    )
    write_text(path, page)
