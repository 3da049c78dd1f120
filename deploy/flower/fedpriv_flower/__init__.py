"""fedpriv as a Flower app: `flwr run deploy/flower`."""
