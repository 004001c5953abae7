"""Counts of visual tokens equal those of transformers' own processors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random

import pytest
import torch

from peers import transformers
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.plan import ledger
from vitrail.plan.vision_language import VISION_LANGUAGE, vision_language


@cache
def sizes() -> list[Size]:
    """A thousand, of all shapes: sides spread evenly on a logarithmic scale."""
    random = Random(22)
    return [Size(*(round(16 * 300 ** random.random()) for _ in range(2))) for _ in range(1000)]


Count = Callable[[Size], int]


def qwen(patch: int, low: int, high: int) -> Count:
    processor = transformers.Qwen2VLImageProcessor(patch_size=patch, min_pixels=low, max_pixels=high)
    return lambda size: processor.get_number_of_image_patches(*size) // 4


def internvl() -> Count:
    processor = transformers.GotOcr2ImageProcessor(size={"height": 448, "width": 448}, crop_to_patches=True)
    return lambda size: 2 + 256 * processor.get_number_of_image_patches(*size)


def llava_next() -> Count:
    whole = transformers.LlavaNextProcessor
    processor = whole.__new__(whole)  # without a tokenizer, which a count does not need
    processor.image_processor = transformers.LlavaNextImageProcessor(size={"shortest_edge": 336})
    processor.patch_size, processor.num_additional_image_tokens = 14, 1
    processor.vision_feature_select_strategy = "default"
    return lambda size: processor._get_num_multimodal_tokens([tuple(size)]).num_image_tokens[0]


def siglip2() -> Count:
    from transformers.models.siglip2.image_processing_siglip2 import get_image_size_for_max_num_patches

    def count(size: Size) -> int:
        height, width = get_image_size_for_max_num_patches(*size, patch_size=16, max_num_patches=256)
        return (height // 16) * (width // 16)

    return count


COUNTS: dict[str, Callable[[], Count]] = {
    "qwen2-vl": lambda: qwen(14, 3136, 12_845_056),
    "qwen2.5-vl": lambda: qwen(14, 3136, 12_845_056),
    "qwen3-vl": lambda: qwen(16, 65_536, 16_777_216),
    "internvl3": internvl,
    "llava-next": llava_next,
    "siglip2-naflex": siglip2,
}


@pytest.mark.parametrize("name", VISION_LANGUAGE)
def test_tokens_are_those_of_the_processor_on_a_thousand_sizes(name: str):
    reader, count, wrong = VISION_LANGUAGE[name].reader, COUNTS[name](), []
    for size in sizes():
        try:
            expected = count(size)
        except ValueError:  # the processor refuses the shape
            with pytest.raises(VitrailError, match="more than 200 times"):
                reader.read(size)
            continue
        if reader.read(size).tokens != expected:
            wrong.append((size, reader.read(size).tokens, expected))
    assert not wrong


def test_towers_have_the_weights_of_transformers_without_their_mergers():
    with torch.device("meta"):
        theirs = transformers.Qwen2_5_VLModel.config_class().vision_config
        theirs.hidden_size, theirs.out_hidden_size = 1280, 3584
        from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

        tower = Qwen2_5_VisionTransformerPretrainedModel(theirs)
    merger = sum(parameter.numel() for parameter in tower.merger.parameters())
    count = sum(parameter.numel() for parameter in tower.parameters()) - merger
    ours = vision_language("Qwen2.5-VL")
    assert ours is not None
    assert ledger(ours.tower).params == count
