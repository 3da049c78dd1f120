"""What a run made, for others: the adapter, or the model with it, in the format of model hubs."""
