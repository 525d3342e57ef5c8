"""A repository of the stand-in hub: a folder, its revisions, who may read it.

The hub's root has one folder a repository: ``models/<org>/<name>``, ``datasets/<org>/<name>``, and
``<kind>/<org>/<name>@<revision>`` for a revision with files of its own, "/" written %2F. Settings
stand in ``.hub.json``, which is never served; all keys are optional:

    {"gated": "manual",       files only for a token; the information stays public, as on the hub
     "tokens": ["hf_..."],    those that may read; none is 401, another 403
     "revisions": ["main"],   any other revision without a folder is RevisionNotFound
     "status": 503}           every request for this repository fails so
"""

import hashlib
import json
import re
import urllib.parse
from pathlib import Path

KINDS = ("models", "datasets", "spaces")
SETTINGS = ".hub.json"
TOKEN = "hf_stand_in"  # reads what the stand-in has gated
WHEN = "2024-01-01T00:00:00.000Z"


class RefusedError(Exception):
    """An answer that is an error: status, the hub's code, message."""


class Repository:
    """One repository at one revision: a name, an earlier answer's commit, or any other commit."""

    def __init__(self, root, kind, name, revision, token):
        plain, revision = root / kind / name, revision or "main"
        own = {
            urllib.parse.unquote(folder.name.split("@", 1)[1]): folder
            for folder in plain.parent.glob(f"{plain.name}@*")
        }
        if ".." in name or "@" in name or not (plain.is_dir() or own):
            raise RefusedError(404, "RepoNotFound", "Repository not found")
        file = plain / SETTINGS
        self.settings = json.loads(file.read_text()) if file.is_file() else {}
        if "status" in self.settings:
            raise RefusedError(self.settings["status"], None, "Out of order")
        self.id, self.kind, self.token = name, kind, token
        self.folder = own.get(revision, plain)
        exact = revision if re.fullmatch("[0-9a-f]{40}", revision) else None
        if exact:
            self.folder = next((f for f in own.values() if commit(f) == revision), self.folder)
        there = self.settings.get("revisions")
        known = self.folder != plain or not there or revision in (*there, commit(plain))
        if not self.folder.is_dir() or not known:
            raise RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        self.commit = exact or commit(self.folder)
        self.files = files(self.folder)

    def info(self):
        return {
            "_id": hashlib.sha1(self.id.encode()).hexdigest()[:24],
            "id": self.id,
            "modelId": self.id,
            "author": self.id.split("/")[0],
            "sha": self.commit,
            "private": False,
            "disabled": False,
            "gated": self.settings.get("gated", False),
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "lastModified": WHEN,
            "createdAt": WHEN,
            "siblings": [{"rfilename": path} for path in self.files],
        }

    def entries(self, below="", recursive=True):
        """The files and folders under a path, as the hub lists them; the path itself is not one."""
        start = f"{below}/" if below else ""
        inside = [path for path in self.files if path.startswith(start)]
        parents = {str(folder) for path in inside for folder in Path(path).parents}
        folders = {folder for folder in parents if folder.startswith(start)} - {".", below}
        every = (*sorted(folders), *inside)
        return [self._entry(p) for p in every if recursive or "/" not in p[len(start) :]]

    def readable(self, path):
        """The file behind a path, if this token may read it."""
        if self.settings.get("gated") and self.token not in self.settings.get("tokens", []):
            word = f"Access to {self.kind[:-1]} {self.id} is restricted."
            raise RefusedError(403 if self.token else 401, "GatedRepo", word)
        if path not in self.files:
            raise RefusedError(404, "EntryNotFound", f"Entry not found: {path}")
        return self.files[path]

    def _entry(self, path):
        if path not in self.files:
            digest = hashlib.sha1(path.encode()).hexdigest()
            return {"type": "directory", "oid": digest, "size": 0, "path": path}
        file = self.files[path]
        return {"type": "file", "oid": oid(file), "size": file.stat().st_size, "path": path}


def files(folder):
    """The folder's files by their path in the repository."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SETTINGS)
    return {path.relative_to(folder).as_posix(): path for path in found}


def commit(folder):
    """The commit of a folder as it is now: what a name such as main is answered with."""
    stats = [(path, file.stat()) for path, file in files(folder).items()]
    told = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    return hashlib.sha1(repr((folder.parts[-3:], told)).encode()).hexdigest()


def oid(path):
    """A digest that stands for the file's content."""
    told = path.stat()
    return hashlib.sha1(f"{path} {told.st_size} {told.st_mtime_ns}".encode()).hexdigest()
