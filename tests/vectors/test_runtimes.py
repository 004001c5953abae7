"""Graphs and runtimes: each gives the plain model's vectors, and a run keeps the one that it was given."""

from __future__ import annotations

import gc
import json
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from embedding import frozen, photos, read_rows, save_weights, thread_counting_decoder
from vitrail import parts
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.formats.safetensors import read_safetensors, write_safetensors
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.codec import to_plain
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.vectors.engines import names
from vitrail.vectors.engines.device import Place
from vitrail.vectors.engines.engine import Engine, LeanEngine, PlainEngine, agreement, build_engine
from vitrail.vectors.engines.graph import why_no_graph
from vitrail.vectors.engines.graph_cache import KEPT, graph_engine, graph_key, kept_folder
from vitrail.vectors.engines.names import RUNTIMES, Runtime
from vitrail.vectors.engines.tournament import LARGEST_ERROR, hold_tournament
from vitrail.vectors.job import preparation
from vitrail.vectors.job.embed import Prepared, embed_source
from vitrail.vectors.job.engine_factory import engine_of, read_choice
from vitrail.vectors.job.options import Options
from vitrail.vectors.job.plan import read_plan
from vitrail.vectors.job.shard import process_shard
from vitrail.vectors.job.worker import WorkerOptions

SMALL = ViTConfig(
    image=Size(40, 56), embedding=parts.Patches(patch=Size(8, 8)), width=48, depth=2, num_heads=3, classes=0
).but(mlp=parts.Mlp(width=80))


def checkpoint_of(config: ViTConfig) -> Checkpoint:
    torch.manual_seed(0)
    steps = Preprocessing(image=config.image, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    return Checkpoint(config=config, tensors=build(config).state_dict(), preprocessing=steps)


def images(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 40, 56, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "engines"


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    "changes",
    [
        {"prefix": parts.Prefix(registers=2), "layer_scale": 0.1, "mlp": parts.SwiGLU(width=36)},
        {"prefix": parts.Prefix(distillation=True), "qk_norm": True, "position": parts.SinCos2d()},
        {"prefix": parts.Prefix(cls=False), "pool": parts.MeanPool(), "qkv_bias": "none", "final_norm": "pooled"},
        {"pool": parts.ClsMeanPool(), "mlp": parts.Mlp(width=80, activation="quick_gelu"), "qkv_bias": "no_key"},
        {"pool": parts.MaxPool(), "mlp": parts.Mlp(width=80, activation="gelu_tanh"), "position": parts.NoPosition()},
        {"pool": parts.AttentionPool(num_heads=4, mlp_width=64), "embedding_norm": True, "final_norm": "none"},
    ],
    ids=["registers", "distilled", "mean", "cls and mean", "max", "attention pool"],
)
def test_a_runtime_gives_the_plain_models_vectors_at_any_batch(changes: dict, runtime: Runtime):
    checkpoint = checkpoint_of(SMALL.but(**changes))
    assert why_no_graph(checkpoint.config) is None
    engine = graph_engine(runtime, lambda: LeanEngine(checkpoint), batch=2)
    for count in (1, 5):  # the last batch is padded
        ours, wanted = engine.vectors(images(count)), PlainEngine(checkpoint).vectors(images(count))
        assert ours.shape == wanted.shape == (count, engine.width)
        assert ((ours - wanted).norm(dim=1) / wanted.norm(dim=1)).max() < LARGEST_ERROR


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_signal_finds_its_handler_after_engines_were_dropped(runtime: Runtime):
    lean = LeanEngine(checkpoint_of(SMALL))
    engines = [graph_engine(runtime, lambda: lean, batch=1) for _ in range(4)]
    while engines:
        engines.pop(0)
    gc.collect()
    seen, before = [], signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_int8_of_a_runtime_comes_as_near_to_float32_as_our_own(runtime: Runtime):
    checkpoint = checkpoint_of(SMALL)
    lean = LeanEngine(checkpoint)
    ranges = lean.ranges(images(12)[:8])
    ours = build_engine(checkpoint, "int8", calibration=ranges)
    theirs = graph_engine(runtime, lambda: LeanEngine(checkpoint), ranges=ranges, batch=4)
    wanted, found = (agreement(engine, lean, images(12)[8:]).mean for engine in (ours, theirs))
    assert found > wanted - 1e-3
    assert wanted > 0.99


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position": parts.Rotary()}, "positions act on queries and keys"),
        ({"attention": parts.LinearAttention()}, "LinearAttention"),
        ({"remainder": "pad"}, "remainder is 'pad'"),
        ({"embedding": parts.Patches(patch=Size(8, 8), stride=Size(4, 4))}, "patches overlap"),
    ],
)
def test_a_model_without_a_graph_says_why(changes: dict, words: str):
    config = SMALL.but(**changes)
    reason = why_no_graph(config)
    assert reason is not None
    assert words in reason
    with pytest.raises(VitrailError, match="use --engine torch"):
        Options(engine="onnxruntime").check(config)


