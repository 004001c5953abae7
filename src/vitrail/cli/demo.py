"""vitrail demo: one image through the front end, with its numbers and where the time went."""

from __future__ import annotations

from vitrail.cli.tables import show, table

__all__ = ["demo"]


def demo(*, seed: int = 0) -> None:
    """Send a drawn image through the front end of ViT-B/16 and show what comes out.

    Parameters
    ----------
    seed
        Seed of the drawn image and of the weights.
    """
    import torch

    from vitrail.cli.progress import working
    from vitrail.config import ViTConfig
    from vitrail.images.synthesize import synthesize_image
    from vitrail.nn.vit import ViT
    from vitrail.parts import SinCos2d

    config = ViTConfig(position=SinCos2d())
    with working("running ViT-B/16"), torch.inference_mode():
        pixels = torch.from_numpy(synthesize_image(seed, config.image))
        torch.manual_seed(seed)
        model = ViT(config).eval()
        image = (pixels.permute(2, 0, 1)[None] / 255 - 0.5) / 0.5  # (1, 3, 224, 224)
        model(image)  # the first call pays for starting threads and choosing kernels
        sequence, seconds = _measure(model, image)
    batch, tokens, width = sequence.shape
    rows = model.position.table  # type: ignore[union-attr]
    position, norms = rows[17], rows.norm(dim=1)  # type: ignore[index,operator]
    low, high = norms.min().item(), norms.max().item()
    uniform = high - low < 1e-4 * high
    numbers = ", ".join(f"{value:+.4f}" for value in position[:4].tolist())
    facts = [
        ("image", f"{config.image} pixels, {config.channels} channels", f"drawn from seed {seed}"),
        ("patches", f"{config.patch} pixels, grid {config.grid}", f"the image is cut into {config.grid.area} squares"),
        ("sequence", str((batch, tokens, width)), f"an image, {tokens} tokens with CLS, {width} numbers each"),
        ("CLS norm", f"{sequence[0, 0].norm().item():.4f}", "length of the first token, before any block"),
        (
            "norms of all positions",
            f"{low:.4f} to {high:.4f}",
            f"uniform: √(D/2) = {(width / 2) ** 0.5:.4f}" if uniform else "not uniform",
        ),
        ("position of patch (1, 3)", f"norm {position.norm().item():.4f}", f"added to its token: [{numbers}, …]"),
    ]
    total = sum(seconds.values())
    times = [
        (name, f"{1e3 * spent:.2f}", f"{spent / total:.0%}", f"[cyan]{'█' * round(32 * spent / total) or '▏'}[/]")
        for name, spent in seconds.items()
    ]
    show(
        table("What comes out of the front end of ViT-B/16", ("", "", ""), facts, "llw"),
        table(
            "Where the time of one image goes, on this machine",
            ("part", "ms", "share", ""),
            times,
            "lrrl",
            caption="median of five runs; attention and MLP: all 12 blocks together; the weights are random",
        ),
        "Next: [bold]vitrail plan B/16 --gpu rtx-4090[/] says what it costs, "
        "[bold]vitrail look PHOTO --out look.png[/] what a trained model sees, "
        "[bold]vitrail classify PHOTO[/] what it says, and [bold]vitrail studio[/] shows all of it on a page.",
    )


def _measure(model, image, repeats: int = 5):
    """The front end's sequence, and the median seconds of each station over some forward passes."""
    from statistics import median
    from time import perf_counter

    spent: dict[str, list[float]] = {}

    def timed(name, function, *arguments):
        start = perf_counter()
        result = function(*arguments)
        spent.setdefault(name, []).append(perf_counter() - start)
        return result

    for _ in range(repeats):
        tokens, layout = timed("patch embedding", model.embedding, image)
        tokens, layout = timed("prefix", model.prefix, tokens, layout)
        x = timed("positions", model.position, tokens, layout)
        for block in model.blocks:
            x = x + timed("attention", block.attention, block.norm1(x), layout)
            x = x + timed("MLP", block.mlp, block.norm2(x))
        timed("pool, head", model.classify, model.pool(model.norm(x), layout))
    # A station that runs once per block counts as often: the median of its times, that many times.
    return model.embed(image)[0], {name: median(times) * len(times) / repeats for name, times in spent.items()}
