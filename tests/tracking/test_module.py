"""Any module: what fake tensors say is what real ones take, by module, component and phase."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from jsonschema import Draft202012Validator
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import peers  # noqa: F401 — makes timm importable where torchvision has no operators
from command import call
from truth import follow_step
from vitrail.checkpointing import Checkpointing
from vitrail.config import MobileConfig, MobileStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import Mlp
from vitrail.plan import Workload, ledger
from vitrail.tracking import sources
from vitrail.tracking.module import Input, track
from vitrail.tracking.sources import source
from vitrail.tracking.step import materialise

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schema" / "plan-module.json").read_text(encoding="utf-8"))
TRAIN = Workload(batch=2, train=True)
PLAIN = ViTConfig(image=Size(48, 80), width=24, depth=3, num_heads=3, mlp=Mlp(width=40), classes=5)
MOBILE = MobileConfig(
    image=Size(32, 64),
    stem_width=8,
    stages=(MobileStage(width=8), MobileStage(width=12, stride=2, transformer_width=16, transformer_depth=2)),
    last_width=16,
    classes=5,
)


class Odd(nn.Module):
    """Tied weights, a tensor that is no buffer, frozen weights, a grouped convolution, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 12), nn.Linear(7, 12)
        self.second.weight = self.first.weight
        self.mix = nn.Conv1d(3, 6, 3, padding=1, groups=3)
        self.mix.bias.requires_grad_(False)  # type: ignore[union-attr]
        self.scale = torch.ones(12)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = (
            self.first(x) + self.second(x).gelu() if hasattr(x, "gelu") else self.first(x) * self.second(x)
        ) * self.scale
        return {"tokens": self.mix(x), "sum": x.sum((1, 2))}


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


def on_meta(make, *args) -> nn.Module:
    with torch.device("meta"):
        return make(*args)


@pytest.mark.parametrize(
    "workload",
    [
        Workload(batch=2),
        TRAIN,
        TRAIN.but(optimizer="adamw-fused", accumulate=2),
        TRAIN.but(optimizer="momentum", precision="amp-bf16"),
        TRAIN.but(optimizer="sgd", precision="bf16"),
    ],
    ids=str,
)
def test_fake_tensors_take_what_real_ones_take(workload: Workload):
    real = track(Odd(), (Input((2, 3, 7)),), workload, fake=False)
    fake = track(on_meta(Odd), (Input((2, 3, 7)),), workload)
    assert fake.timeline.phase_peaks == real.timeline.phase_peaks
    assert fake.timeline.at_peak() == real.timeline.at_peak()
    assert fake.timeline.at_peak("module") == real.timeline.at_peak("module")


@pytest.mark.parametrize("workload", [Workload(batch=2), TRAIN, TRAIN.but(checkpointing=Checkpointing())], ids=str)
def test_naming_modules_changes_no_byte(workload: Workload):
    tracked = track(on_meta(build, PLAIN), (Input((2, 3, 48, 80)),), workload)
    assert tracked.timeline.phase_peaks == follow_step(PLAIN, workload, device="cpu").phase_peaks


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", [PLAIN, MOBILE], ids=["vit", "mobile"])
def test_the_peak_is_that_of_pytorchs_own_memory_tracker(config):
    from torch.distributed._tools.mem_tracker import MemTracker

    found = track(on_meta(build, config), (Input((16, 3, *config.image)),), TRAIN)
    model, peer = on_meta(build, config), MemTracker()
    with FakeTensorMode():
        materialise(model, "cpu", torch.float32)
        images, labels = torch.zeros(16, 3, *config.image), torch.zeros(16, dtype=torch.long)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        peer.track_external(model, optimizer, images, labels)
        with peer:
            for _ in range(2):
                peer.reset_mod_stats()
                logits = model(images)
                loss = F.cross_entropy(logits, labels)
                loss.backward()
                optimizer.step()
                del logits, loss
                optimizer.zero_grad()
    total = peer.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    assert found.timeline.peak_bytes == total


@pytest.mark.parametrize("config", [PLAIN, MOBILE], ids=["vit", "mobile"])
def test_parameters_and_flops_are_the_planners(config):
    found = track(on_meta(build, config), (Input((2, 3, *config.image)),), TRAIN)
    books = ledger(config, TRAIN)
    assert sum(found.params.values()) == books.params
    assert found.flops_forward == 2 * books.flops_forward
    assert found.flops_step == 2 * books.flops_train  # grouped convolutions too
    rows = {row.path: row.params for row in books.rows if row.params}
    assert {path: count for path, count in found.params.items() if path} == {p: c for p, c in rows.items() if p}


def test_parts_sum_to_the_peak():
    found = track(on_meta(build, PLAIN), (Input((2, 3, 48, 80)),), TRAIN)
    for by in ("component", "module", "operation"):
        assert sum(found.timeline.at_peak(by).values()) == found.timeline.peak_bytes
    for depth in (None, 1, 2):
        assert sum(size for _, _, size in found.rows(depth)) == found.timeline.peak_bytes
        assert sum(count for _, count, _ in found.rows(depth)) == ledger(PLAIN).params
    blocks = [size for path, _, size in found.rows(2) if path in ("blocks.0", "blocks.1")]
    assert blocks[0] == blocks[1] > 0


def test_weights_that_no_machine_could_hold_are_tracked():
    found = track(on_meta(nn.Linear, 2_000_003, 1_000_003), (Input((1, 2_000_003)),), TRAIN)
    weights = 4 * (2_000_003 * 1_000_003 + 1_000_003)
    assert found.timeline.at_peak()["weights"] == weights
    assert found.timeline.phase_peaks["optimizer"] > 5 * weights  # gradients, two moments, one temporary copy


