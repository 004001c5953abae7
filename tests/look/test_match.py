from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitrail import match, parts, synthesize_image
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import Config, MobileConfig, MobileStage, PyramidConfig, PyramidStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.look import best_buddies, likeness, record, token_cosines
from vitrail.look.likeness import token_shares
from vitrail.nn.build import build
from vitrail.nn.remainder import pad_batch
from vitrail.nn.vit import ViT

PLAIN = ViTConfig(
    image=Size(20, 28),
    embedding=parts.Patches(patch=Size(4, 4)),
    prefix=parts.Prefix(registers=2),
    width=24,
    depth=2,
    num_heads=3,
    mlp=parts.Mlp(width=32),
    classes=0,
)
EXACT: dict[str, Config] = {
    "mean": PLAIN.but(pool=parts.MeanPool()),
    "mean, normed after pooling": PLAIN.but(pool=parts.MeanPool(), final_norm="pooled"),
    "mean, RMS norm after pooling": PLAIN.but(pool=parts.MeanPool(), final_norm="pooled", norm="rms"),
    "mean, without a norm": PLAIN.but(pool=parts.MeanPool(), final_norm="none"),
    "mean, without a prefix": PLAIN.but(pool=parts.MeanPool(), prefix=parts.Prefix(cls=False)),
    "CLS and mean": PLAIN.but(pool=parts.ClsMeanPool()),
    "adaptive": PLAIN.but(
        image=Size(24, 32),
        embedding=parts.Adaptive(patches=(Size(4, 4), Size(8, 8)), threshold=1.0),
        pool=parts.MeanPool(),
    ),
    "pyramid": PyramidConfig(
        image=Size(24, 40),
        stages=(PyramidStage(width=12, depth=1, num_heads=3), PyramidStage(width=24, depth=1, num_heads=4)),
        attention=parts.WindowedAttention(window=Size(2, 3)),
        classes=0,
    ),
    "mobile": MobileConfig(
        image=Size(64, 64),
        stages=(MobileStage(width=12, stride=2, transformer_width=24, transformer_depth=1),),
        classes=0,
    ),
}
APPROXIMATE = {
    "CLS": PLAIN,
    "CLS, normed after pooling": PLAIN.but(final_norm="pooled"),
    "maximum": PLAIN.but(pool=parts.MaxPool()),
    "attention": PLAIN.but(pool=parts.AttentionPool(num_heads=3, mlp_width=32)),
}


def recordings(config: Config, *, sharp: float = 0.3):
    """Two images of a model whose weights are all away from zero and one, norms and biases too."""
    torch.manual_seed(7)
    model = build(config).eval()
    for parameter in model.parameters():
        parameter.data.add_(sharp * torch.randn_like(parameter))
    images = torch.randn(2, 3, *config.image)
    return [record(model, image[None]) for image in images]


@pytest.mark.parametrize("name", EXACT)
def test_the_parts_of_either_image_add_up_to_the_cosine_of_the_models_own_vectors(name: str):
    first, second = recordings(EXACT[name])
    alike = likeness(first, second)
    vectors = [each.model.pooled(*each.features).double() for each in (first, second)]
    expected = F.cosine_similarity(vectors[0], vectors[1]).item()
    assert alike.approximation == ""
    assert alike.score == pytest.approx(expected, abs=1e-6)
    assert alike.vectors == pytest.approx(expected, abs=1e-6)
    for side in (alike.first, alike.second):
        assert side.sum().item() + alike.prefix == pytest.approx(alike.score, abs=1e-6)
    assert alike.first.std() > 0
    assert (alike.prefix != 0) == (name == "CLS and mean")


@pytest.mark.parametrize("name", APPROXIMATE)
def test_a_pool_that_is_no_sum_says_so_and_its_parts_add_up_to_the_cosine_of_mean_tokens(name: str):
    first, second = recordings(APPROXIMATE[name])
    alike = likeness(first, second)
    means = []
    for each in (first, second):
        assert isinstance(each.model, ViT)
        tokens, layout = each.features
        mean = tokens[:, layout.prefix :].mean(dim=1)
        means.append((each.model.norm(mean) if each.model.config.final_norm == "pooled" else mean).double())  # type: ignore[misc]
    assert "which is no sum over patches" in alike.approximation
    assert alike.score == pytest.approx(F.cosine_similarity(means[0], means[1]).item(), abs=1e-6)
    assert alike.first.sum().item() == pytest.approx(alike.score, abs=1e-6)
    vectors = [each.model.pooled(*each.features).double() for each in (first, second)]
    assert alike.vectors == pytest.approx(F.cosine_similarity(vectors[0], vectors[1]).item(), abs=1e-6)


