"""Mimetic first weights: what attention then does before any training."""

from typing import Any

import pytest
import torch

from vitrail import Learned, NoPosition, Patches, Size, ViT, ViTConfig, sinusoidal_2d
from vitrail.errors import VitrailError
from vitrail.nn.mimetic import SINES, begin_mimetic


def _model(**changes: Any) -> ViT:
    torch.manual_seed(7)
    config = ViTConfig(
        image=Size(20, 28), embedding=Patches(patch=Size(4, 4)), width=48, depth=2, num_heads=3, classes=5
    )
    model = ViT(config.but(**changes))
    begin_mimetic(model)
    return model


def test_queries_meet_the_keys_of_their_like_and_values_come_back_negated():
    """The diagonal's mean: noise alone would give one near 0. A head keeps 16 of 48 directions, the largest."""
    tensors = _model().state_dict()
    for block in range(2):
        q, k, v = tensors[f"blocks.{block}.attention.qkv.weight"].view(3, 48, 48)
        for head in range(3):
            rows = slice(16 * head, 16 * (head + 1))
            assert (q[rows].T @ k[rows]).diagonal().mean() > 0.3
        mixed = tensors[f"blocks.{block}.attention.out.weight"] @ v
        assert mixed.diagonal().mean().item() == pytest.approx(-0.4, abs=0.05)


def test_learned_positions_begin_as_sines_and_the_prefix_row_is_left_alone():
    table = _model(position=Learned()).state_dict()["position.table"]
    torch.testing.assert_close(table[1:], SINES * sinusoidal_2d(5, 7, 48))
    assert table[0].abs().max() <= 0.04


def test_every_other_weight_is_what_it_was():
    model = _model()
    torch.manual_seed(7)
    plain = ViT(model.config).state_dict()
    for name, tensor in model.state_dict().items():
        changed = name.endswith(("qkv.weight", "attention.out.weight", "position.table"))
        assert torch.equal(tensor, plain[name]) != changed


def test_a_model_without_a_table_takes_only_the_attention_part():
    assert _model(position=NoPosition()).position is None


def test_a_width_that_sines_cannot_fill_is_refused_in_one_line():
    with pytest.raises(VitrailError, match="width 42 is not a multiple of 4"):
        _model(width=42)
