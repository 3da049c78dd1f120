"""Write what a run made for others: the adapter, or the whole model, in model hubs' format."""
