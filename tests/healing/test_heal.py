import json
import math
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from command import call
from peers import timm, transformers
from vitrail import Checkpoint, Preprocessing, VitrailError, adapt, heal, load, save
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.healing import closed_form, distil
from vitrail.healing import heal as healing
from vitrail.healing.closed_form import Drawn, fit_grey, fit_projection, ridge
from vitrail.healing.pictures import Pictures, different, split
from vitrail.healing.score import Judge
from vitrail.healing.target import find_target
from vitrail.images.synthesize import synthesize_image
from vitrail.nn.build import build
from vitrail.nn.vit import ViT
from vitrail.parts import Mlp, Patches, Prefix

CONFIG = ViTConfig(
    image=Size(24, 32),
    embedding=Patches(patch=Size(8, 8)),
    width=24,
    depth=2,
    num_heads=3,
    mlp=Mlp(width=40),
    classes=0,
)
STEPS = 9


@pytest.fixture(scope="module")
def before() -> Checkpoint:
    torch.manual_seed(3)
    model = build(CONFIG)
    with torch.no_grad():  # as strong as trained weights, so that attention and MLP matter
        for name, parameter in model.named_parameters():
            if name.startswith("blocks") and name.endswith("weight") and parameter.ndim == 2:
                parameter.mul_(2)
    return Checkpoint(config=CONFIG, tensors=model.state_dict(), preprocessing=Preprocessing(image=CONFIG.image))


@pytest.fixture(scope="module")
def pictures() -> list[np.ndarray]:
    return [synthesize_image(seed, Size(40, 56)) for seed in range(24)]


@pytest.fixture
def few_steps(monkeypatch):
    """Steps that do not depend on the machine's speed."""
    monkeypatch.setattr(distil.Pace, "steps_in", lambda self, seconds: STEPS if seconds > 0 else 0)
    monkeypatch.setattr(distil, "EVALUATIONS", 3)
    monkeypatch.setattr(closed_form, "PATCHES_PER_VALUE", 2)


def vit(checkpoint: Checkpoint) -> ViT:
    model = checkpoint.model().requires_grad_(False)
    assert isinstance(model, ViT)
    return model


def agreement(one: Checkpoint, other: Checkpoint, images) -> float:
    """1 − cosine of vectors and patches, written out for models of one grid."""
    found = []
    for checkpoint in (one, other):
        model, steps = vit(checkpoint), checkpoint.preprocessing.squashed(checkpoint.config.image)
        with torch.no_grad():
            tokens, layout = model.features(steps(*images))
            found.append((tokens[:, layout.prefix :], model.pooled(tokens, layout)))
    (ours, a), (theirs, b) = found
    return float(2 - F.cosine_similarity(ours, theirs, dim=-1).mean() - F.cosine_similarity(a, b, dim=-1).mean()) / 2


# ── closed form ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_ridge_with_enough_patches_recovers_an_exactly_representable_projection():
    draw = torch.Generator().manual_seed(0)
    patches, truth = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((90, 13), (13, 7)))
    found = ridge(patches.T @ patches, patches.T @ patches @ truth, torch.zeros_like(truth), 1e-14)
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-9)  # float64, condition number below 10


def test_ridge_without_patches_keeps_the_resized_projection():
    prior = torch.randn(5, 3, dtype=torch.float64)
    zeros = torch.zeros(5, 5, dtype=torch.float64)
    assert torch.equal(ridge(zeros, torch.zeros_like(prior), prior, 1e-4), prior)


def test_a_fitted_projection_gives_nearer_tokens_than_a_resized_one(before, pictures):
    after, _ = adapt(before, {"patch": 10, "image": "30x40"})
    drawn = Drawn(Pictures(pictures, least=Size(30, 40), channels=3), after.preprocessing, seed=0)
    target = find_target(before, after)
    fitted = fit_projection(before, after, target, drawn)
    assert fitted is not None
    taught, resized, own = (vit(each) for each in (target.original, after, fitted))
    pairs = list(drawn.pairs(target.original.preprocessing, 64))
    wanted = torch.cat([taught.embedding(views)[0].flatten(0, 1) for _, views in pairs])
    lost, left = (
        float((torch.cat([each.embedding(images)[0].flatten(0, 1) for images, _ in pairs]) - wanted).square().mean())
        for each in (resized, own)
    )
    assert left < lost / 2


