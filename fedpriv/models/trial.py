"""Try on random texts whether a model computes together what transformers computes for each alone.

A model is given another attention here, and texts are padded to one length. An architecture that
misreads either would learn from padding or from later tokens, and nobody would see it. So the
logits are compared with those of the model as transformers loaded it, for one text at a time and
without padding. Nothing is compared by name, so a new architecture is tried as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

FACTOR = 16.0
DRAWS = 4  # a single one may happen to move the logits hardly at all
MEANT = 100.0
SHORT = 7  # tokens; the other text is as long as any may be, up to
LONGEST = 1024
SCALES = (1, 2, 4, 8, 16, 32)
AS_IT_IS = (0,)
TEXTS = 5  # public seed


class Trial:
    """Keep what a model, as it was loaded, makes of random texts, each by itself.

    The tolerance comes from the arithmetic: a text is computed `DRAWS` times more with each layer's
    input and output moved at random by what rounding may do there (Monte Carlo arithmetic, Parker
    1997), and `FACTOR` times the move of the logits (root mean square) is allowed. A sum of K
    terms, each rounded to u, is the exact sum of terms that were moved by about √K u (Higham and
    Mary 2019), so that is how far an input of K values is moved. The agreement of two models means
    something only where tokens matter to each other. So for the time of the trial the weights are
    scaled by powers of two, which loses nothing, until another earlier token moves the last logits
    by `MEANT` tolerances.

    Args:
        model: in evaluation mode, with the attention that transformers gave it.
        longest: tokens that a text may have in training.
        scales: factors of the weights, in the order of trying; 0 leaves all weights as they are.

    Attributes:
        meant: by how many tolerances another earlier token moved the logits. Below `MEANT`, no
            agreement says anything of attention.

    Raises:
        NotPrivateError: it can't compute a text by itself.
    """

    def __init__(
        self, model: Any, tokenizer: Any, longest: int, scales: Sequence[int] = SCALES
    ) -> None:
        self._model, self._padding = model, tokenizer.pad_token_id
        self._device = model.get_input_embeddings().weight.device
        weights = [p for p in model.parameters() if p.ndim > 1 and p.is_floating_point()]
        self._empty = [p for p in weights if not p.any()]
        embedded = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        self._weights = [p for p in weights if id(p) not in embedded]
        tokens = ordinary_tokens(model, tokenizer)
        lengths = [min(SHORT, longest), min(longest, LONGEST)]
        self._short, self._long = random_texts(model, tokenizer, lengths)
        earlier = self._short.with_other(self._short.last - 2, tokens)
        self._later = self._short.with_other(self._short.last, tokens)
        self.meant, self._scale, self._tolerance = -1.0, 1, 0.0
        self._expected: list[Tensor] = []
        for scale in scales:
            with self._scaled(scale):
                found = self._alone([self._short])
                tolerance = self._tolerance_of(self._short, found[0])
                moved = _distance(_last(self._alone([earlier])[0]), _last(found[0]))
            meant = moved / tolerance if tolerance else 0.0
            if meant > self.meant:
                self.meant, self._scale, self._tolerance = meant, scale, tolerance
                self._expected = found
            if self.meant >= MEANT:
                break
        with self._scaled(self._scale):
            self._expected += self._alone([self._long])

    def off_by(self) -> float:
        """Return how far padded texts' logits are from those alone, in tolerances: 1 at most."""
        with self._scaled(self._scale):
            found = self._together([self._short, self._long])
            return self._in_tolerances(found, self._tolerance)

    def other_off_by(self, model: Any, stored: torch.dtype | None = None) -> float:
        """Return how far off another model's logits of texts alone are, in tolerances: 1 at most.

        Args:
            stored: the type in which its weights were kept meanwhile, if in fewer bits.
        """
        self._model, own = model, self._model
        try:
            found = self._alone([self._short, self._long])
            tolerance = self._tolerance_of(self._short, found[0], stored)
            return self._in_tolerances(found, tolerance, stored)
        finally:
            self._model = own

    def _in_tolerances(
        self, found: list[Tensor], tolerance: float, stored: torch.dtype | None = None
    ) -> float:
        """Divide distances by tolerances. The long text's own is costly: only where it matters."""
        short, long = map(_distance, found, self._expected)
        shares = [short / tolerance if short else 0.0]
        if long > tolerance:
            [alone] = self._alone([self._long])
            tolerance = max(tolerance, self._tolerance_of(self._long, alone, stored))
        shares.append(long / tolerance if long else 0.0)
        return max(shares)

    def sees_later_tokens(self) -> bool:
        """Tell whether another last token changes what a language model makes of earlier ones."""
        if self._expected[0].ndim == 1:
            return False  # a classifier may
        with self._scaled(self._scale):
            texts = [self._short, self._later]
            one, other = (logits[: self._short.last] for logits in self._together(texts))
        return _distance(one, other) > self._tolerance

    def _alone(self, texts: Sequence[Text]) -> list[Tensor]:
        return [self._logits(input_ids=text.ids[None])[0] for text in texts]

    def _together(self, texts: Sequence[Text]) -> list[Tensor]:
        """Compute texts as records are computed in training: padded on the right, with a mask."""
        ids = pad_sequence([text.ids for text in texts], True, self._padding)
        mask = pad_sequence([torch.ones_like(text.ids) for text in texts], True)
        rows = zip(self._logits(input_ids=ids, attention_mask=mask), texts, strict=True)
        return [row[: len(text.ids)] if row.ndim == 2 else row for row, text in rows]

    @torch.no_grad()
    def _logits(self, **batch: Tensor) -> Tensor:
        """Compute logits, 16-bit weights in float32: their own rounding would hide much."""
        with ExitStack() as hooks:
            for module in self._model.modules():
                halves = [p for p in module.parameters(recurse=False) if p.dtype.itemsize == 2]
                if halves:
                    hooks.enter_context(_widened(module, halves))
            found = self._model(**{key: part.to(self._device) for key, part in batch.items()})
        return found.logits.double().cpu()  # type: ignore[no-any-return]

    def _tolerance_of(self, text: Text, found: Tensor, stored: torch.dtype | None = None) -> float:
        """Return how far rounding may move the logits `found` of a text."""
        generator = torch.Generator().manual_seed(4)

        def moved(values: Any, terms: bool) -> Any:
            if not isinstance(values, Tensor) or not values.is_floating_point():
                return values
            by = math.sqrt(values.shape[-1]) / 2 if terms and values.ndim else 1
            eps = max(torch.finfo(kind).eps for kind in (values.dtype, stored or values.dtype))
            noise = torch.randn(values.shape, generator=generator).to(values)
            return values * (1 + eps * by * noise)

        def move_input(_: nn.Module, inputs: tuple[Any, ...]) -> Any:
            return tuple(moved(x, terms=True) for x in inputs)

        def move_output(_: nn.Module, __: Any, output: Any) -> Any:
            return moved(output, terms=False)

        with ExitStack() as hooks:
            for module in self._model.modules():
                if not any(module.children()):
                    hooks.enter_context(module.register_forward_pre_hook(move_input))
                    hooks.enter_context(module.register_forward_hook(move_output))
            others = self._alone([text] * DRAWS)
        squares = [_distance(other, found) ** 2 for other in others]
        return FACTOR * math.sqrt(sum(squares) / DRAWS)

    @contextmanager
    def _scaled(self, scale: int) -> Iterator[None]:
        """Multiply the weights of layers, but not embeddings, by a power of two.

        A weight that is all 0, such as that of a new head, would hide what comes before it: it is
        random meanwhile.
        """
        if not scale:
            yield
            return
        scaled = [p for p in self._weights if scale > 1]
        generator = torch.Generator().manual_seed(6)
        with torch.no_grad():
            for weight in scaled:
                weight.mul_(scale)
            for weight in self._empty:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.02)
        try:
            yield
        finally:
            with torch.no_grad():
                for weight in scaled:
                    weight.div_(scale)
                for weight in self._empty:
                    weight.zero_()


