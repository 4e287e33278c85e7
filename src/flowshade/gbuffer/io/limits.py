"""What a file may ask for. Sizes are read from headers and checked here before anything is allocated for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flowshade.gbuffer.io.errors import ClipError

MAX_JSON_BYTES = 2**26
"""Larger JSON files are refused before they are read."""


def read_json(path: Path) -> Any:
    """A JSON file's values.

    Raises:
        ClipError: too large, nested too deep, or no JSON.
    """
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise ClipError(f"{path} has {size} bytes; at most {MAX_JSON_BYTES} of JSON are read. Is it the right file?")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ClipError(f"{path} is not JSON ({error}); expected a text file. Write it again.") from error
