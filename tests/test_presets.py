"""Every preset has exactly as many parameters as the peer's model of that name, built on the meta device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from peers import timm, transformers
from vitrail.config import PyramidConfig, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.preset_names import COMMON, preset_name
from vitrail.presets import PRESETS, preset

GOOGLE = {
    "Ti/16": 5_717_416,
    "S/16": 22_050_664,
    "B/16": 86_567_656,
    "B/32": 88_224_232,
    "L/16": 304_326_632,
    "H/14": 632_045_800,
}
"""With 1,000 classes, from the tests of Google's vision_transformer."""

TIMM_SHAPES = {"Ti": "tiny", "S": "small", "B": "base", "L": "large", "H": "huge", "g": "giant", "G": "gigantic"}


def of_timm(name: str, **options: object) -> Callable[[], int]:
    return lambda: count(timm.create_model(name, **options))


def of_transformers(model: str, config: str, **options: object) -> Callable[[], int]:
    def build_and_count() -> int:
        module = getattr(transformers, model)(getattr(transformers, config)(**options))
        masks = sum(p.numel() for name, p in module.named_parameters() if name.endswith("mask_token"))
        return count(module) - masks  # what masked training hides patches with is not part of the encoder

    return build_and_count


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def dinov2(width: int, depth: int, heads: int, *, registers: bool, swiglu: bool = False) -> Callable[[], int]:
    model = "Dinov2WithRegisters" if registers else "Dinov2"
    return of_transformers(
        f"{model}Model",
        f"{model}Config",
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        image_size=518,
        patch_size=14,
        use_swiglu_ffn=swiglu,
    )


def dinov3(width: int, depth: int, heads: int, mlp: int, gated: bool = False, bias: bool = True) -> Callable[[], int]:
    return of_transformers(
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=mlp,
        use_gated_mlp=gated,
        num_register_tokens=4,
        query_bias=bias,
        value_bias=bias,
    )


def clip(width: int, depth: int, heads: int, patch: int, projection: int, image: int = 224) -> Callable[[], int]:
    return of_transformers(
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        patch_size=patch,
        image_size=image,
        projection_dim=projection,
    )


def sized(kind: str, width: int, depth: int, heads: int, patch: int, **more: object) -> Callable[[], int]:
    """A model whose config has the usual names."""
    return of_transformers(
        f"{kind}Model",
        f"{kind}Config",
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        patch_size=patch,
        **{"intermediate_size": 4 * width, **more},
    )


def vjepa2(width: int, depth: int, heads: int, mlp_ratio: float = 4.0) -> Callable[[], int]:
    def encoder() -> int:
        sizes = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads}
        config = transformers.VJEPA2Config(**sizes, mlp_ratio=mlp_ratio)
        return count(transformers.VJEPA2Model(config).encoder)  # its predictor is for pretraining

    return encoder


SAM2_SIZES = {"T": "tiny", "S": "small", "B+": "base_plus", "L": "large"}


def sam2(size: str) -> Callable[[], int]:
    """timm's has a norm for a head, which SAM 2's neck does not read."""

    def counted() -> int:
        model = timm.create_model(f"sam2_hiera_{size}")
        return count(model) - count(model.head)

    return counted


