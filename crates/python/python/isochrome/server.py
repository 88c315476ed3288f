"""Requests to the memory server, `isochrome serve`."""

from __future__ import annotations

import ctypes
import json
import os
import socket
from pathlib import Path
from typing import Any

from isochrome._isochrome import IsochromeError

VERSION = 1
MACHINES = Path("/run/isochrome")


def place(memory: Any, colors: str | None) -> str:
    """Keeps `memory`, a numpy array or anything else with a buffer that can be written to, on some of this process's colors, and returns what was done in words.

    The process must be in a class of the server's policy, or have been started by `isochrome exec --class`. `colors` is a list such as "0-1", where
    0 is the first color of the process; None is all of them again. The pages are moved while the process runs, with all else that lies on
    them. Later places replace earlier ones that they overlap.

    Raises IsochromeError if no server runs, the process is in no class, or there are no such colors.
    """
    view = memoryview(memory).cast("B")
    start = ctypes.addressof(ctypes.c_char.from_buffer(view))
    return _ask({"place": {"start": start, "bytes": view.nbytes, "colors": colors}})


def _folder() -> Path:
    """The folder of the server: this user's own where a server has run there, else the machine's."""
    if named := os.environ.get("ISOCHROME_RUNTIME_DIR"):
        return Path(named)
    session = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    own = session / "isochrome" if session.is_dir() and session.stat().st_uid == os.geteuid() else Path(f"/dev/shm/isochrome-{os.geteuid()}")
    return own if os.geteuid() != 0 and (own / "serve.sock").exists() else MACHINES


def _ask(what: dict[str, Any]) -> str:
    server = socket.socket(socket.AF_UNIX)
    with server:
        server.settimeout(10)
        try:
            server.connect(str(_folder() / "serve.sock"))
            server.sendall(json.dumps({"version": VERSION, "ask": what}).encode() + b"\n")
            answer = server.makefile("rb").readline()
        except (FileNotFoundError, ConnectionRefusedError):
            raise IsochromeError("no server runs\n  hint: isochrome serve --config FILE") from None
        except OSError as error:
            raise IsochromeError(f"the server does not answer: {error}") from error
    said = json.loads(answer or b'{"say": {"error": "too many ask at a time\\n  hint: try again"}}')["say"]
    if "error" in said:
        raise IsochromeError(said["error"])
    return str(said["text"])
