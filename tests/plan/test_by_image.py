"""Memory against image size: samples of one shape that pass through the plan of the image itself."""

from __future__ import annotations

import pytest

from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig
from vitrail.geometry import Size
from vitrail.parts import Adaptive, Mlp, SinCos2d
from vitrail.plan import Workload, memory
from vitrail.plan.by_image import memory_by_image
from vitrail.plan.cards import card
from vitrail.plan.fit import need_bytes

SMALL = ViTConfig(image=Size(96, 160), width=24, depth=2, num_heads=3, mlp=Mlp(width=40), classes=5)
WORK = Workload(batch=3, train=True, precision="amp-bf16")


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        SMALL.but(embedding=Adaptive(), position=SinCos2d()),
        PyramidConfig(image=Size(64, 96)),
        MobileConfig(image=Size(64, 128)),
    ],
)
def test_samples_keep_the_shape_grow_and_pass_through_the_image_itself(config: Config) -> None:
    samples = memory_by_image(config, WORK)
    sizes = [sample.image for sample in samples]
    assert sizes == sorted(set(sizes))
    assert all(size.height * config.image.width == size.width * config.image.height for size in sizes)
    assert [sample.peak_bytes for sample in samples] == sorted(sample.peak_bytes for sample in samples)
    assert samples[sizes.index(config.image)].bytes == memory(config, WORK).bytes


def test_a_remainder_is_left_out() -> None:
    plain, cropped = (memory_by_image(each, WORK) for each in (SMALL, SMALL.but(image=Size(99, 163), remainder="crop")))
    assert cropped == plain


def test_a_card_decides_the_kernel_and_how_far_the_samples_go() -> None:
    work, target = Workload(batch=64, train=True, precision="fp32"), card("t4")
    near, far = (memory_by_image(SMALL, work, target, widest=widest) for widest in (2, 6))
    assert near[-1].image == Size(192, 320)
    assert far[-1].image == Size(576, 960) or (far[-1].needed_bytes or 0) >= target.visible_bytes
    assert far[-1].needed_bytes == need_bytes(SMALL.but(image=far[-1].image), work, target)
