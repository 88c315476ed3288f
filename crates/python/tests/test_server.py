"""Requests to the memory server, answered by a server of the test's own."""

import json
import socket
import threading

import numpy as np
import pytest

import isochrome


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Answers one request with what the test puts into `answer`; the request is in `asked` afterwards."""
    monkeypatch.setenv("ISOCHROME_RUNTIME_DIR", str(tmp_path))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "serve.sock"))
    listener.listen()
    state = {}

    def serve():
        client, _ = listener.accept()
        with client:
            state["asked"] = json.loads(client.makefile("rb").readline())
            client.sendall(json.dumps({"version": 1, "say": state["answer"]}).encode() + b"\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield state
    thread.join()
    listener.close()


def test_a_part_of_an_array_is_named_by_its_address(server):
    matrix = np.zeros((64, 512), dtype=complex)
    server["answer"] = {"text": "0x1000-0x2000: colors 0-1 of class control"}
    assert isochrome.place(matrix[8:16], "0-1").endswith("class control")
    place = server["asked"]["ask"]["place"]
    assert server["asked"]["version"] == 1
    assert place == {"start": matrix.ctypes.data + 8 * 1024 * 8, "bytes": 8 * 1024 * 8, "colors": "0-1"}


def test_what_is_refused_is_an_error_with_the_reason(server):
    server["answer"] = {"error": "process 7 is in no class"}
    with pytest.raises(isochrome.IsochromeError, match="in no class"):
        isochrome.place(bytearray(4096), None)
    assert server["asked"]["ask"]["place"]["colors"] is None


def test_memory_without_a_fixed_address_is_an_error():
    for memory in [np.zeros((8, 8))[:, ::2], b"read only", 7]:
        with pytest.raises(isochrome.IsochromeError, match="contiguous"):
            isochrome.place(memory, "0")


def test_without_a_server_the_error_says_how_to_start_one(tmp_path, monkeypatch):
    monkeypatch.setenv("ISOCHROME_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(isochrome.IsochromeError, match="isochrome serve"):
        isochrome.place(np.zeros(4096), "0")