PEERS: dict[str, Callable[[], int]] = {
    **{
        f"{shape}/{patch}": of_timm(f"vit_{name}_patch{patch}_224", num_classes=1000)
        for shape, name in TIMM_SHAPES.items()
        for patch in (8, 14, 16, 32)
        if f"{shape}/{patch}" in PRESETS
    },
    **{f"deit-{s}/16": of_timm(f"deit_{TIMM_SHAPES[s]}_patch16_224") for s in ("Ti", "S", "B")},
    **{f"deit-{s}/16-distilled": of_timm(f"deit_{TIMM_SHAPES[s]}_distilled_patch16_224") for s in ("Ti", "S", "B")},
    **{
        f"dino-{s}/{patch}": of_timm(f"vit_{TIMM_SHAPES[s]}_patch{patch}_224", num_classes=0)
        for s in ("S", "B")
        for patch in (16, 8)
    },
    **{
        f"dinov2-{s}/14{'-reg4' if registers else ''}": dinov2(*shape, registers=registers, swiglu=s == "g")
        for s, shape in {"S": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16), "g": (1536, 40, 24)}.items()
        for registers in (False, True)
    },
    "dinov3-S/16": dinov3(384, 12, 6, 1536),
    "dinov3-S+/16": dinov3(384, 12, 6, 1536, gated=True),
    "dinov3-B/16": dinov3(768, 12, 12, 3072),
    "dinov3-L/16": dinov3(1024, 24, 16, 4096),
    "dinov3-H+/16": dinov3(1280, 32, 20, 5120, gated=True),
    "dinov3-7B/16": dinov3(4096, 40, 32, 8192, gated=True, bias=False),
    "clip-B/32": clip(768, 12, 12, 32, 512),
    "clip-B/16": clip(768, 12, 12, 16, 512),
    "clip-L/14": clip(1024, 24, 16, 14, 768),
    "clip-L/14-336": clip(1024, 24, 16, 14, 768, image=336),
    "siglip-B/16": of_timm("vit_base_patch16_siglip_224", num_classes=0),
    "siglip-L/16": of_timm("vit_large_patch16_siglip_256", num_classes=0),
    "siglip-So400m/14": of_timm("vit_so400m_patch14_siglip_378", num_classes=0),
    "siglip2-B/16": of_timm("vit_base_patch16_siglip_224", num_classes=0),
    "siglip2-L/16": of_timm("vit_large_patch16_siglip_256", num_classes=0),
    "siglip2-So400m/16": of_timm("vit_so400m_patch16_siglip_256", num_classes=0),
    "siglip2-giant-opt/16": of_timm("vit_giantopt_patch16_siglip_256", num_classes=0),
    "mae-B/16": sized("ViTMAE", 768, 12, 12, 16),
    "mae-L/16": sized("ViTMAE", 1024, 24, 16, 16),
    "mae-H/14": sized("ViTMAE", 1280, 32, 16, 14),
    **{
        f"videomae-{s}": of_transformers(
            "VideoMAEModel",
            "VideoMAEConfig",
            hidden_size=width,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            intermediate_size=4 * width,
        )
        for s, (width, depth, heads) in {
            "S": (384, 12, 6),
            "B": (768, 12, 12),
            "L": (1024, 24, 16),
            "H": (1280, 32, 16),
        }.items()
    },
    "vivit-B": of_transformers("VivitForVideoClassification", "VivitConfig", num_labels=400),
    "vjepa2-L": vjepa2(1024, 24, 16),
    "vjepa2-H": vjepa2(1280, 32, 16),
    "vjepa2-g": vjepa2(1408, 40, 22, mlp_ratio=48 / 11),
    "beit-B/16": of_timm("beit_base_patch16_224"),
    "beit-L/16": of_timm("beit_large_patch16_224"),
    "sam-B/16": of_timm("samvit_base_patch16", num_classes=0),
    "sam-L/16": of_timm("samvit_large_patch16", num_classes=0),
    "sam-H/16": of_timm("samvit_huge_patch16", num_classes=0),
    **{f"flexivit-{s}/16": of_timm(f"flexivit_{TIMM_SHAPES[s]}") for s in ("S", "B", "L")},
    "R+Ti/32": of_timm("vit_tiny_r_s16_p8_224"),
    **{f"R26+{s}/32": of_timm(f"vit_{TIMM_SHAPES[s]}_r26_s32_224") for s in ("S", "B")},
    "R50+B/16": of_timm("vit_base_r50_s16_224", num_classes=1000),
    "R50+L/32": of_timm("vit_large_r50_s32_224"),
    "mobileclip-B/16": of_timm("vit_base_mci_224"),
    "eva02-Ti/14": of_timm("eva02_tiny_patch14_224"),
    "eva02-S/14": of_timm("eva02_small_patch14_224"),
    "eva02-B/14": of_timm("eva02_base_patch14_224"),
    "eva02-L/14": of_timm("eva02_large_patch14_224"),
    "aimv2-L/14": of_timm("aimv2_large_patch14_224"),
    "aimv2-H/14": of_timm("aimv2_huge_patch14_224"),
    "aimv2-1B/14": of_timm("aimv2_1b_patch14_224"),
    "aimv2-3B/14": of_timm("aimv2_3b_patch14_224"),
    "pe-core-B/16": of_timm("vit_pe_core_base_patch16_224"),
    "pe-core-L/14": of_timm("vit_pe_core_large_patch14_336"),
    "pe-core-G/14": of_timm("vit_pe_core_gigantic_patch14_448"),
    "ijepa-H/14": sized("IJepa", 1280, 32, 16, 14),
    "ijepa-g/16": sized("IJepa", 1408, 40, 16, 16, intermediate_size=6144),
    "internvit-300M/14": of_transformers(
        "InternVLVisionModel",
        "InternVLVisionConfig",
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attention_bias=True,
        image_size=[448, 448],
        patch_size=[14, 14],
    ),
    "owlvit-B/32": sized("OwlViTVision", 768, 12, 12, 32, image_size=768),
    "owlvit-B/16": sized("OwlViTVision", 768, 12, 12, 16, image_size=768),
    "owlvit-L/14": sized("OwlViTVision", 1024, 24, 16, 14, image_size=840),
    "swin-T": of_timm("swin_tiny_patch4_window7_224"),
    "swin-S": of_timm("swin_small_patch4_window7_224"),
    "swin-B": of_timm("swin_base_patch4_window7_224"),
    "swin-L": of_timm("swin_large_patch4_window7_224"),
    "swin-B-384": of_timm("swin_base_patch4_window12_384"),
    "swin-L-384": of_timm("swin_large_patch4_window12_384"),
    **{f"swinv2-{size[0].upper()}": of_timm(f"swinv2_{size}_window8_256") for size in ("tiny", "small", "base")},
    "swinv2-L": of_timm("swinv2_large_window12to16_192to256"),
    **{f"pit-{size}": of_timm(f"pit_{size.lower()}_224") for size in ("Ti", "XS", "S", "B")},
    **{f"pit-{size}-distilled": of_timm(f"pit_{size.lower()}_distilled_224") for size in ("Ti", "XS", "S", "B")},
    **{
        f"hiera-{size}": of_timm(f"hiera_{name}_224") for size, name in {**SAM2_SIZES, "B": "base", "H": "huge"}.items()
    },
    **{f"sam2-hiera-{size}": sam2(name) for size, name in SAM2_SIZES.items()},
    "mobilevit-XXS": of_timm("mobilevit_xxs"),
    "mobilevit-XS": of_timm("mobilevit_xs"),
    "mobilevit-S": of_timm("mobilevit_s"),
    **{
        f"mobilevitv2-{times}": of_timm(f"mobilevitv2_{round(100 * times):03}")
        for times in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
    },
}


