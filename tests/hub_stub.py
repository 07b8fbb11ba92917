"""A Hugging Face Hub on the loopback: what the package huggingface_hub asks to download and to upload models."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_secret"
Files = dict[str, bytes]


class Hub:
    """Repositories, whose commits have numbers that look like Git's."""

    def __init__(self) -> None:
        self.commits: dict[str, list[Files]] = {}
        self.private: set[str] = set()
        self.stored: Files = {}  # large files, by their SHA-256
        self.requests: list[str] = []
        self.address = ""

    def commit(self, name: str, files: Files) -> str:
        """Add a commit with these files, and those of the commit before; return its id."""
        before = self.commits.setdefault(name, [{}])
        before.append({**before[-1], **files})
        return self.id_of(name, len(before) - 1)

    def files(self, name: str) -> Files:
        return self.commits[name][-1]

    def id_of(self, name: str, number: int) -> str:
        return hashlib.sha1(f"{name} {number}".encode()).hexdigest()

    def find(self, name: str, revision: str) -> tuple[str, Files] | None:
        known = {self.id_of(name, i): files for i, files in enumerate(self.commits[name])}
        last = self.id_of(name, len(known) - 1)
        found = last if revision == "main" else revision
        return (found, known[found]) if found in known else None


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, value: Any, status: int = 200) -> None:
        self.answer(status, json.dumps(value).encode(), Content_Type="application/json")

    def missing(self, what: str) -> None:
        self.answer(404, X_Error_Code=what, X_Error_Message=what)

    @property
    def may_write(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def take(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if found is None:
            return self.answer(404)
        name, revision, file = found.groups()
        if name not in self.hub.commits or (name in self.hub.private and not self.may_write):
            return self.missing("RepoNotFound")
        at = self.hub.find(name, revision)
        if at is None:
            return self.missing("RevisionNotFound")
        if file not in at[1]:
            return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=at[0])
        body = at[1][file]
        self.answer(200, body, X_Repo_Commit=at[0], ETag=f'"{hashlib.sha256(body).hexdigest()}"')

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        body = self.take()
        self.hub.stored[hashlib.sha256(body).hexdigest()] = body
        self.answer(200)

    def do_POST(self) -> None:
        path, body = unquote(urlsplit(self.path).path), self.take()
        self.hub.requests.append(f"POST {path}")
        if path == "/api/validate-yaml":
            return self.answer_json({"errors": [], "warnings": []})
        if not self.may_write:
            return self.answer_json({"error": "Invalid username or password."}, 401)
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main", path)
        if found is not None:
            return (self.sort if found[2] == "preupload" else self.commit)(found[1], body)
        if path.endswith(".git/info/lfs/objects/batch"):
            return self.batch(json.loads(body))
        self.answer(404)

    def create(self, asked: dict[str, Any]) -> None:
        name = f"{asked.get('organization', 'me')}/{asked['name']}"
        address = {"url": f"{self.hub.address}/{name}", "name": name}
        if name in self.hub.commits:
            return self.answer_json({"error": "You already created this model repo", **address}, 409)
        self.hub.commits[name] = [{".gitattributes": b"*.npy filter=lfs\n"}]
        if asked.get("private") or asked.get("visibility") == "private":
            self.hub.private.add(name)
        self.answer_json(address)

    def sort(self, name: str, body: bytes) -> None:
        """Say which files are large."""
        files = [
            {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(".npy") else "regular", "shouldIgnore": False}
            for f in json.loads(body)["files"]
        ]
        self.answer_json({"files": files})

    def batch(self, asked: dict[str, Any]) -> None:
        """Say where large files are to be put, unless they are there."""
        objects = [
            {
                **one,
                **({} if one["oid"] in self.hub.stored
                   else {"actions": {"upload": {"href": f"{self.hub.address}/lfs/{one['oid']}", "header": {}}}}),
            }
            for one in asked["objects"]
        ]  # fmt: skip
        self.answer_json({"transfer": "basic", "objects": objects})

    def commit(self, name: str, body: bytes) -> None:
        made: Files = {}
        for entry in map(json.loads, body.splitlines()):
            value = entry["value"]
            if entry["key"] == "file":
                made[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                made[value["path"]] = self.hub.stored[value["oid"]]
        commit = self.hub.commit(name, made)
        self.answer_json({"commitUrl": f"{self.hub.address}/{name}/commit/{commit}", "commitOid": commit})


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"hub": hub}))
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
