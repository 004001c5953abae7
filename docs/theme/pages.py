"""Pages of the site that are not in docs/: README and its neighbours, and a page for every command.

Links in the repository's pages lead to files of the repository. Here they are rewritten to lead to the same pages of
the site; whatever is not on the site stays as it is, and the strict build refuses it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from vitrail.cli import COMMANDS, app

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "bundled-model.md": "src/vitrail/checkpoint/default/README.md",
    "studio-page.md": "web/README.md",
    "assets/icon.svg": "web/public/icon.svg",
}
"""Place on the site: place in the repository."""
HOME = "---\ntemplate: home.html\ntitle: {title}\nlead: >-\n  {lead}\nhide: [navigation]\n---\n\n{rest}"
"""The home page shows README's title and first paragraph in a banner, and the rest below it."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the navigation's section of commands, and rebuild while someone writes: `mkdocs serve`."""
    assert config.nav is not None
    for entry in config.nav:
        if entry.get("Commands") is not None:
            entry["Commands"] = ["commands/index.md", *({name: f"commands/{name}.md"} for name in COMMANDS)]
    config.watch += [str(ROOT / source) for source in ELSEWHERE.values()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for place, source in ELSEWHERE.items():
        if place.endswith(".md"):
            text = (ROOT / source).read_text()
            if place == "index.md":
                title, lead, rest = text.removeprefix("# ").split("\n\n", 2)
                text = HOME.format(title=title, lead=" ".join(lead.split()), rest=rest)
            files.append(File.generated(config, place, content=text))
        else:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    for place, text in command_pages().items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    here = page.file.src_uri
    folder = posixpath.dirname(ELSEWHERE.get(here, f"docs/{here}"))
    on_site = {source: place for place, source in ELSEWHERE.items()}

    def site_link(found: re.Match[str]) -> str:
        source = posixpath.normpath(posixpath.join(folder, found["path"]))
        place = on_site.get(source, source.removeprefix("docs/"))
        return f"]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{found['anchor'] or ''}"

    markdown = re.sub(r"\]\((?![a-z]+:|#|/)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?", site_link, markdown)
    return "\n".join(_in_both_themes(line, files, here) for line in markdown.split("\n"))


def _in_both_themes(line: str, files: Files, here: str) -> str:
    """Show the dark picture of a pair to readers in the dark, unless the line shows both."""
    if "-dark.png" in line:
        return line

    def pair(found: re.Match[str]) -> str:
        dark = f"{found[2]}-dark.png"
        if files.get_file_from_path(posixpath.normpath(posixpath.join(posixpath.dirname(here), dark))) is None:
            return found[0]
        return f"![{found[1]}]({found[2]}-light.png#only-light)![{found[1]}]({dark}#only-dark)"

    return re.sub(r"!\[([^]]*)]\(([^)]+)-light\.png\)", pair, line)


def command_pages() -> dict[str, str]:
    """The command reference, by place on the site: an overview, and what each command's --help says."""
    _, *sections = re.split(r"^## vitrail ", app.generate_docs(output_format="markdown"), flags=re.M)
    pages = {}
    for section in sections:
        name, _, body = section.partition("\n")
        body = re.sub(r"^(#+) ", lambda found: found[1][1:] + " ", body, flags=re.M)
        body = body.replace("**Parameters**:", "## Options").replace("**Arguments**:", "## Arguments")
        body = re.sub(r"^\* (`[^`]+`): (.*(?:\n {4}.*)*)", _definition, body, flags=re.M)
        pages[f"commands/{name}.md"] = f"# vitrail {name}\n{body}"
    missing = {f"commands/{name}.md" for name in COMMANDS} - pages.keys()
    assert not missing, missing
    rows = "".join(f"| [`{name}`]({name}.md) | {text} |\n" for name, text in COMMANDS.items())
    pages["commands/index.md"] = (
        "# Commands\n\n`vitrail COMMAND --help` says the same in a terminal. A mistake is one line that says what to "
        f"do, and exit code 2.\n\n| command | what it does |\n|---|---|\n{rows}"
    )
    return pages


def _definition(found: re.Match[str]) -> str:
    """An option as a term and its definition, with its choices and its default in code."""
    text = " ".join(found[2].split())
    text = re.sub(r"\*\[choices: (.*?)]\*", lambda choices: f"One of `{choices[1].replace(', ', '`, `')}`.", text)
    text = re.sub(r"\*\[default: (.*?)]\*", r"Default: `\1`.", text)
    text = text.replace("**[required]**", "**Required.**")
    return f"{found[1]}\n:   {text}\n"
