"""Tables of results, as Markdown and as HTML."""

from __future__ import annotations

from html import escape

Table = list[list[str]]
"""Rows of cells, the head first; none at all is an empty table."""


def number(value: float | None, digits: int) -> str:
    """A number as tables show it; "-" where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def markdown(table: Table) -> str:
    """A table in Markdown; empty for an empty one."""
    if not table:
        return ""
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return "\n".join([lines[0], "|---" * len(table[0]) + "|", *lines[1:]]) + "\n"


def html_table(table: Table) -> str:
    """A table in HTML; empty for an empty one."""
    if not table:
        return ""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table[1:])
    return f"<table><tr>{head}</tr>{body}</table>"
