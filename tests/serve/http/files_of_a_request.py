"""How many files of Ridgeline one streamed chat passes, in the server's process and the engine's.

    PYTHONPATH=src python -m tests.serve.http.files_of_a_request

Fewer files are fewer places to look for what becomes of a request. Only the second of two equal
requests counts, so what is loaded or made once does not.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.serve.http.servers import ROOT, chat_model, running, sse

WATCH = """
import os, sys, threading, time
seen, flag, on = set(), os.environ["RIDGELINE_FLAG"], False

def note(frame, event, _):
    code = frame.f_code
    if on and event == "call" and "/ridgeline/" in code.co_filename and code.co_name != "<module>":
        seen.add(code.co_filename.partition("/ridgeline/")[2])

def watch():
    global on
    while True:
        time.sleep(0.02)
        before, on = on, os.path.exists(flag)
        if before and not on:
            with open(f"{flag}.{os.getpid()}", "w") as file:
                file.write("\\n".join(seen))

threading.Thread(target=watch, daemon=True).start()
threading.setprofile(note)
sys.setprofile(note)
"""
BODY = {
    "model": "library", "messages": [{"role": "user", "content": "import os"}],
    "max_tokens": 40, "temperature": 0, "stream": True,
}  # fmt: skip
WORDS = ("--port", "0", "--dtype", "fp32", "--kv-bytes", "32MiB", "--threads", "1")


def files_passed(folder: Path) -> set[str]:
    """Files in which code runs from a chat's first byte to its last."""
    (folder / "sitecustomize.py").write_text(WATCH)
    flag = folder / "flag"
    variables = {"RIDGELINE_FLAG": str(flag), "PYTHONPATH": f"{folder}:{ROOT / 'src'}:{ROOT}"}
    words = ("ridgeline.cli.main", "serve", str(chat_model(folder)), *WORDS)
    with running(*words, **variables) as server:
        server.wait_until_ready()
        sse(server.post("/v1/chat/completions", BODY))
        flag.touch()
        time.sleep(0.2)
        sse(server.post("/v1/chat/completions", BODY))
        flag.unlink()
        time.sleep(0.5)
    return {name for one in folder.glob("flag.*") for name in one.read_text().split("\n") if name}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        found = files_passed(Path(made))
    sys.stdout.write("\n".join([*sorted(found), f"{len(found)} files\n"]))
