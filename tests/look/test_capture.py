from __future__ import annotations

import math

import pytest
import torch

from peers import timm, transformers
from vitrail import parts
from vitrail.config import MobileConfig, PyramidConfig, PyramidStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size, position_id
from vitrail.look import attention_distance, capture, fuse_heads, head_entropy, record, rollout, tokens_after
from vitrail.look import inputs as attention_inputs
from vitrail.look.heads import patch_distances, uniform_attention
from vitrail.look.statistics import head_statistics
from vitrail.look.weights import attention_rows
from vitrail.nn.attention import Attention, within
from vitrail.nn.build import build
from vitrail.nn.linear_attention import feature_map
from vitrail.nn.remainder import pad_batch
from vitrail.nn.rotary import Rotation
from vitrail.nn.vit import ViT

EXACT = {"rtol": 0, "atol": 1e-12}  # float64 rounding of sums of a few dozen terms
IMAGE = Size(20, 28)  # a grid of 5×7
KINDS = {
    "plain": {},
    "registers": {"prefix": parts.Prefix(registers=2)},
    "no prefix": {"prefix": parts.Prefix(cls=False), "pool": parts.MeanPool()},
    "qk norm, no key bias": {"qk_norm": True, "qkv_bias": "no_key"},
    "explicit": {"attention": parts.FullAttention(fused=False)},
    "rotary": {"position": parts.Rotary(), "prefix": parts.Prefix(registers=1)},
    "normalised rotary": {"position": parts.Rotary(coordinates="normalised")},
    "mixed rotary": {"position": parts.RotaryMixed()},
    "relative": {"position": parts.RelativeBias()},
    "shared relative": {"position": parts.RelativeBias(shared=True, prefix=False)},
    "windows": {"attention": parts.WindowedAttention(window=Size(3, 4))},
    "windows with bias": {
        "attention": parts.WindowedAttention(window=Size(3, 4)),
        "position": parts.RelativeBias(prefix=False),
        "prefix": parts.Prefix(registers=1),
    },
    "windows with zeros": {"attention": parts.WindowedAttention(window=Size(3, 4), window_padding="zeros")},
    "windows with zeros and bias": {
        "attention": parts.WindowedAttention(window=Size(3, 4), window_padding="zeros"),
        "position": parts.RelativeBias(prefix=False),
        "prefix": parts.Prefix(cls=False),
        "pool": parts.MeanPool(),
    },
    "criss-cross": {"attention": parts.SparseAttention()},
    "criss-cross, rotary, no prefix": {
        "attention": parts.SparseAttention(),
        "position": parts.Rotary(),
        "prefix": parts.Prefix(cls=False),
        "pool": parts.MeanPool(),
    },
    "linear": {"attention": parts.LinearAttention()},
    "adaptive": {
        "embedding": parts.Adaptive(patches=(Size(2, 2), Size(4, 4))),
        "position": parts.RotaryMixed(),
    },
}


def make(**changes) -> ViT:
    torch.manual_seed(0)
    common = {
        "image": IMAGE,
        "embedding": parts.Patches(patch=Size(4, 4)),
        "width": 24,
        "depth": 2,
        "num_heads": 3,
        "mlp": parts.Mlp(width=32),
        "classes": 5,
    }
    model = ViT(ViTConfig(**{**common, **changes}))  # type: ignore[arg-type]
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.3)  # sharp attention, and no bias that is zero
    return model.double().eval()


def images(count: int = 2) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(count, 3, *IMAGE, dtype=torch.float64)


