"""Formats of training data that other libraries read and `sources.py` does not, told by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_AS_LINES = "write their documents as .jsonl or .parquet"
_UNPACKED = "unpack them first"
_FORMATS = {
    ".arrow": ("Arrow files without the dataset_info.json of a saved dataset", _AS_LINES),
    ".beton": ("FFCV's files", _AS_LINES),
    ".bin": ("binary files of tokens or chunks (Megatron-LM, LitData, nanoGPT)", _AS_LINES),
    ".bz2": ("compressed files", _UNPACKED),
    ".csv": ("tables", _AS_LINES),
    ".gz": ("compressed files", _UNPACKED),
    ".h5": ("HDF5 files", _AS_LINES),
    ".hdf5": ("HDF5 files", _AS_LINES),
    ".json": ("JSON that is not one document a line", _AS_LINES),
    ".lmdb": ("LMDB databases", _AS_LINES),
    ".mdb": ("LMDB databases", _AS_LINES),
    ".mds": ("shards of MosaicML Streaming", _AS_LINES),
    ".npy": ("NumPy arrays", _AS_LINES),
    ".tar": ("archives", _UNPACKED),
    ".tfrecord": ("TensorFlow's records", _AS_LINES),
    ".tfrecords": ("TensorFlow's records", _AS_LINES),
    ".xz": ("compressed files", _UNPACKED),
    ".zip": ("archives", _UNPACKED),
    ".zst": ("compressed files", _UNPACKED),
}
"""Ending → what such files are, and what makes them documents."""
_MANIFESTS = frozenset({"index.json", "state.json", "dataset_info.json"})
"""JSON that describes the other files of a folder."""


def foreign(files: Iterable[Path]) -> str:
    """What files are that are not read, and what to do; empty where no format is known.

    >>> foreign([Path("data/index.json"), Path("data/text.jsonl.zst")])
    'there are compressed files (text.jsonl.zst); unpack them first'
    """
    for file in sorted(files):
        known = _FORMATS.get(file.suffix)
        if known is not None and file.name not in _MANIFESTS:
            what, cure = known
            return f"there are {what} ({file.name}); {cure}"
    return ""
