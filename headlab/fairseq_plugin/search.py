"""Beam search over HeadlabTransformer: the search of fairseq's SequenceGenerator, without what makes that one slow.

Encoder keys are projected once per sentence; hypotheses are not moved when they branch, a mask follows them instead;
finished sentences leave the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headlab.attention.layer import attention_layers
from headlab.attention.past import BEAM, Past, State
from headlab.fairseq_plugin.model import HeadlabTransformer

#: The share of a batch that has to be finished before it is made smaller: copying the rest costs something, too.
LEAVE = 0.1


@dataclass
class Search:
    """Finds, for each sentence, the translation of the largest log-probability / length ** ``lenpen``.

    Args:
        beam: how many unfinished hypotheses of a sentence are followed at once.
        lenpen: exponent of the length, which counts the end-of-sentence token.
        eos, pad: tokens; ``eos`` also begins every hypothesis.

    As in fairseq, an end of sentence counts when it is among the ``beam`` best continuations, and a sentence is
    finished once ``beam`` hypotheses have ended so.
    """

    model: HeadlabTransformer
    beam: int
    lenpen: float
    eos: int
    pad: int

    def __call__(self, source: Tensor, lengths: Tensor, limit: Tensor) -> list[Tensor]:
        """The best translation of each sentence, without end-of-sentence token.

        Args:
            source: (sentences, longest), padded.
            lengths: (sentences,), tokens of each sentence.
            limit: (sentences,), the largest number of tokens of a translation.
        """
        sentences, beam = source.size(0), self.beam
        encoded = self.model.encoder(source, src_lengths=lengths)
        own_keys = torch.zeros(beam, beam, device=source.device)
        own_keys.fill_(float("-inf")).fill_diagonal_(0)  # a hypothesis sees its own newest key alone
        state: State = {BEAM: own_keys.expand(sentences, beam, beam)}
        layers = attention_layers(self.model.decoder)
        alive = torch.arange(sentences, device=source.device)  # the numbers of the sentences in the batch
        tokens = source.new_full((sentences, beam, 1), self.eos)
        # All hypotheses begin alike: only the first may branch.
        totals = torch.zeros(sentences, beam, device=source.device).index_fill_(
            1, torch.arange(1, beam, device=source.device), float("-inf")
        )
        ended = torch.zeros(sentences, dtype=torch.long, device=source.device)
        best = torch.full((sentences,), float("-inf"), device=source.device)
        found = [tokens.new_empty(0)] * sentences

        for step in range(int(limit.max()) + 1):
            logits, _ = self.model.decoder(tokens.flatten(0, 1), encoder_out=encoded, incremental_state=state)
            scores, parents, words = self._continuations(logits[:, -1].float(), totals, step, limit)
            ends = words.eq(self.eos) & scores.ne(float("-inf"))
            counted = ends[:, :beam]
            # Continuations are sorted, so the first that ends is the best of this step.
            first = counted.int().argmax(1, keepdim=True)
            score = scores.gather(1, first).squeeze(1) / (step + 1) ** self.lenpen
            better = counted.any(1) & score.gt(best) & ended.lt(beam)
            best = torch.where(better, score, best)
            for row in better.nonzero().flatten().tolist():
                found[int(alive[row])] = tokens[row, parents[row, first[row]], 1:].flatten()
            ended += counted.sum(1)
            ended.masked_fill_(limit.le(step), beam)

            # The beam goes on with the best continuations that do not end.
            going = (ends * 2 * beam + torch.arange(scores.size(1), device=scores.device)).topk(beam, largest=False)[1]
            totals, parents, words = (t.gather(1, going) for t in (scores, parents, words))
            words.masked_fill_(words.eq(self.pad), self.eos)  # of a finished sentence, for which no word is left
            seen = parents[:, :, None]
            tokens = torch.cat([tokens.gather(1, seen.expand(-1, -1, tokens.size(2))), words[:, :, None]], 2)
            mask = state[BEAM].gather(1, seen.expand(-1, -1, state[BEAM].size(2)))
            state[BEAM] = torch.cat([mask, own_keys.expand(mask.size(0), beam, beam)], 2)

            done = ended.ge(beam)
            leaving = int(done.sum())
            if leaving == done.numel():
                break
            if leaving >= LEAVE * done.numel():
                staying = (~done).nonzero().flatten()
                alive, tokens, totals, ended, best, limit, state[BEAM] = (
                    t.index_select(0, staying) for t in (alive, tokens, totals, ended, best, limit, state[BEAM])
                )
                for layer in layers:
                    past: Past | None = state.get(layer.name)
                    if past is not None:
                        past.keep(staying)
        return found

    def _continuations(self, logits: Tensor, totals: Tensor, step: int, limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best ways to go on with each sentence, best first: score, hypothesis, word; each (sentences, 2 * beam).

        Of them at most ``beam`` end, one of each hypothesis, so that ``beam`` are left to go on with.
        """
        sentences, beam = totals.shape
        normaliser = logits.logsumexp(1, keepdim=True)
        logits[:, self.pad] = float("-inf")
        if step == 0:
            logits[:, self.eos] = float("-inf")
        full = limit.le(step)
        if bool(full.any()):  # nothing but an end is allowed
            rows = full.repeat_interleave(beam)
            ends = logits[rows, self.eos]
            logits[rows] = float("-inf")
            logits[rows, self.eos] = ends
        # The best of a sentence are among the best of its hypotheses.
        values, words = logits.topk(min(2 * beam, logits.size(1) - 1))
        values = values - normaliser + totals.view(-1, 1)
        values, words = values.view(sentences, -1), words.view(sentences, -1)
        scores, places = values.topk(min(2 * beam, values.size(1)))
        return scores, places // (values.size(1) // beam), words.gather(1, places)
