"""The lines of Python that load an exported model, for its card; a test runs them."""

from __future__ import annotations

from fedpriv.hub.contents import Contents

_AUTO = {
    "causal-lm": "AutoModelForCausalLM",
    "classification": "AutoModelForSequenceClassification",
}


def lines_of_use(contents: Contents) -> list[str]:
    """Return Python that leaves `model` and `tokenizer`, without fedpriv where possible."""
    model, here = contents.model, 'folder = "."  # where this card is'
    if not contents.base_here:  # within a repository of a hub no class looks for a second model
        here += ", or its name at a hub"
    auto, tokenizer = _AUTO[model.task], "tokenizer = AutoTokenizer.from_pretrained(folder)"
    if contents.merged:
        return [
            f"from transformers import {auto}, AutoTokenizer",
            "",
            here,
            tokenizer,
            f"model = {auto}.from_pretrained(folder).eval()",
        ]
    source = 'f"{folder}/base"' if contents.base_here else "name"
    lines = [
        "from peft import PeftModel",
        f"from transformers import {auto}, AutoTokenizer",
        "",
        here,
        tokenizer,
        f"base = {auto}.from_pretrained({source}{_head(contents)})",
        "model = PeftModel.from_pretrained(base, folder).eval()",
    ]
    if model.pooling == "mean":  # no class of transformers
        lines[1:2] = [
            "from transformers import AutoTokenizer",
            "from fedpriv.models.pooled import MeanPooledClassifier",
        ]
        lines[-2] = f"base, _ = MeanPooledClassifier.from_encoder({source}{_head(contents)})"
    if not contents.base_here:
        lines.insert(-3, f"name = {contents.base or 'the base model, by its digest above'!r}")
    if model.quantize is not None:  # or it would be beside weights that it was not trained with
        lines.insert(-1, f"round_weights(base, {model.quantize!r})")
        lines.insert(0, "from fedpriv.models.quantised import round_weights")
    return lines


def _head(contents: Contents) -> str:
    """Return arguments that give a classifier the right size of head, which the adapter fills."""
    if contents.model.task != "classification":
        return ""
    labels = contents.model.labels
    if contents.model.pooling == "mean":
        return f", num_labels={len(labels)}, output_loading_info=True"
    return f", id2label={dict(enumerate(labels))!r}, ignore_mismatched_sizes=True"
