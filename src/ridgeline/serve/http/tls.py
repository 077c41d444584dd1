"""The certificate of a server that speaks https itself."""

from __future__ import annotations

import ssl
from pathlib import Path

from ridgeline.errors import InputError, in_words


def check_tls(certificate: Path | None, key: Path | None) -> tuple[str, str] | None:
    """The two files, after they were read together.

    Raises:
        InputError: One of them is missing, or they do not belong to each other.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InputError("--ssl-certfile and --ssl-keyfile go together: give both or none")
    for option, path in (("--ssl-certfile", certificate), ("--ssl-keyfile", key)):
        if not path.is_file():
            raise InputError(f"{option} {path}: no such file; give a PEM file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, OSError) as error:
        raise InputError(
            f"--ssl-certfile {certificate} with --ssl-keyfile {key}: {in_words(error)}; give a"
            " certificate and its own key, both in PEM, the key without a password"
        ) from None
    return str(certificate), str(key)


def _no_password() -> str:
    """Asked for where the key is encrypted: nobody may be asked on a terminal."""
    return ""