class Wrong:
    """An engine that is fast, and wrong by a share of every vector."""

    name = "torch"

    def __init__(self, engine: Engine, share: float) -> None:
        self.engine, self.width, self.share = engine, engine.width, share

    def vectors(self, images: torch.Tensor) -> torch.Tensor:
        return self.engine.vectors(images) * (1 + self.share)

    features = None  # type: ignore[assignment]


def test_a_candidate_that_differs_or_fails_is_out_and_the_reason_is_kept():
    checkpoint = checkpoint_of(SMALL)
    right, reference = build_engine(checkpoint), PlainEngine(checkpoint).vectors(images(4))

    def broken() -> Engine:
        raise RuntimeError("no such kernel\nand a page of details")

    candidates: dict = {"torch": lambda: right, "openvino": lambda: Wrong(right, 1e-3), "onnxruntime": broken}
    choice = hold_tournament(candidates, images(4), reference, batch=2, threads=1)
    found = {each.engine: each for each in choice.candidates}
    assert choice.engine == "torch"
    assert found["openvino"].out == "its vectors differ from the plain model's by 1.0e-03, more than 1e-04"
    assert found["onnxruntime"].out == "no such kernel"
    assert found["openvino"].seconds_per_image is None
    with pytest.raises(VitrailError, match="no engine can run this model"):
        hold_tournament({"openvino": broken}, images(4), reference, batch=2, threads=1)


def test_int8_of_a_lower_cosine_is_out_however_fast():
    checkpoint = checkpoint_of(SMALL)
    right, reference = build_engine(checkpoint), PlainEngine(checkpoint).vectors(images(4))

    class Shifted(Wrong):
        def vectors(self, images: torch.Tensor) -> torch.Tensor:
            return self.engine.vectors(images) + self.share * torch.arange(self.width)

    candidates: dict = {"torch": lambda: Wrong(right, 0.1), "openvino": lambda: Shifted(right, 0.01)}
    choice = hold_tournament(candidates, images(4), reference, batch=2, threads=1, exact=False)
    assert choice.engine == "torch"
    assert "lower than our own int8's" in str(choice.candidates[1].out)


def test_a_graph_is_written_once_and_only_the_newest_are_kept(cache: Path):
    checkpoint, built = checkpoint_of(SMALL), []

    def lean() -> LeanEngine:
        built.append(1)
        return LeanEngine(checkpoint)

    keys = [graph_key(str(index), SMALL, checkpoint.preprocessing, None) for index in range(KEPT + 2)]
    first = [graph_engine("onnxruntime", lean, key=keys[0]).vectors(images(1)) for _ in range(2)]
    assert len(built) == 1
    torch.testing.assert_close(*first, rtol=0, atol=0)
    for key in keys[1:]:
        graph_engine("onnxruntime", lean, key=key)
    assert len(list(cache.iterdir())) == KEPT
    assert not kept_folder(keys[0]).exists()


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


@pytest.fixture
def run(tmp_path: Path, weights: Path) -> Callable[..., list[Prepared]]:
    source, told = photos(tmp_path / "photos", 20), list[Prepared]()

    def embed(out: str, engine: str = "auto", **options) -> list[Prepared]:
        given = Options(engine=engine, **options)  # type: ignore[arg-type]
        embed_source(source, weights, tmp_path / out, given, workers=1, begin=lambda *each: told.append(each[2]))
        return told

    return embed