def attentions(model: torch.nn.Module) -> list[Attention]:
    return [module for module in model.modules() if isinstance(module, Attention)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_times_the_values_are_what_attention_gave(kind: str):
    """Whatever the mix: its output is the captured matrix times v, through the output projection.

    What a row lacks of 1 is what zeros took that windows are padded with.
    """
    model, seen = make(**KINDS[kind]), {}
    hooks = [
        attention.register_forward_hook(lambda module, inputs, output: seen.update({module: (inputs[0], output)}))
        for attention in attentions(model)
    ]
    with torch.no_grad(), capture(model) as maps:
        model(images())
        for hook in hooks:
            hook.remove()
        assert list(maps) == [0, 1]
        for layer, attention in enumerate(attentions(model)):
            x, output = seen[attention]
            weights = maps[layer].weights
            mixed = weights @ attention.heads(x)[2]
            padding = attention.padding(maps[layer].layout)
            if padding is not None:
                mixed = mixed + (1 - weights.sum(dim=-1, keepdim=True)) * padding[1]
            torch.testing.assert_close(attention.out(mixed.transpose(1, 2).flatten(2)), output, **EXACT)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("windows with zeros")])
def test_rows_sum_to_one(kind: str):
    model = make(**KINDS[kind])
    with torch.no_grad(), capture(model) as maps:
        model(images())
    for found in maps.values():
        real = torch.ones_like(found.weights[:, :1, :, 0]) if found.layout.mask is None else found.layout.mask[:, None]
        sums = found.weights.sum(dim=-1)
        torch.testing.assert_close(sums, real.to(sums).expand_as(sums), **EXACT)
        assert found.weights.min() >= 0


def test_zeros_in_windows_take_their_share_of_a_row():
    """Windows of 3×4 over 5×7. Shifted, padding stands with what wrapped last: the second column."""
    model = make(**KINDS["windows with zeros"])
    with torch.no_grad(), capture(model, queries="patches") as maps:
        model(images())
    whole = torch.zeros(2, 5, 7, dtype=torch.bool)
    whole[0, :3, :4], whole[1], whole[1, :, 1] = True, True, False
    for layer in (0, 1):
        lacks = 1 - maps[layer].weights.sum(dim=-1).unflatten(-1, (5, 7))
        assert lacks[..., whole[layer]].abs().max() < 1e-12
        assert lacks[..., ~whole[layer]].min() > 1e-12


@pytest.mark.parametrize("kind", ["plain", "rotary", "mixed rotary", "relative", "shared relative", "adaptive"])
def test_full_attention_is_the_explicit_softmax(kind: str):
    model, inputs = make(**KINDS[kind]), []
    hook = attentions(model)[1].register_forward_hook(lambda _, arguments, __: inputs.append(arguments))
    with torch.no_grad(), capture(model) as maps:
        model(images())
    hook.remove()
    attention = attentions(model)[1]
    x, layout, shared = inputs[0]
    q, k, _ = attention.heads(x)
    position = within(attention.position, layout, q) if attention.position is not None else shared
    if isinstance(position, Rotation):
        q, k = position.rotate(q), position.rotate(k)
    scores = q @ k.mT / math.sqrt(8)
    if isinstance(position, torch.Tensor):
        scores = scores + position
    if layout.mask is not None:
        scores = scores.masked_fill(~layout.mask[:, None, None, :], -math.inf)
    expected = scores.softmax(dim=-1)
    if layout.mask is not None:
        expected = expected * layout.mask[:, None, :, None]
    torch.testing.assert_close(maps[1].weights, expected, **EXACT)


def test_linear_attention_shows_its_normalised_kernel():
    model, inputs = make(**KINDS["linear"]), []
    hook = attentions(model)[0].register_forward_hook(lambda _, arguments, __: inputs.append(arguments))
    with torch.no_grad(), capture(model, layers=[0]) as maps:
        model(images())
    hook.remove()
    q, k, _ = attentions(model)[0].heads(inputs[0][0])
    similarity = feature_map(q) @ feature_map(k).mT
    torch.testing.assert_close(maps[0].weights, similarity / similarity.sum(dim=-1, keepdim=True), **EXACT)


