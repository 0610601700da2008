"""Reads an attacker's auxiliary data, and the network that clients trained.

The data are in one file without executable code. A ``.npz`` or ``.safetensors`` file has the arrays
``x``, ``y`` and ``property`` (or the property's own name). A ``.parquet`` file has a column ``y``
(or ``label``) and a column for the property; all other columns contain numbers, and together are
``x``. Inputs of type uint8 are divided by 255. The network is returned by a function without
arguments in the caller's Python file, named as ``file.py:function``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seepage.errors import InputError, nearest
from seepage.support.files import check_input
from seepage.tables.names import listed, shown

_KINDS = (".npz", ".safetensors", ".parquet")
_TARGETS = ("y", "label", "labels", "target")


class AuxiliaryData(NamedTuple):
    """The inputs, the targets and the property of every auxiliary record."""

    x: np.ndarray
    y: np.ndarray
    property: np.ndarray


def read_auxiliary(path: Path, name: str) -> AuxiliaryData:
    """Return auxiliary data; the property is the array called ``name`` or ``property``."""
    check_input(path)
    ending = path.suffix.lower()
    if ending not in _KINDS:
        raise InputError(
            f"{path.name} is not in a supported format; convert it to one of "
            f"{listed(list(_KINDS))}, which contain no executable code."
        )
    if not path.is_file():
        raise InputError(f"There is no file {path}; check the path.")
    try:
        arrays = _read(path, ending)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{path.name} cannot be read ({error}); write it as plain arrays of numbers and text."
        ) from error
    whose = next((key for key in (name, "property") if key in arrays), None)
    target = next((key for key in _TARGETS if key in arrays), None)
    missing = "the property" if whose is None else "y" if target is None else None
    if ending != ".parquet" and "x" not in arrays:
        missing = "x"
    if missing is not None or whose is None or target is None:
        needed = "y" if ending == ".parquet" else "x, y"
        raise InputError(
            f"{path.name} lacks {missing}: it needs {needed} and {shown(name)} (or 'property'), "
            f"but contains {listed(list(arrays)) or 'nothing'}. Add what is missing."
        )
    values, y = np.asarray(arrays.pop(whose)), np.asarray(arrays.pop(target))
    x = np.asarray(arrays["x"]) if "x" in arrays else _columns(path, arrays)
    for each, what in ((y, "y"), (values, "the property")):
        if len(each) != len(x):
            raise InputError(
                f"In {path.name}, x has the length {len(x):,} and {what} the length "
                f"{len(each):,}; give one value per record."
            )
    if x.dtype.kind in "ui" and x.dtype.itemsize > 1:
        x = x.astype(np.float32)
    elif x.dtype.kind == "u":  # images
        x = x.astype(np.float32) / 255
    return AuxiliaryData(x, y, np.array([_text(value) for value in values.tolist()]))


def load_network(name: str) -> Any:
    """Return the network from the caller's function, named as ``file.py:function``."""
    file, colon, function = name.rpartition(":")
    path = Path(file)
    if not colon or path.suffix != ".py":
        raise InputError(f"--network must be file.py:function, not {shown(name)}.")
    check_input(path)
    if not path.is_file():
        raise InputError(f"There is no file {path}; check the path.")
    spec = spec_from_file_location(f"network_of_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file; give file.py:function.")
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # its own imports
    try:
        spec.loader.exec_module(module)
        make = getattr(module, function, None)
        if not callable(make):
            names = [key for key, value in vars(module).items() if callable(value)]
            raise InputError(
                f"{path.name} has no function {function!r}{nearest(function, names)}; give one "
                "that returns the network."
            )
        net = make()
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{name} failed ({type(error).__name__}: {error}); it must return the network."
        ) from error
    finally:
        sys.path.remove(str(path.parent))
    if not (hasattr(net, "state_dict") and hasattr(net, "named_parameters")):
        raise InputError(f"{name} returned {type(net).__name__}; it must return a torch.nn.Module.")
    return net


def _read(path: Path, ending: str) -> dict[str, Any]:
    if ending == ".npz":
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    if ending == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            return dict(load_file(path))
        except SafetensorError as error:
            raise ValueError(str(error)) from error
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return {key: np.array(table[key].to_pylist()) for key in table.column_names}


def _columns(path: Path, arrays: Mapping[str, Any]) -> np.ndarray:
    wrong = [key for key, values in arrays.items() if np.asarray(values).dtype.kind not in "fiub"]
    if wrong or not arrays:
        raise InputError(
            f"Besides y and the property, {path.name} must have only columns of numbers, but it "
            f"has {listed(wrong) or 'no others'}; keep y, the property, and the numbers that the "
            "network reads."
        )
    return np.stack([np.asarray(values, np.float32) for values in arrays.values()], axis=1)


def _text(value: Any) -> str:
    """Return a value of the property as text; whole numbers have no decimal point."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