def _last(logits: Tensor) -> Tensor:
    return logits[-1] if logits.ndim == 2 else logits


@dataclass(frozen=True, eq=False)
class Text:
    """Token ids (T,) with what the tokenizer puts before and after a text.

    Attributes:
        last: the place of the last token of the text itself.
    """

    ids: Tensor
    last: int

    def with_other(self, place: int, tokens: Tensor) -> Text:
        """Return the same text with another token at a place."""
        ids = self.ids.clone()
        ids[place] = tokens[0] if ids[place] != tokens[0] else tokens[1]
        return replace(self, ids=ids)


def ordinary_tokens(model: Any, tokenizer: Any) -> Tensor:
    """Return the ids of tokens that texts are made of, without the special ones around texts."""
    rows = min(len(tokenizer), len(model.get_input_embeddings().weight))
    special = set(tokenizer.all_special_ids)
    return torch.tensor([i for i in range(rows) if i not in special])


def around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the ids that a tokenizer puts before a text, and after it."""
    empty, word = (list(tokenizer(text)["input_ids"]) for text in ("", "a"))
    same = (i for i, (one, other) in enumerate(zip(empty, word, strict=False)) if one != other)
    first = next(same, len(empty))
    return empty[:first], empty[first:]


def random_texts(model: Any, tokenizer: Any, lengths: Sequence[int]) -> list[Text]:
    """Make texts of random tokens. Their lengths include the tokens around them."""
    tokens = ordinary_tokens(model, tokenizer)
    before, after = around(tokenizer)
    generator = torch.Generator().manual_seed(TEXTS)
    found = []
    for length in lengths:
        inner = max(length - len(before) - len(after), 3)
        drawn = tokens[torch.randint(len(tokens), (inner,), generator=generator)]
        ids = torch.tensor([*before, *drawn.tolist(), *after])
        found.append(Text(ids, len(before) + inner - 1))
    return found


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max())


@contextmanager
def _widened(module: nn.Module, halves: list[nn.Parameter]) -> Iterator[None]:
    """Hold a layer's weights in float32 while it computes."""
    kept = [(p, p.data) for p in halves]

    def widen(*_: Any) -> None:
        for p, data in kept:
            p.data = data.float()

    def put_back(*_: Any) -> None:
        for p, data in kept:
            p.data = data

    with (
        module.register_forward_pre_hook(widen),
        module.register_forward_hook(put_back, always_call=True),
    ):
        yield
