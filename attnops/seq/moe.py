"""Mixture of experts: each token meets a few of many feed-forward layers, chosen by a router."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnops.checks import require_count, require_flag, require_number, require_positive
from attnops.seq.feedforward import FeedForward, activate, check_activation
from attnops.seq.grouped import grouped_linear
from attnops.seq.routing import choose_experts, within_capacity


@dataclass(frozen=True)
class ExpertsConfig:
    """What replaces the feed-forward of a block by experts; the defaults are Mixtral's.

        Mixtral      ExpertsConfig(8, top_k=2)
        Switch       ExpertsConfig(64, top_k=1, normalize=False, capacity_factor=1.25)
        DeepSeek-V3  ExpertsConfig(256, top_k=8, score="sigmoid", groups=8, keep_groups=4, scaling=2.5,
                                   balance_bias=True, shared=1)
        gpt-oss      ExpertsConfig(128, top_k=4, bias=True, activation="clamped_swiglu")
        Llama 4      ExpertsConfig(16, top_k=1, score="sigmoid", normalize=False, weigh="input", shared=1)

    Attributes:
        count: E, how many experts. top_k: how many of them a token meets.
        ff_dim: width of one expert; None: the model's own `ff_dim`.
        score: "softmax" over the experts, or "sigmoid" of each. A softmax over the chosen logits alone (gpt-oss) is the
            softmax over all of them, normalised.
        normalize: whether the weights of a token sum to `scaling`.
        scaling: a factor on the weights.
        groups, keep_groups, group_top: a token's experts come from its `keep_groups` best of `groups` groups, each of
            which scores the sum of its `group_top` best experts.
        balance_bias: whether a bias per expert, learned by no gradient but by `Routings.balance_biases`, takes part in
            the choice.
        weigh: whether the weight multiplies an expert's "output" or its "input".
        shared: experts that every token meets besides, as one feed-forward of `shared · ff_dim`.
        capacity_factor: in training an expert takes ⌈factor · tokens · k / E⌉ choices, and the rest pass it by. In
            evaluation none is dropped, so that decoding token by token gives what one pass gives.
        bias: whether router and experts add one.
        activation: None: the model's own; else a name that `FeedForward` knows, or "clamped_swiglu" (gpt-oss):
            min(g, limit) · sigmoid(1.702 g) · (clamp(u, ±limit) + 1).
        limit: where that one clamps.
        balance_coef, z_coef: the factors of the two losses in `Routings.loss`.

    Raises:
        TypeError: a number or a flag of another kind.
        ValueError: a number out of range; an unknown activation; groups that do not divide the experts or leave too few
            to choose; weights of one expert normalised (they are 1 whatever the router says) where no balance loss
            trains the router.

    Example:
        >>> from attnops.seq import Decoder, ExpertsConfig, TransformerConfig
        >>> experts = ExpertsConfig(count=4, top_k=2)
        >>> config = TransformerConfig(vocab_size=10, dim=16, layers=2, heads=2, experts=[None, experts])
        >>> [type(block.feedforward).__name__ for block in Decoder(config).blocks]
        ['FeedForward', 'MixtureOfExperts']
    """

    count: int
    top_k: int = 2
    ff_dim: int | None = None
    score: Literal["softmax", "sigmoid"] = "softmax"
    normalize: bool = True
    scaling: float = 1.0
    groups: int = 1
    keep_groups: int = 1
    group_top: int = 2
    balance_bias: bool = False
    weigh: Literal["output", "input"] = "output"
    shared: int = 0
    capacity_factor: float | None = None
    bias: bool = False
    activation: str | None = None
    limit: float = 7.0
    balance_coef: float = 0.01
    z_coef: float = 0.0

    def __post_init__(self) -> None:
        require_positive(count=self.count, top_k=self.top_k, groups=self.groups, keep_groups=self.keep_groups)
        require_positive(group_top=self.group_top, **({} if self.ff_dim is None else {"ff_dim": self.ff_dim}))
        require_number(scaling=self.scaling, balance_coef=self.balance_coef, z_coef=self.z_coef, limit=self.limit)
        if self.top_k > self.count:
            raise ValueError(f"top_k is {self.top_k}; it must be at most count = {self.count}")
        if self.count % self.groups:
            raise ValueError(f"groups is {self.groups}; it must divide count = {self.count}")
        if self.keep_groups > self.groups:
            raise ValueError(f"keep_groups is {self.keep_groups}; it must be at most groups = {self.groups}")
        if self.top_k > self.count // self.groups * self.keep_groups:
            raise ValueError(
                f"top_k is {self.top_k}; {self.keep_groups} of {self.groups} groups hold "
                f"{self.count // self.groups * self.keep_groups} of the {self.count} experts"
            )
        for name, value, known in (
            ("score", self.score, ("softmax", "sigmoid")),
            ("weigh", self.weigh, ("output", "input")),
        ):
            if value not in known:
                raise ValueError(f"{name} is {value!r}; it must be one of {list(known)}")
        require_flag(normalize=self.normalize, balance_bias=self.balance_bias, bias=self.bias)
        if self.activation is not None:
            check_activation(self.activation, "clamped_swiglu")
        if not self.limit > 0:
            raise ValueError(f"limit is {self.limit}; it must be above 0")
        require_count(shared=self.shared)
        if self.shared and self.activation == "clamped_swiglu":
            raise ValueError("shared is given with 'clamped_swiglu', which a FeedForward does not have")
        if self.capacity_factor is not None:
            require_number(capacity_factor=self.capacity_factor)
            if not self.capacity_factor > 0:
                raise ValueError(f"capacity_factor is {self.capacity_factor}; it must be above 0, or None")
        if self.top_k == 1 and self.normalize and self.balance_coef == 0:
            raise ValueError(
                "normalize is True with top_k=1: the one weight is then 1 whatever the router says, and without a "
                "balance loss nothing trains it; pass normalize=False or balance_coef"
            )


@dataclass
class Routing:
    """What one mixture did in one forward pass. Padding is counted nowhere.

    Attributes:
        layer: the module. load: `[E]`, the share of all choices that each expert got; they sum to 1.
        dropped: share of the choices that found no room.
        balance: E · Σ_e load_e · P_e, with P_e the mean probability of expert e: 1 where all is even (Switch's loss).
        z: mean of logsumexp(logits)², which keeps the router's logits small (ST-MoE).
    """

    layer: MixtureOfExperts
    load: Tensor
    dropped: Tensor
    balance: Tensor
    z: Tensor


class Routings(list[Routing]):
    """The `Routing` of every mixture, in the order they ran."""

    def loss(self) -> Tensor:
        """Σ over layers of balance_coef · balance + z_coef · z, to be added to the model's loss."""
        terms = [each.layer.config.balance_coef * each.balance + each.layer.config.z_coef * each.z for each in self]
        if not terms:
            raise ValueError("no mixture of experts ran inside of `with routings()`")
        return torch.stack(terms).sum()

    @torch.no_grad()
    def balance_biases(self, rate: float = 1e-3) -> None:
        """Raise by `rate` the choosing bias of each expert that got less than its share, lower those with more."""
        for each in self:
            if each.layer.choice_bias is not None:
                each.layer.choice_bias += rate * torch.sign(1 / each.layer.config.count - each.load)


_open: list[Routings] = []


@contextmanager
def routings() -> Iterator[Routings]:
    """Collect what every mixture of experts does inside of the block: `with routings() as seen: …`.

    The backward belongs after the block: activation checkpointing runs a layer once more in it.

    Example:
        >>> import torch
        >>> from attnops.seq.moe import ExpertsConfig, MixtureOfExperts, routings
        >>> layer = MixtureOfExperts(16, ExpertsConfig(4, ff_dim=32))
        >>> with routings() as seen:
        ...     loss = layer(torch.randn(2, 5, 16)).square().mean()
        >>> (loss + seen.loss()).backward()
        >>> seen[0].load.sum()
        tensor(1.)
    """
    seen = Routings()
    _open.append(seen)
    try:
        yield seen
    finally:
        _open.remove(seen)


class MixtureOfExperts(nn.Module):
    """A feed-forward layer of E experts, of which each token meets k.

        out_t = Σ_{e in top-k} w_te · expert_e(x_t)  (+ shared(x_t))

    Tokens are sorted by expert, and each expert meets its own in one product.

    Args:
        dim: D, width of the model. config: an `ExpertsConfig`.
        ff_dim, activation: those of the model, where the config has none.

    Parameters: `router.weight [E, D]`; `up [E, 2F, D]`, the gates above the values as in `FeedForward` (`[E, F, D]`
    without a gate); `down [E, D, F]`; with biases `router.bias`, `up_bias`, `down_bias`; `shared`, a `FeedForward`; the
    buffer `choice_bias [E]`.

    Source: Shazeer et al. 2017, arXiv:1701.06538; see `ExpertsConfig` for each model's own.

    Example:
        >>> import torch
        >>> from attnops.seq.moe import ExpertsConfig, MixtureOfExperts
        >>> MixtureOfExperts(16, ExpertsConfig(count=8, top_k=2, ff_dim=32))(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    choice_bias: Tensor | None

    def __init__(self, dim: int, config: ExpertsConfig, ff_dim: int | None = None, activation: str = "swiglu") -> None:
        super().__init__()
        require_positive(dim=dim)
        self.config, self.activation = config, config.activation or activation
        width = config.ff_dim or ff_dim
        if width is None:
            raise ValueError("ff_dim is None in the config and in the call; an expert needs a width")
        gated = "glu" in self.activation
        count, inner = config.count, 2 * width if gated else width
        self.router = nn.Linear(dim, count, bias=config.bias)
        self.up = nn.Parameter(torch.empty(count, inner, dim))
        self.down = nn.Parameter(torch.empty(count, dim, width))
        self.up_bias = nn.Parameter(torch.empty(count, inner)) if config.bias else None
        self.down_bias = nn.Parameter(torch.empty(count, dim)) if config.bias else None
        self.shared = FeedForward(dim, config.shared * width, self.activation, config.bias) if config.shared else None
        self.register_buffer("choice_bias", torch.zeros(count) if config.balance_bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the experts anew, as `nn.Linear` draws each of them."""
        for weight, bias in ((self.up, self.up_bias), (self.down, self.down_bias)):
            bound = weight.shape[-1] ** -0.5
            nn.init.uniform_(weight, -bound, bound)
            if bias is not None:
                nn.init.uniform_(bias, -bound, bound)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """`[*B, N, D]` to the same; `real`: bool `[*B, N]`, False at padding, which meets no expert and gives zeros."""
        if real is not None and (real.dtype != torch.bool or real.shape != x.shape[:-1]):
            raise ValueError(
                f"real is {real.dtype} {list(real.shape)}; it must be bool {list(x.shape[:-1])} = [*B, N], as x has"
            )
        tokens = x.reshape(-1, x.shape[-1])
        mask = torch.ones(len(tokens), dtype=torch.bool, device=x.device)
        if real is not None:
            mask = real.reshape(-1)
            tokens = torch.where(mask.unsqueeze(-1), tokens, 0)  # a padded row may hold garbage
        logits, scores = self._score(tokens)
        c = self.config
        experts, weights = choose_experts(
            scores,
            c.top_k,
            bias=self.choice_bias,
            groups=c.groups,
            keep_groups=c.keep_groups,
            group_top=c.group_top,
            normalize=c.normalize,
            scaling=c.scaling,
        )
        kept = None if real is None else mask.unsqueeze(-1).expand_as(experts)
        if c.capacity_factor is not None and self.training:
            kept = within_capacity(experts, mask, c.capacity_factor, c.count)
        if self.training or _open:  # whoever listens: activation checkpointing must compute the same a second time
            routing = self._routing(logits, scores, experts, kept, mask)
            for seen in _open:
                seen.append(routing)
        out = self._experts(tokens, experts, weights, kept)
        if self.shared is not None:
            shared = self.shared(tokens)
            out = out + (shared if real is None else torch.where(mask.unsqueeze(-1), shared, 0))
        return out.view(x.shape)

    def _score(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and scores `[T, E]` in float32 at least: which expert is the best must not hang on rounding."""
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        bias = None if self.router.bias is None else self.router.bias.to(dtype)
        with torch.autocast(tokens.device.type, enabled=False):
            logits = F.linear(tokens.to(dtype), self.router.weight.to(dtype), bias)
        return logits, logits.sigmoid() if self.config.score == "sigmoid" else logits.softmax(-1)

    def _experts(self, tokens: Tensor, experts: Tensor, weights: Tensor, kept: Tensor | None) -> Tensor:
        """Σ_e w_te · expert_e(x_t). Choices not kept go last, to the last expert, and weigh 0."""
        count, top_k = self.config.count, experts.shape[1]
        queue = (experts if kept is None else torch.where(kept, experts, count)).flatten()
        order = queue.argsort(stable=True)
        bounds = torch.arange(count - 1, device=queue.device)
        ends = torch.searchsorted(queue[order], bounds, right=True)
        ends = F.pad(ends, (0, 1), value=len(order))
        token = order // top_k
        rows, weight = tokens.index_select(0, token), weights.flatten()[order].unsqueeze(-1).to(tokens.dtype)
        if kept is not None:
            weight = torch.where(kept.flatten()[order].unsqueeze(-1), weight, 0)
        if self.config.weigh == "input":
            rows = rows * weight
        hidden = self._activate(grouped_linear(rows, self.up, ends, self.up_bias))
        out = grouped_linear(hidden, self.down, ends, self.down_bias)
        if self.config.weigh == "output":
            out = out * weight
        elif kept is not None:
            out = torch.where(weight != 0, out, 0)  # zeros in, biases out
        return torch.zeros_like(tokens, dtype=out.dtype).index_add(0, token, out).to(tokens.dtype)

    def _routing(self, logits: Tensor, scores: Tensor, experts: Tensor, kept: Tensor | None, real: Tensor) -> Routing:
        count = real.sum().clamp(min=1)
        chosen = real.unsqueeze(-1).expand_as(experts).to(scores.dtype)
        load = scores.new_zeros(self.config.count).index_add(0, experts.flatten(), chosen.flatten())
        load = load / (count * self.config.top_k)
        probabilities = scores / scores.sum(-1, keepdim=True) if self.config.score == "sigmoid" else scores
        mean = torch.where(real.unsqueeze(-1), probabilities, 0).sum(0) / count
        z = torch.where(real, logits.logsumexp(-1).square(), 0).sum() / count
        taken = count * self.config.top_k if kept is None else kept.sum()
        dropped = 1 - taken / (count * self.config.top_k)
        return Routing(self, load, dropped, self.config.count * (load * mean).sum(), z)

    def _activate(self, wide: Tensor) -> Tensor:
        if "glu" not in self.activation:
            return activate(wide, self.activation)
        gate, value = wide.chunk(2, -1)
        if self.activation == "clamped_swiglu":
            limit = self.config.limit
            gate, value = gate.clamp(max=limit), value.clamp(-limit, limit) + 1
            return gate * torch.sigmoid(1.702 * gate) * value
        return activate(gate, self.activation) * value
