"""What a person sees of an embedding: what is about to happen, a line that moves, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from vitrail.charts.numbers import count_text
from vitrail.cli.progress import LiveView
from vitrail.remote import take_retries
from vitrail.vectors.engines.tournament import Choice
from vitrail.vectors.job.embed import Embedded, Prepared
from vitrail.vectors.job.finish import failures
from vitrail.vectors.job.options import Options
from vitrail.vectors.job.plan import Plan
from vitrail.vectors.job.run import Progress

__all__ = ["View"]

LISTED = 20


class View(LiveView):
    def __init__(self) -> None:
        words = TextColumn("{task.description}", markup=False)
        columns = MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), words
        super().__init__(TextColumn("[bold]images[/]"), *columns, description="starting")
        self.last = Progress(images=0)

    def begin(self, plan: Plan, notes: list[str], prepared: Prepared) -> None:
        held, options = plan.preprocessing, plan.options
        parts = "1 part" if plan.shards == 1 else f"{plan.shards:,} parts"
        self.say(
            "images" if plan.config.frames == 1 else "clips",
            f"{plan.images:,} in {plan.input}, {parts} of {plan.shard_size:,}",
        )
        self.say("weights", f"{plan.weights}, sha256 {plan.weights_sha256[:12]}")
        share = f", the middle {held.crop_share:.3g}" if held.resize == "crop" and held.crop_share < 1 else ""
        mean, std = ("/".join(f"{value:.3g}" for value in values) for values in (held.mean, held.std))
        self.say(
            "pixels", f"{held.image}, {held.resize}{share}, {held.interpolation}, mean {mean}, std {std}: {held.source}"
        )
        self.say("engine", f"{', '.join(_engine(options, prepared))}, vectors as {options.dtype}")
        for line in _tournament(prepared.choice):
            self.say("tried", line)
        agreement = prepared.agreement
        if agreement is not None:
            self.say(
                "cosine",
                f"to float32 on {agreement.images} of your images: mean {agreement.mean:.5f}, "
                f"lowest {agreement.lowest:.5f}",
            )
        for note in notes:
            self.say("note", f"{note}")
        self.start()

    def watch(self, progress: Progress) -> None:
        self.last = progress
        words = "starting"
        if progress.per_second:
            left = (progress.images - progress.done) / progress.per_second
            words = f"{count_text(progress.per_second)} images/s, {_duration(left)} left"
        elif progress.done == progress.images:
            words = "done" if progress.own else "all done before"
        if progress.tally.failed:
            words += f", failed: {_counts(progress.tally.reasons)}"
        if progress.tally.retries:
            words += f", requests repeated: {_counts(progress.tally.retries)}"
        if progress.stopping:
            words += " · finishing the parts under way; Ctrl-C again to stop now"
        self.bar.update(self.task, total=progress.images, completed=progress.done, description=words)

    def stopped(self, plan: Plan) -> None:
        held = self.last.tally.ok + self.last.tally.failed
        self.note(f"stopped with {held:,} of {plan.images:,} images done; run the same command to go on")

    def end(self, done: Embedded) -> None:
        progress, plan, tally, folder = self.last, done.plan, done.tally, done.folder
        assert tally is not None
        speed = f", {count_text(progress.per_second)} images/s" if progress.per_second else ""
        kept = progress.before + progress.tally.kept
        if kept >= plan.images:
            before = "; nothing was left to do"
        elif kept:
            before = f"; {kept:,} images were done before, {plan.images - kept:,} now"
        else:
            before = ""
        self.say("vectors", f"{tally.ok:,} of {plan.images:,} images, in {folder}{before}{speed}")
        retries = Counter(progress.tally.retries) + Counter(take_retries())
        if retries:
            self.say("network", f"{retries.total():,} requests were repeated: {_counts(retries)}")
        if not tally.failed:
            return
        self.say("failed", f"{tally.failed:,}: {_counts(tally.reasons)}")
        for failure in islice(failures(folder, plan), LISTED):
            self.out.print(f"  {_visible(failure.id)}: {failure.error}")
        if tally.failed > LISTED:
            self.out.print(
                f"  … and {tally.failed - LISTED:,} more: pyarrow.parquet.read_table({str(folder)!r}, "
                "columns=['id', 'error'], filters=[('status', '==', 'failed')])"
            )


def _engine(options: Options, prepared: Prepared) -> Iterator[str]:
    choice = prepared.choice
    kind = "int8" if options.engine == "int8" else "bf16" if options.bf16 else "float32"
    runtime = "torch" if choice is None else f"{choice.engine} ({choice.why})"
    yield f"{kind} by {runtime}"
    if options.compile:
        yield "compiled"
    if options.device != "cpu":
        yield f"on {options.device}"
    if options.native:
        yield "native sizes"
    if options.scales != (1.0,):
        yield f"scales {' and '.join(f'{scale:g}' for scale in options.scales)}"
    if options.merge:
        yield f"tokens that differ by less than {options.merge:g} merged"
    chosen = prepared.merging
    if chosen is not None and chosen.merge:
        yield f"tokens that differ by less than {chosen.merge:g} merged, as chosen on {chosen.images} of your images"
    elif chosen is not None:
        yield f"no tokens merged, since any merging loses a mean cosine of {options.keep_cosine} on your images"
    if options.adaptive is not None:
        yield f"larger patches below detail {options.adaptive:g}"


def _tournament(choice: Choice | None) -> Iterator[str]:
    """The figures of a tournament, fastest first, and who was left out."""
    if choice is None or not choice.candidates:
        return
    timed = [(each.seconds_per_image, each.engine) for each in choice.candidates if each.seconds_per_image is not None]
    times = ", ".join(f"{engine} {1e3 * seconds:.1f}" for seconds, engine in sorted(timed))
    threads = "1 thread" if choice.threads == 1 else f"{choice.threads} threads"
    yield f"{times} ms an image; batch {choice.batch}, {threads}; compared on {choice.images} of your images"
    for each in choice.candidates:
        if each.out is not None:
            yield f"without {each.engine}: {each.out}"


def _counts(reasons: Mapping[str, int]) -> str:
    most = sorted(reasons.items(), key=lambda item: -item[1])
    rest = sum(count for _, count in most[4:])
    return ", ".join([f"{count:,} {reason}" for reason, count in most[:4]] + ([f"{rest:,} other"] if rest else []))


def _visible(name: str) -> str:
    """A name may hold a line's end or a terminal's command."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in name)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