def test_every_preset_but_our_own_has_a_peer():
    assert set(PRESETS) - set(PEERS) == {"cifar", "cifar-small", "cifar-resnet", "fashion-mnist"}


@pytest.mark.parametrize("name", PEERS)
def test_a_preset_has_as_many_parameters_as_its_peer(name: str):
    with torch.device("meta"):
        assert count(build(PRESETS[name])) == PEERS[name]()


@pytest.mark.parametrize(("name", "parameters"), GOOGLE.items())
def test_a_preset_has_as_many_parameters_as_google_states(name: str, parameters: int):
    with torch.device("meta"):
        assert count(build(PRESETS[name])) == parameters


def test_the_cifar_setting_makes_65_tokens_of_width_128():
    config = preset("cifar")
    assert not isinstance(config, PyramidConfig)
    with torch.device("meta"):
        tokens, _ = build(config).features(torch.empty(2, 3, 32, 32))  # type: ignore[union-attr]
    assert tokens.shape == (2, 65, 128)


def test_a_preset_is_found_in_any_case_where_case_does_not_tell_two_apart():
    assert preset("dinov2-s/14-REG4") is PRESETS["dinov2-S/14-reg4"]
    assert preset("g/14") != preset("G/14")


def test_an_unknown_preset_names_its_neighbours():
    with pytest.raises(VitrailError, match=r"model 'B/17' is not a preset; try .*B/16"):
        preset("B/17")