def test_a_grey_model_gives_what_the_original_gives_to_a_grey_image(before, pictures):
    steps = Preprocessing(image=CONFIG.image, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))
    coloured = before.but(preprocessing=steps)
    after, _ = adapt(coloured, {"channels": 1})
    fitted = fit_grey(
        coloured, after, find_target(coloured, after), Drawn(Pictures([], least=Size(8, 8), channels=3), steps, 0)
    )
    assert fitted is not None
    grey = torch.from_numpy(np.stack([each[:24, :32, :1] for each in pictures[:3]])).permute(0, 3, 1, 2)
    with torch.no_grad():
        wanted = vit(coloured).features(steps.normalise(grey.expand(-1, 3, -1, -1)))[0]
        found, summed = (vit(each).features(each.preprocessing.normalise(grey))[0] for each in (fitted, after))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)  # float32 sums of 64 pixels, through two blocks
    assert not torch.allclose(summed, wanted, rtol=1e-2, atol=1e-2)


# ── the whole ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "changes",
    [
        {"patch": 10, "image": "30x40"},
        {"patch": "4x8"},
        {"image": "32x24"},
        {"prefix": "cls,registers=2"},
        {"pool": "mean"},
        {"channels": 1},
        {"drop_blocks": (1,)},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_a_healed_model_is_never_worse_on_images_held_out(before, pictures, few_steps, changes):
    dropped = changes.get("drop_blocks", ())
    after, _ = adapt(before, {} if dropped else changes, drop_blocks=dropped)
    healed, report = heal(before, after, pictures, minutes=1)
    parts = split(Pictures(pictures, least=Size(40, 40), channels=3))
    judge = Judge(parts.judging, after.preprocessing, find_target(before, after).original)
    base, found = (judge(each.model()) for each in (after, healed))
    assert found.error <= base.error
    assert (found.error < base.error) == report.healed == (healed is not after)
    assert (report.before.error, report.after.error) == pytest.approx((base.error, found.error))
    assert healed.config == after.config
    assert all(healed.tensors[name].dtype == tensor.dtype for name, tensor in after.tensors.items())


def test_a_healed_patch_size_is_nearer_to_the_original_on_images_of_another_kind(before, pictures, few_steps):
    after, _ = adapt(before, {"patch": 10, "image": "30x40"})
    healed, report = heal(before, after, pictures, minutes=0)
    rng = np.random.default_rng(0)
    others = [rng.integers(0, 256, (6, 8, 3), np.uint8).repeat(7, 0).repeat(7, 1) for _ in range(5)]
    assert agreement(before, healed, others) < agreement(before, after, others)
    assert report.target == "the original at 24x32, token by token on the grid 3x4"


def test_surgery_that_changes_nothing_heals_to_itself(before, pictures):
    healed, report = heal(before, before, pictures)
    assert healed is before
    assert (report.healed, report.steps) == (False, ())
    assert report.reason == "it gives the original's features already"


def test_a_step_that_does_not_help_is_left_out(before, pictures, few_steps, monkeypatch):
    def ruin(before, after, target, drawn):
        return after.but(tensors={**after.tensors, "norm.bias": torch.full_like(after.tensors["norm.bias"], 9.0)})

    monkeypatch.setattr(healing, "FITS", {"ruin": ruin})
    after, _ = adapt(before, {"patch": 10, "image": "30x40"})
    healed, report = heal(before, after, pictures, minutes=0)
    assert healed is after
    assert [(step.name, step.kept) for step in report.steps] == [("ruin", False)]
    assert not report.healed


class _KilledError(Exception):
    pass


def _kill(moment, facts):
    if facts.get("step") == moment and "loss" in facts:
        raise _KilledError
    if facts.get("step") == 4 and moment == "signal" and "loss" in facts:
        signal.raise_signal(signal.SIGTERM)
    if moment == "fitting" and str(facts.get("doing", "")).startswith("fitting: final"):
        raise _KilledError


def test_a_healing_that_is_killed_resumes_to_the_same_weights(before, pictures, few_steps, tmp_path):
    after, _ = adapt(before, {"pool": "mean"})
    whole, report = heal(before, after, pictures, work=tmp_path / "whole")

    for moment in ("fitting", 2, 7):  # before the first state, after it, and after the second
        watch = partial(_kill, moment)
        with pytest.raises(_KilledError):
            heal(before, after, pictures, work=tmp_path / "parts", watch=watch)
    _, stopped = heal(before, after, pictures, work=tmp_path / "signal", watch=partial(_kill, "signal"))
    assert (stopped.stopped, stopped.healed) == (signal.SIGTERM, False)
    after_signal, _ = heal(before, after, pictures, work=tmp_path / "signal")
    assert all(torch.equal(after_signal.tensors[name], tensor) for name, tensor in whole.tensors.items())
    resumed, again = heal(before, after, pictures, work=tmp_path / "parts")
    assert again.curve == report.curve
    assert again.steps == report.steps
    assert report.steps[-1].name.startswith("distillation")
    assert report.healed
    assert all(torch.equal(resumed.tensors[name], tensor) for name, tensor in whole.tensors.items())
    finished, _ = heal(before, after, pictures, work=tmp_path / "parts")  # nothing is trained again
    assert all(torch.equal(finished.tensors[name], tensor) for name, tensor in whole.tensors.items())


def test_a_run_ends_early_after_a_while_without_a_new_best(before, pictures, few_steps, monkeypatch):
    monkeypatch.setattr(distil, "PATIENCE", 1)
    monkeypatch.setattr(distil, "EVALUATIONS", STEPS)
    monkeypatch.setattr(distil, "LEARNING_RATE", 50.0)  # which can only ruin it
    monkeypatch.setattr(healing, "FITS", {})
    after, _ = adapt(before, {"patch": 10, "image": "30x40"})
    healed, report = heal(before, after, pictures)
    assert len(report.curve) < STEPS
    assert healed is after


# ── what people do with it ──────────────────────────────────────────────────────────────────────────────────────


def test_a_healed_model_has_the_same_features_in_timm_and_transformers(before, pictures, tmp_path):
    after, _ = adapt(before, {"patch": 10, "image": "30x40"})
    healed, report = heal(before, after, pictures, minutes=0)
    assert report.healed
    image = torch.randn(2, 3, 30, 40)
    with torch.no_grad():
        ours, _ = healed.model().features(image)
    save(healed, tmp_path / "timm.safetensors", dialect="timm")
    theirs = timm.models.VisionTransformer(
        img_size=(30, 40), patch_size=10, embed_dim=24, depth=2, num_heads=3, mlp_ratio=40 / 24, num_classes=0
    )
    timm.models.load_checkpoint(theirs, str(tmp_path / "timm.safetensors"))
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval().forward_features(image), ours, rtol=1e-4, atol=1e-5)
    save(healed, tmp_path / "hf", dialect="huggingface")
    model = transformers.AutoModel.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(image).last_hidden_state, ours, rtol=1e-4, atol=1e-5)


