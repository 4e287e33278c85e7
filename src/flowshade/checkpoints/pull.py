"""Downloading a catalogued model from the Hugging Face hub: resumable, pinned, and only when asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

from flowshade.checkpoints.catalogue import Model, Part, Source
from flowshade.checkpoints.loading import find_part, models_folder
from flowshade.errors import CheckpointError, MissingDependencyError
from flowshade.files import write_json

PINS = "revisions.json"
"""In a model's folder: which commit of each repository its files are of."""


def pull(
    model: Model,
    *,
    repo: str | None = None,
    revision: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Downloads what a model lacks into `models_folder()/NAME`, by way of huggingface_hub.

    Partial downloads resume. The mirror in $HF_ENDPOINT and the token in $HF_TOKEN are honoured, and $HF_HUB_OFFLINE is
    respected. The commit that a repository's files came from is written down, and later pulls take the same one.

    Args:
        model: which model.
        repo: take the files from this repository (OWNER/NAME), under the names that the catalogue looks for.
        revision: a branch, tag or commit; by default the one written down, else the newest.
        say: told what is being downloaded.

    Returns:
        The model's folder.

    Raises:
        CheckpointError: nothing known to download from, or a download that failed.
    """
    folder = models_folder() / model.name
    if not model.parts:
        raise CheckpointError(f"{model.name} comes with the package; there is nothing to pull.")
    pins: dict[str, str] = json.loads((folder / PINS).read_text()) if (folder / PINS).is_file() else {}
    for part in model.parts:
        if find_part(model, part) is not None:
            say(f"{part.role}: is there already")
            continue
        _pull_part(model, part, folder, repo, revision, pins, say)
        _write_pins(folder, pins)
    return folder


def _pull_part(
    model: Model,
    part: Part,
    folder: Path,
    repo: str | None,
    revision: str | None,
    pins: dict[str, str],
    say: Callable[[str], None],
) -> None:
    sources = (Source(repo, part.paths[0]), *part.sources) if repo is not None else part.sources
    if not sources:
        raise CheckpointError(
            f"where {model.name}'s {part.role} ({part.about}) is published is not known here; give its repository with "
            f"--repo OWNER/NAME, or copy it to {folder / part.paths[0]}."
        )
    failures = []
    for source in sources:
        say(f"{part.role}: {source.path} from {source.repo}, about {part.gigabytes:g} GB")
        try:
            pins[source.repo] = _download(source, folder, revision or pins.get(source.repo))
            return
        except OSError as error:  # huggingface_hub's own errors, and those of the network and the disk
            failures.append(f"{source.repo}: {' '.join(str(error).split())[:160]}")
    raise CheckpointError(
        f"{model.name}'s {part.role} could not be downloaded ({'; '.join(failures)}). Check the network, $HF_ENDPOINT "
        f"and $HF_TOKEN, or copy the file to {folder / part.paths[0]}."
    )


def _download(source: Source, folder: Path, revision: str | None) -> str:
    """Downloads a file, or a folder's files; returns the commit they are of."""
    try:
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise MissingDependencyError(
            f"downloading needs huggingface_hub, which failed to import ({error}); "
            "install it with: pip install huggingface_hub"
        ) from error
    pattern = f"{source.path}*" if source.path.endswith("/") else [source.path, f"{source.path}/*"]
    # The error of whichever HTTP client this version uses; not always an OSError.
    network_error = cast(type[Exception], HfHubHTTPError.__bases__[0])
    try:
        commit = HfApi().model_info(source.repo, revision=revision).sha
        snapshot_download(source.repo, revision=commit, allow_patterns=pattern, local_dir=folder)
    except network_error as error:
        raise ConnectionError(str(error)) from error
    if not (folder / source.path).exists():
        raise FileNotFoundError(f"{source.repo} at {commit} holds no {source.path}")
    return commit or "main"


def _write_pins(folder: Path, pins: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / PINS, pins)
