"""The criterion on pairs of samples: each is judged by itself, as the model was at the refresh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from gradmix.criterion.embedding import embeddings_of
from gradmix.criterion.gradients import HeadGradient, projections
from gradmix.criterion.scores import Scored, row_scores, sample_scores


@torch.no_grad()
def score_all(
    model: nn.Module,
    head: nn.Linear,
    fetch: Callable[[Tensor], Tensor],
    index: Tensor,
    y: Tensor,
    gradient: HeadGradient,
) -> Scored:
    """Logits and projections of the samples at `index`: a forward pass over all of them."""
    X = embeddings_of(model, head, fetch, index)
    return Scored(head(X).float(), projections(X, gradient), y)


class SamplePairs:
    """Pairs of samples, judged at each batch's own λ; `best` says S*, by class."""

    def __init__(
        self,
        samples: Scored,
        index: Tensor,
        ratios: Sequence[float],
        best: Callable[[Tensor, Tensor], Tensor],
        harmful: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        """With `harmful`, S⁻ is by class too."""
        self._samples, self._index, self.best = samples, index, best
        self._harmful = harmful
        self._lam = torch.tensor(ratios, dtype=torch.float64, device=index.device)[:, None]

    def harmful(self, y: Tensor, rows: Tensor) -> Tensor:
        """Whether the mix of each row with its partner in the batch does harm."""
        if self._harmful is not None:
            return self._harmful(y, rows)
        return self._scores(self._index.gather(1, rows)) < 0

    def best_of(self, candidates: Tensor) -> Tensor:
        """Of several samples for each row, (N, S, B), the one with which it scores best."""
        scores = torch.stack([self._scores(others) for others in candidates])
        return candidates.gather(0, scores.argmax(0, keepdim=True)).squeeze(0)

    def _scores(self, others: Tensor) -> Tensor:
        """Of each row with another sample of the pool."""
        left, right = (
            Scored(*(part[at] for part in self._samples)) for at in (self._index, others)
        )
        return row_scores(left, right, self._lam)

    def chances(self) -> Iterator[Tensor]:
        """For each batch, how likely each row is to be another's partner, (B, B).

        The softmax of the scores in units of their standard deviation.
        """
        for index, lam in zip(self._index, self._lam, strict=True):
            rows = Scored(*(part[index] for part in self._samples))
            scores = sample_scores(rows, rows, lam.to(rows.logits))
            yield (scores / scores.std().clamp(min=1e-30)).softmax(1)