def test_padding_has_no_part_and_no_kin():
    torch.manual_seed(2)
    model = build(PLAIN.but(pool=parts.MeanPool(), remainder="pad")).eval()
    with torch.no_grad():
        image, sizes = pad_batch([torch.randn(3, 12, 28), torch.randn(3, 20, 28)])
        whole = record(model, torch.randn(1, 3, 20, 28))
        tokens, layout = model.features(image, sizes)
    assert layout.mask is not None
    padded = replace(whole, features=(tokens[:1], replace(layout, mask=layout.mask[:1])))
    alike = likeness(padded, whole)
    assert alike.first[3 * 7 :].abs().sum() == 0
    assert alike.first.sum().item() == pytest.approx(alike.score, abs=1e-6)
    assert token_shares(padded).sum(dim=0) == pytest.approx(
        model.pooled(*padded.features)[0].detach().double(), abs=1e-5
    )
    cosines = token_cosines(padded.features, whole.features)
    assert (cosines[3 * 7 :] == -1).all()


def test_cosines_and_best_buddies_are_those_of_a_plain_loop():
    first, second = recordings(PLAIN)
    cosines = token_cosines(first.features, second.features).numpy()
    one, other = (each.features[0][0, 3:].numpy() for each in (first, second))
    for i, j in ((0, 0), (3, 17), (34, 8)):
        expected = one[i] @ other[j] / np.linalg.norm(one[i]) / np.linalg.norm(other[j])
        assert cosines[i, j] == pytest.approx(expected, abs=1e-6)
    found = best_buddies(torch.from_numpy(cosines))
    expected = {(i, int(row.argmax())) for i, row in enumerate(cosines) if int(cosines[:, row.argmax()].argmax()) == i}
    assert {tuple(pair) for pair in found.pairs.tolist()} == expected
    assert found.cosines.tolist() == sorted((float(cosines[pair]) for pair in expected), reverse=True)


def checkpoint_of(config: ViTConfig) -> Checkpoint:
    torch.manual_seed(3)
    tensors = build(config).state_dict()
    return Checkpoint(config=config, tensors=tensors, preprocessing=Preprocessing(image=config.image, crop_share=0.9))


def test_an_image_is_its_own_kin_patch_by_patch_and_has_score_1():
    picture = synthesize_image(4, Size(60, 84))
    found = match(picture, picture, checkpoint_of(PLAIN))
    assert found.likeness.score == pytest.approx(1, abs=1e-6)
    assert sorted(found.buddies.pairs.tolist()) == [[patch, patch] for patch in range(5 * 7)]


def test_images_of_different_shapes_keep_them_with_whole_and_places_are_in_their_pixels():
    wide, tall = synthesize_image(4, Size(40, 120)), synthesize_image(5, Size(120, 60))
    found = match(wide, tall, checkpoint_of(PLAIN), whole=True)
    assert [layout.grid for layout in found.layouts] == [Size(3, 10), Size(8, 4)]
    assert found.cosines.shape == (30, 32)
    assert found.first.place(found.layouts[0], 0) == pytest.approx((40 / 6, 6))
    assert found.first.place(found.layouts[0], 29) == pytest.approx((40 * 5 / 6, 114))
    assert found.second.place(found.layouts[1], 5) == pytest.approx((120 * 1.5 / 8, 60 * 1.5 / 4))


def test_a_cropped_images_places_leave_out_what_the_crop_leaves_out():
    picture = synthesize_image(4, Size(100, 280))  # twice as wide as the model's input, of which 9/10 are kept
    found = match(picture, picture, checkpoint_of(PLAIN))
    rows, columns = zip(*(found.first.place(found.layouts[0], patch) for patch in (0, 34)), strict=True)
    assert sum(rows) / 2 == pytest.approx(50, abs=1)
    assert sum(columns) / 2 == pytest.approx(140, abs=2)
    assert columns[1] - columns[0] == pytest.approx(6 * 0.9 * 140 / 7, rel=0.05)


def test_each_image_passes_through_the_model_once(monkeypatch: pytest.MonkeyPatch):
    passes = []
    forward = ViT.forward
    monkeypatch.setattr(ViT, "forward", lambda *given: passes.append(1) or forward(*given))
    match(synthesize_image(1), synthesize_image(2), checkpoint_of(PLAIN), layer=0)
    assert len(passes) == 2


def test_too_many_patches_are_refused():
    with pytest.raises(VitrailError, match="image 400x400 has 10,000 patches, above 4,096; use a smaller one"):
        match(synthesize_image(1), synthesize_image(2), checkpoint_of(PLAIN), image=400)
