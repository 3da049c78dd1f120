"""Base models and tokenizers, the LoRA adapter on top, and the flat vector of what is trained."""
