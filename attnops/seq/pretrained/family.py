"""What a reader of an architecture states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn

from attnops.seq.config import TransformerConfig
from attnops.seq.decoder import Decoder
from attnops.seq.encoder import Encoder
from attnops.seq.encoder_decoder import EncoderDecoder
from attnops.seq.pretrained.settings import Settings
from attnops.seq.pretrained.weights import Names


@dataclass(frozen=True)
class Family:
    """An architecture: which of our models it is, its config, and the names of its weights.

    Attributes:
        model: `Decoder`, `Encoder` or `EncoderDecoder`.
        classes: the transformers classes that can be read; the first is taken where a folder does not say.
        config: the config that settings describe. names: our parameters' names there.
        prefix: what the names of a model under a head begin with. ignored: patterns of names that change no number.
        head: the table of the head, which a file may hold beside the table of tokens that it is tied to.
        stored: weights as files hold them to weights as transformers' models do.
        change: what else to do to a built model, before it gets its weights.
    """

    model: type[Decoder] | type[Encoder] | type[EncoderDecoder]
    classes: tuple[str, ...]
    config: Callable[[Settings], TransformerConfig]
    names: Callable[[TransformerConfig], Names]
    prefix: str = "model."
    ignored: tuple[str, ...] = field(default=(r"inv_freq$", r"^lm_head\.weight$"))
    head: str = "lm_head.weight"
    stored: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    change: Callable[[nn.Module, Settings, str], None] | None = None
