"""vitrail push: weights and a model card → the Hugging Face Hub."""

from __future__ import annotations

import sys

from vitrail.cli.options import Architecture, Flag, FromImage, NumHeads, Weights

__all__ = ["push"]


def push(
    weights: Weights,
    name: str,
    /,
    *,
    to: str = "timm",
    private: Flag = False,
    revision: str | None = None,
    license: str | None = None,  # noqa: A002 — the Hub's word
    message: str | None = None,
    from_image: FromImage = None,
    num_heads: NumHeads = None,
    architecture: Architecture = None,
) -> None:
    """Push weights with a model card to the Hugging Face Hub, in one commit.

    Parameters
    ----------
    name
        Where to push to: owner/name; a repository that does not exist is created.
    to
        Library that will load it by name: timm, huggingface (transformers), or vitrail; vitrail loads all of them.
    private
        Create the repository for your eyes only.
    revision
        Branch to commit to, created if it does not exist (default: main).
    license
        Licence to state on the card, e.g. apache-2.0 (default: none).
    message
        First line of the commit (default: what was written).
    """
    from vitrail.checkpoint.read import load
    from vitrail.checkpoint.sources.push import push as run

    checkpoint = load(weights, from_image=from_image, num_heads=num_heads, architecture=architecture)
    address = run(
        checkpoint,
        name,
        dialect=to,  # type: ignore[arg-type]  # checked there
        license=license,
        private=private or None,
        revision=revision,
        message=message,
    )
    sys.stdout.write(f"{address}\n")
