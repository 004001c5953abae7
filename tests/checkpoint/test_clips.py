"""Clips: transformers' models give transformers' outputs, and an inflated model gives the still image's features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from peers import transformers
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.surgery.projection import change_tubelet
from vitrail.checkpoint.write import save
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import (
    Learned,
    MeanPool,
    Mlp,
    NoPosition,
    Patches,
    Prefix,
    RelativeBias,
    Rotary,
    Rotary3d,
    SinCos1d,
    SinCos2d,
    SinCos3d,
    Tubelets,
)

SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40, "num_frames": 6}
DECODER = {
    "decoder_hidden_size": 12,
    "decoder_num_attention_heads": 2,
    "decoder_num_hidden_layers": 1,
    "decoder_intermediate_size": 20,
}
VJEPA = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "crop_size": 20,
    "patch_size": 4,
    "frames_per_clip": 6,
    "num_pooler_layers": 1,
    "pred_hidden_size": 12,
    "pred_num_attention_heads": 2,
    "pred_num_hidden_layers": 1,
}


def videomae(model: str, **options: Any) -> Any:
    config = transformers.VideoMAEConfig(**{**SMALL, "image_size": 20, "patch_size": 4, **options})
    return getattr(transformers, model)(config)


def vivit(model: str, **options: Any) -> Any:
    return getattr(transformers, model)(transformers.VivitConfig(**{**SMALL, "image_size": 20, **options}))


def vjepa2(model: str) -> Any:
    return getattr(transformers, model)(transformers.VJEPA2Config(**VJEPA))


PEERS = {
    "videomae": (lambda: videomae("VideoMAEModel"), lambda m, x: m(x).last_hidden_state),
    "videomae with a norm": (
        lambda: videomae("VideoMAEModel", use_mean_pooling=False, qv_bias=False),
        lambda m, x: m(x).last_hidden_state,
    ),
    "videomae, pretraining": (
        lambda: videomae("VideoMAEForPreTraining", **DECODER),
        lambda m, x: m.videomae(x).last_hidden_state,
    ),
    "videomae, classifier": (
        lambda: videomae("VideoMAEForVideoClassification", image_size=[20, 28], num_labels=5),
        lambda m, x: m(x).logits,
    ),
    "vivit": (
        lambda: vivit("VivitModel", image_size=[20, 28], tubelet_size=[3, 4, 4]),
        lambda m, x: m(x).last_hidden_state,
    ),
    "vivit, classifier": (
        lambda: vivit("VivitForVideoClassification", tubelet_size=[2, 4, 4], num_labels=5),
        lambda m, x: m(x).logits,
    ),
    "vjepa2": (lambda: vjepa2("VJEPA2Model"), lambda m, x: m(x, skip_predictor=True).last_hidden_state),
    "vjepa2, classifier": (
        lambda: vjepa2("VJEPA2ForVideoClassification"),
        lambda m, x: m.vjepa2(x, skip_predictor=True).last_hidden_state,
    ),
}


@pytest.mark.parametrize("name", PEERS)
def test_models_of_clips_give_transformers_outputs_and_come_back_to_the_bit(name: str, tmp_path: Path):
    make, run = PEERS[name]
    generator = torch.Generator().manual_seed(3)
    theirs = make().eval()
    for parameter in theirs.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    theirs.save_pretrained(tmp_path / "theirs")

    checkpoint = load(tmp_path / "theirs")
    model, clip = checkpoint.model(), torch.randn(2, *checkpoint.config.input_shape, generator=generator)
    with torch.inference_mode():
        expected = run(theirs, clip)
        found = model(clip) if checkpoint.config.classes else model.features(clip)[0]  # type: ignore[union-attr]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)

    save(checkpoint, tmp_path / "ours")
    old, new = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "ours"))
    assert old.keys() == new.keys()
    assert all(torch.equal(old[key], new[key]) for key in old)
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert written == json.loads((tmp_path / "theirs" / "config.json").read_text())
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()
    with torch.inference_mode():
        assert torch.equal(run(again, clip), expected)


def test_vivits_processor_scales_to_minus_one_before_it_normalises(tmp_path: Path):
    """(x / 127.5 − 1 − 0.5) / 0.5, as VivitVideoProcessor computes it."""
    vivit("VivitModel", tubelet_size=[2, 4, 4]).save_pretrained(tmp_path)
    stated = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "offset": True, "rescale_factor": 1 / 127.5}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**stated, "do_normalize": True}))
    pixels = torch.tensor([0, 100, 255]).view(1, 3, 1, 1)
    found = load(tmp_path).preprocessing.normalise(pixels.to(torch.uint8))
    torch.testing.assert_close(found, (pixels / 127.5 - 1 - 0.5) / 0.5)


def test_a_video_processors_file_is_read(tmp_path: Path):
    vjepa2("VJEPA2Model").save_pretrained(tmp_path)
    stated = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "size": {"shortest_edge": 22}}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps({**stated, "do_center_crop": True}))
    steps = load(tmp_path).preprocessing
    assert (steps.mean, steps.std, steps.resize_to) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), Size(22, 22))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tubelet_size": 3}, "config.json says tubelet_size 3, and the weights have 2"),
        ({"num_frames": 5}, "5 frames are not divisible by tubelets of 2 frames"),
        ({"patch_size": 8}, "says patch 8x8, and the weights have 4x4"),
        ({"some_new_option": 1}, "some_new_option"),
    ],
)
def test_a_config_that_is_another_models_is_refused(change: dict[str, Any], message: str, tmp_path: Path):
    videomae("VideoMAEModel").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(VitrailError, match=message):
        load(tmp_path)


# ── inflation ───────────────────────────────────────────────────────────────────────────────────────────────────

STILL = ViTConfig(
    image=Size(20, 28),
    embedding=Patches(patch=Size(4, 4)),
    width=24,
    depth=2,
    num_heads=3,
    mlp=Mlp(width=40),
    classes=6,
)
POOLED = STILL.but(prefix=Prefix(cls=False), pool=MeanPool())
POSITIONS = (Learned(), SinCos1d(), SinCos2d(), SinCos3d(), Rotary(), Rotary3d(), RelativeBias(), NoPosition())


def made(config: ViTConfig) -> Checkpoint:
    generator = torch.Generator().manual_seed(11)
    tensors = {
        name: torch.randn(value.shape, generator=generator) * 0.3 for name, value in build(config).state_dict().items()
    }
    steps = Preprocessing(image=config.image, mean=(0.5,) * config.channels, std=(0.5,) * config.channels)
    return Checkpoint(config=config, tensors=tensors, preprocessing=steps)


def features(checkpoint: Checkpoint, image: torch.Tensor) -> torch.Tensor:
    frames = checkpoint.config.frames
    if frames > 1:
        image = image[:, None].expand(-1, frames, -1, -1, -1)
    with torch.inference_mode():
        return checkpoint.model().features(image)[0]  # type: ignore[union-attr]


@pytest.mark.parametrize("tubelet", [2, 3])
@pytest.mark.parametrize("position", POSITIONS)
def test_equal_frames_give_the_still_images_features(position, tubelet):
    still, image = made(STILL.but(position=position)), torch.randn(2, 3, 20, 28)
    clip, _ = adapt(still, {"frames": tubelet, "tubelet": tubelet})
    assert clip.config.steps == 1
    torch.testing.assert_close(features(clip, image), features(still, image), rtol=0, atol=1e-5)


def test_without_a_prefix_equal_frames_give_them_in_every_step():
    still, image = made(POOLED), torch.randn(2, 3, 20, 28)
    clip, changes = adapt(still, {"frames": 6})
    assert (clip.config.frames, clip.config.steps) == (6, 3)
    found, expected = features(clip, image), features(still, image)
    torch.testing.assert_close(found, expected.repeat(1, 3, 1), rtol=0, atol=1e-5)
    assert "repeated in every step" in changes.notes[1]
    assert "nearly" not in changes.notes[0]


def test_what_is_only_nearly_equal_is_said():
    _, changes = adapt(made(STILL), {"frames": 16})
    assert "only nearly, as there are 280 patches beside 1 prefix token, not 35" in changes.notes[0]
    _, changes = adapt(made(POOLED.but(position=SinCos1d())), {"frames": 16})
    assert "only nearly, as positions differ from step to step" in changes.notes[0]


def test_an_inflated_vit_is_a_vivit_for_transformers(tmp_path: Path):
    clip, _ = adapt(made(STILL), {"frames": 6})
    save(clip, tmp_path / "vivit", dialect="huggingface")
    theirs = transformers.VivitForVideoClassification.from_pretrained(tmp_path / "vivit").eval()
    frames = torch.randn(2, 6, 3, 20, 28)
    with torch.inference_mode():
        torch.testing.assert_close(theirs(frames).logits, clip.model()(frames), rtol=0, atol=1e-5)
    with pytest.raises(VitrailError, match=r"timm cannot represent this model .*its models take still images"):
        save(clip, tmp_path / "timm.safetensors", dialect="timm")


@pytest.mark.parametrize("position", POSITIONS)
def test_an_inflated_model_goes_back_to_itself(position):
    still = made(STILL.but(position=position))
    back, _ = adapt(adapt(still, {"frames": 2})[0], {"frames": 1})
    assert back.config == still.config
    assert all(torch.equal(back.tensors[name], tensor) for name, tensor in still.tensors.items())


def test_a_still_image_is_read_as_equal_frames_of_a_tubelet():
    config = POOLED.but(embedding=Tubelets(patch=Size(4, 4), frames=2, tubelet=2), position=SinCos2d())
    clip, image = made(config), torch.randn(2, 3, 20, 28)
    still, changes = adapt(clip, {"frames": 1})
    assert still.config == config.but(embedding=Patches(patch=Size(4, 4)))
    torch.testing.assert_close(features(still, image), features(clip, image), rtol=0, atol=1e-5)
    assert changes.resampled == ("embedding.weight",)


@pytest.mark.parametrize(("old", "new"), [(1, 4), (4, 1), (2, 6), (6, 2), (3, 2), (2, 3)])
def test_the_sum_over_frames_stays(old, new):
    filters = torch.randn(5, old, 3, 2, 4, dtype=torch.float64)
    found = change_tubelet(filters, new)
    assert found.shape[1] == new
    torch.testing.assert_close(found.sum(1), filters.sum(1))


def test_a_volume_is_a_clip_of_slices_with_one_channel():
    """Filters are summed over the channels and shared among slices, whose shapes are then those of before."""
    still, image = made(POOLED), torch.randn(2, 1, 20, 28)
    volume, changes = adapt(still, {"frames": 3, "tubelet": 3, "channels": 1})
    assert volume.tensors["embedding.weight"].shape == still.tensors["embedding.weight"].shape
    assert changes.resampled == ("embedding.weight",)
    grey, _ = adapt(still, {"channels": 1})
    torch.testing.assert_close(features(volume, image), features(grey, image), rtol=0, atol=1e-5)


def test_time_is_resampled_linearly():
    clip = made(POOLED.but(embedding=Tubelets(patch=Size(4, 4), frames=4, tubelet=2)))
    line = torch.stack([torch.zeros(35, 24), torch.ones(35, 24)]).flatten(0, 1)
    longer, changes = adapt(clip.but(tensors={**clip.tensors, "position.table": line}), {"frames": 8})
    steps = longer.tensors["position.table"].unflatten(0, (4, 35))[:, 3, 5]
    torch.testing.assert_close(steps, torch.tensor([0.0, 0.25, 0.75, 1.0]))
    assert "resampled linearly in time" in changes.notes[1]


@pytest.mark.parametrize(
    ("config", "target", "message"),
    [
        (STILL, {"frames": 5}, "5 frames are not divisible by tubelets of 2 frames"),
        (STILL, {"frames": 0}, "frames 0 is not a whole number of 2 or more"),
        (STILL, {"tubelet": 2}, "tubelet 2 does not divide a still image"),
        (STILL.but(position=RelativeBias()), {"frames": 8}, "none between the 4 steps of a clip"),
        (STILL.but(embedding=Patches(patch=Size(4, 4), stride=Size(2, 2))), {"frames": 2}, "use no stride"),
    ],
)
def test_what_cannot_be_inflated_is_refused(config, target, message):
    with pytest.raises(VitrailError, match=message):
        adapt(made(config), target)