@pytest.mark.parametrize("shifted", [False, True])
def test_windows_are_zero_outside(shifted: bool):
    model = make(attention=parts.WindowedAttention(window=Size(3, 4)))
    with torch.no_grad(), capture(model, queries="patches") as maps:
        model(images())
    met = maps[int(shifted)].on_grid()[0, 0] > 0  # (N, 5, 7)
    across = [0, 0, 0, 0, 1, 1, 1] if not shifted else [2, 2, 0, 0, 0, 0, 1]
    down = [0, 0, 0, 1, 1] if not shifted else [2, 0, 0, 0, 1]
    for patch, keys in enumerate(met):
        row, column = divmod(patch, 7)
        for key, seen in enumerate(keys.flatten()):
            same = down[key // 7] == down[row] and across[key % 7] == across[column]
            assert bool(seen) == same, (row, column, key)


def test_criss_cross_is_zero_off_its_row_and_column():
    model = make(**KINDS["criss-cross"])
    with torch.no_grad(), capture(model, queries=[0, position_id(2, 3, Size(5, 7))]) as maps:
        model(images())
    cls, patch = maps[-1].on_grid()[0, 0] > 0
    expected = torch.zeros(5, 7, dtype=torch.bool)
    expected[2], expected[:, 3] = True, True
    assert cls.all()
    assert torch.equal(patch, expected)


@pytest.mark.parametrize("kind", ["plain", "relative", "windows", "windows with bias", "criss-cross", "linear"])
def test_padding_is_as_if_it_were_not_there(kind: str):
    torch.manual_seed(1)
    model = make(**KINDS[kind], remainder="pad")
    small, large = torch.randn(3, 12, 16, dtype=torch.float64), torch.randn(3, *IMAGE, dtype=torch.float64)
    with torch.no_grad(), capture(model) as maps:
        model(*pad_batch([small, large]))
        together = dict(maps)
        model(small[None])
        alone = dict(maps)
    for layer in (0, 1):
        real = together[layer].layout.mask[0].nonzero().flatten()  # type: ignore[index]
        padding = (~together[layer].layout.mask[0]).nonzero().flatten()  # type: ignore[index,operator]
        inside = together[layer].weights[0][:, real][:, :, real]
        torch.testing.assert_close(inside, alone[layer].weights[0], **EXACT)
        assert not together[layer].weights[0][:, padding].any()
        assert not together[layer].weights[0][:, :, padding].any()


@pytest.mark.parametrize(
    "kind", ["plain", "windows with bias", "windows with zeros and bias", "criss-cross", "linear", "adaptive"]
)
def test_chunks_change_nothing(kind: str):
    model = make(**KINDS[kind])
    attention, found = attentions(model)[1], {}

    def observe(module: Attention, arguments: tuple, _: torch.Tensor) -> None:
        x, layout, _ = arguments
        q, k, _ = module.heads(x)
        position = within(module.position, layout, q)
        bias = position if isinstance(position, torch.Tensor) else None
        for elements in (1, 500, 10**9):
            found[elements] = attention_rows(
                module.mix,
                q,
                k,
                bias,
                layout,
                torch.arange(x.shape[1]),
                padding=module.padding(layout),
                chunk_elements=elements,
            )

    hook = attention.register_forward_hook(observe)  # type: ignore[arg-type]
    with torch.no_grad():
        model(images())
    hook.remove()
    torch.testing.assert_close(found[1], found[10**9], **EXACT)
    torch.testing.assert_close(found[500], found[10**9], **EXACT)


def test_chosen_queries_are_rows_of_all():
    model, cells = make(**KINDS["registers"]), Size(5, 7)
    asked = [0, position_id(4, 6, cells, prefix=3), position_id(1, 2, cells, prefix=3)]
    with torch.no_grad(), capture(model) as every:
        model(images())
    with torch.no_grad(), capture(model, layers=[-1], queries=asked) as some:
        model(images())
    assert list(some) == [1]
    assert some[-1].name == "blocks.1.attention"
    torch.testing.assert_close(some[1].weights, every[1].weights[:, :, asked], **EXACT)
    assert some[1].prefix.shape == (2, 3, 3, 3)
    assert some[1].on_grid().shape == (2, 3, 3, 5, 7)
    torch.testing.assert_close(some[1].on_grid().flatten(3), some[1].patches, **EXACT)


def test_an_adaptive_patch_fills_its_cells():
    model = make(**KINDS["adaptive"])
    with torch.no_grad(), capture(model, queries="cls") as maps:
        model(images())
    top, left, height, width = maps[0].layout.rectangles[1, 5].tolist()  # type: ignore[index]
    filled = maps[0].on_grid()[1, 2, 0, top : top + height, left : left + width]
    torch.testing.assert_close(filled, maps[0].patches[1, 2, 0, 5].expand(height, width), **EXACT)


def test_every_stage_of_a_pyramid_shows_its_own_grid():
    stages = (PyramidStage(width=12, depth=2, num_heads=3), PyramidStage(width=24, depth=2, num_heads=4))
    torch.manual_seed(0)
    model = (
        build(PyramidConfig(image=Size(24, 40), stages=stages, attention=parts.WindowedAttention(window=Size(2, 3))))
        .double()
        .eval()
    )
    with torch.no_grad(), capture(model) as maps:
        model(torch.randn(2, 3, 24, 40, dtype=torch.float64))
    assert [str(found.layout.grid) for found in maps.values()] == ["6x10", "6x10", "3x5", "3x5"]
    assert maps[3].weights.shape == (2, 4, 15, 15)
    assert maps[3].name == "stages.1.blocks.1.attention"
    assert (maps[0].weights > 0).sum(dim=-1).max() == 6  # a window of 2×3


def test_a_mobile_model_shows_every_place_of_its_patches():
    torch.manual_seed(0)
    model = build(MobileConfig(image=Size(64, 128))).eval()
    with torch.no_grad(), capture(model, layers=[0, 5]) as maps:
        model(torch.randn(2, 3, 64, 128))
    assert maps[0].places == Size(2, 2)
    assert maps[0].weights.shape == (2 * 4, 4, 32, 32)
    assert maps[0].layout.grid == Size(4, 8)
    assert maps[5].layout.grid == Size(2, 4)


# ── the model is left alone ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_the_same_to_the_bit(kind: str):
    model = make(**KINDS[kind]).float()
    image = images().float()
    with torch.no_grad():
        before = model(image)
        with capture(model):
            during = model(image)
        after = model(image)
    assert torch.equal(before, during)
    assert torch.equal(before, after)


def test_training_draws_the_same_numbers():
    model = make(attention_dropout=0.3, dropout=0.2).train()
    torch.manual_seed(3)
    expected = model(images())
    torch.manual_seed(3)
    with capture(model) as maps:
        found = model(images())
    assert torch.equal(found, expected)
    assert not maps[0].weights.requires_grad
    assert found.requires_grad


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind(fails: bool):
    model = make()

    try:
        with capture(model):
            assert all("mixed" in vars(attention) for attention in attentions(model))
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert not any("mixed" in vars(module) for module in model.modules())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_fused_attention_stays_on(monkeypatch: pytest.MonkeyPatch):
    calls = []
    kernel = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *arguments, **keywords: calls.append(1) or kernel(*arguments, **keywords),
    )
    model = make()
    with torch.no_grad(), capture(model):
        model(images())
    assert len(calls) == 2


