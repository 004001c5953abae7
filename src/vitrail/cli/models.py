"""A model by one word: a preset, a JSON file of a config, weights, or a run's folder."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from vitrail.checkpoint.formats.directory import SUFFIXES
from vitrail.checkpoint.sources.names import names_preset, names_weights
from vitrail.config import Config, read_config
from vitrail.errors import require
from vitrail.plan.vision_language import VISION_LANGUAGE
from vitrail.presets import preset

__all__ = ["config_named"]


def config_named(name: str) -> Config:
    """Return the config that a word names. Weights are not loaded where vitrail's metadata have the config."""
    path = Path(name)
    if path.suffix == ".json":
        return read_config(path)
    if (path / "recipe.json").is_file() and (path / "config.json").is_file():  # a run, finished or not
        return read_config(path / "config.json")
    if names_preset(name):
        return preset(name)
    if names_weights(name) or path.suffix in SUFFIXES:
        return _config_of_weights(name)
    near = get_close_matches(name.strip().lower(), VISION_LANGUAGE, n=2, cutoff=0.7)
    require(
        not near, f"model {name!r} is not a preset; of vision-language models, vitrail plan takes {', '.join(near)}"
    )
    return preset(name)


def _config_of_weights(name: str) -> Config:
    from vitrail.checkpoint.header import written_config

    found = written_config(name)
    if found is None:
        from vitrail.checkpoint.read import load

        found = load(name).config
    return found
