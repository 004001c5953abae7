"""Models of the Hugging Face Hub: the files that vitrail reads, in the cache of huggingface_hub, verified.

The cache, the token and the offline mode are the library's own (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE). It is imported
when a name of the Hub is used, and not before.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail._version import __version__
from vitrail.checkpoint.formats.directory import CONFIGS, PROCESSORS, WEIGHTS, shards_of
from vitrail.errors import VitrailError, one_line, require
from vitrail.preset_names import COMMON

if TYPE_CHECKING:
    from huggingface_hub import HfApi

__all__ = ["connect", "explained", "name_of", "snapshot"]

LOG_IN = "set HF_TOKEN or run hf auth login"
SNAPSHOT = re.compile(r"models--(?P<repo>.+)/snapshots/(?P<commit>[0-9a-f]{40})(/[^/]+)?$")


def snapshot(repo: str, revision: str | None = None) -> Path:
    """Download the weights and configs of a model, unless they are in the cache; return their folder.

    Without a network, what the cache has of this revision is used. Weights without a config are returned as a file.
    """
    api = connect()
    with explained(repo, revision):
        from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled

        try:
            listed = api.model_info(repo, revision=revision, files_metadata=True)
        except (HTTPError, OfflineModeIsEnabled) as error:
            cached = _cached(repo, revision)
            if cached is None or isinstance(error, HfHubHTTPError):
                raise
            return _opened(cached, _names(cached))
        sums = {each.rfilename: each for each in listed.siblings or ()}
        wanted = _wanted(repo, sums)
        first = _download(api, repo, wanted[0], revision, sums)  # the smallest; this also records the revision
        for name in wanted[1:]:
            _download(api, repo, name, first.parent.name, sums)
        if wanted[-1].endswith(".index.json"):
            for name in shards_of(first.parent / wanted[-1]):
                _download(api, repo, name, first.parent.name, sums)
        return _opened(first.parent, wanted)


def name_of(path: Path) -> str:
    """Return the model and the commit that a path in the library's cache belongs to; empty for another path.

    >>> name_of(Path("hub/models--facebook--dinov2-small/snapshots", "ed25f3a31f01632728cabb09d1542f84ab7b0056"))
    'facebook/dinov2-small@ed25f3a31f01632728cabb09d1542f84ab7b0056'
    """
    found = SNAPSHOT.search(path.as_posix())
    return f"{found['repo'].replace('--', '/', 1)}@{found['commit']}" if found else ""


def connect() -> HfApi:
    """Return the library's client, or say how to install it."""
    try:
        from huggingface_hub import HfApi
    except ModuleNotFoundError as error:
        raise VitrailError(
            f"the Hugging Face Hub needs {error.name}; pip install 'vitrail[hub]', or give a path"
        ) from None
    return HfApi(library_name="vitrail", library_version=__version__)


# ── choosing and getting files ──────────────────────────────────────────────────────────────────────────────────


def _wanted(repo: str, files: Collection[str]) -> list[str]:
    """Choose the files to read: configs, then weights, safetensors before pickles."""
    weights = next((name for name in WEIGHTS if name in files), None)
    some = ", ".join([name for name in sorted(files) if Path(name).suffix not in (".md", ".txt", "")][:4])
    require(
        weights is not None,
        f"{repo} has none of the weights that vitrail reads ({', '.join(WEIGHTS)}), only {some or 'no files'}; "
        "download the right file and give its path",
    )
    assert weights is not None
    configs = CONFIGS[::-1] if weights.startswith("open_clip") else CONFIGS
    config = [name for name in configs if name in files][:1]
    return [*config, *(name for name in PROCESSORS if name in files), weights]


def _names(folder: Path) -> list[str]:
    return _wanted(folder.parent.parent.name, [path.name for path in folder.iterdir() if path.exists()])


def _opened(folder: Path, wanted: list[str]) -> Path:
    """Return the folder, or the weights file if no config says what it is."""
    return folder if any(name in CONFIGS for name in wanted) else folder / wanted[-1]


def _cached(repo: str, revision: str | None) -> Path | None:
    """Return the snapshot in the cache, if it has weights."""
    from huggingface_hub import try_to_load_from_cache

    found = (try_to_load_from_cache(repo, name, revision=revision) for name in WEIGHTS)
    return next((Path(path).parent for path in found if isinstance(path, str)), None)


def _download(api: HfApi, repo: str, name: str, revision: str | None, sums: dict[str, Any]) -> Path:
    """Download a file unless it is in the cache, and compare it with the sum that the Hub lists."""
    from huggingface_hub import try_to_load_from_cache

    if revision is not None and isinstance(found := try_to_load_from_cache(repo, name, revision=revision), str):
        known = Path(found)
        if known.parent.name == revision:
            return known
    path = Path(api.hf_hub_download(repo, name, revision=revision, tqdm_class=_bar(name)))
    listed = sums.get(name)
    if listed is not None and not _is_whole(path, listed):
        path.resolve().unlink(missing_ok=True)  # so that the next download starts anew
        path.unlink(missing_ok=True)
        raise VitrailError(f"{name} of {repo} arrived damaged (its sum is not the Hub's); load it again")
    return path


def _bar(name: str) -> type:
    """The library's progress bar, for terminals only: with the file's plain name, and gone when it is done."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "desc": name, "leave": False})

    return Bar


def _is_whole(path: Path, listed: Any) -> bool:
    """Compare a file with its SHA-256, or a small one with git's SHA-1 of it."""
    if listed.lfs is not None:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == listed.lfs.sha256
    content = path.read_bytes()
    return listed.blob_id in (None, hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest())


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def explained(repo: str, revision: str | None = None) -> Iterator[None]:
    """Turn the library's errors into one line with the remedy."""
    from huggingface_hub import errors

    hub = "the Hugging Face Hub"
    try:
        yield
    except errors.GatedRepoError:
        line = f"{repo} is gated; accept its licence on its page of {hub}, then {LOG_IN}"
    except errors.RevisionNotFoundError:
        line = f"{repo} has no revision {revision!r}; give one of its branches, tags or commits, or leave it out"
    except errors.RepositoryNotFoundError:
        near = difflib.get_close_matches(repo, [name for name in COMMON if "/" in name], n=1)
        hint = f"did you mean {near[0]}?" if near else "check its name."
        line = f"{hub} has no model {repo!r} that you may see; {hint} If it is private, {LOG_IN}"
    except errors.HFValidationError as error:
        line = f"{repo!r} is not a name of {hub} ({_short(error)}); write owner/name"
    except errors.OfflineModeIsEnabled:
        line = f"HF_HUB_OFFLINE is set, and {repo}{_at(revision)} is not in the cache; unset it to use the Hub"
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        remedy = f"{LOG_IN} with rights to it" if status in (401, 403) else "try again later"
        line = f"{hub} answered {status} for {repo} ({error.server_message or _short(error)}); {remedy}"
    except (errors.HTTPError, errors.LocalEntryNotFoundError) as error:
        line = (
            f"{hub} cannot be reached for {repo} ({_short(error)}); check the network, or give a path; on a machine "
            "with package registries only, vitrail weights lists models"
        )
    except (OSError, RuntimeError) as error:  # the disk, or a download that is cut again and again
        line = f"{repo}{_at(revision)} was not transferred ({_short(error.__cause__ or error)}); fix that and try again"
    else:
        return
    raise VitrailError(one_line(line)) from None


def _at(revision: str | None) -> str:
    return f"@{revision}" if revision else ""


def _short(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0][:120].rstrip(".")
