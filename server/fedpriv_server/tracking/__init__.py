"""Show a job's public figures in tools that people already use: TensorBoard, MLflow, W&B.

`public` says what the tools are told, `tracking` tells them, and `tools` has a function for each.

Privacy
    Only what metrics.jsonl and run.json hold is told: it was released by a mechanism that a
    site's ledger paid for, or is public. What tools collect by themselves is turned off: in a
    simulation, memory and processor time depend on the records.
"""
