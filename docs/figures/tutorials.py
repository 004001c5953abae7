"""Run the tutorials and keep what they draw: `python docs/figures/tutorials.py` writes docs/figures/tutorial-*.png.

With `--outputs`, also writes what each block of code printed into the text block that follows it.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import sys
import tempfile
from pathlib import Path

FIGURES = Path(__file__).parent
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?P<gap>\n```text\n)?(?P<output>(?(gap).*?^```\n))", re.S | re.M)


def run(page: Path, *, outputs: bool) -> None:
    names: dict[str, object] = {"__name__": "page"}

    def execute(found: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(found["code"], str(page), "exec"), names)
        output = f"{found['gap']}{printed.getvalue()}```\n" if found["gap"] else ""
        return f"```python\n{found['code']}```\n{output}"

    text = BLOCK.sub(execute, page.read_text())
    if outputs:
        page.write_text(text)


if __name__ == "__main__":
    for tutorial in sorted((FIGURES.parent / "tutorials").glob("*.md")):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            run(tutorial, outputs="--outputs" in sys.argv)
            for picture in Path(folder).glob("tutorial-*.png"):
                shutil.copy(picture, FIGURES)