def test_keep_reduces_each_layer_as_it_runs():
    model = make()
    with torch.no_grad(), capture(model) as every:
        model(images())
    with torch.no_grad(), capture(model, keep=lambda found: fuse_heads(found, "max").weights.shape) as shapes:
        model(images())
    assert dict(shapes) == {0: (2, 1, 36, 36), 1: (2, 1, 36, 36)}
    torch.testing.assert_close(fuse_heads(every[0], "max").weights[:, 0], every[0].weights.amax(dim=1), **EXACT)


def test_half_precision_scores_are_computed_in_full():
    model = make().bfloat16()
    with torch.no_grad(), capture(model) as maps:
        model(images().bfloat16())
    assert maps[0].weights.dtype == torch.float32
    sums = maps[0].weights.sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-6)


# ── peers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_attention_is_transformers_own():
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=32,
        image_size=tuple(IMAGE),
        patch_size=4,
        layer_norm_eps=1e-6,
        attn_implementation="eager",
    )
    theirs = transformers.ViTModel(config, add_pooling_layer=False).double().eval()
    for parameter in theirs.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.3)
    ours = make(classes=0)
    state = {}
    for layer, block in enumerate(theirs.layers):
        attention = block.attention
        parts_of = [attention.q_proj, attention.k_proj, attention.v_proj]
        for name in ("weight", "bias"):
            state[f"blocks.{layer}.attention.qkv.{name}"] = torch.cat([getattr(part, name) for part in parts_of])
            state[f"blocks.{layer}.attention.out.{name}"] = getattr(attention.o_proj, name)
            state[f"blocks.{layer}.norm1.{name}"] = getattr(block.layernorm_before, name)
            state[f"blocks.{layer}.norm2.{name}"] = getattr(block.layernorm_after, name)
            state[f"blocks.{layer}.mlp.fc1.{name}"] = getattr(block.mlp.fc1, name)
            state[f"blocks.{layer}.mlp.fc2.{name}"] = getattr(block.mlp.fc2, name)
    projection = theirs.embeddings.patch_embeddings.projection
    state |= {"embedding.weight": projection.weight, "embedding.bias": projection.bias}
    state |= {"prefix.cls": theirs.embeddings.cls_token, "position.table": theirs.embeddings.position_embeddings[0]}
    state |= {"norm.weight": theirs.layernorm.weight, "norm.bias": theirs.layernorm.bias}
    ours.load_state_dict(state)
    with torch.no_grad(), capture(ours) as maps:
        ours(images())
        expected = theirs(images(), output_attentions=True).attentions
    for layer in (0, 1):  # their softmax is in float32, whatever the model
        torch.testing.assert_close(maps[layer].weights, expected[layer], rtol=0, atol=1e-6)


