"""Counts of visual tokens equal those of transformers' own processors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from random import Random

import pytest
import torch

from peers import transformers
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.plan import ledger
from vitrail.plan.reading import AnyResolution
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


def deepseek_vl() -> Count:
    """Its processor puts as many placeholders for every image, into which the aligner's tokens go."""
    whole = inspect.signature(transformers.DeepseekVLHybridProcessor.__init__)
    count = whole.parameters["num_image_tokens"].default
    return lambda size: count


COUNTS: dict[str, Callable[[], Count]] = {
    "qwen2-vl": lambda: qwen(14, 3136, 12_845_056),
    "qwen2.5-vl": lambda: qwen(14, 3136, 12_845_056),
    "qwen3-vl": lambda: qwen(16, 65_536, 16_777_216),
    "internvl3": internvl,
    "llava-next": llava_next,
    "siglip2-naflex": siglip2,
    "deepseek-vl-hybrid": deepseek_vl,
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


def numel(*modules: torch.nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def qwen2_weights() -> int:
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

    return numel(Qwen2VisionTransformerPretrainedModel(transformers.Qwen2VLConfig().vision_config))


def qwen2_5_weights() -> int:
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

    vision = transformers.Qwen2_5_VLConfig().vision_config
    vision.hidden_size, vision.out_hidden_size = 1280, 3584
    return numel(Qwen2_5_VisionTransformerPretrainedModel(vision))


def qwen3_weights() -> int:
    vision = transformers.Qwen3VLConfig().vision_config
    vision.out_hidden_size = 4096
    tower = transformers.Qwen3VLVisionModel(vision)
    return numel(tower) - numel(tower.pos_embed, tower.deepstack_merger_list)


def internvl_weights() -> int:
    from transformers.models.internvl.modeling_internvl import InternVLMultiModalProjector

    text = {"model_type": "qwen2", "hidden_size": 3584}
    config = transformers.InternVLConfig(text_config=text, vision_config={"attention_bias": True})
    tower = transformers.InternVLVisionModel(config.vision_config)
    return numel(tower, InternVLMultiModalProjector(config))


def llava_weights() -> int:
    from transformers.models.llava_next.modeling_llava_next import LlavaNextMultiModalProjector

    config = transformers.LlavaNextConfig()
    tower = transformers.CLIPVisionModel(config.vision_config)
    return numel(tower, LlavaNextMultiModalProjector(config)) - numel(tower.encoder.layers[-1], tower.post_layernorm)


WEIGHTS: dict[str, Callable[[], int]] = {
    "qwen2-vl": qwen2_weights,
    "qwen2.5-vl": qwen2_5_weights,
    "qwen3-vl": qwen3_weights,
    "internvl3": internvl_weights,
    "llava-next": llava_weights,
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_towers_and_mergers_have_the_weights_of_transformers(name: str):
    ours = vision_language(name.upper())
    assert ours is not None
    with torch.device("meta"):
        assert ledger(ours.tower).params == WEIGHTS[name]()


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_merger_gives_as_many_tokens_as_the_reading_counts(name: str):
    """On all crops together, before padding is dropped and other tokens are added."""
    ours = VISION_LANGUAGE[name]
    reading = ours.reader.read(Size(700, 900))
    merged = reading.crops * ours.on(reading).visual_tokens
    assert merged == sum(view.grid.area // view.merge**2 for view in reading.views)
    assert all(view.merge == ours.tower.merger.merge for view in reading.views if ours.tower.merger)


def test_padding_lies_where_the_processor_pads():
    """A white image, resized and padded by LLaVA-NeXT's own processor, is white where the view says that it is."""
    processor = transformers.LlavaNextImageProcessor(
        size={"shortest_edge": 336},
        crop_size={"height": 336, "width": 336},
        do_normalize=False,
        image_grid_pinpoints=[[336, 672], [672, 672], [336, 1008]],
    )
    reader = AnyResolution(resolutions=(Size(336, 672), Size(672, 672), Size(336, 1008)))
    for size in (Size(301, 500), Size(500, 301), Size(100, 290)):
        crops = processor(torch.ones(3, *size) * 255, return_tensors="pt").pixel_values[0]
        view = reader.read(size).views[1]
        rows, columns = view.crops
        whole = crops[1:].unflatten(0, (rows, columns)).permute(2, 0, 3, 1, 4).reshape(3, *view.size)
        filled = whole[0] > 0
        assert (int(filled.any(1).sum()), int(filled.any(0).sum())) == tuple(view.content)
        corner = (int(filled.any(1).long().argmax()), int(filled.any(0).long().argmax()))
        assert corner == tuple((all_ - part) // 2 for all_, part in zip(view.size, view.content, strict=True))


def test_deepseek_vls_finer_image_is_padded_as_its_processor_pads_it():
    processor = transformers.DeepseekVLHybridImageProcessor(do_normalize=False)
    for size in (Size(300, 500), Size(501, 300), Size(3, 900)):
        given = processor(torch.ones(3, *size) * 255, return_tensors="pt")
        low, high = VISION_LANGUAGE["deepseek-vl-hybrid"].reader.read(size).views
        assert tuple(given.pixel_values.shape[2:]) == tuple(low.size)
        assert tuple(given.high_res_pixel_values.shape[2:]) == tuple(high.size)
        filled = given.high_res_pixel_values[0, 0] > 0.9
        assert (int(filled.any(1).sum()), int(filled.any(0).sum())) == tuple(high.content)


def test_views_add_up_to_what_the_tower_and_the_language_model_receive():
    reading = VISION_LANGUAGE["llava-next"].reader.read(Size(600, 800))
    whole, tiles = reading.views
    assert (whole.tokens, tiles.kept, tiles.tokens) == (24 * 24, (36, 48), 36 * (48 + 1))
    assert reading.tokens == whole.tokens + tiles.tokens
    assert (reading.crops, reading.patches) == (5, 5 * 24 * 24)
    with_frame = VISION_LANGUAGE["internvl3"].reader.read(Size(800, 1200))
    assert with_frame.tokens == sum(view.tokens for view in with_frame.views) + 2