def test_a_number_is_no_preset():
    with pytest.raises(VitrailError, match="model 5 is not a preset name; give a string, like 'B/16'"):
        preset(5)  # type: ignore[call-overload]


def test_an_unknown_field_is_named_with_the_fields_there_are():
    with pytest.raises(VitrailError, match=r"has no field heads; its fields are .*num_heads"):
        preset("B/16", heads=3)


KNOWN_IN_TIMM = [name for name in timm.list_models() if (known := preset_name(name)) and known[0] in PRESETS]


@pytest.mark.parametrize("name", KNOWN_IN_TIMM)
def test_a_name_of_timms_is_a_preset_of_the_same_size(name: str):
    ours = preset(name)
    with torch.device("meta"):
        theirs = of_timm(name, num_classes=ours.classes)()  # a preset may have no head
        # the authors' files may have a bias, or a position row of CLS, that timm leaves out
        assert count(build(ours)) == pytest.approx(theirs, rel=5e-4)


def test_many_of_timms_names_are_known():
    families = {known[0].split("/")[0] for name in KNOWN_IN_TIMM if (known := preset_name(name))}
    assert families >= {"Ti", "S", "B", "L", "H", "deit-B", "dinov2-S", "beit-B", "swin-T", "mobilevit-S"}


@pytest.mark.parametrize(
    ("name", "known_as", "side"),
    [
        ("google/vit-base-patch16-384", "B/16", 384),
        ("google/vit-huge-patch14-224-in21k", "H/14", 224),
        ("facebook/dinov2-small", "dinov2-S/14", None),
        ("facebook/dinov2-with-registers-giant", "dinov2-g/14-reg4", None),
        ("hf-hub:timm/vit_small_patch14_dinov2.lvd142m", "dinov2-S/14", None),
        ("facebook/deit-small-distilled-patch16-224", "deit-S/16-distilled", 224),
        ("openai/clip-vit-large-patch14-336", "clip-L/14-336", None),
        ("microsoft/swin-base-patch4-window7-224", "swin-B", 224),
        ("microsoft/swin-large-patch4-window12-384-in22k", "swin-L-384", 384),
        ("facebook/vit-mae-huge", "mae-H/14", None),
        ("vit_l_32", "L/32", None),
        ("swin_s", "swin-S", None),
        ("swinv2_tiny_window8_256", "swinv2-T", 256),
        ("pit_xs_224.in1k", "pit-XS", 224),
        ("timm/pit_b_distilled_224", "pit-B-distilled", 224),
        ("mobilevitv2_075.cvnets_in1k", "mobilevitv2-0.75", None),
        ("apple/mobilevitv2-1.0-imagenet1k-256", "mobilevitv2-1.0", 256),
        ("google/vit-hybrid-base-bit-384", "R50+B/16", 384),
        ("R50-ViT-B_16", "R50+B/16", None),
        ("ViT-B/16", "B/16", None),
        ("b16", "B/16", None),
    ],
)
def test_names_of_other_libraries_are_presets(name: str, known_as: str, side: int | None):
    expected = PRESETS[known_as] if side is None else PRESETS[known_as].but(image=Size(side, side))
    assert preset(name) == expected
    assert preset(name, image=Size(448, 448)).image == Size(448, 448)


def test_pixels_that_another_librarys_patches_leave_over_are_dropped():
    model = preset("google/siglip-so400m-patch14-384")
    assert isinstance(model, ViTConfig)
    assert (model.image, model.grid, model.remainder) == (Size(384, 384), Size(27, 27), "floor")


@pytest.mark.parametrize("name", COMMON)
def test_a_name_that_is_suggested_is_known(name: str):
    assert preset(name) is not None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("vit_bas_patch16_224", "vit_base_patch16_224"), ("facebook/dinov2-smal", "facebook/dinov2-small")],
)
def test_a_typing_error_names_the_nearest(typed: str, meant: str):
    with pytest.raises(VitrailError, match=meant):
        preset(typed)
