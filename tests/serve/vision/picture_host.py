"""A host of pictures over https, with a certificate of its own."""

from __future__ import annotations

import contextlib
import io
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from PIL import Image

RED = Image.new("RGB", (30, 60), (200, 10, 30))
OVER = threading.Event()
"""Nobody waits for silent hosts any more."""
TOO_LARGE = 20 * 2**20 + 1


def png(image: Image.Image) -> bytes:
    held = io.BytesIO()
    image.save(held, "PNG")
    return held.getvalue()


def certificate(folder: Path) -> tuple[Path, Path]:
    """For localhost, and for its address."""
    made = folder / "host.pem", folder / "host.key"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    words += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    words += ["-out", str(made[0]), "-keyout", str(made[1])]
    subprocess.run(words, check=True, capture_output=True)
    return made


class _Pictures(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/silent":
            OVER.wait()
            return
        port = self.server.server_address[1]
        moved = {
            "/near": "/red.png",
            "/away": f"https://127.0.0.1:{port}/red.png",
            "/down": f"http://localhost:{port}/red.png",
            "/round": "/round",
        }
        if self.path in moved:
            self.send_response(302)
            self.send_header("Location", moved[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        known = {"/red.png": png(RED), "/words": b"no picture", "/large": bytes(TOO_LARGE)}
        content = known.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        with contextlib.suppress(OSError):  # whoever has enough of it goes
            self.wfile.write(content or b"")

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def picture_host(folder: Path) -> Iterator[tuple[str, Path]]:
    """Its address by name, and the certificate to trust."""
    cert, key = certificate(folder)
    OVER.clear()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Pictures)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"https://localhost:{server.server_address[1]}", cert
    finally:
        OVER.set()
        server.shutdown()
        thread.join()
        server.server_close()