def test_attention_is_timms_with_fused_attention_off():
    torch.manual_seed(0)
    theirs = timm.models.vision_transformer.VisionTransformer(
        img_size=tuple(IMAGE), patch_size=4, embed_dim=24, depth=2, num_heads=3, mlp_ratio=32 / 24, num_classes=5
    )
    theirs = theirs.double().eval()
    for parameter in theirs.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.3)
    expected = []
    for block in theirs.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, __, weights: expected.append(weights))
    names = {
        "patch_embed.proj": "embedding",
        "cls_token": "prefix.cls",
        "pos_embed": "position.table",
        ".attn.proj": ".attention.out",
        ".attn": ".attention",
    }
    state = {}
    for name, tensor in theirs.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        state[name] = tensor[0] if name == "position.table" else tensor
    ours = make()
    ours.load_state_dict(state)
    with torch.no_grad(), capture(ours) as maps:
        torch.testing.assert_close(ours(images()), theirs(images()), **EXACT)
    for layer in (0, 1):
        torch.testing.assert_close(maps[layer].weights, expected[layer], **EXACT)


# ── mistakes ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [2]}, "layer 2 is out of range for 2 layers; use 0 to 1"),
        ({"queries": [36]}, "query 36 is outside the sequence of 36 tokens"),
        ({"queries": []}, "queries is empty"),
        ({"queries": "some"}, "queries 'some' is not all, cls or patches"),
    ],
)
def test_a_mistake_says_what_to_do(options: dict, message: str):
    model = make()
    with pytest.raises(VitrailError, match=message), capture(model, **options):
        model(images())
    assert not attentions(model)[0]._forward_hooks


