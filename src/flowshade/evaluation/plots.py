"""Plots as inline SVG: lines and a matrix. Small, without a library, and readable with no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

COLORS = ("#1f6fb4", "#d1611f", "#3a8f3a", "#8a4fb0", "#777777", "#b08a1f")
WIDTH, HEIGHT = 420, 220
LEFT, RIGHT, TOP, BOTTOM = 68, 12, 26, 40


def line_plot(
    title: str, x: Sequence[float], lines: dict[str, Sequence[float | None]], ticks: Sequence[str] | None = None
) -> str:
    """Lines over common places x; None leaves a gap.

    Args:
        title: what is drawn.
        x: places from left to right.
        lines: values by name.
        ticks: words for the places; None writes the first and last number.
    """
    values = [value for line in lines.values() for value in line if value is not None and math.isfinite(value)]
    if not values or not x:
        return ""
    low, high = min(values), max(values)
    low, high = (low - 0.5, high + 0.5) if high - low < 1e-12 else (low, high)
    span = (x[-1] - x[0]) or 1.0

    def place(at: float, value: float) -> str:
        across = LEFT + (at - x[0]) / span * (WIDTH - LEFT - RIGHT)
        down = TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{down:.1f}"

    parts = [_text(LEFT, 14, title, bold=True)]
    for value in (low, (low + high) / 2, high):
        down = float(place(x[0], value).split(",")[1])
        parts.append(f'<path d="M{LEFT} {down:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 4, down + 4, f"{value:.3g}", anchor="end"))
    words = ticks or [f"{x[0]:g}", f"{x[-1]:g}"]
    places = x if ticks else (x[0], x[-1])
    for index, (at, word) in enumerate(zip(places, words)):
        across = float(place(at, low).split(",")[0])
        anchor = "start" if index == 0 else "end" if index == len(words) - 1 else "middle"
        parts.append(_text(across, HEIGHT - BOTTOM + 14, word, anchor=anchor))
    for index, (name, line) in enumerate(lines.items()):
        color = COLORS[index % len(COLORS)]
        points = [place(at, value) for at, value in zip(x, line) if value is not None and math.isfinite(value)]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        parts += [f'<circle cx="{p.split(",")[0]}" cy="{p.split(",")[1]}" r="2" fill="{color}"/>' for p in points]
        parts.append(_text(LEFT + index * 120, HEIGHT - 8, name, color=color))
    return _svg(WIDTH, HEIGHT, parts)


def matrix_plot(title: str, names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """A confusion matrix: row = asked for, column = recognised; shares of each row, in per cent."""
    cell, left, top = 46, 84, 44
    parts = [_text(4, 14, title, bold=True)]
    for column, name in enumerate(names):
        parts.append(_text(left + (column + 0.5) * cell, top - 6, name[:8], anchor="middle"))
    for row, (name, line) in enumerate(zip(names, counts)):
        parts.append(_text(left - 6, top + row * cell + cell / 2 + 4, name, anchor="end"))
        for column, count in enumerate(line):
            share = count / max(sum(line), 1)
            place = f'x="{left + column * cell}" y="{top + row * cell}" width="{cell - 2}" height="{cell - 2}"'
            parts.append(f'<rect {place} fill="#1f6fb4" fill-opacity="{share:.3f}" stroke="#ccc"/>')
            at = (left + column * cell + cell / 2, top + row * cell + cell / 2 + 4)
            parts.append(_text(*at, f"{share:.0%}", anchor="middle", color="#fff" if share > 0.5 else "#222"))
    return _svg(left + len(names) * cell + 8, top + len(names) * cell + 8, parts)


def _text(x: float, y: float, text: str, *, anchor: str = "start", color: str = "#222", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}"{weight}>{escape(text)}</text>'


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    style = "font:11px system-ui,sans-serif"
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" style="{style}">{"".join(parts)}</svg>'
    )
