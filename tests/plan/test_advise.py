from dataclasses import replace

import pytest

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.images.measure import ADAPTIVE
from vitrail.images.survey import Detail, Survey
from vitrail.parts import Adaptive, Hierarchical, Learned, Patches, Rotary
from vitrail.plan import advise as advise_module
from vitrail.plan.advise import advise
from vitrail.plan.cards import card
from vitrail.plan.fit import largest_batch, need_bytes
from vitrail.plan.guidance import APPLICATIONS, MISFITS, Question
from vitrail.plan.measured import DATA_HUNGER, HUNGER_COMMAND
from vitrail.plan.rank import MODELS, input_size, rank, tokens_per_object, training


def surveyed(**changes) -> Survey:
    """Photographs of one shape, with ordinary detail."""
    shares = ((4, 0.05), (8, 0.1), (14, 0.2), (16, 0.25), (32, 0.5))
    base = Survey(
        images=9,
        failed=(),
        smallest=Size(480, 480),
        median=Size(600, 600),
        largest=Size(700, 700),
        aspect_low=1.0,
        aspect_median=1.0,
        aspect_high=1.0,
        image=Size(224, 224),
        details=tuple(
            Detail(patch=Size(side, side), within_share=share, above_nyquist_share=share) for side, share in shares
        ),
        lost_by_resizing={224: 0.02, 384: 0.01, 512: 0.0, 768: 0.0, 1024: 0.0},
        adaptive_tokens=700,
    )
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("application", "patch", "embedding"),
    [
        ("classification", 16, Patches),
        ("medical", 8, Hierarchical),
        ("satellite", 32, Adaptive),
        ("face", 16, Patches),
        ("detection", 16, Hierarchical),
        ("mobile", 32, Patches),
    ],
)
def test_an_application_alone_gives_its_starting_point(application, patch, embedding):
    found = advise(Question(application=application))
    assert found.ranking[0].patch == Size(patch, patch)
    assert isinstance(found.config.embedding, embedding)
    assert {decision.about for decision in found.decisions} == {"image", "patch", "embedding", "positions", "model"}
    assert all(decision.why for decision in found.decisions)
    assert found.alternatives == APPLICATIONS[application].alternatives != ()


def test_reasons_for_a_vit_follow_from_the_amount_of_data():
    few, many = (advise(Question(data_size=count)) for count in (5_000, 2_000_000))
    assert {reason.name for reason in few.reasons} - {reason.name for reason in many.reasons} == {"transfer"}
    assert {reason.name for reason in many.reasons} - {reason.name for reason in few.reasons} == {"much data"}


def test_faces_get_patches_that_overlap():
    embedding = advise(Question(application="face")).config.embedding
    assert isinstance(embedding, Patches)
    assert embedding.stride == Size(12, 12)


def test_smaller_objects_get_smaller_patches():
    sides = [
        rank(Question(image=Size(448, 448), object_pixels=pixels))[0].patch.height for pixels in (8, 16, 32, 64, 128)
    ]
    assert sides == sorted(sides)
    assert sides[0] < sides[-1]


def test_finer_detail_gets_smaller_patches():
    fine = surveyed(
        details=tuple(replace(d, above_nyquist_share=min(0.98, 4 * d.within_share)) for d in surveyed().details)
    )
    coarse = rank(Question(image=Size(224, 224), survey=surveyed()))[0]
    finer = rank(Question(image=Size(224, 224), survey=fine))[0]
    assert finer.patch.height < coarse.patch.height


def test_every_candidate_trains_on_the_card():
    target = card("6GiB")
    found = rank(Question(image=Size(512, 512), card=target, data_size=10**7))
    assert {candidate.model for candidate in found} < set(MODELS)
    for candidate in found:
        assert need_bytes(candidate.config, training(target), target) <= target.visible_bytes


def test_scores_are_the_product_of_factors_and_fall():
    found = rank(Question(object_pixels=30, card=card("rtx-4090"), survey=surveyed()))
    scores = [candidate.score for candidate in found]
    assert scores == sorted(scores, reverse=True)
    for candidate in found:
        product = 1.0
        for factor in candidate.factors.values():
            assert 0 < factor <= 1
            product *= factor
        assert candidate.score == pytest.approx(product)


def test_more_data_allows_larger_models():
    models = [rank(Question(data_size=size))[0].model for size in (5_000, 50_000, 500_000, 5_000_000)]
    assert [MODELS.index(model) for model in models] == sorted(MODELS.index(model) for model in models)
    assert models[0] == "S"


