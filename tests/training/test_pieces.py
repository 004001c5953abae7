"""Recipes, randomness, augmentation, mixing, the objective: each by its own law."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps

from small_runs import CONFIG, RICH, job_of, shapes
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.pixels import resize
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.surgery.projection import resize_projection
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.adaptive import AdaptiveEmbed
from vitrail.nn.build import build
from vitrail.nn.resample import resample_grid
from vitrail.parts import Adaptive, Patches, Prefix
from vitrail.training.augment import OPERATIONS, crop_box, flip_and_shift, rand_augment
from vitrail.training.batches import Batches, scale_at
from vitrail.training.forecast import check_memory, forecast, workload_of
from vitrail.training.job import difference
from vitrail.training.mix import draw_mixing, mix, soft_labels
from vitrail.training.objective import Objective, Teacher, with_patch
from vitrail.training.random import order, uniform
from vitrail.training.recipe import NOTES, RECIPES, Distillation, Recipe, TokenBudget, recipe_from_text

PICTURES = np.random.default_rng(1).integers(0, 256, (5, 14, 18, 3), dtype=np.uint8)
BATCH = torch.from_numpy(PICTURES).permute(0, 3, 1, 2).contiguous()


# ── recipes ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("recipe", [RICH, Recipe(distillation=Distillation(what="token")), *RECIPES.values()])
def test_a_recipe_survives_json(recipe: Recipe):
    assert recipe_from_text(recipe.to_json()) == recipe


def test_every_recipe_has_a_note():
    assert NOTES.keys() == RECIPES.keys()


def test_a_recipe_is_read_from_toml():
    text = 'steps = 7\nlr = 0.01\nimages = ["32", "48x64"]\n[distillation]\nkind = "distillation"\nwhat = "features"\n'
    expected = Recipe(steps=7, lr=0.01, images=(Size(32, 32), Size(48, 64)), distillation=Distillation(what="features"))
    assert recipe_from_text(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"steps": 0}', "steps 0 is not a positive"),
        ("lr = -1.0", "lr -1.0"),
        ("learning_rate = 1.0", "unknown key learning_rate"),
        ("batch = 7\nmixup = 0.2", "without a partner"),
        ("what is this", "neither JSON nor TOML"),
    ],
)
def test_a_wrong_recipe_is_one_line(text: str, said: str):
    with pytest.raises(VitrailError, match=said) as caught:
        recipe_from_text(text)
    assert "\n" not in str(caught.value)


def test_the_learning_rate_climbs_linearly_and_falls_as_half_a_cosine():
    recipe = Recipe(steps=100, warmup=0.1, lr=1.0, min_lr=0.2)
    rates = [recipe.lr_at(step) for step in range(100)]
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 10)
    closed = [0.2 + 0.4 * (1 + math.cos(math.pi * k / 90)) for k in range(1, 91)]
    np.testing.assert_allclose(rates[10:], closed)


def test_a_difference_names_the_place_and_both_values():
    job = job_of(RICH)
    other = dataclasses.replace(job, recipe=RICH.but(lr=0.1), config=CONFIG.but(depth=3))
    assert difference(job, other) == ["config.depth 2 → 3", "recipe.lr 0.003 → 0.1"]
    assert difference(job, job_of(RICH)) == []


# ── randomness and order ────────────────────────────────────────────────────────────────────────────────────────


def test_an_image_draws_the_same_whatever_is_beside_it():
    epochs, indices = np.array([0, 0, 3]), np.array([5, 9, 5])
    together = uniform(7, epochs, indices, 6)
    for row in range(3):
        np.testing.assert_array_equal(uniform(7, epochs[row : row + 1], indices[row : row + 1], 6)[0], together[row])
    assert len(np.unique(together)) == 18


def test_draws_are_uniform_and_uncorrelated():
    """40,000 draws: mean, variance and neighbours' correlation within four deviations of the ideal."""
    draws = uniform(0, np.zeros(10_000, int), np.arange(10_000), 4)
    assert abs(draws.mean() - 0.5) < 4 / math.sqrt(12 * draws.size)
    assert abs(draws.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.04


def test_an_epoch_shows_every_image_once_in_its_own_order():
    batches = Batches(shapes(), Recipe(batch=8), preprocessing=Preprocessing(image=CONFIG.image), classes=4)
    assert sorted(order(0, 0, 40)) == list(range(40))
    assert (order(0, 0, 40) != order(0, 1, 40)).any()
    labels = torch.cat([batches(step)[0].targets for step in range(5)]).argmax(1)
    assert torch.bincount(labels).tolist() == [10, 10, 10, 10]


def test_processes_share_a_batch_without_overlap():
    recipe = RICH.but(images=(), patches=())
    make = {"preprocessing": Preprocessing(image=CONFIG.image), "classes": 4}
    whole = Batches(shapes(), recipe.but(accumulate=1), **make)(4)[0]
    halves = [Batches(shapes(), recipe.but(accumulate=1), rank=rank, world=2, **make)(4)[0] for rank in (0, 1)]
    assert torch.equal(torch.cat([half.images for half in halves]), whole.images)
    assert torch.equal(torch.cat([half.targets for half in halves]), whole.targets)


# ── augmentation ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_picture_that_is_mapped_from_a_file_is_read_and_left_as_it_is():
    """Such an array cannot be written to, of which torch would warn: in these tests a warning is an error."""
    picture = PICTURES[0].copy()
    picture.flags.writeable = False
    for found in (resize(picture, Size(14, 18)), Preprocessing(image=Size(14, 18)).pixels(picture).pixels):
        assert found.tolist() == PICTURES[0].tolist()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_a_batch_is_the_operation_on_each(name: str):
    strength = torch.tensor([0.3, -0.3, 0.9, -0.9, 0.0])
    together = OPERATIONS[name](BATCH, strength)
    assert together.dtype == torch.uint8
    for row in range(5):
        alone = OPERATIONS[name](BATCH[row : row + 1], strength[row : row + 1])
        assert torch.equal(together[row], alone[0])


@pytest.mark.parametrize("name", ["rotate", "shear_x", "translate_y", "brightness", "contrast", "colour", "sharpness"])
def test_no_strength_changes_nothing(name: str):
    assert (OPERATIONS[name](BATCH, torch.zeros(5)).int() - BATCH.int()).abs().max() <= 1


@pytest.mark.parametrize(
    ("name", "pillow", "tolerance"),
    [
        ("autocontrast", lambda image: ImageOps.autocontrast(image), 1),
        ("solarize", lambda image: ImageOps.solarize(image, 128), 0),
        ("posterize", lambda image: ImageOps.posterize(image, 6), 0),
        ("brightness", lambda image: ImageEnhance.Brightness(image).enhance(1.45), 1),
        ("colour", lambda image: ImageEnhance.Color(image).enhance(1.45), 1),
        ("contrast", lambda image: ImageEnhance.Contrast(image).enhance(1.45), 1),
    ],
)
def test_colour_operations_are_pillows(name: str, pillow, tolerance: int):
    """At strength one half; Pillow rounds its grey to whole numbers, hence 1."""
    ours = OPERATIONS[name](BATCH, torch.full((5,), 0.5)).permute(0, 2, 3, 1).numpy()
    for own, picture in zip(ours, PICTURES, strict=True):
        theirs = np.asarray(pillow(Image.fromarray(picture)))
        assert np.abs(own.astype(int) - theirs.astype(int)).max() <= tolerance


def test_a_quarter_turn_turns():
    """Thrice 30° by strength 1 is the picture turned by 90°, on a square, up to interpolation."""
    square = torch.zeros(1, 1, 21, 21, dtype=torch.uint8)
    square[..., 2:8, 9:12] = 255
    turned = square
    for _ in range(3):
        turned = OPERATIONS["rotate"](turned, torch.ones(1))
    row, column = (turned[0, 0] == turned.max()).nonzero().float().mean(0).tolist()
    assert row == pytest.approx(10, abs=1.5)
    assert abs(column - 10) == pytest.approx(5.5, abs=1.5)


def test_rand_augment_draws_per_image():
    draws = torch.from_numpy(uniform(0, np.zeros(5, int), np.arange(5), 16))
    whole = rand_augment(BATCH, operations=2, magnitude=0.5, draws=draws)
    for row in range(5):
        alone = rand_augment(BATCH[row : row + 1], operations=2, magnitude=0.5, draws=draws[row : row + 1])
        assert torch.equal(whole[row], alone[0])


def test_flip_and_shift_move_pixels_and_make_none():
    draws = torch.tensor([[0.1, 0.0, 0.5], [0.9, 0.99, 0.99]]).double()
    flipped, moved = flip_and_shift(BATCH[:2], flip=True, shift=2, draws=draws)
    assert torch.equal(flipped[:, 2:], BATCH[0, :, :-2].flip(2))
    assert torch.equal(flipped[:, :2], BATCH[0, :, :1].flip(2).expand(-1, 2, -1))
    assert torch.equal(moved[:, :-2, :-2], BATCH[1, :, 2:, 2:])


def test_a_crop_lies_inside_and_keeps_its_share():
    size = Size(40, 60)
    for draws in uniform(0, np.zeros(200, int), np.arange(200), 4):
        top, left, height, width = crop_box(size, 0.3, draws)
        assert 0 <= top <= top + height <= 40
        assert 0 <= left <= left + width <= 60
        assert 0.27 < height * width / size.area <= 1


# ── mixing ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.4, 0.0), (0.0, 1.0), (0.4, 1.0)])
def test_labels_are_mixed_as_the_pixels_are(mixup: float, cutmix: float):
    """Images of one value, a class each: the mean pixel is the share of each class."""
    values = torch.arange(6.0)
    images, targets = values[:, None, None, None].expand(6, 1, 9, 11).clone(), torch.eye(6)
    mixed, labels = mix(images, targets, draw_mixing(3, mixup=mixup, cutmix=cutmix, seed=0, step=0))
    torch.testing.assert_close(mixed.mean(dim=(1, 2, 3)), labels @ values)
    torch.testing.assert_close(labels.sum(1), torch.ones(6))
    assert torch.equal(labels[0, 2:], torch.zeros(4))  # partners are neighbours


def test_soft_labels_are_torchs_label_smoothing():
    logits, labels = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 3, 1, 1, 2])
    ours = -(soft_labels(labels, 4, 0.1) * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(ours, F.cross_entropy(logits, labels, label_smoothing=0.1))


# ── scales ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_scales_are_drawn_evenly_by_step():
    found = [scale_at(RICH, step, CONFIG.image) for step in range(400)]
    for choice in ((Size(12, 16), Size(4, 4)), (Size(16, 12), Size(2, 4))):
        assert 60 < found.count(choice) < 140


def test_a_drawn_patch_is_the_resized_projection_and_its_gradient_reaches_the_weights():
    torch.manual_seed(0)
    model, images = build(CONFIG).eval(), torch.randn(2, 3, 12, 16)
    with with_patch(model, Size(2, 4)):
        ours = model(images)
    ours.sum().backward()
    assert model.embedding.weight.grad.abs().sum() > 0  # type: ignore[union-attr]
    smaller = build(CONFIG.but(embedding=Patches(patch=Size(2, 4)))).eval()
    state = model.state_dict()
    state["embedding.weight"] = resize_projection(state["embedding.weight"], Size(2, 4))
    prefix, patches = state["position.table"].split([1, 12])
    state["position.table"] = torch.cat([prefix, resample_grid(patches, old=Size(3, 4), new=Size(6, 4))])
    smaller.load_state_dict(state)
    torch.testing.assert_close(ours, smaller(images))


# ── distillation ────────────────────────────────────────────────────────────────────────────────────────────────


def teacher_of(width: int = 36, classes: int = 4, *, resize: bool = True) -> Teacher:
    torch.manual_seed(1)
    config = CONFIG.but(width=width, image=Size(16, 20), classes=classes)
    checkpoint = Checkpoint(
        config=config,
        tensors=build(config).state_dict(),
        preprocessing=Preprocessing(image=config.image, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25)),
    )
    return Teacher(checkpoint, Preprocessing(image=CONFIG.image), "cpu", resize=resize)


