"""Beam search: hold the k likeliest texts so far, and go on from each."""

from __future__ import annotations

import torch
from torch import Tensor

from attnops.seq.steps import Steps


def beam_search(
    steps: Steps, max_new_tokens: int, beams: int, eos_ids: list[int], pad_id: int, length_penalty: float
) -> Tensor:
    """The text of the highest Σ log p / new_length^length_penalty that `beams` beams find, `[B, N + new]`.

    In each step every beam is continued by every token. Of the 2·beams best, those that end are set aside if they are
    among the `beams` best, the others live on. A row is done when no living beam could overtake those set aside.
    """
    batch, prompt = steps.ids.shape
    if batch == 0:
        return steps.ids.new_zeros(0, prompt + max_new_tokens)
    logits = steps.first()
    steps.reorder(torch.arange(batch, device=logits.device).repeat_interleave(beams))  # [B·beams]
    logits = logits.repeat_interleave(beams, 0)
    vocab = logits.shape[-1]
    rows = torch.arange(batch, device=logits.device).unsqueeze(1) * beams
    score = torch.full((batch, beams), float("-inf"), device=logits.device)
    score[:, 0] = 0.0  # the beams of a row are alike at first
    ended: list[list[tuple[float, Tensor]]] = [[] for _ in range(batch)]

    for step in range(1, max_new_tokens + 1):
        likely = score.unsqueeze(-1) + logits.float().log_softmax(-1).view(batch, beams, vocab)
        wide = min((len(eos_ids) + 1) * beams, beams * vocab)
        best, index = likely.flatten(1).topk(wide, -1)  # [B, wide], the best first
        beam, token = index // vocab, index % vocab
        ends = torch.isin(token, torch.tensor(eos_ids, dtype=token.dtype, device=token.device))
        for b, place in ends[:, :beams].nonzero().tolist():
            if best[b, place] > float("-inf"):
                text = torch.cat((steps.ids[b * beams + beam[b, place]], token[b, place : place + 1]))
                ended[b].append((float(best[b, place]) / step**length_penalty, text))
                ended[b] = sorted(ended[b], key=lambda pair: -pair[0])[:beams]
        order = ends.long().argsort(dim=-1, stable=True)[:, :beams]  # living candidates, the best first
        alive = ends.gather(1, order).logical_not()
        score = best.gather(1, order).masked_fill(~alive, float("-inf"))
        token, source = token.gather(1, order), (rows + beam.gather(1, order)).flatten()
        if all(_done(ended[b], float(score[b, 0]), step, beams, length_penalty) for b in range(batch)):
            break
        if step == max_new_tokens:
            steps.reorder(source)
            steps.ids = torch.cat((steps.ids, token.view(-1, 1)), 1)
            break
        steps.reorder(source)
        logits = steps.next(token.flatten())

    for b in range(batch):
        for place in range(beams):
            if len(steps.ids[0]) == prompt + max_new_tokens and score[b, place] > float("-inf"):
                value = float(score[b, place]) / max_new_tokens**length_penalty
                ended[b].append((value, steps.ids[b * beams + place]))
    winners = [max(texts, key=lambda pair: pair[0])[1] for texts in ended]
    longest = max(len(text) for text in winners)
    out = steps.ids.new_full((batch, longest), pad_id)
    for b, text in enumerate(winners):
        out[b, : len(text)] = text
    return out


def _done(ended: list[tuple[float, Tensor]], best_alive: float, step: int, beams: int, length_penalty: float) -> bool:
    """Whether as many texts ended as there are beams, and the best that lives would not be better than the worst."""
    return len(ended) == beams and ended[-1][0] >= best_alive / step**length_penalty
