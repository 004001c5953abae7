"""The survey as tables in docs/adapting.md: how many models are read, and why the others are refused."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

from survey.cases import Case

__all__ = ["Outcome", "write_table"]

Outcome = tuple[str, str]
"""equal, refused, assumed, differs, not built or "-", and why."""
PAGE = Path(__file__).parents[2] / "docs/adapting.md"
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
        "| refused, config beside the weights | models | for example |",
        "|---|---|---|",
        *(f"| {reason} | {len(names)} | {names[0]} |" for reason, names in _reasons(rows)),
    ]
    return "\n".join(lines) + "\n"


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
