"""Self-supervised steps compute what their papers define, and cost what the planner says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.dino import SelfDistillation
from vitrail.nn.masked_autoencoder import Reconstruction, patches_of
from vitrail.nn.momentum_contrast import Contrast
from vitrail.nn.pretraining import build_pretraining
from vitrail.parts import FullAttention, Mlp, RelativeBias, Rotary
from vitrail.plan import Workload, ledger, memory
from vitrail.presets import preset
from vitrail.pretraining import Dino, MaskedAutoencoder, MomentumContrast, Pretraining, pretraining_of

CONFIG = ViTConfig(
    image=Size(48, 80), width=48, depth=4, num_heads=3, mlp=Mlp(width=80), attention=FullAttention(fused=False)
)
STEPS = [
    Dino(local_crops=3, local_image=Size(32, 48), hidden=40, bottleneck=24, prototypes=70),
    Dino(local_crops=0, hidden=40, bottleneck=24, prototypes=70),
    MaskedAutoencoder(mask=0.6, decoder_width=32, decoder_heads=2, decoder_depth=3),
    MomentumContrast(queue=7, dimension=12),
]


def views_of(step: Pretraining, batch: int, **where: Any) -> list[torch.Tensor]:
    return [torch.randn(count, 3, *size, **where) for count, size in step.views(CONFIG.image, batch)]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.words)
def test_parameters_and_flops_are_those_of_the_module(step: Pretraining) -> None:
    with torch.device("meta"):
        model = build_pretraining(step.check(CONFIG), step)
    books = ledger(CONFIG, Workload(train=True, pretraining=step))
    own = {path: sum(each.numel() for each in part.parameters(recurse=False)) for path, part in model.named_modules()}
    assert {row.path: row.params for row in books.rows if row.params} == {path: n for path, n in own.items() if n}
    assert books.trained_params == sum(each.numel() for each in model.parameters() if each.requires_grad)
    with FlopCounterMode(display=False) as counter:
        loss = model(*views_of(step, 1, device="meta"))
        assert counter.get_total_flops() == books.flops_forward
        loss.backward()
    assert counter.get_total_flops() == books.flops_train


def test_dino_compares_every_crop_with_the_global_ones_but_not_with_itself() -> None:
    torch.manual_seed(0)
    step = STEPS[0]
    assert isinstance(step, Dino)
    model = SelfDistillation(step.check(CONFIG), step).double()
    nn.init.normal_(model.centre)
    images = [each.double() for each in views_of(step, 2)]
    taught = (model.teacher(images[0]) - model.centre) / step.teacher_temperature
    teacher, student = taught.softmax(-1).chunk(2), (model.student(*images) / step.temperature).chunk(5)
    pairs = [
        -(target * logits.log_softmax(-1)).sum(-1).mean()
        for i, target in enumerate(teacher)
        for v, logits in enumerate(student)
        if v != i
    ]
    torch.testing.assert_close(model(*images), sum(pairs) / len(pairs))


def test_the_teacher_is_a_moving_average_that_gets_no_gradient() -> None:
    step = MomentumContrast(queue=7, dimension=12, momentum=0.75)
    model = Contrast(step.check(CONFIG), step)
    before = {name: each.clone() for name, each in model.teacher.named_parameters()}
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.5)
    model(*views_of(step, 2)).backward()
    optimizer.step()
    model.advance()
    for name, mean in model.teacher.named_parameters():
        assert mean.grad is None
        assert not mean.requires_grad
        torch.testing.assert_close(mean, 0.75 * before[name] + 0.25 * model.student.get_parameter(name))


def test_moco_finds_a_key_among_those_of_the_queue_and_renews_the_oldest() -> None:
    step = MomentumContrast(queue=7, dimension=12)
    model = Contrast(step.check(CONFIG), step).eval()
    first, second = views_of(step, 4)
    queue = model.queue.clone()
    queries, keys = model.student(first), model.teacher(second)
    scores = torch.cat([torch.einsum("bd,bd->b", queries, keys)[:, None], queries @ queue], dim=1) / step.temperature
    torch.testing.assert_close(model(first, second), -scores.log_softmax(1)[:, 0].mean())
    model.advance()
    assert torch.equal(model.queue[:, :4], keys.T)
    assert torch.equal(model.queue[:, 4:], queue[:, 4:])
    model(first, second)
    model.advance()
    assert torch.equal(model.queue[:, [4, 5, 6, 0]], keys.T)  # around the end


def test_mae_encodes_visible_patches_and_is_judged_on_masked_ones() -> None:
    step = MaskedAutoencoder(mask=0.6, decoder_width=32, decoder_heads=2, decoder_depth=3)
    model = Reconstruction(step.check(CONFIG), step)
    seen, image = [], torch.randn(2, 3, 48, 80)
    model.encoder.blocks[0].register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))
    held: list[Any] = []
    model.decoder.register_forward_hook(lambda _, given, out: held.extend([given[1], out]))
    loss = model(image)
    assert seen == [1 + step.visible(15)] == [1 + 6]
    places, predicted = held
    wanted = patches_of(image, Size(16, 16))
    errors = [
        (predicted[b, p] - wanted[b, p]).square().mean() for b in range(2) for p in range(15) if places[b, p] >= 6
    ]
    assert len(errors) == 2 * 9
    torch.testing.assert_close(loss, torch.stack(errors).mean())
    first = image[0, :, :16, 16:32].permute(1, 2, 0).flatten()  # the second patch of the first row
    torch.testing.assert_close(wanted[0, 1], (first - first.mean()) / (first.var() + 1e-6).sqrt())


@pytest.mark.parametrize(
    ("text", "config", "word"),
    [
        ("dino,crops=3", CONFIG, "unknown key crops"),
        ("dino,3", CONFIG, "not KEY=VALUE"),
        ("mae", CONFIG.but(position=Rotary()), "not defined for Rotary"),
        ("dino", CONFIG.but(position=RelativeBias()), "not defined for RelativeBias"),
        ("moco", preset("swin-T"), "needs a plain ViT"),
        ("mae,mask=0.99", CONFIG, "leaves none of 15 patches"),
        ("dino,local_image=50", CONFIG, "50"),
    ],
)
def test_what_is_not_defined_is_refused_with_its_name(text: str, config: Any, word: str) -> None:
    with pytest.raises(VitrailError, match=word):
        memory(config, Workload(train=True, pretraining=pretraining_of(text)))


def test_a_step_that_pytorch_cannot_run_is_refused() -> None:
    with pytest.raises(VitrailError, match="fails in PyTorch under autocast"):
        Workload(train=True, precision="amp-bf16", checkpointing="selective", pretraining=Dino())  # type: ignore[arg-type]