def test_the_batch_is_what_fits():
    target = card("rtx-3060")
    found = advise(Question(image=Size(384, 384), card=target, data_size=50_000))
    assert found.max_batch == largest_batch(found.config, training(target), target)
    assert found.batch is not None
    assert found.max_batch is not None
    assert found.batch <= found.max_batch
    assert found.batch & (found.batch - 1) == 0


def test_old_cards_train_in_fp16():
    assert advise(Question(card=card("t4"))).precision == "amp-fp16"


def test_the_input_keeps_the_images_detail_and_shape():
    assert input_size(Question(survey=surveyed())) == Size(224, 224)
    assert input_size(Question(survey=surveyed(lost_by_resizing={224: 0.2, 384: 0.06, 512: 0.01}))) == Size(512, 512)
    wide = surveyed(median=Size(384, 640), aspect_low=1.66, aspect_median=1.667, aspect_high=1.67)
    assert input_size(Question(survey=wide)) == Size(160, 288)


def test_objects_shrink_with_the_image():
    question = Question(survey=surveyed(median=Size(448, 896)), object_pixels=64)
    assert tokens_per_object(question, Size(224, 224), Size(16, 16)) == 64 * 0.5 / 16


def test_small_objects_in_large_images_get_a_larger_input():
    question = Question(survey=surveyed(median=Size(800, 800)), object_pixels=40)
    assert rank(question)[0].image.height > 224


def test_varied_shapes_get_rotary_positions_and_one_shape_a_table():
    assert isinstance(advise(Question(survey=surveyed())).config.position, Learned)
    varied = surveyed(aspect_low=0.7, aspect_high=1.5)
    assert isinstance(advise(Question(survey=varied)).config.position, Rotary)


def test_flat_images_get_adaptive_patches_and_busy_ones_do_not():
    image = Size(512, 512)
    flat = surveyed(image=image, adaptive_tokens=1_200)
    busy = surveyed(image=image, adaptive_tokens=4_000)
    assert advise(Question(application="satellite", image=image, survey=flat)).config.embedding == ADAPTIVE
    assert isinstance(advise(Question(application="satellite", image=image, survey=busy)).config.embedding, Patches)
    assert advise_module.ADAPTIVE == ADAPTIVE


@pytest.mark.parametrize(
    ("question", "name"),
    [
        (Question(data_size=300), "very little data"),
        (Question(data_size=5_000), "little data"),
        (Question(application="mobile"), "edge device"),
        (Question(card=card("3GiB")), "edge device"),
        (Question(images_per_second=200), "real time"),
        (Question(images_per_second=2_000, card=card("t4")), "too slow"),
        (Question(survey=surveyed(median=Size(32, 32))), "simple task"),
        (Question(image=Size(1536, 2048)), "very large images"),
    ],
)
def test_it_says_when_a_vit_is_the_wrong_tool(question, name):
    found = {misfit.name: misfit for misfit in advise(question).misfits}
    assert name in found
    assert found[name].why
    assert found[name].instead


def test_ordinary_work_is_no_misfit():
    assert advise(Question(data_size=200_000, card=card("rtx-4090"))).misfits == ()
    assert len({misfit.name for misfit in MISFITS}) == len(MISFITS)


def test_what_would_change_the_answer_really_does():
    question = Question(image=Size(448, 448), object_pixels=32, card=card("rtx-4090"), data_size=50_000)
    found = advise(question)
    half = next(line for line in found.would_change if line.startswith("objects of 16 px"))
    other = rank(replace(question, object_pixels=16))[0]
    assert half == f"objects of 16 px: {other.name} at {other.image}"
    assert other.name != found.ranking[0].name


def test_advice_is_a_config_that_can_be_built_again():
    for application in APPLICATIONS:
        config = advise(Question(application=application, survey=surveyed(), object_pixels=50)).config
        assert ViTConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: Question(application="cooking"), "application 'cooking' is unknown; use one of classification"),
        (lambda: Question(object_pixels=-4), "object_pixels -4"),
        (lambda: Question(data_size=0), "data_size 0"),
        (lambda: Question(images_per_second=0), "images_per_second 0"),
        (lambda: rank(Question(card=card("100MiB"))), "no model can be trained at 224x224"),
    ],
)
def test_bad_questions_are_refused(build, reason):
    with pytest.raises(VitrailError, match=reason):
        build()


def test_advice_quotes_what_was_measured_with_about_as_many_images():
    quoted = advise(Question(data_size=4_000)).measured
    assert quoted is not None
    assert "5,000 images of CIFAR-10" in quoted
    assert str(DATA_HUNGER[5_000].cnn) in quoted
    assert HUNGER_COMMAND in quoted
    assert advise(Question()).measured is None
    assert advise(Question(data_size=10_000_000)).measured is None
