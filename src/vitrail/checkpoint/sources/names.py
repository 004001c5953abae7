"""Names of weights → paths: a path, the bundled model, a fetched model, or a model on the Hugging Face Hub."""

from __future__ import annotations

import difflib
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from vitrail.checkpoint.formats.directory import SUFFIXES
from vitrail.checkpoint.sources.catalogue import CATALOGUE, fetched_path
from vitrail.errors import require
from vitrail.preset_names import COMMON, preset_name
from vitrail.presets import PRESETS

__all__ = [
    "DEFAULT",
    "HubName",
    "bundled_path",
    "hub_name",
    "names_preset",
    "names_weights",
    "short_name",
    "weights_path",
]

DEFAULT = "default"
"""The name of the bundled weights, accepted instead of a path; a file of that name is ./default."""
HUB = re.compile(r"(?P<prefix>hf-hub:)?(?P<repo>((?P<owner>\w[\w.-]*)/)?\w[\w.-]*)(@(?P<revision>[^\s@]+))?")


class HubName(NamedTuple):
    """A model on the Hugging Face Hub: "owner/name", and its branch, tag or commit if one was given."""

    repo: str
    revision: str | None


def weights_path(name: str | Path) -> Path:
    """Return the path of weights that are given by path or by name; a model of the Hub is downloaded if need be.

    An existing path always wins over a name of the Hub.
    """
    text = os.fspath(name)
    if text == DEFAULT:
        return bundled_path()
    if os.path.exists(text):
        return Path(text)
    if text in CATALOGUE:
        return fetched_path(text)
    hub = hub_name(text)
    if hub is not None:
        from vitrail.checkpoint.sources.hub import snapshot

        return snapshot(*hub)
    known = _preset_of(text)
    require(known is None, f"{text!r} is a preset, a model without weights; {_remedy(text, known or '')}")
    near = difflib.get_close_matches(text, [DEFAULT, *CATALOGUE], n=1, cutoff=0.75)
    require(not near, f"weights {text!r} do not exist; did you mean {near[0] if near else None!r}?")
    return Path(text)


def names_weights(name: str) -> bool:
    """Whether a name is an existing path, the bundled weights or a model of the Hub, rather than a preset."""
    return name == DEFAULT or os.path.exists(name) or hub_name(name) is not None


def names_preset(name: str) -> bool:
    """Whether a name's config is known without its weights: no path, but a preset, also by a name of the Hub."""
    return name != DEFAULT and not os.path.exists(name) and _preset_of(name) is not None


def short_name(name: str | Path) -> str:
    """Return a file's or folder's name without its place, and other names as they are: for titles and lists."""
    return Path(name).name if os.path.exists(name) else str(name)


def hub_name(text: str) -> HubName | None:
    """Read "owner/name", "owner/name@revision" or "hf-hub:owner/name"; None for what is a path or a preset.

    >>> hub_name("facebook/dinov2-small"), hub_name("hf-hub:timm/vit_tiny_patch16_224.augreg_in21k@main").revision
    (HubName(repo='facebook/dinov2-small', revision=None), 'main')
    >>> hub_name("runs/model.safetensors"), hub_name("dinov2-S/14"), hub_name("./facebook/dinov2-small")
    (None, None, None)
    """
    found = HUB.fullmatch(text)
    if found is None:
        return None
    repo, owner = found["repo"], found["owner"]
    patch = repo.rpartition("/")[2][0].isdigit()  # as in ViT-B/16, a model and no place
    path = owner is None or Path(text).suffix in SUFFIXES or os.path.isdir(owner)
    if not found["prefix"] and (patch or path):
        return None
    return HubName(repo, found["revision"])


def bundled_path() -> Path:
    return Path(str(files("vitrail.checkpoint") / "default" / "model.safetensors"))


def _preset_of(name: str) -> str | None:
    """Return the preset that a name stands for, in its own or another library's spelling."""
    own = next((each for each in PRESETS if each.lower() == name.lower()), None)
    return own or (preset_name(name) or (None,))[0]


def _remedy(name: str, known: str) -> str:
    """Say which names have weights of a preset."""
    if "." in name:
        return f"give timm/{name} for the weights on the Hugging Face Hub"
    if known in CATALOGUE:
        return f"get trained ones with: vitrail weights fetch {known}; then their name is {known}"
    same = [each for each in COMMON if "/" in each and hub_name(each) and _preset_of(each) == known]
    return f"give a file, or a model of the Hugging Face Hub, such as {(same or ['facebook/dinov2-small'])[0]}"
