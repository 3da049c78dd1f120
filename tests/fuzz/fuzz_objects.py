"""Flower's objects as a JSON tree, so that a change of one does not break the digests of all.

A node has a kind, the numbers of the nodes that it refers to, and a body, in which ``<3>`` stands
for the id of node 3. A ConfigRecord has its values instead of a body. The last node is the root.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from random import Random
from typing import Any

from flwr.app import ConfigRecord
from flwr.app.message.message import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_id,
)

from tests.fuzz.fuzz_mutate import json_bytes, mutate_bytes, mutate_tree
from tests.fuzz.fuzz_target import raw

Nodes = list[dict[str, Any]]


@dataclass(frozen=True)
class Objects:
    """Objects by their ids, and how they refer to each other.

    Attributes:
        root: id of the last; "" of none.
    """

    contents: dict[str, bytes]
    root: str
    tree: ObjectTree


def nodes_of(message: Message) -> Nodes:
    """The nodes of a message."""
    nodes: Nodes = []
    numbers: dict[str, int] = {}
    for key, item in get_all_nested_objects(message).items():
        content = item.deflate()
        kind, children, _ = get_object_head_values_from_object_content(content)
        node: dict[str, Any] = {"kind": kind, "children": [numbers[child] for child in children]}
        if isinstance(item, ConfigRecord):
            node["values"] = dict(item)
        else:
            body = get_object_body(content, type(item)).decode("latin-1")
            for child in children:
                body = body.replace(child, f"<{numbers[child]}>")
            node["body"] = body
        numbers[key] = len(nodes)
        nodes.append(node)
    return nodes


def objects_of(nodes: Any, **texts: str) -> Objects:
    """The objects of nodes, whatever they are; a text's name in ``<>`` stands for it in a body."""
    contents: dict[str, bytes] = {}
    trees: list[ObjectTree] = []
    for node in nodes if isinstance(nodes, list) else ():
        shown = node if isinstance(node, dict) else {}
        listed = shown.get("children")
        below = [
            trees[number]
            for number in (listed if isinstance(listed, list) else ())
            if isinstance(number, int) and 0 <= number < len(trees)
        ]
        content = _content(shown, [tree.object_id for tree in trees], below, texts)
        key = get_object_id(content)
        contents[key] = content
        trees.append(ObjectTree(object_id=key, children=below))
    return Objects(contents, trees[-1].object_id if trees else "", (trees or [ObjectTree()])[-1])


def _content(
    node: dict[str, Any], keys: list[str], below: list[ObjectTree], texts: dict[str, str]
) -> bytes:
    if "values" in node:
        try:
            return ConfigRecord(dict(node["values"])).deflate()
        except Exception:  # no such record can be made
            return ConfigRecord({"body": json.dumps(node["values"], default=str)}).deflate()

    def named(match: re.Match[str]) -> str:
        name = match[1]
        if name.isdecimal() and len(name) < 4 and int(name) < len(keys):
            return keys[int(name)]
        return texts.get(name, match[0])

    body = raw(re.sub(r"<(\w+)>", named, str(node.get("body", ""))))
    length = node.get("length", len(body))
    head = f"{node.get('kind')} {','.join(tree.object_id for tree in below)} {length}"
    return head.encode("utf-8", "replace") + b"\x00" + body


def mutate_nodes(nodes: Any, random: Random) -> Any:
    """Another body or value of a node, or another shape of all."""
    if not isinstance(nodes, list) or not nodes or random.random() < 0.2:
        return mutate_tree(nodes, random)
    copy = [dict(node) if isinstance(node, dict) else node for node in nodes]
    node = random.choice(copy)
    if not isinstance(node, dict):
        return mutate_tree(nodes, random)
    if "values" in node:
        values = dict(node["values"]) if isinstance(node["values"], dict) else {}
        if "body" in values and random.random() < 0.8:
            text = json_bytes(str(values["body"]).encode("utf-8", "replace"), random)
            values["body"] = text.decode("utf-8", "replace")
        else:
            values = mutate_tree(values or {"body": "{}"}, random)
        node["values"] = values
    elif str(node.get("kind")) in ("Message", "ArrayChunk"):
        node["body"] = mutate_bytes(raw(node.get("body", "")), random).decode("latin-1")
    elif random.random() < 0.8:
        node["body"] = json_bytes(raw(node.get("body", "")), random).decode("latin-1")
    else:
        return mutate_tree(copy, random)
    return copy
