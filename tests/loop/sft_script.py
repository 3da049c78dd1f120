"""A script for trl, in the manner of its own examples. `test_trl.py` runs it."""

from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
data = load_dataset("json", data_files={"train": "train.jsonl", "test": "test.jsonl"})
tokenizer = AutoTokenizer.from_pretrained("base")
tokenizer.chat_template = TEMPLATE

args = SFTConfig(
    output_dir="out",
    model_init_kwargs={"dtype": "float32"},
    max_length=64,
    packing=False,
    completion_only_loss=True,
    per_device_train_batch_size=10,
    gradient_checkpointing=True,
    learning_rate=1e-2,
    lr_scheduler_type="cosine",
    max_grad_norm=1.0,
    num_train_epochs=1,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=2,
    save_strategy="no",
    report_to="none",
    seed=7,
    bf16=False,
    use_cpu=True,
    disable_tqdm=True,
)
trainer = SFTTrainer(
    model="base",
    args=args,
    train_dataset=data["train"],
    eval_dataset={"near": data["test"].select(range(3)), "far": data["test"].select([3, 4, 5])},
    processing_class=tokenizer,
    peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
)
trainer.train()
trainer.save_model("out")
