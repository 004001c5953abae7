"""Clips to embed: a folder of numbered frames is one clip, and a model takes some of its frames, evenly spaced.

Every folder that has images directly in it is a clip; folders of clips may be nested. Videos are not decoded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.checkpoint.pixels import Prepared
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.errors import VitrailError, require
from vitrail.images.decode import ImageError
from vitrail.images.folder import SUFFIXES
from vitrail.vectors.job.inputs import Input, id_of

__all__ = ["chosen_frames", "clip_inputs", "facts_of_frames", "frames_of", "prepare_clip", "refuse_video"]

VIDEOS = frozenset((".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".wmv", ".flv", ".ts", ".ogv"))


def refuse_video(path: str | os.PathLike[str]) -> None:
    """Raise an error if a file is a video by its name, with the command that writes its frames."""
    name, ending = os.path.splitext(os.path.basename(path))
    require(
        ending.lower() not in VIDEOS,
        f"{os.fspath(path)} is a video, and vitrail reads frames; write them with "
        f"mkdir -p clips/{name} && ffmpeg -i {os.path.basename(path)} clips/{name}/%06d.png, and give clips",
    )


def clip_inputs(root: Path, below: str = "") -> Iterator[Input]:
    """Yield a folder's clips, sorted by path."""
    folder = root / below
    try:
        with os.scandir(folder) as entries:
            listed = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda each: each.name)
    except OSError as error:
        raise VitrailError(
            f"{folder} cannot be listed ({error.strerror}), and its clips would be skipped; give access to it"
        ) from None
    for entry in listed:
        refuse_video(entry.path)
    count, size, modified = facts_of_frames(frames_of(folder))
    if count:
        name = below.rstrip("/") or root.name
        yield Input(id_of(name), "clip", os.fsencode(folder), -1, count, size, modified)
    for entry in listed:
        if entry.is_dir(follow_symlinks=False):
            yield from clip_inputs(root, f"{below}{entry.name}/")


def frames_of(folder: Path) -> list[Path]:
    """Return the images directly in a folder, ordered by the numbers in their names: frame2 before frame10."""
    names = [name for name in os.listdir(folder) if not name.startswith(".")]
    frames = [name for name in names if os.path.splitext(name)[1].lower() in SUFFIXES]
    return [folder / name for name in sorted(frames, key=_by_number)]


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def facts_of_frames(frames: Sequence[Path]) -> tuple[int, int, int]:
    """Return what tells whether a clip has changed: the number of frames, their bytes, and the latest time."""
    found = [frame.stat() for frame in frames if frame.exists()]
    return len(frames), sum(each.st_size for each in found), max((each.st_mtime_ns for each in found), default=0)


def chosen_frames(frames: Sequence[Path], count: int) -> list[Path]:
    """Return `count` frames, each from the middle of an equal part of the clip.

    >>> chosen_frames([Path(f"{number}.png") for number in range(10)], 4)
    [PosixPath('1.png'), PosixPath('3.png'), PosixPath('6.png'), PosixPath('8.png')]
    """
    if len(frames) < count:
        raise ImageError(
            f"a clip of {len(frames)} frames, and the model takes {count}; give more frames, or adapt the model with "
            "--frames"
        )
    return [frames[(2 * place + 1) * len(frames) // (2 * count)] for place in range(count)]


def prepare_clip(
    clip: Any, steps: Preprocessing, count: int, *, decode: Callable[..., Prepared], exact: bool
) -> Prepared:
    """Decode the chosen ones of a clip's frames, or of the folder that has them → (F, H, W, C)."""
    if isinstance(clip, list):
        frames = clip
    else:
        folder = isinstance(clip, str | Path) and Path(clip).is_dir()
        require(folder, f"the model takes clips of {count} frames; give a folder of frames, not an image")
        frames = frames_of(Path(clip))
    images = [decode(frame, steps=steps, exact=exact) for frame in chosen_frames(frames, count)]
    return Prepared(pixels=np.stack([image.pixels for image in images]), original=images[0].original)