def test_a_tournament_is_kept_with_the_run_and_for_later_ones_and_a_resumed_run_follows_it(
    tmp_path: Path, cache: Path, weights: Path, run: Callable[..., list[Prepared]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(preparation, "WORTH", 0.0)
    held = run("out")[0].choice
    assert held is not None
    assert {each.engine for each in held.candidates} == {"torch", *RUNTIMES}
    assert all(each.out is None and each.error is not None for each in held.candidates)
    assert read_choice(tmp_path / "out") == held
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["engine"]["engine"] == held.engine
    later = run("later")[1].choice
    assert later is not None
    assert (later.engine, later.why) == (held.engine, "the fastest here in an earlier run")
    # whichever runs it, the vectors are the model's; a run that lost a part goes on with its own engine
    other = replace(held, engine="openvino" if held.engine != "openvino" else "onnxruntime")
    (tmp_path / "out" / "engine.json").write_text(json.dumps(to_plain(other)))
    before = np.array([row["vector"] for row in read_rows(tmp_path / "out")])
    next(iter((tmp_path / "out").glob("part-*.parquet"))).unlink()
    (tmp_path / "out" / "_SUCCESS").unlink()
    again = run("out")[2].choice
    assert again is not None
    assert again.engine == other.engine
    np.testing.assert_allclose(np.array([row["vector"] for row in read_rows(tmp_path / "out")]), before, atol=1e-5)


def test_a_worker_decodes_with_its_own_number_of_threads_whichever_runtime_computes(tmp_path: Path, weights: Path):
    source, worker = photos(tmp_path / "photos", 3), WorkerOptions(threads=3, decode=thread_counting_decoder)
    embed_source(source, weights, tmp_path / "out", Options(engine="openvino"), workers=1, worker=worker)
    counted = [path.read_text().split() for path in source.glob("*.threads")]
    assert len(counted) == 3
    assert {count for each in counted for count in each} == {"3"}


def test_a_run_whose_runtime_is_missing_is_refused_with_the_remedy(
    tmp_path: Path, weights: Path, run: Callable[..., list[Prepared]], monkeypatch: pytest.MonkeyPatch
):
    run("out", "openvino")
    plan = read_plan(tmp_path / "out")
    assert engine_of(tmp_path / "out", plan).name == "openvino"
    monkeypatch.setattr(names, "find_spec", lambda name: None)
    with pytest.raises(VitrailError, match=r"is computed by openvino .* pip install 'vitrail\[openvino\]'"):
        engine_of(tmp_path / "out", plan)
    with pytest.raises(VitrailError, match=r"pip install 'vitrail\[onnx\]'"):
        run("other", "onnxruntime")


def test_auto_follows_a_run_that_torch_began_and_says_why_it_takes_torch(
    tmp_path: Path, run: Callable[..., list[Prepared]]
):
    run("out", "torch")
    assert run("out")[1].choice is None
    assert read_plan(tmp_path / "out").options.engine == "torch"
    few = run("few")[2].choice
    assert few is not None
    assert (few.engine, few.why) == ("torch", "about 0 s of work, too little to try others")
    merged = run("merged", merge=0.1)[3].choice
    assert merged is not None
    assert merged.why == "only torch has --merge"


def test_int8_takes_the_ranges_of_an_earlier_run_where_they_do_as_well(
    tmp_path: Path, cache: Path, run: Callable[..., list[Prepared]]
):
    run("out", "int8")
    first, second = run("again", "int8")
    assert first.choice is not None
    assert second.choice is not None
    assert second.choice.why == "the fastest here in an earlier run"
    same = [(tmp_path / out / "calibration.safetensors").read_bytes() for out in ("out", "again")]
    assert same[0] == same[1]
    assert second.agreement is not None
    assert first.agreement is not None
    assert second.agreement.mean > first.agreement.mean - preparation.SPARE_COSINE
    assert second.agreement.images == preparation.COMPARED


@pytest.mark.parametrize(("count", "judged"), [(3, 1), (10, 3), (112, 16)])
def test_int8_is_judged_on_images_that_it_was_not_calibrated_on(count: int, judged: int):
    calibration, others = preparation._split(range(count))
    assert len(others) == judged
    assert sorted([*calibration, *others]) == list(range(count))


def test_int8_is_calibrated_anew_where_the_ranges_of_an_earlier_run_do_worse(
    tmp_path: Path, cache: Path, run: Callable[..., list[Prepared]]
):
    run("out", "int8")
    (kept,) = cache.glob("*/calibration.safetensors")
    narrow = {name: seen / 20 for name, seen in read_safetensors(kept)[0].items()}
    with kept.open("wb") as file:
        write_safetensors(file, narrow, {})
    first, second = run("again", "int8")
    assert first.agreement is not None
    assert second.choice is not None
    assert second.choice.why == "the fastest here"
    assert second.agreement == first.agreement


# ── devices ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_cpu_is_a_device_like_others_and_bfloat16_is_near():
    checkpoint = checkpoint_of(SMALL)
    plain, engine = PlainEngine(checkpoint), build_engine(checkpoint, device="cpu", bf16=True)
    found = engine.vectors(images(3))
    assert found.dtype == torch.float32
    assert found.device.type == "cpu"
    error = ((found - plain.vectors(images(3))).norm() / plain.vectors(images(3)).norm()).item()
    assert LARGEST_ERROR < error < 0.02  # bfloat16 has 8 bits, and is used
    assert agreement(engine, plain, images(3)).lowest > 0.999


@pytest.mark.parametrize("device", ["cuda", "mps", "xpu"])
def test_a_device_that_is_missing_is_refused_in_one_line(device: str):
    with pytest.raises(VitrailError, match=f"device {device} is not available") as error:
        Place(device)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_workers_do_not_grow_with_the_images_that_they_have_done(tmp_path: Path, weights: Path):
    source = photos(tmp_path / "photos", 64)
    plan = frozen(tmp_path / "out", source, weights, 4)
    engine = build_engine(load(weights))
    peaks = []
    for shard in range(plan.shards):
        process_shard(tmp_path / "out", plan, shard, engine)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert peaks[-1] - peaks[3] < 8 * 1024  # KiB; allocators keep a little
