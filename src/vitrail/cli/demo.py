"""vitrail demo: one image through the front end, with its numbers and where the time went."""

from __future__ import annotations

__all__ = ["demo"]


def demo(*, seed: int = 0) -> None:
    """Send a drawn image through the front end of ViT-B/16 and show what comes out.

    Parameters
    ----------
    seed
        Seed of the drawn image and of the weights.
    """
    import torch
    from rich.console import Console
    from rich.table import Table

    from vitrail.config import ViTConfig
    from vitrail.images.synthesize import synthesize_image
    from vitrail.nn.vit import ViT
    from vitrail.parts import SinCos2d

    torch.manual_seed(seed)
    config = ViTConfig(position=SinCos2d())
    model = ViT(config).eval()
    pixels = torch.from_numpy(synthesize_image(seed, config.image))
    image = (pixels.permute(2, 0, 1)[None] / 255 - 0.5) / 0.5  # (1, 3, 224, 224)
    with torch.inference_mode():
        model(image)  # the first call pays for starting threads and choosing kernels
        sequence, seconds = _measure(model, image)

    console = Console(highlight=False)
    row = ", ".join(f"{value:+.4f}" for value in model.position.table[17, :4].tolist())  # type: ignore[union-attr,index]
    facts = Table(box=None, show_header=False, pad_edge=False)
    for name, value in (
        ("image", f"{config.image} pixels, {config.channels} channels, drawn from seed {seed}"),
        ("patches", f"{config.patch} pixels on a grid of {config.grid}"),
        ("sequence", str(tuple(sequence.shape))),
        ("CLS norm", f"{sequence[0, 0].norm().item():.4f}"),
        ("position of patch (1, 3)", f"[{row}, …], norm {model.position.table[17].norm().item():.4f}"),  # type: ignore[union-attr,index]
    ):
        facts.add_row(f"[bold]{name}[/]", value)
    console.print(facts)
    console.print()
    total = sum(seconds.values())
    times = Table(box=None, show_header=False, pad_edge=False)
    for name, spent in seconds.items():
        times.add_row(f"[bold]{name}[/]", f"{1e3 * spent:7.2f} ms", f"{spent / total:4.0%}", _bar(spent / total))
    console.print(times)


def _bar(share: float) -> str:
    return f"[cyan]{'█' * round(40 * share) or '▏'}[/]"


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
