"""Check whether llama.cpp computes what transformers does, from what `fedpriv adapter` writes.

    fedpriv simulate --out run
    pip install llama-cpp-python gguf sentencepiece
    python benchmarks/export_gguf.py run --llama-cpp LLAMA_CPP --json gguf.json

LLAMA_CPP is a folder of llama.cpp's source, with its scripts that convert models. They know
tokenizers by name, and not that of the embedded model. So they are told that it splits text as
GPT-2's does. The logits of a few tokens are compared, in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fedpriv.environment import set_environment

TOKENS = [5, 100, 200, 300, 17, 900, 44, 1000]
CONVERT = """
import runpy, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
import conversion.base
conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
script = sys.argv[1] + "/convert_hf_to_gguf.py"
sys.argv = [script, sys.argv[2], "--outfile", sys.argv[3], "--outtype", "f32"]
runpy.run_path(script, run_name="__main__")
"""


def convert(llama_cpp: Path, model: Path, file: Path) -> Path:
    """Convert a model to GGUF."""
    arguments = [str(llama_cpp), str(model), str(file)]
    subprocess.run([sys.executable, "-c", CONVERT, *arguments], check=True, capture_output=True)
    return file


def convert_adapter(llama_cpp: Path, adapter: Path, base: Path, file: Path) -> Path:
    """Convert an adapter to GGUF."""
    script = [sys.executable, str(llama_cpp / "convert_lora_to_gguf.py"), str(adapter)]
    script += ["--base", str(base), "--outfile", str(file), "--outtype", "f32"]
    search = {"PYTHONPATH": os.pathsep.join([str(llama_cpp / "gguf-py"), *sys.path])}
    subprocess.run(script, check=True, capture_output=True, env=os.environ | search)
    return file


def by_llama_cpp(model: Path, adapter: Path | None = None) -> Any:
    from llama_cpp import Llama

    lora = None if adapter is None else str(adapter)
    loaded = Llama(str(model), lora_path=lora, n_ctx=64, logits_all=True, verbose=False)
    loaded.eval(TOKENS)
    return np.array(loaded.scores[: len(TOKENS)])


def by_transformers(model: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        return loaded(input_ids=torch.tensor([TOKENS])).logits[0].numpy()


def compare(run: Path, llama_cpp: Path, folder: Path) -> list[dict[str, Any]]:
    """Return a row for each form, and for the base model alone, which has to differ.

    Each row has the largest difference of logits, their standard deviation, and whether the
    likeliest next token is the same at every position.
    """
    from fedpriv.hub.export import Wanted, export

    export(run, folder / "adapter", Wanted())
    export(run, folder / "merged", Wanted(merge=True, dtype="float32"))
    base = folder / "adapter" / "base"
    whole = convert(llama_cpp, folder / "merged", folder / "merged.gguf")
    alone = convert(llama_cpp, base, folder / "base.gguf")
    adapter = convert_adapter(llama_cpp, folder / "adapter", base, folder / "adapter.gguf")
    expected = by_transformers(folder / "merged")
    found = {
        "merged": by_llama_cpp(whole),
        "adapter beside its base": by_llama_cpp(alone, adapter),
        "base alone": by_llama_cpp(alone),
    }
    return [
        {
            "form": form,
            "difference": float(np.abs(logits - expected).max()),
            "of": float(expected.std()),
            "same_token": bool((logits.argmax(1) == expected.argmax(1)).all()),
        }
        for form, logits in found.items()
    ]


def main() -> None:
    set_environment()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="of the embedded model")
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="LLAMA_CPP")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(given.run, given.llama_cpp.resolve(), Path(folder))
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{v:.4f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
