"""Clips on disk: one reader a format, Flowshade's own clip folder, videos.

    with open_clip("shots/plaza") as clip:
        for window in clip.windows(16):
            ...

Readers turn what other tools write into the one convention of `flowshade.types`, or say in a sentence why not.
"""

from flowshade.gbuffer.io.conventions import ClipConventions
from flowshade.gbuffer.io.convert import Conversion, convert
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.find import find_clips
from flowshade.gbuffer.io.folder import ClipWriter, write_clip
from flowshade.gbuffer.io.guess import Finding, Guess, guess_conventions
from flowshade.gbuffer.io.inspection import ChannelRange, Inspection, check_sheet, inspect_clip
from flowshade.gbuffer.io.reader import FORMATS, ClipInfo, ClipReader, open_clip, open_windows, read_clip
from flowshade.gbuffer.io.resize import resize
from flowshade.gbuffer.io.video import VideoReader, VideoWriter, read_video, write_video

__all__ = [
    "FORMATS",
    "ChannelRange",
    "ClipConventions",
    "ClipError",
    "ClipInfo",
    "ClipReader",
    "ClipWriter",
    "Conversion",
    "Finding",
    "Guess",
    "Inspection",
    "VideoReader",
    "VideoWriter",
    "check_sheet",
    "convert",
    "find_clips",
    "guess_conventions",
    "inspect_clip",
    "open_clip",
    "open_windows",
    "read_clip",
    "read_video",
    "resize",
    "write_clip",
    "write_video",
]
