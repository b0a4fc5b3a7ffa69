"""Serve many requests that begin alike: contiguous caches against pages.

    python -m examples.paged_serving            # 64 requests that share a prefix of 512 tokens
    python -m examples.paged_serving --small    # a few seconds

Both answer the same requests greedily with the same model, and must give the same tokens. The contiguous cache pads all
requests to one length and holds the shared prefix once for each of them. The paged cache holds each full page of it
once, computes it once, and meets all requests in one call of `attend` a layer, whatever their lengths.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from attnops.seq import Decoder, KVCache, PagedCache, TransformerConfig
from examples.outputs import add_out, write_json


@dataclass
class Answer:
    tokens: Tensor  # [requests, new]
    bytes: int  # of keys and values, at the end
    prefill: float  # seconds
    decode: float


def make_requests(count: int, prefix: int, longest: int, vocab_size: int) -> list[list[int]]:
    """`count` texts that begin with the same `prefix` tokens and end in 1 … `longest` of their own."""
    shared = torch.randint(vocab_size, (prefix,)).tolist()
    return [shared + torch.randint(vocab_size, (1 + index % longest,)).tolist() for index in range(count)]


def serve_contiguous(model: Decoder, requests: list[list[int]], new: int) -> Answer:
    """One batch, padded on the left."""
    longest = max(map(len, requests))
    ids = torch.tensor([[0] * (longest - len(request)) + request for request in requests])
    mask = torch.tensor([[0] * (longest - len(request)) + [1] * len(request) for request in requests])
    cache, start = KVCache(longest + new), time.perf_counter()
    tokens = [model.hidden(ids, mask, cache)[:, -1:]]
    tokens[0] = next_token(model, tokens[0])
    prefilled = time.perf_counter()
    for _ in range(new - 1):
        tokens.append(next_token(model, model.hidden(tokens[-1], cache=cache)))
    return Answer(torch.cat(tokens, 1), cache.memory(), prefilled - start, time.perf_counter() - prefilled)


def serve_paged(model: Decoder, requests: list[list[int]], new: int, page_size: int = 16) -> Answer:
    """Requests come one by one, share the pages that are known, and go on together."""
    longest, shared = max(map(len, requests)), min(map(len, requests)) // page_size
    pages = shared + len(requests) * (-(-(longest + new) // page_size) - shared)
    cache, start = PagedCache(pages, page_size), time.perf_counter()
    rows, first = [], []
    for request in requests:
        row = cache.add(request)
        cache.select([row])
        rest = torch.tensor([request[cache.held(row) :]])
        first.append(next_token(model, model.hidden(rest, cache=cache)[:, -1:]))
        rows.append(row)
    prefilled = time.perf_counter()
    cache.select(rows)
    tokens = [torch.cat(first)]
    for _ in range(new - 1):
        tokens.append(next_token(model, model.hidden(tokens[-1], cache=cache)))
    return Answer(torch.cat(tokens, 1), cache.memory(), prefilled - start, time.perf_counter() - prefilled)


def next_token(model: Decoder, hidden: Tensor) -> Tensor:
    """The likeliest token `[B, 1]` after hidden vectors `[B, 1, dim]`."""
    return model.head(hidden, model.embeddings.token.weight).argmax(-1)  # type: ignore[no-any-return]


def main(arguments: list[str] | None = None) -> tuple[Answer, Answer]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="8 requests of a prefix of 64 tokens")
    parser.add_argument("--requests", type=int, default=None)
    parser.add_argument("--new", type=int, default=None, help="tokens to write for each request")
    parser.add_argument("--seed", type=int, default=0)
    add_out(parser, "paged_serving")
    chosen = parser.parse_args(arguments)
    torch.manual_seed(chosen.seed)
    prefix, longest = (64, 8) if chosen.small else (512, 64)
    count, new = chosen.requests or (8 if chosen.small else 64), chosen.new or (8 if chosen.small else 32)
    config = TransformerConfig(
        vocab_size=256, dim=64 if chosen.small else 256, layers=2 if chosen.small else 4, heads=4, kv_heads=2
    )
    model = Decoder(config).eval()
    requests = make_requests(count, prefix, longest, config.vocab_size)
    with torch.inference_mode():
        contiguous, paged = serve_contiguous(model, requests, new), serve_paged(model, requests, new)
    same = torch.equal(contiguous.tokens, paged.tokens)

    print(f"{count} requests, {prefix} tokens shared and up to {longest} of their own, {new} tokens written for each")
    print(f"{'':12}{'MB':>8}{'prefill, s':>12}{'decode, s':>12}{'all, s':>10}")
    for name, answer in (("contiguous", contiguous), ("paged", paged)):
        whole = answer.prefill + answer.decode
        print(f"{name:12}{answer.bytes / 1e6:8.2f}{answer.prefill:12.2f}{answer.decode:12.2f}{whole:10.2f}")
    ratios = [
        paged.bytes / contiguous.bytes,
        paged.prefill / contiguous.prefill,
        paged.decode / contiguous.decode,
        (paged.prefill + paged.decode) / (contiguous.prefill + contiguous.decode),
    ]
    print(f"{'ratio':12}{ratios[0]:8.2f}{ratios[1]:12.2f}{ratios[2]:12.2f}{ratios[3]:10.2f}")
    print("the tokens are the same" if same else "THE TOKENS DIFFER")
    figures = {
        name: {"bytes": answer.bytes, "prefill": answer.prefill, "decode": answer.decode}
        for name, answer in (("contiguous", contiguous), ("paged", paged))
    }
    write_json(chosen.out / "paged_serving.json", {**figures, "requests": count, "same_tokens": same})
    return contiguous, paged


if __name__ == "__main__":
    main()