def test_a_model_of_four_channels_is_healed_with_arrays(before, few_steps):
    rng = np.random.default_rng(0)
    images = [
        np.concatenate([picture, rng.integers(0, 256, (40, 56, 1), np.uint8)], axis=2)
        for picture in (synthesize_image(seed, Size(40, 56)) for seed in range(16))
    ]
    after, _ = adapt(before, {"channels": 4})
    healed, report = heal(before, after, images, minutes=0)
    assert report.after.error < 0.1 * report.before.error  # the fourth channel says nothing, which is learned
    assert healed.config.channels == 4
    with pytest.raises(VitrailError, match=r"files have 1 or 3 channels and the model takes 4; give uint8 arrays"):
        heal(before, after, [_png(image) for image in range(16)])


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "images"
    path.mkdir()
    for seed in range(18):
        (path / f"{seed:02}.png").write_bytes(_png(seed))
    return path


def _png(seed: int) -> bytes:
    import io

    stream = io.BytesIO()
    Image.fromarray(synthesize_image(seed, Size(30, 40))).save(stream, "PNG")
    return stream.getvalue()


def test_the_command_heals_and_reports(before, folder, few_steps, tmp_path, capsys):
    weights, out, page = tmp_path / "w.safetensors", tmp_path / "out.safetensors", tmp_path / "r.html"
    save(before, weights)
    (folder / "broken.jpg").write_bytes(b"not an image")
    arguments = ("--patch", "10", "--image", "30x40", "--heal", str(folder), "--minutes", "1")
    assert call("adapt", str(weights), str(out), *arguments, "--report", str(page)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Distils {STEPS} steps: about 1 minutes" in shown
    assert "Healed: the original at 24x32, token by token on the grid 3x4" in shown
    assert "left out: " in shown
    assert "broken.jpg" in shown
    assert "after surgery" in page.read_text()
    assert not (tmp_path / "out.safetensors.healing").exists()
    assert call("adapt", str(weights), str(tmp_path / "again.safetensors"), *arguments, "--json") == 0
    said = json.loads(capsys.readouterr().out)["healing"]
    assert said["healed"]
    assert said["error_after"] < said["error_before"]
    assert math.isclose(said["error_after"], 1 - (said["after"]["patches"] + said["after"]["vectors"]) / 2)
    one, two = (load(path).tensors for path in (out, tmp_path / "again.safetensors"))
    assert all(torch.equal(two[name], tensor) for name, tensor in one.items())


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_too_few_images_say_how_many_are_needed(before, pictures):
    after, _ = adapt(before, {"patch": 4})
    with pytest.raises(VitrailError, match=r"15 different images are too few to heal with; give 16 or more"):
        heal(before, after, pictures[:15])


def test_an_image_that_is_damaged_inside_is_named_wherever_it_is_used(before, pictures, few_steps):
    whole = _png(0)
    damaged = whole[: len(whole) // 2]  # its header can be read
    after, _ = adapt(before, {"patch": 10, "image": "30x40"})
    for place in (0, 5):  # to choose by, and to learn from
        images = [_png(seed) for seed in range(1, 20)]
        images.insert(place, damaged)
        _, report = heal(before, after, images, minutes=0)
        assert sum(line.startswith("left out: ") for line in report.notes) == 1
        counts = report.images
        assert counts.training + counts.choosing + counts.judging == 19


def test_one_image_a_thousand_times_is_one_image(before, pictures):
    after, _ = adapt(before, {"patch": 4})
    with pytest.raises(VitrailError, match=r"1 different image is too few to heal with; give 16 or more"):
        heal(before, after, [pictures[0]] * 1000)
    assert len(different([*pictures, *pictures])) == len(pictures)


@pytest.mark.parametrize("minutes", [-1, math.nan, math.inf])
def test_minutes_that_are_no_time_are_refused(before, pictures, minutes):
    with pytest.raises(VitrailError, match=r"minutes .* is not between 0 \(no distillation\) and 10,000; give 20"):
        heal(before, before, pictures, minutes=minutes)


def test_weights_that_are_not_finite_are_refused(before, pictures):
    after, _ = adapt(before, {"patch": 4})
    broken = after.but(
        tensors={**after.tensors, "norm.weight": torch.full_like(after.tensors["norm.weight"], math.nan)}
    )
    with pytest.raises(VitrailError, match=r"features .* are not finite on these images; look for NaN"):
        heal(before, broken, pictures)


def test_a_loss_that_is_not_finite_loses_nothing_that_was_gained(before, pictures, few_steps, monkeypatch):
    monkeypatch.setattr(distil, "LEARNING_RATE", 1e20)
    after, _ = adapt(before, {"patch": 10, "image": "30x40"})
    healed, report = heal(before, after, pictures)
    assert report.healed
    assert report.after.error < report.before.error
    assert all(tensor.isfinite().all() for tensor in healed.tensors.values())


def test_images_to_judge_on_must_be_others(before, pictures):
    after, _ = adapt(before, {"patch": 4})
    with pytest.raises(VitrailError, match=r"2 of 2 images to judge on are also images to heal with; give others"):
        heal(before, after, pictures, judge=pictures[:2])


def test_a_folder_of_another_healing_is_left_alone(before, pictures, few_steps, tmp_path):
    after, _ = adapt(before, {"patch": 10, "image": "30x40"})
    heal(before, after, pictures, work=tmp_path / "work")
    with pytest.raises(VitrailError, match=r"holds the healing of other weights, images or options"):
        heal(before, after, pictures, work=tmp_path / "work", seed=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not lose")
    with pytest.raises(VitrailError, match=r"mine holds thesis.txt and no healing; choose another folder"):
        heal(before, after, pictures, work=tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "do not lose"


def test_what_has_no_patches_on_one_grid_is_refused(before, pictures):
    from vitrail import preset

    swin = preset("swin-T", classes=0)
    other = Checkpoint(config=swin, tensors={}, preprocessing=Preprocessing(image=swin.image))
    with pytest.raises(VitrailError, match=r"PyramidConfig has no patch tokens on one grid"):
        heal(other, other, pictures)


def test_a_registered_prefix_is_no_patch(before):
    """Patches are compared with patches, whatever precedes them."""
    after, _ = adapt(before, {"prefix": Prefix(registers=3)})
    judge = Judge(
        split(Pictures([synthesize_image(s, Size(24, 32)) for s in range(16)], least=CONFIG.image, channels=3)).judging,
        after.preprocessing,
        before,
    )
    quiet = {**after.tensors, "prefix.registers": torch.zeros_like(after.tensors["prefix.registers"])}
    assert judge(after.but(tensors=quiet).model()).patches > 0.5
