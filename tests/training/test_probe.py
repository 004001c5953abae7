"""Frozen features: the solvers by closed cases, and what brief training is worth on the four shapes."""

from __future__ import annotations

import numpy as np
import torch

from small_runs import begin, job_of
from vitrail.config import ViTConfig
from vitrail.data.shapes import Shapes
from vitrail.data.source import ArraySource
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import MaxPool, Mlp, Prefix, Stem
from vitrail.training.probe import extract, linear_probe, nearest_neighbours
from vitrail.training.random import reseed
from vitrail.training.recipe import recipe_named


def clouds(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes at 120° in the first two of five features, far apart for their spread."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    angle = 2 * torch.pi * labels / 3
    centres = 6 * torch.stack([angle.cos(), angle.sin(), *[torch.zeros(count)] * 3], dim=1)
    return centres + torch.randn(count, 5, generator=random), labels


def test_both_probes_separate_what_is_separable_and_not_what_is_not():
    train, test = clouds(90, 0), clouds(60, 1)
    assert linear_probe(train, test, 3) == 1.0
    assert nearest_neighbours(train, test, 3, k=5) == 1.0
    noise = (train[0][:, 2:], train[1]), (test[0][:, 2:], test[1])
    assert linear_probe(*noise, 3) < 0.6
    assert nearest_neighbours(*noise, 3) < 0.6


def test_the_nearest_neighbour_of_an_image_is_itself():
    train = clouds(30, 0)
    assert nearest_neighbours(train, train, 3, k=1) == 1.0


def drawn(split: str, count: int, *, seed: int) -> ArraySource:
    source = Shapes(Size(32, 32), split=split, count=count, seed=seed)  # type: ignore[arg-type]
    images, labels = zip(*(source[index] for index in range(count)), strict=True)
    return ArraySource(np.stack(images), np.array(labels), source.classes, name="shapes")


def test_a_briefly_trained_front_end_separates_the_shapes(tmp_path):
    """Patches by a stem and two blocks, a third of the recipe's steps: 90 % where the untrained features give 36 %.

    The whole recipe gives 99.3 % (its notes say so). The settings were chosen on images of seed 0; those of seed 1,
    which judge, had no part in it.
    """
    config = ViTConfig(
        image=Size(32, 32),
        embedding=Stem(patch=Size(8, 8), widths=(32, 64, 64)),
        prefix=Prefix(cls=False),
        width=64,
        depth=2,
        num_heads=4,
        mlp=Mlp(width=128),
        pool=MaxPool(),
        classes=4,
    )
    source, test = drawn("train", 2048, seed=0), drawn("test", 2048, seed=1)
    recipe = recipe_named("shapes").but(steps=250)
    facts = job_of(recipe, config, source).data

    def probe(model) -> float:
        fitted, judged = (extract(model, each, facts.preprocessing) for each in (source, test))
        return linear_probe(fitted, judged, 4)

    reseed("weights", 0)
    untrained = probe(build(config))
    trained = probe(begin(tmp_path, recipe, config=config, source=source).model)
    assert untrained < 0.5
    assert trained >= 0.85, f"{trained:.4f} against {untrained:.4f} untrained"
