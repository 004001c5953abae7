"""The survey as tables in docs/adapting.md: how many models are read, and why the others are refused."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

from peers import timm
from survey.cases import Case

__all__ = ["Outcome", "write_table"]

Outcome = tuple[str, str]
"""equal, refused, assumed, differs, not built or "-", and why."""
PAGE = Path(__file__).parents[2] / "docs/adapting.md"
LIKE_VIT = frozenset(
    {
        *("vision_transformer", "deit", "beit", "eva", "vision_transformer_relpos", "vision_transformer_hybrid"),
        *("vision_transformer_sam", "naflexvit", "swin_transformer", "swin_transformer_v2", "pit", "mobilevit"),
        *("hiera", "hieradet_sam2"),
    }
)
"""timm's modules of plain ViTs, and of models that vitrail has as pyramids or mobile networks."""
OTHER_KINDS = ("CLIPText", "DINOv3ConvNext", "GroupViT", "Levit", "Pvt", "Swin2SR", "Vits", "XCLIP")
"""What transformers' names of models begin with that are no ViTs in this sense: text, speech and convolutional models,
other pyramids, and models of pairs of frames or of low and high resolution."""
DETECTORS = ("GroundingDino", "MMGroundingDino")
BEGIN, END = "<!-- survey: written by tests/survey/run.py -->\n", "<!-- end of survey -->\n"


def write_table(rows: list[tuple[Case, Outcome, Outcome]], shapes: dict[str, Outcome]) -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + _tables(rows, shapes) + END + after)


def _tables(rows: list[tuple[Case, Outcome, Outcome]], shapes: dict[str, Outcome]) -> str:
    counts = {
        **{f"{name}, config beside the weights": _count(rows, name, 1) for name in _libraries(rows)},
        **{f"{name}, weights alone, told image and heads": _count(rows, name, 2) for name in _libraries(rows)},
        "timm, weights alone at full size, told nothing": Counter(kind for kind, _ in shapes.values()),
    }
    lines = [
        "| models | read, equal | refused | read by a stated assumption that is wrong | read and different |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {found['equal']} | {found['refused']} | {found['assumed']} | {found['differs']} |"
            for name, found in counts.items()
        ),
        "",
        "| names, each as it is by default | read, equal | of |",
        "|---|---|---|",
        *(f"| {name} | {equal} | {count} |" for name, (equal, count) in _names(rows).items()),
        "",
        "| refused, config beside the weights | models | for example |",
        "|---|---|---|",
        *(f"| {reason} | {len(names)} | {names[0]} |" for reason, names in _reasons(rows)),
    ]
    return "\n".join(lines) + "\n"


def _names(rows: list[tuple[Case, Outcome, Outcome]]) -> dict[str, tuple[int, int]]:
    """By library, and timm's by module where any is a ViT: how many names are read equal, of how many."""
    found: dict[str, list[bool]] = defaultdict(list)
    for case, (kind, _), _ in rows:
        if "{" in case.name or kind in ("not built", "not run"):
            continue
        label = case.library
        if case.library == "timm":
            module = timm.models._registry._model_to_module[case.name]
            label = f"timm, {module}" if module in LIKE_VIT else "timm, other kinds of models"
        elif case.library == "transformers":
            other = case.name.startswith((*OTHER_KINDS, *DETECTORS))
            label = "transformers, other kinds of models" if other else "transformers, ViTs"
        found[label].append(kind == "equal")
    own = [
        each for label, every in found.items() if label.startswith("timm, ") and "other" not in label for each in every
    ]
    counted = {label: (sum(every), len(every)) for label, every in found.items()}
    return {"timm, modules of ViTs together": (sum(own), len(own)), **counted}


def _libraries(rows: list[tuple[Case, Outcome, Outcome]]) -> list[str]:
    return list(dict.fromkeys(case.library for case, *_ in rows))


def _count(rows: list[tuple[Case, Outcome, Outcome]], library: str, place: int) -> Counter[str]:
    return Counter(row[place][0] for row in rows if row[0].library == library)  # type: ignore[index]


def _reasons(rows: list[tuple[Case, Outcome, Outcome]]) -> list[tuple[str, list[str]]]:
    """Reasons without the names of models in them, the most frequent first."""
    found: dict[str, list[str]] = defaultdict(list)
    for case, (kind, reason), _ in rows:
        if kind == "refused":
            found[_general(reason)].append(f"{case.library} {case.name}")
    return sorted(found.items(), key=lambda each: -len(each[1]))


def _general(reason: str) -> str:
    if "which is not an architecture" in reason or "is not one of the" in reason:
        return "an architecture of timm's that is another kind of model"
    if "model_type" in reason:
        return "a model_type of transformers' that is another kind of model"
    reason = re.sub(r"^it |timm's \S+ has ", "", reason).partition(", and vitrail")[0].partition("; ")[0]
    return reason.partition(", which vitrail does not know")[0].replace("|", "\\|")
