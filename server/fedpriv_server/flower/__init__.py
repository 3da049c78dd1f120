"""All of Flower's internals that the server's side uses, simulations included, and nothing else.

Flower moves these between minor versions. If you change the pinned version, read these three files
and `tests/server/test_flower.py`, which says what each has to do. Our other code imports only
Flower's public packages (flwr.app, flwr.serverapp). Simulations need `messages` alone, because the
parts of a server take a second to import.
"""