def test_a_teacher_sees_its_own_size_and_statistics():
    teacher, pixels = teacher_of(), torch.rand(2, 3, 16, 20)
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)))
    expected = teacher.model.vector((pixels - mean) / std)
    torch.testing.assert_close(teacher.vector((pixels - 0.5) / 0.5), expected, rtol=1e-4, atol=1e-5)


def test_a_teacher_that_does_not_resize_sees_the_size_of_the_student():
    own, student = teacher_of(), teacher_of(resize=False)
    small = torch.randn(2, 3, 12, 16)
    enlarged = F.interpolate(small, size=(16, 20), mode="bicubic", antialias=True, align_corners=False)
    torch.testing.assert_close(student.vector(small), student.model.vector(small * student.scale + student.shift))
    torch.testing.assert_close(own.vector(small), student.vector(enlarged), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("what", ["logits", "features", "token"])
def test_distillation_is_its_formula_and_trains_the_student_alone(what: str):
    teacher = teacher_of()
    torch.manual_seed(2)
    config = CONFIG.but(dropout=0.0, drop_path=0.0, prefix=Prefix(distillation=what == "token"))
    how = Distillation(what=what, weight=1.0, temperature=2.0)  # type: ignore[arg-type]
    objective = Objective(build(config), distillation=how, teacher=teacher)
    images, targets = torch.randn(3, 3, 12, 16), soft_labels(torch.tensor([0, 1, 3]), 4, 0.0)
    loss, _ = objective(images, targets)
    model, seen = objective.model, teacher.vector(images)
    decided = teacher.classify(seen)
    vector = model.vector(images)
    if what == "logits":
        p = (decided / 2).softmax(1)
        expected = 4 * (p * (p.log() - (model.classify(vector) / 2).log_softmax(1))).sum(1).mean()  # type: ignore[operator]
    elif what == "token":
        expected = F.cross_entropy(model.distillation_head(vector[:, 1]), decided.argmax(1))  # type: ignore[operator,misc]
    else:
        expected = 1 - F.cosine_similarity(objective.projection(vector), seen).mean()  # type: ignore[misc]
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert not any("teacher" in name for name in objective.state_dict())
    assert all(p.grad is None for p in teacher.model.parameters())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_a_teacher_of_other_classes_or_no_token_is_refused():
    with pytest.raises(VitrailError, match="teacher has 7 classes and the student 4"):
        Objective(build(CONFIG), distillation=Distillation(), teacher=teacher_of(classes=7))
    with pytest.raises(VitrailError, match="needs a distillation token"):
        Objective(build(CONFIG), distillation=Distillation(what="token"), teacher=teacher_of())


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_cannot_fit_is_refused_with_the_planners_advice():
    config = ViTConfig()
    workload = workload_of(config, Recipe(batch=512))
    planned = forecast(config, workload)
    assert planned is not None
    check_memory(config, workload, planned, planned.peak_bytes)
    with pytest.raises(
        VitrailError, match=r"a step needs .* GiB and 16.0 GiB are free; change first: batch \d+, accumulate"
    ):
        check_memory(config, workload, planned, 2**34)


# ── a token budget ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_token_budget_moves_the_learned_selector_to_its_share():
    torch.manual_seed(0)
    config = CONFIG.but(image=Size(16, 24), embedding=Adaptive(patches=(Size(4, 4), Size(8, 8)), selector="learned"))
    model = build(config)
    images, targets = torch.randn(32, 3, 16, 24), F.one_hot(torch.arange(32) % 4).float()
    embedding = model.embedding
    assert isinstance(embedding, AdaptiveEmbed)
    for share in (0.35, 0.9):
        objective = Objective(model, token_budget=TokenBudget(share=share))
        optimizer = torch.optim.Adam(objective.parameters(), lr=0.02)
        for _ in range(40):
            optimizer.zero_grad()
            objective(images, targets)[0].backward()
            optimizer.step()
        assert embedding.token_share(images).item() == pytest.approx(share, abs=0.08)


def test_a_token_budget_without_a_learned_selector_is_refused():
    for config in (CONFIG, CONFIG.but(image=Size(16, 24), embedding=Adaptive(patches=(Size(4, 4), Size(8, 8))))):
        with pytest.raises(VitrailError, match="token_budget needs a learned selector"):
            Objective(build(config), token_budget=TokenBudget())