def test_who_has_no_cls_is_not_asked():
    model = make(**KINDS["no prefix"])
    with pytest.raises(VitrailError, match="needs a CLS token"), capture(model, queries="cls"):
        pass


def test_a_model_without_attention_has_none_to_show():
    with pytest.raises(VitrailError, match="no vitrail attention"), capture(torch.nn.Linear(3, 5)):
        pass


def test_what_was_not_captured_says_so():
    model = make()
    with capture(model, layers=[1]) as maps:
        with pytest.raises(VitrailError, match="layer 1 has not run"):
            maps[1]
        with pytest.raises(VitrailError, match="layer 0 was not captured"):
            maps[0]


def test_a_mix_of_another_kind_is_refused():
    model = make()
    strange = type("Strange", (), {"__call__": lambda self, q, k, v, *_: v})()
    attentions(model)[0].mix = strange  # type: ignore[assignment]
    with pytest.raises(VitrailError, match="Strange is not supported"), capture(model):
        model(images())


# ── recordings ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_rows_tokens_and_output_are_those_of_a_plain_pass(kind: str):
    model = make(**KINDS[kind])
    with torch.no_grad():
        output, features = model(images()), model.features(images())[0]
    recording = record(model, images())
    torch.testing.assert_close(recording.output, output, rtol=0, atol=0)
    torch.testing.assert_close(recording.after()[0], features, rtol=0, atol=0)
    torch.testing.assert_close(recording.after(0)[0], tokens_after(model, images(), 0)[0], rtol=0, atol=0)
    with torch.no_grad(), capture(model) as maps:
        model(images())
    for layer, inputs in enumerate(recording.attention):
        torch.testing.assert_close(inputs.rows().weights, maps[layer].weights, rtol=0, atol=0)
        torch.testing.assert_close(inputs.rows([3, 1]).weights, maps[layer].weights[:, :, [3, 1]], **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_from_chunks_are_those_of_the_whole_map(kind: str, monkeypatch):
    monkeypatch.setattr(attention_inputs, "CHUNK_ELEMENTS", 2 * 3 * 36 * 5)  # about five rows of two images
    recording = record(make(**KINDS[kind]), images())
    for inputs in recording.attention:
        whole, step = inputs.rows(), (4.0, 3.0)
        found = head_statistics(inputs.chunks(), patch_distances(inputs.layout, inputs.k, step))
        torch.testing.assert_close(found.distance, attention_distance(whole, step), **EXACT)
        torch.testing.assert_close(found.entropy, head_entropy(whole), **EXACT)
        torch.testing.assert_close(found.fused.weights, fuse_heads(whole).weights, **EXACT)
        even = uniform_attention(whole)
        assert found.even_distance == pytest.approx(attention_distance(even, step)[0].item(), abs=1e-12)
        assert found.even_entropy == pytest.approx(head_entropy(even)[0].item(), abs=1e-12)


@pytest.mark.parametrize("discard", [0.0, 0.6])
def test_rows_of_a_rollout_are_those_of_the_whole(discard: float):
    recording = record(make(**KINDS["registers"]), images())
    maps = {layer: inputs.rows() for layer, inputs in enumerate(recording.attention)}
    rows = rollout(maps, discard=discard, queries=[7, 0, 20])
    torch.testing.assert_close(rows, rollout(maps, discard=discard)[:, [7, 0, 20]], **EXACT)


def test_nothing_is_left_behind_in_the_model():
    model = make()
    record(model, images())
    assert not any({"mixed", "features"} & set(vars(module)) for module in model.modules())
    assert all(not module._forward_hooks for module in model.modules())


def test_a_recording_inside_a_capture_leaves_the_capture_on():
    model = make()
    with torch.no_grad(), capture(model) as maps:
        record(model, images())
        assert list(maps) == [0, 1]
        maps._kept.clear()
        model(images())
        assert list(maps) == [0, 1]
