from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from small_runs import CONFIG, RICH, begin, interrupt_after, losses, same_weights
from vitrail.errors import VitrailError
from vitrail.nn.build import build
from vitrail.training.distributed import World
from vitrail.training.muon import ITERATIONS, QUINTIC, Muon, orthogonalised
from vitrail.training.objective import Objective
from vitrail.training.optimizer import build_optimizers

MUON = RICH.but(optimizer="muon")


@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (6, 6)])
def test_orthogonalising_changes_singular_values_only_and_by_the_polynomial(shape: tuple[int, int]):
    """The reference: the decomposition itself, and the polynomial on its values, in float64."""
    matrices = torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u, values, v = torch.linalg.svd(matrices, full_matrices=False)
    values = values / values.norm(dim=1, keepdim=True)
    a, b, c = QUINTIC
    for _ in range(ITERATIONS):
        values = a * values + b * values**3 + c * values**5
    torch.testing.assert_close(orthogonalised(matrices), u @ values.diag_embed() @ v, rtol=1e-9, atol=1e-9)


def test_an_update_is_torchs_own_to_the_rounding_of_its_bfloat16():
    torch.manual_seed(1)
    start = [torch.randn(6, 9), torch.randn(9, 6), torch.randn(6, 9)]
    mine, theirs = ([nn.Parameter(matrix.clone()) for matrix in start] for _ in range(2))
    ours = Muon(mine, lr=0.02, weight_decay=0.1)
    reference = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for step in range(4):
        dice = torch.Generator().manual_seed(step)
        for a, b in zip(mine, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=dice)
            b.grad = a.grad.clone()
        ours.step()
        reference.step()
    for a, b, before in zip(mine, theirs, start, strict=True):
        moved = (b - before).norm()
        assert (a - b).norm() < 0.02 * moved


def test_every_parameter_has_one_optimizer_and_only_the_encoders_matrices_have_muon():
    objective = Objective(build(CONFIG))
    adamw, muon = build_optimizers(objective, MUON)
    names = {id(parameter): name for name, parameter in objective.named_parameters()}
    of = [[names[id(p)] for group in each.param_groups for p in group["params"]] for each in (adamw, muon)]
    assert sorted(of[0] + of[1]) == sorted(names.values())
    assert len(of[1]) == 4 * CONFIG.depth
    assert all(".blocks." in name and name.endswith(".weight") for name in of[1])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("muon")
    begin(folder, MUON)
    return folder


@pytest.mark.parametrize("step", [2, 5])
def test_a_run_with_muon_resumes_exactly(tmp_path: Path, whole: Path, step: int):
    begin(tmp_path, MUON, watch=interrupt_after(step))
    begin(tmp_path, MUON)
    assert losses(tmp_path) == losses(whole)
    assert same_weights(tmp_path, whole)


def test_muon_refuses_matrices_that_are_cut_up(tmp_path: Path):
    with pytest.raises(VitrailError, match="whole matrices"):
        begin(tmp_path, MUON, world=World(size=2, shard="fsdp"))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # of torch's own parts
def test_a_compiled_run_learns_what_an_eager_one_does(tmp_path: Path):
    """Fused kernels round otherwise; over three steps 1e-4 of the loss is some hundred roundings."""
    config = CONFIG.but(depth=1, dropout=0.0, drop_path=0.0)
    recipe = MUON.but(steps=3, images=(), patches=(), accumulate=1)
    for name, compiled in (("eager", False), ("compiled", True)):
        begin(tmp_path / name, recipe.but(compile=compiled), config=config)
    compiled, eager = ([loss for _, loss in losses(tmp_path / name)] for name in ("compiled", "eager"))
    assert compiled == pytest.approx(eager, rel=1e-4)


def test_compiling_without_a_compiler_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(VitrailError, match="no-such-compiler is not installed; install one"):
        begin(tmp_path, MUON.but(compile=True))
