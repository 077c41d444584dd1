"""A kubeconfig can be wrong in any way: one line that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.launch.kube.api import connect

pytest.importorskip("kubernetes")


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(
    "content", [b"\0" * 99, b"[1, 2]", b"3", b"a: [", b"[" * 50_000, "a: 1".encode("utf-16"), b""]
)
def test_a_broken_kubeconfig_is_one_line(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    with pytest.raises(InputError, match=r"^kubeconfig: .*set KUBECONFIG") as caught:
        connect("default")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
