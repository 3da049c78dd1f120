"""Pre-train the embedded base model on public medical text (MedQuAD, CC BY 4.0), or a larger one.

    python benchmarks/pretrain_base.py --medquad medquad.jsonl.gz --steps 2500
    python benchmarks/pretrain_base.py --medquad medquad.jsonl.gz --text abstracts.jsonl.gz \
        --hidden 512 --layers 8 --batch 128 --lr 1.5e-3 --device cuda --out larger

It makes an ordinary Hugging Face folder: a byte-level BPE tokenizer and a small GPT-style causal
language model in 16-bit safetensors. It prints the held-out perplexity on MedQuAD and on the
embedded MTSamples notes, which the model has never seen, and writes them beside the weights in
`recipe.json`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from fedpriv.config.load import HOSPITALS

NOTES = HOSPITALS.parent / "held-out.jsonl.gz"
PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"


def read_jsonl(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)


def medquad(path: Path) -> tuple[list[str], list[str]]:
    """Split documents into training and held-out ones (2%), by the hash of the answer."""
    documents = {row["answer"]: f"{row['question']}\n{row['answer']}" for row in read_jsonl(path)}
    train: list[str] = []
    held_out: list[str] = []
    for answer, document in documents.items():
        bucket = int(hashlib.sha256(answer.encode()).hexdigest(), 16) % 50
        (held_out if bucket == 0 else train).append(document)
    return train, held_out


def train_tokenizer(documents: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=512,
        padding_side="right",
    )


def stream_of_tokens(documents: list[str], tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    ids: list[int] = []
    for encoded in tokenizer(documents)["input_ids"]:
        ids += encoded
        ids.append(tokenizer.eos_token_id)
    return torch.tensor(ids)


@torch.no_grad()
def perplexity(model: LlamaForCausalLM, tokens: torch.Tensor, length: int, limit: int) -> float:
    """Return exp of the mean loss over consecutive windows of `length` tokens."""
    model.eval()
    windows = tokens[: len(tokens) // length * length].view(-1, length)[:limit]
    total = count = 0.0
    for batch in windows.split(32):
        logits = model(input_ids=batch).logits[:, :-1].float()
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
        total, count = total + loss.item(), count + batch[:, 1:].numel()
    model.train()
    return math.exp(total / count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--medquad", type=Path, required=True)
    parser.add_argument(
        "--text", type=Path, nargs="*", default=[], help="more to train on: the column text"
    )
    parser.add_argument("--out", type=Path, default=Path("fedpriv/assets/base"))
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="recipe.json here, too")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)

    train, held_out = medquad(arguments.medquad)
    train += [row["text"] for path in arguments.text for row in read_jsonl(path)]
    tokenizer = train_tokenizer(train, arguments.vocab)
    train_tokens = stream_of_tokens(train, tokenizer)
    held_out_tokens = stream_of_tokens(held_out, tokenizer)
    notes = [row["transcription"] for row in read_jsonl(NOTES)]
    note_tokens = stream_of_tokens(notes, tokenizer)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=arguments.hidden,
        intermediate_size=arguments.hidden * 5 // 2,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.hidden // 64,
        num_key_value_heads=arguments.hidden // 64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config).to(arguments.device)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, {len(train_tokens):,} tokens of {len(train):,} documents")

    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=arguments.lr,
        betas=(0.9, 0.95),
    )
    warmup = max(1, arguments.steps // 50)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: (
            min(1.0, (step + 1) / warmup)
            * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / arguments.steps)))
        ),
    )
    offsets = torch.arange(arguments.length)
    started = time.monotonic()
    for step in range(arguments.steps):
        starts = torch.randint(len(train_tokens) - arguments.length, (arguments.batch,))
        batch = train_tokens[starts[:, None] + offsets].to(arguments.device)  # (B, T)
        with torch.autocast(arguments.device, dtype=torch.bfloat16):
            logits = model(input_ids=batch).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            rate = (step + 1) * batch.numel() / (time.monotonic() - started)
            print(f"step {step:5}  loss {loss.item():.3f}  {rate:,.0f} tokens/s", flush=True)

    model = model.to("cpu", dtype=torch.float16)
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    stored = LlamaForCausalLM.from_pretrained(arguments.out, dtype=torch.float32)
    recipe = {
        "data": "MedQuAD (CC BY 4.0), 98% of the distinct answers with their questions",
        "more_text": [path.name for path in arguments.text],
        "parameters": parameters,
        "train_tokens": len(train_tokens),
        "tokens_seen": arguments.steps * arguments.batch * arguments.length,
        "steps": arguments.steps,
        "batch": arguments.batch,
        "length": arguments.length,
        "lr": arguments.lr,
        "seed": arguments.seed,
        "minutes": round((time.monotonic() - started) / 60, 1),
        "perplexity": {
            "medquad_held_out": round(perplexity(stored, held_out_tokens, 256, 400), 2),
            "mtsamples_held_out": round(perplexity(stored, note_tokens, 256, 400), 2),
        },
    }
    for path in filter(None, (arguments.out / "recipe.json", arguments.json)):
        path.write_text(json.dumps(recipe, indent=2) + "\n")
    print(json.dumps(recipe, indent=2))


if __name__ == "__main__":
    main()
