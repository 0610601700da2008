"""Opens folders with Hugging Face language models, full models or peft adapters."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from seepage.errors import InputError
from seepage.support.files import check_input
from seepage.tables.names import shown


class Loaded(NamedTuple):
    """Stores a model, its tokenizer, and the model before fine-tuning, if any."""

    model: Any
    tokenizer: Any
    base: Any


def load_models(folder: Path, base: Path | None, device: str | None = None) -> Loaded:
    """Return the models in folders, read from local files only and without running their code.

    A folder with ``adapter_config.json`` contains an adapter: it is applied to the base model,
    which also counts as the model before fine-tuning.
    """
    import transformers

    model = load_model(folder, base, device)
    own = (folder / "tokenizer_config.json").is_file() or (folder / "tokenizer.json").is_file()
    source = folder if own or base is None else base
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(source), local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(
            f"The folder {shown(source.name)} has no readable tokenizer; save one in it: "
            f"tokenizer.save_pretrained({source.name!r})."
        ) from error
    before = None if base is None or _is_adapter(folder) else load_model(base, None, device)
    return Loaded(model, tokenizer, before)


def load_model(folder: Path, base: Path | None = None, device: str | None = None) -> Any:
    """Return the model in a folder, on the device and in evaluation mode.

    Raises
    ------
    InputError
        If the folder holds neither a causal language model nor an adapter of one.
    """
    check_model_folders(filter(None, (folder, base)))
    import torch
    import transformers

    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    whole = not _is_adapter(folder)
    net = _causal(folder, transformers) if whole else _adapted(folder, base, transformers)
    return net.to(place).eval()


def check_model_folders(folders: Iterable[Path]) -> None:
    """Raise an error for a folder that does not exist."""
    for path in folders:
        check_input(path)
        if not path.is_dir():
            raise InputError(f"There is no folder {shown(str(path))}; name the model's folder.")


def _is_adapter(folder: Path) -> bool:
    return (folder / "adapter_config.json").is_file()


def _causal(folder: Path, transformers: Any) -> Any:
    """Return the causal language model in a folder, in the precision in which it was saved."""
    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    precision = "dtype" if (major, minor) >= (4, 56) else "torch_dtype"
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(
            str(folder), local_files_only=True, **{precision: "auto"}
        )
    except (OSError, ValueError) as error:
        raise InputError(
            f"The folder {shown(folder.name)} contains no causal language model that transformers "
            f"{transformers.__version__} can read; save one in it: "
            f"model.save_pretrained({folder.name!r})."
        ) from error


def _adapted(folder: Path, base: Path | None, transformers: Any) -> Any:
    try:
        from peft import PeftConfig, PeftModel
    except ImportError:
        raise InputError(
            "The folder contains an adapter, which needs peft; run: pip install "
            "'seepage[transformers]'"
        ) from None
    if base is None:
        named = Path(str(PeftConfig.from_pretrained(str(folder)).base_model_name_or_path))
        if not named.is_dir():
            raise InputError(
                f"{shown(folder.name)} contains an adapter; name the folder of the base model with "
                "--base."
            )
        base = named
    return PeftModel.from_pretrained(_causal(base, transformers), str(folder))
