"""Requests to the memory server, `isochrome serve`."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import stat
import time
from pathlib import Path
from typing import Any

from isochrome._isochrome import IsochromeError

#: Version of the server's protocol.
VERSION = 1
#: Folder of the server of the whole machine.
MACHINES = Path("/run/isochrome")


def place(memory: Any, colors: str | None) -> str:
    """Keeps `memory`, a numpy array or another writable buffer, on some of this process's colors, and returns what was done in words.

    The process must be in a class of the server's policy, or have been started by `isochrome exec --class`. `colors` is a list such as "0-1", where
    0 is the first color of the process; None means all colors of the process again. The pages are moved while the process runs, with
    everything else that lies on them. Where two requests overlap, the later one counts.

    Raises IsochromeError if no server runs, the process is in no class, or there are no such colors.
    """
    try:
        start, size = ctypes.addressof(ctypes.c_char.from_buffer(memory)), memoryview(memory).nbytes
    except (TypeError, ValueError, BufferError) as error:
        raise IsochromeError(f"memory: {error}\n  hint: it must be contiguous, and writable") from error
    return _ask({"place": {"start": start, "bytes": size, "colors": colors}})


def _folder() -> Path:
    """The folder of the server: this user's own where a server has run there, else the machine's."""
    if named := os.environ.get("ISOCHROME_RUNTIME_DIR"):
        return Path(named)
    user, session = os.geteuid(), Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    made = session.lstat() if session.exists() else None
    is_own = made is not None and made.st_uid == user and stat.S_ISDIR(made.st_mode) and stat.S_IMODE(made.st_mode) == 0o700
    own = session / "isochrome" if is_own else Path(f"/dev/shm/isochrome-{user}")
    return own if user != 0 and (own / "serve.sock").exists() else MACHINES


def _ask(what: dict[str, Any]) -> str:
    """The answer of the server. If the server has too many clients, the request is repeated for 5 s."""
    begin = time.monotonic()
    while not (answer := _ask_once(what)):
        if time.monotonic() - begin > 5:
            raise IsochromeError("the server has too many clients at a time\n  hint: try again")
        time.sleep(0.05)
    said = json.loads(answer)["say"]
    if "error" in said:
        raise IsochromeError(said["error"])
    return str(said["text"])


def _ask_once(what: dict[str, Any]) -> bytes:
    """The line that the server answers; empty if it closes the connection."""
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(10)
        try:
            server.connect(str(_folder() / "serve.sock"))
            server.sendall(json.dumps({"version": VERSION, "ask": what}).encode() + b"\n")
            return server.makefile("rb").readline()
        except (BrokenPipeError, ConnectionResetError):
            return b""
        except (FileNotFoundError, ConnectionRefusedError):
            raise IsochromeError("no server runs\n  hint: isochrome serve --config FILE") from None
        except OSError as error:
            raise IsochromeError(f"the server does not answer: {error}") from error