@pytest.mark.parametrize(
    ("make", "shape", "said"),
    [
        (lambda: nn.Linear(7, 11), (2, 7), "cross-entropy over 11 classes"),
        (lambda: nn.Conv2d(3, 5, 1), (2, 3, 4, 6), "the mean of what the module returns"),
        (Odd, (2, 3, 7), "the mean of what the module returns"),
        (lambda: nn.Sequential(nn.Linear(7, 1), nn.Flatten(0), Sum()), (2, 7), "the number that the module returns"),
    ],
)
def test_what_is_minimised_is_said(make, shape: tuple[int, ...], said: str):
    assert track(on_meta(make), (Input(shape),), TRAIN).loss == said


def test_a_module_without_trained_parameters_cannot_be_trained():
    with pytest.raises(VitrailError, match="no parameter that is trained"):
        track(nn.Identity(), (Input((2, 7)),), TRAIN)


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────

FILE = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.Flatten(), nn.Linear(8 * 6 * 10, 5))

def raises():
    raise ValueError("too wide")

class Reads(nn.Module):
    def forward(self, x):
        return x if x.sum().item() > 3 else -x

class Wrong(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 3)
    def forward(self, x):
        return self.head(x)

def number():
    return 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "my_model.py").write_text(FILE)
    return tmp_path / "my_model.py"


def test_a_function_of_a_file_is_planned(file: Path, capsys):
    snapshot = file.with_name("step.pickle")
    line = ["plan", "--module", f"{file}:make", "--input", "2x3x24x40", "--train", "--timeline", str(snapshot)]
    assert call(*line, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(found)
    weights, biases = 3 * 8 * 16 + 480 * 5, 8 + 5
    assert found["params"] == weights + biases
    assert found["flops_forward"] == 2 * 2 * (3 * 8 * 16 * 60 + 480 * 5)
    assert found["peak_bytes"] == sum(found["bytes"].values()) == sum(each["bytes"] for each in found["modules"])
    assert snapshot.is_file()
    assert call(*line, "--gpu", "8GiB") == 0
    shown = capsys.readouterr().out
    for part in ("cross-entropy over 5 classes", "By module", "optimistic", "kernels of PyTorch's CPU backend"):
        assert part in shown


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "my_model.py:9: ValueError while building the module: too wide"),
        ("Reads", "my_model.py:13: running a step on 2x3x24x40 needs the values of a tensor"),
        ("Wrong", "my_model.py:20: RuntimeError while running a step on 2x3x24x40"),
        ("number", "gives a int, not an nn.Module"),
        ("nothing", "has no nothing; it has make, raises, Reads, Wrong, number"),
    ],
)
def test_a_mistake_of_the_file_is_one_line_with_its_number(file: Path, name: str, said: str, capsys):
    assert call("plan", "--module", f"{file}:{name}", "--input", "2x3x24x40") == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_file_that_python_cannot_read_is_one_line(file: Path, capsys):
    file.write_text("x = 1\ndef make(:\n")
    assert call("plan", "--module", f"{file}:make", "--input", "1x3") == 2
    assert "my_model.py:2: SyntaxError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--module my_model.py:make", "there is no file my_model.py"),
        ("--module B/16", "is not FILE.py:NAME, timm:NAME or transformers:FOLDER"),
        ("--module timm:no_such_model", "timm has no model 'no_such_model'"),
        ("--module transformers:nowhere/no-such", "finds no config of 'nowhere/no-such' on this machine"),
        ("--module timm:resnet10t --depth 3 --sweep batch=1,2", "--module was given with --sweep, --depth"),
        ("--module timm:resnet10t --input 2x3y", "is not a shape; write 8x3x224x224"),
        ("--module timm:resnet10t --input 2x3x9x9 --batch 4", "--batch 4 was given with --input"),
        ("--input 2x3", "is the shape that --module takes"),
    ],
)
def test_what_cannot_be_asked_is_one_line(line: str, said: str, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("plan", *line.split()) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("text", "said"), [("{bad", "not a valid JSON file"), ('{"model_type": "nope"}', "`nope`")])
def test_a_config_that_transformers_cannot_read_is_named(text: str, said: str, capsys, tmp_path: Path):
    (tmp_path / "config.json").write_text(text)
    assert call("plan", "--module", f"transformers:{tmp_path}") == 2
    error = capsys.readouterr().err
    assert f"transformers cannot read {tmp_path / 'config.json'}" in error
    assert said in error


def test_timm_is_imported_beside_a_torchvision_that_lacks_its_compiled_operators(monkeypatch):
    answers, declared = iter([RuntimeError("operator torchvision::nms does not exist"), "timm"]), []

    def imported(_):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(sources, "_imported", imported)
    monkeypatch.setattr(torch.library, "define", lambda name, _: declared.append(name))
    assert sources._library("timm") == "timm"
    assert declared == ["torchvision::nms", "torchvision::qnms"]


def test_models_of_timm_and_transformers_are_known_by_name_and_say_what_they_take(tmp_path: Path, capsys):
    from peers import transformers

    spec = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, image_size=32, num_channels=1
    )
    spec.architectures = ["ViTForImageClassification"]
    spec.save_pretrained(tmp_path)
    for name, size in ((f"transformers:{tmp_path}", "3x1x32x32"), ("timm:test_convnext", "3x3x160x160")):
        assert call("plan", "--module", name, "--batch", "3", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["inputs"] == [size]
        assert found["params"] > 0
    eager = source("timm:test_vit").build(Size(96, 64), True)
    found = track(eager, (Input((2, 3, 96, 64)),), TRAIN.but(attention="eager"))
    assert any(event.operation == "aten._softmax.default" for event in found.timeline.events)
