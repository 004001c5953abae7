"""The towers of Qwen2-VL, 2.5 and 3 are read for still images, inside the whole model, and go back as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from peer_models import randomise, relative_error
from peers import transformers
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.surgery.merger import with_merger
from vitrail.checkpoint.write import encode, save
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import MlpMerger

TEXT = {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1},
    **{"intermediate_size": 16, "vocab_size": 99},
    "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4},
}
TOWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_vl": ("Qwen2VL", {"depth": 3, "embed_dim": 48, "hidden_size": 16, "num_heads": 3, "mlp_ratio": 2}),
    "qwen2_5_vl": (
        "Qwen2_5_VL",
        {
            **{"depth": 3, "hidden_size": 48, "intermediate_size": 60, "num_heads": 3, "out_hidden_size": 16},
            **{"window_size": 16, "fullatt_block_indexes": [1]},
        },
    ),
    "qwen3_vl": (
        "Qwen3VL",
        {
            **{"depth": 3, "hidden_size": 48, "intermediate_size": 60, "num_heads": 3, "out_hidden_size": 16},
            **{"num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1]},
        },
    ),
}


def flat_patches(image: Tensor, patch: int) -> tuple[Tensor, Tensor]:
    """(C, H, W) → patches as its processor orders them, 2×2 by 2×2, each with two equal frames; and the grid."""
    rows, columns = image.shape[1] // patch, image.shape[2] // patch
    x = image[None].repeat(2, 1, 1, 1)  # (T, C, H, W)
    x = x.view(1, 2, 3, rows // 2, 2, patch, columns // 2, 2, patch).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return x.reshape(rows * columns, -1), torch.tensor([[1, rows, columns]])


@pytest.mark.parametrize("kind", TOWERS)
@torch.no_grad()
def test_the_tower_of_qwen_gives_the_same_patches_and_goes_back(kind: str, tmp_path: Path):
    name, vision = TOWERS[kind]
    config = getattr(transformers, f"{name}Config")(vision_config={**vision, "patch_size": 4}, text_config=TEXT)
    theirs = randomise(getattr(transformers, f"{name}ForConditionalGeneration")(config))
    theirs.save_pretrained(tmp_path / "whole")
    ours = load(tmp_path / "whole")
    assert (ours.family, ours.config.channels) == (kind, 3)
    image = torch.randn(3, 40, 56, generator=torch.Generator().manual_seed(1))  # windows of 4×4 do not divide 10×14
    patches = theirs.model.visual(*flat_patches(image, 4)).last_hidden_state
    assert relative_error(ours.model()(image[None]), patches.mean(0, keepdim=True)) < 1e-5

    merged = with_merger(ours)
    norm = "rms" if kind == "qwen2_5_vl" else "layer"
    assert merged.config == ours.config.but(merger=MlpMerger(width=16, mlp_width=192, norm=norm))
    tokens = theirs.model.visual(*flat_patches(image, 4)).pooler_output[None]
    assert relative_error(merged.model()(image[None]), tokens) < 1e-5

    save(ours, tmp_path / "back")
    again = type(theirs).from_pretrained(tmp_path / "back")
    for each, tensor in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[each], tensor), each

    theirs.model.visual.save_pretrained(tmp_path / "alone")
    assert load(tmp_path / "alone").config == ours.config
    save(ours, tmp_path / "ours.safetensors", dialect="vitrail")
    with pytest.raises(VitrailError, match="written with the merger of its own file"):
        encode(load(tmp_path / "ours.safetensors"), "huggingface")

    # another patch: an equal share of the new projection for each of two frames, so that a still image gives the same
    adapted, _ = adapt(ours, {"patch": Size(8, 8), "image": Size(64, 64)})
    written = encode(adapted, "huggingface")
    frames = next(tensor for name, tensor in written.tensors.items() if name.endswith("visual.patch_embed.proj.weight"))
    assert torch.equal(frames.sum(2), adapted.tensors["embedding.weight"])
    assert written.written.config["vision_config"]["patch_size"] == 8
