"""Push a checkpoint to the Hugging Face Hub: the files of a dialect and a model card, in one commit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

from vitrail.checkpoint.assess.report import Report
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.sources.hub import connect, explained
from vitrail.checkpoint.sources.model_card import LIBRARIES, model_card
from vitrail.checkpoint.sources.names import HubName, hub_name
from vitrail.checkpoint.write import encode, save
from vitrail.errors import require

__all__ = ["push"]


def push(
    checkpoint: Checkpoint,
    repo: str,
    *,
    dialect: Literal["timm", "huggingface", "vitrail"] = "timm",
    license: str | None = None,  # noqa: A002 — the Hub's word
    report: Report | None = None,
    private: bool | None = None,
    revision: str | None = None,
    message: str | None = None,
) -> str:
    """Push a checkpoint to the Hugging Face Hub as "owner/name", and return the address of the commit.

    `dialect` decides which library loads it by name: timm, transformers ("huggingface"), or vitrail alone; vitrail
    loads all of them. The model card holds the config, preprocessing, labels, and how to load the model; with `report`,
    what `vitrail.assess` returned, also what an adaptation did. A repository that does not exist is created, `private`
    if you say so. `revision` is the branch to commit to (default: main), which is created if need be. The token is that
    of huggingface_hub: HF_TOKEN, or what `hf auth login` stored.

    >>> from vitrail import adapt, assess, load, push
    >>> checkpoint = load("default")
    >>> wide, changes = adapt(checkpoint, {"image": "40x48"})
    >>> report = assess(checkpoint, wide, changes)
    >>> push(wide, "me/cifar-wide", report=report, license="apache-2.0")  # doctest: +SKIP
    """
    require(
        hub_name(f"hf-hub:{repo}") == HubName(repo, None) and "/" in repo,
        f"{repo!r} is not a name on the Hugging Face Hub; write owner/name",
    )
    require(
        dialect in LIBRARIES,
        f"dialect {dialect!r} is not one that the Hub's libraries load; choose {', '.join(LIBRARIES)}",
    )
    require(
        dialect != "timm" or bool(encode(checkpoint, "timm").written.config),
        "timm has no architecture of this shape that a config.json could name; push it as huggingface or vitrail",
    )
    api = connect()
    with tempfile.TemporaryDirectory(prefix="vitrail-") as scratch:
        folder = Path(scratch) / "model"
        # a file of vitrail's own says its config itself
        written = save(checkpoint, folder / "model.safetensors" if dialect == "vitrail" else folder, dialect=dialect)
        card = model_card(checkpoint, repo, dialect, licence=license, report=report, notes=written.notes)
        (folder / "README.md").write_text(card, encoding="utf-8")
        with explained(repo, revision):
            from huggingface_hub import CommitOperationAdd

            api.create_repo(repo, private=private, exist_ok=True)
            if revision is not None:
                api.create_branch(repo, branch=revision, exist_ok=True)
            files = [CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())]
            words = message or f"{LIBRARIES[dialect]} weights, written by vitrail"
            return str(api.create_commit(repo, files, commit_message=words, revision=revision).commit_url)
