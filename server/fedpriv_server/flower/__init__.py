"""All of Flower's internals that the server's side uses, simulations included, and nothing else.

Flower moves these between minor versions. Whoever moves the pin reads these three files, and
`tests/server/test_flower.py`, which says what each has to do; nothing else of ours imports more of
Flower than its public packages (flwr.app, flwr.serverapp). Simulations need `messages` alone: what
a server is made of takes a second to import.
"""
