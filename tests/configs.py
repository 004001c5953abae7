"""Random valid configs, for tests that state laws over all of them."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from vitrail import parts
from vitrail.config import Config, MobileConfig, MobileStage, NormPlace, PyramidConfig, PyramidStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size

__all__ = ["any_configs", "vit_configs"]

_patches = st.builds(Size, st.sampled_from([2, 4, 6]), st.sampled_from([2, 4, 8]))
_embeddings = st.one_of(
    st.builds(parts.Patches, patch=_patches, bias=st.booleans()),
    st.just(parts.Patches(patch=Size(8, 8), stride=Size(4, 4))),
    st.builds(
        parts.Tubelets,
        patch=_patches,
        frames=st.sampled_from([2, 4, 6]),
        tubelet=st.sampled_from([1, 2]),
        bias=st.booleans(),
    ),
    st.just(parts.Stem(patch=Size(4, 4), widths=(5, 7))),
    st.just(parts.Stem(patch=Size(8, 4), widths=(5, 7), overlap=False, activation="gelu")),
    st.builds(
        parts.ResNetStem,
        depths=st.sampled_from([(), (2,), (1, 1)]),
        width=st.just(6),
        groups=st.just(3),
        cells=st.sampled_from([Size(1, 1), Size(1, 2)]),
    ),
    st.just(parts.Hierarchical(finest=Size(2, 2), widths=(6, 10))),
    st.builds(
        parts.Adaptive,
        patches=st.just((Size(2, 2), Size(4, 4), Size(8, 8))),
        threshold=st.sampled_from([0.0, 0.5, float("inf")]),
        selector=st.sampled_from(["detail", "learned", "random"]),
    ),
)
_rotary = st.one_of(
    st.builds(parts.Rotary, coordinates=st.just("normalised"), first=st.sampled_from(["rows", "columns"])),
    st.builds(
        parts.Rotary,
        pairs=st.sampled_from([None, "halves"]),
        first=st.sampled_from(["rows", "columns"]),
        offset=st.sampled_from([0.0, 1.0]),
        reference=st.sampled_from([None, Size(5, 3)]),
    ),
    st.just(parts.RotaryMixed()),
)
_positions = st.one_of(
    st.builds(
        parts.Learned,
        prefix=st.sampled_from(["all", "cls", "none"]),
        rotary=st.one_of(st.none(), _rotary),
        convention=st.sampled_from(["timm", "huggingface", "dinov2", "torchvision", "big_vision", "siglip2"]),
    ),
    st.just(parts.SinCos1d()),
    st.just(parts.SinCos3d()),
    st.just(parts.Rotary3d()),
    st.builds(parts.SinCos2d, layout=st.sampled_from(["interleaved", "timm", "mae", "big_vision"])),
    st.builds(
        parts.RelativeBias,
        shared=st.booleans(),
        prefix=st.booleans(),
        convention=st.sampled_from(["timm", "huggingface"]),
    ),
    st.builds(
        parts.RelativeMlp,
        shared=st.booleans(),
        coordinates=st.just("normalised"),
        width=st.just(8),
        reference=st.sampled_from([(), (Size(4, 3),)]),
    ),
    st.builds(parts.RelativeMlp, shared=st.booleans(), coordinates=st.just("index"), width=st.just(8)),
    st.just(parts.DecomposedBias()),
    st.just(parts.Learned(relative=parts.DecomposedBias())),
    _rotary,
    st.just(parts.NoPosition()),
)
_attentions = st.one_of(
    st.builds(parts.FullAttention, fused=st.booleans()),
    st.builds(
        parts.WindowedAttention,
        window=st.just(Size(3, 2)),
        shift=st.booleans(),
        window_padding=st.sampled_from(["masked", "zeros"]),
    ),
    st.builds(
        parts.WindowedAttention,
        window=st.just(Size(3, 2)),
        shift=st.just(False),
        window_padding=st.sampled_from(["masked", "zeros"]),
        full=st.just((1,)),
    ),
    st.just(parts.SparseAttention()),
    st.just(parts.LinearAttention()),
)
_mlps = st.one_of(
    st.builds(
        parts.Mlp,
        width=st.just(40),
        activation=st.sampled_from(["gelu", "gelu_tanh", "quick_gelu", "relu", "tanh"]),
        bias=st.booleans(),
        norm=st.booleans(),
    ),
    st.builds(parts.SwiGLU, width=st.just(36), bias=st.booleans(), norm=st.booleans()),
)
_pools = st.one_of(
    st.just(parts.ClsPool()),
    st.just(parts.MeanPool()),
    st.just(parts.MaxPool()),
    st.just(parts.ClsMeanPool()),
    st.builds(parts.AttentionPool, num_heads=st.just(2), mlp_width=st.just(20), prefix=st.booleans()),
)
_merges = st.sampled_from([1, 2])
_merger_norms = st.sampled_from(["layer", "rms", "none"])
_mergers = st.one_of(
    st.none(),
    st.builds(
        parts.MlpMerger,
        width=st.just(14),
        mlp_width=st.just(20),
        merge=_merges,
        norm=_merger_norms,
        norm_merged=st.booleans(),
        activation=st.sampled_from(["gelu", "quick_gelu", "relu"]),
        bias=st.booleans(),
    ),
    st.builds(parts.LinearMerger, width=st.just(14), merge=_merges, norm=_merger_norms, bias=st.booleans()),
)


@st.composite
def vit_configs(draw: st.DrawFn) -> ViTConfig:
    """A small ViTConfig that breaks no rule; what breaks one is drawn again."""
    rates = st.sampled_from([0.0, 0.1])
    places: tuple[NormPlace, ...] = ("before", "after")
    merger = draw(_mergers) if draw(st.integers(0, 3)) == 0 else None
    head_norm, place = draw(st.sampled_from([None, "norm", "cosine"])), draw(st.sampled_from(places))
    try:
        return ViTConfig(
            image=Size(24, 32),
            channels=draw(st.sampled_from([1, 3, 4])),
            embedding=draw(_embeddings),
            remainder=draw(st.sampled_from(["resize", "crop", "floor", "pad"])),
            prefix=draw(st.builds(parts.Prefix, cls=st.booleans(), registers=st.integers(0, 2))),
            position=draw(_positions),
            patch_norm=draw(st.booleans()),
            embedding_norm=draw(st.booleans()),
            width=24,
            depth=2,
            num_heads=3,
            attention=draw(_attentions),
            qkv_bias=draw(st.sampled_from(["all", "no_key", "none"])),
            qk_norm=head_norm == "norm",
            cosine_attention=head_norm == "cosine",
            attention_norm=draw(st.booleans()),
            out_bias=draw(st.booleans()),
            mlp=draw(_mlps),
            block_norm=place,
            norm=draw(st.sampled_from(["layer", "rms"])),
            layer_scale=draw(st.sampled_from([None, 0.1])) if place == "before" else None,
            norm_eps=draw(st.sampled_from([1e-6, 1e-5])),
            dropout=draw(rates),
            attention_dropout=draw(rates),
            drop_path=draw(rates),
            final_norm=draw(st.sampled_from(["tokens", "pooled", "none"])),
            final_norm_eps=draw(st.sampled_from([None, None, 1e-5])),
            neck=draw(st.sampled_from([None, None, None, parts.Neck(width=12)])),
            pool=draw(_pools),
            classes=0 if merger else draw(st.sampled_from([0, 7])),
            head_bias=draw(st.booleans()),
            merger=merger,
        )
    except VitrailError:
        assume(False)
        raise


any_configs: st.SearchStrategy[Config] = st.one_of(
    vit_configs(),
    st.just(MobileConfig(image=Size(64, 128))),
    st.builds(
        MobileConfig,
        image=st.just(Size(24, 40)),
        stem_width=st.just(6),
        stages=st.just(
            (MobileStage(width=6), MobileStage(width=8, stride=2, transformer_width=12, transformer_depth=2))
        ),
        attention=st.sampled_from([parts.FullAttention(fused=False), parts.SeparableAttention()]),
        last_width=st.sampled_from([0, 7]),
        classes=st.sampled_from([0, 7]),
    ),
    st.builds(
        MobileConfig,
        image=st.just(Size(24, 40)),
        stem_width=st.just(6),
        stem_stride=st.sampled_from([1, 2]),
        residual=st.sampled_from(["inverted", "basic"]),
        expansion=st.sampled_from([1, 2]),
        stages=st.just((MobileStage(width=6, depth=2), MobileStage(width=10, stride=2))),
        last_width=st.sampled_from([0, 7]),
        classes=st.sampled_from([0, 7]),
    ),
    st.builds(
        PyramidConfig,
        image=st.just(Size(64, 96)),
        stages=st.just((PyramidStage(width=12, depth=2, num_heads=3),)),
        attention=st.builds(parts.WindowedAttention, window_padding=st.sampled_from(["masked", "zeros"])),
    ),
    st.builds(
        PyramidConfig,
        image=st.just(Size(64, 96)),
        stages=st.just(tuple(PyramidStage(width=width, depth=2, num_heads=3) for width in (12, 24))),
        position=st.one_of(
            st.builds(parts.RelativeMlp, width=st.just(8), reference=st.sampled_from([(), (Size(7, 7), Size(4, 3))])),
            st.just(parts.RelativeMlp(coordinates="index", width=8)),
        ),
        attention=st.builds(parts.WindowedAttention, window_padding=st.sampled_from(["masked", "zeros"])),
        qkv_bias=st.sampled_from(["all", "no_key", "none"]),
        cosine_attention=st.booleans(),
        merging=st.builds(parts.PatchMerging, norm=st.sampled_from(["before", "after"])),
        block_norm=st.sampled_from(["before", "after"]),
        final_norm=st.sampled_from(["tokens", "none"]),
    ),
    st.builds(
        PyramidConfig,
        image=st.just(Size(32, 48)),
        embedding=st.just(parts.Patches(patch=Size(7, 7), stride=Size(4, 4), padded=True)),
        embedding_norm=st.booleans(),
        position=st.sampled_from([parts.Learned(), parts.TiledTable(background=Size(3, 2))]),
        stages=st.just(
            (
                PyramidStage(width=12, depth=2, num_heads=3),
                PyramidStage(width=24, depth=2, num_heads=3, window=Size(2, 2)),
            )
        ),
        attention=st.builds(
            parts.WindowedAttention,
            window=st.just(Size(4, 4)),
            shift=st.just(False),
            window_padding=st.just("zeros"),
            full=st.sampled_from([(), (2,), (3,)]),
        ),
        merging=st.just(parts.QueryPooling()),
        final_norm=st.sampled_from(["tokens", "pooled", "none"]),
        classes=st.sampled_from([0, 7]),
    ),
    st.builds(
        PyramidConfig,
        image=st.just(Size(24, 40)),
        embedding=st.just(parts.Patches(patch=Size(8, 8), stride=Size(4, 4))),
        prefix=st.builds(parts.Prefix, distillation=st.booleans(), registers=st.integers(0, 1)),
        position=st.one_of(
            st.builds(parts.Learned, prefix=st.sampled_from(["all", "cls", "none"])),
            st.just(parts.RelativeBias(prefix=False)),
        ),
        embedding_norm=st.booleans(),
        stages=st.just(tuple(PyramidStage(width=width, depth=1, num_heads=3) for width in (12, 24, 48))),
        attention=st.sampled_from([parts.FullAttention(), parts.WindowedAttention(window=Size(3, 2))]),
        merging=st.just(parts.GridPooling()),
        pool=st.just(parts.ClsPool()),
        classes=st.just(7),
    ),
)
