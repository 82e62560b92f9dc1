"""A Hugging Face folder in the package `transformers`, another implementation beside ours, where it is asked for.

Nothing is downloaded, no code of the folder is run, and only weights in safetensors are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from heedful.contracts.texts import Codec
from heedful.errors import UserError, short
from heedful.files.folders import has_file, read_settings


def in_transformers(folder: Path) -> tuple[nn.Module, Callable[[], nn.Module], Codec | None]:
    """The model of a folder in `transformers`, one with other weights, and its tokenizer."""
    where, settings = folder / "config.json", read_settings(folder, "config.json")
    if "auto_map" in settings:
        raise UserError(
            "this model needs code from its folder, which is not run", where=f"{where}: auto_map",
            expected="a model that is part of transformers",
        )  # fmt: skip
    if find_spec("transformers") is None:
        raise UserError(
            "transformers is not installed", where=str(folder), todo="pip install transformers, or leave --in out"
        )
    import transformers

    writes = any("CausalLM" in str(name) or "LMHead" in str(name) for name in settings.get("architectures") or ())
    auto: Any = transformers.AutoModelForCausalLM if writes else transformers.AutoModel
    quiet: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with without_bars(transformers.utils.logging):
            model = auto.from_pretrained(str(folder), use_safetensors=True, dtype="float32", **quiet)
    except Exception as error:  # any: of another package
        raise UserError(
            "transformers cannot read this folder", where=str(folder),
            found=f"{type(error).__name__}: {short(str(error), 300)}",
            todo="leave --in transformers out, or copy the folder again",
        ) from error  # fmt: skip
    return model.eval(), lambda: type(model)(model.config), tokenizer(transformers, folder, quiet)


@contextmanager
def without_bars(logging: Any) -> Iterator[None]:
    """No progress bars of transformers while a model is read."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def tokenizer(transformers: Any, folder: Path, quiet: dict[str, Any]) -> Codec | None:
    """Its tokenizer, if the folder has the files."""
    if not any(has_file(folder, name) for name in ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model")):
        return None
    try:
        found = transformers.AutoTokenizer.from_pretrained(str(folder), **quiet)
    except Exception:  # any: of another package; the check says that there is none
        return None
    return Codec(
        lambda text: list(found.encode(text, add_special_tokens=False)),
        lambda ids: str(found.decode(list(ids), clean_up_tokenization_spaces=False)), len(found),
    )  # fmt: skip
