"""Flower's object store, with what is large in files instead of memory."""

from __future__ import annotations

from pathlib import Path

from fedpriv_server.flower.state import InMemoryObjectStore

LARGE = 64 << 10  # bytes from which an object is a file


class FolderStore(InMemoryObjectStore):
    """Keeps the contents of large objects as files of a folder, named by their SHA-256.

    Memory holds small objects and the references between all of them. Files are not synced: what
    is in here is sent again after a crash.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def put(self, object_id: str, object_content: bytes) -> None:
        """Keep the content of an object of ours that was announced."""
        if len(object_content) < LARGE:
            super().put(object_id, object_content)
            return
        with self.lock_store:
            entry = self.store[object_id]
            if not entry.is_available:
                (self._folder / object_id).write_bytes(object_content)
                entry.is_available = True

    def get(self, object_id: str) -> bytes | None:
        """Return an object's content: b"" while it is awaited, None if it was not announced."""
        with self.lock_store:
            entry = self.store.get(object_id)
            if entry is None:
                return None
            if entry.content or not entry.is_available:
                return entry.content
        try:
            return (self._folder / object_id).read_bytes()
        except FileNotFoundError:  # deleted meanwhile
            return None

    def delete(self, object_id: str) -> None:
        """Remove an object and what only it refers to."""
        with self.lock_store:
            if object_id not in self.store:
                return  # and no name of a file of ours either
            super().delete(object_id)  # calls this for what it refers to
            if object_id not in self.store:
                (self._folder / object_id).unlink(missing_ok=True)
