"""Models: formulas for what a network of layers computes and stores.

A :class:`Transformer` is described by its shape. A :class:`Stack` is a list of layers with measured or published
counts, for models that are not transformers. Parameters, FLOPs and activations follow from the shape; the tests
compare them with published counts.

FLOPs count a multiplication and an addition as two. *Model* FLOPs leave recomputation out. The backward pass takes
twice the FLOPs of the forward pass: gradients of inputs and of weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

__all__ = ["Experts", "LatentAttention", "Layer", "Model", "Stack", "Transformer"]


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts in place of a layer's feed-forward network.

    Attributes:
        count: Routed experts per layer.
        active: Routed experts that each token passes through.
        ffn: Inner width of one expert.
        shared: Experts that every token passes through.
        dense: Layers at the beginning that have a plain feed-forward network instead.
    """

    count: int
    active: int
    ffn: int
    shared: int = 0
    dense: int = 0

    def __post_init__(self) -> None:
        """Refuse counts that no model can have."""
        for name in ("count", "active", "ffn"):
            _positive(f"experts.{name}", getattr(self, name))
        if self.active > self.count:
            raise ValueError(f"experts.active must be at most {self.count}; got {self.active}")


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values come from a small latent vector (DeepSeek-V2).

    Attributes:
        query: Rank of the queries' latent vector.
        key_value: Rank of the latent vector of keys and values.
        position: Width per head that carries positions (rotary).
        content: Width per head of queries and keys without positions.
        value: Width per head of values.
    """

    query: int
    key_value: int
    position: int
    content: int
    value: int


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A transformer, by its shape.

    >>> gpt3 = Transformer(name="gpt3-175b", layers=96, hidden=12288, heads=96, ffn=49152, vocabulary=50257, sequence=2048)
    >>> f"{gpt3.parameters / 1e9:.1f} billion parameters"
    '174.6 billion parameters'

    Attributes:
        layers: Transformer layers.
        hidden: Width of the residual stream.
        heads: Attention heads.
        kv_heads: Heads of keys and values; as many as `heads` unless attention is grouped.
        head: Width of one head; `hidden` / `heads` unless given.
        ffn: Inner width of the feed-forward network.
        vocabulary: Tokens in the vocabulary.
        sequence: Tokens in a training sequence.
        gated: Whether the feed-forward network multiplies two projections (SwiGLU), which takes three matrices.
        bias: Whether linear layers have biases.
        norm: ``"layer"`` (scale and bias) or ``"rms"`` (scale only).
        positions: ``"learned"`` (a table), ``"rotary"`` or ``"alibi"`` (no parameters).
        tied: Whether the output layer uses the embedding's weights.
        causal: Whether a token attends to earlier tokens only.
        token_types: Rows of a segment embedding (BERT).
        head_layers: Further parameters at the output (BERT's transform layer and pooler).
        embedding_norm: Whether the embedding is normalized.
        experts: A mixture of experts, or none.
        latent: Latent attention, or none.
    """

    name: str = "transformer"
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocabulary: int
    sequence: int
    kv_heads: int = 0
    head: int = 0
    gated: bool = False
    bias: bool = True
    norm: str = "layer"
    positions: str = "learned"
    tied: bool = True
    causal: bool = True
    token_types: int = 0
    head_layers: int = 0
    embedding_norm: bool = False
    qk_norm: bool = False
    experts: Experts | None = None
    latent: LatentAttention | None = None

    def __post_init__(self) -> None:
        """Fill in derived fields, and refuse shapes that no model can have."""
        for name in ("layers", "hidden", "heads", "vocabulary", "sequence"):
            _positive(name, getattr(self, name))
        if self.ffn < 0:
            raise ValueError(f"ffn must be a positive number; got {self.ffn}")
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        if not self.head:
            if self.hidden % self.heads:
                raise ValueError(
                    f"hidden must be a multiple of heads; got {self.hidden} and {self.heads}"
                )
            object.__setattr__(self, "head", self.hidden // self.heads)
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads must be a multiple of kv_heads; got {self.heads} and {self.kv_heads}"
            )
        if self.norm not in ("layer", "rms"):
            raise ValueError(f'norm must be one of "layer", "rms"; got {self.norm!r}')
        if self.positions not in ("learned", "rotary", "alibi"):
            raise ValueError(
                f'positions must be one of "learned", "rotary", "alibi"; got {self.positions!r}'
            )

    def at(self, *, sequence: int) -> Transformer:
        """Return the model with another sequence length.

        >>> Transformer(name="tiny", layers=2, hidden=64, heads=4, ffn=256, vocabulary=100, sequence=32).at(sequence=64).sequence
        64
        """
        return replace(self, sequence=sequence)

    # Parameters.

    @property
    def attention_weights(self) -> int:
        """Weights of the matrices of one layer's attention, without biases."""
        if (latent := self.latent) is None:
            return self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads)
        query = self.hidden * latent.query + latent.query * self.heads * (
            latent.content + latent.position
        )
        pair = self.hidden * (latent.key_value + latent.position)
        pair += latent.key_value * self.heads * (latent.content + latent.value)
        return query + pair + self.heads * latent.value * self.hidden

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention, its norm not counted."""
        biases = self.head * (self.heads + 2 * self.kv_heads) + self.hidden if self.bias else 0
        norms = 2 * self.head if self.qk_norm else 0
        if self.latent is not None:
            norms += self.latent.query + self.latent.key_value
        return self.attention_weights + biases + norms

    @property
    def matrices(self) -> int:
        """Matrices of one feed-forward network."""
        return 3 if self.gated else 2

    @property
    def ffn_parameters(self) -> int:
        """Parameters of one dense feed-forward network."""
        biases = (self.matrices - 1) * self.ffn + self.hidden if self.bias else 0
        return self.matrices * self.hidden * self.ffn + biases

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert; zero without experts."""
        return self.matrices * self.hidden * self.experts.ffn if self.experts else 0

    @property
    def router_parameters(self) -> int:
        """Parameters of one layer's router; zero without experts."""
        return self.hidden * self.experts.count if self.experts else 0

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm."""
        return self.hidden * (2 if self.norm == "layer" and self.bias else 1)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embeddings of tokens, positions and segments."""
        positions = self.sequence if self.positions == "learned" else 0
        norm = self.norm_parameters if self.embedding_norm else 0
        return (self.vocabulary + positions + self.token_types) * self.hidden + norm

    @property
    def output_parameters(self) -> int:
        """Parameters after the last layer: the final norm, and the output layer unless it is tied."""
        final = 0 if self.embedding_norm else self.norm_parameters
        return final + self.head_layers + (0 if self.tied else self.vocabulary * self.hidden)

    def layer_parameters(self, layer: int, *, active: bool = False) -> int:
        """Return the parameters of one layer; with `active`, those that a token passes through.

        >>> tiny = Transformer(name="tiny", layers=1, hidden=4, heads=2, ffn=16, vocabulary=10, sequence=8)
        >>> tiny.layer_parameters(0)  # 12·4² weights, 13·4 biases and norms
        244
        """
        common = self.attention_parameters + 2 * self.norm_parameters
        if self.experts is None or layer < self.experts.dense:
            return common + self.ffn_parameters
        experts = (self.experts.active if active else self.experts.count) + self.experts.shared
        return common + self.router_parameters + experts * self.expert_parameters

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self._sum(active=False)

    @property
    def active_parameters(self) -> int:
        """The parameters that a token passes through: all of them without experts."""
        return self._sum(active=True)

    def _sum(self, *, active: bool) -> int:
        dense = min(self.experts.dense, self.layers) if self.experts else self.layers
        total = self.embedding_parameters + self.output_parameters
        total += dense * self.layer_parameters(0, active=active) if dense else 0
        if self.layers > dense:
            total += (self.layers - dense) * self.layer_parameters(dense, active=active)
        return total

    # FLOPs.

    def layer_flops(self, layer: int, tokens: float = 1.0) -> float:
        """Return the FLOPs of the matrices of one layer's forward pass, attention scores not included.

        >>> tiny = Transformer(name="tiny", layers=1, hidden=4, heads=2, ffn=16, vocabulary=10, sequence=8)
        >>> tiny.layer_flops(0)  # 24·h²
        384.0
        """
        weights = self.attention_weights
        if self.experts is None or layer < self.experts.dense:
            weights += self.matrices * self.hidden * self.ffn
        else:
            passed = self.experts.active + self.experts.shared
            weights += self.router_parameters + passed * self.expert_parameters
        return 2.0 * weights * tokens

    def score_flops(self, tokens: float = 1.0) -> float:
        """Return the FLOPs of one layer's attention scores and their use, as if nothing were masked.

        A query takes `sequence` products with keys and as many with values. Kernels for causal attention skip half of them; the
        model FLOPs of Megatron-LM and PaLM do not.

        >>> tiny = Transformer(name="tiny", layers=1, hidden=4, heads=2, ffn=16, vocabulary=10, sequence=8)
        >>> tiny.score_flops()  # 4·s·h
        128.0
        """
        if self.latent is None:
            widths = 2 * self.head
        else:
            widths = self.latent.content + self.latent.position + self.latent.value
        return 2.0 * tokens * self.sequence * self.heads * widths

    def output_flops(self, tokens: float = 1.0) -> float:
        """Return the FLOPs of the output layer's forward pass.

        >>> tiny = Transformer(name="tiny", layers=1, hidden=4, heads=2, ffn=16, vocabulary=10, sequence=8)
        >>> tiny.output_flops()
        80.0
        """
        return 2.0 * tokens * self.hidden * self.vocabulary

    @property
    def flops_per_sample(self) -> float:
        """Model FLOPs of the forward and backward pass of one sequence.

        Megatron-LM's 72·s·l·h²·(1 + s/6h + V/12lh) for a plain GPT.
        """
        tokens = float(self.sequence)
        layers = sum(self.layer_flops(layer, tokens) for layer in range(self.layers))
        return 3.0 * (layers + self.layers * self.score_flops(tokens) + self.output_flops(tokens))

    @property
    def samples_are(self) -> str:
        """The name of a sample."""
        return "sequences"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of a :class:`Stack`.

    Attributes:
        name: The layer's name.
        parameters: Trainable parameters.
        flops: FLOPs of the forward pass of one sample.
        activations: Elements that the backward pass needs, per sample.
        exchanged: Elements per sample that an all-to-all takes to other ranks, forward and again backward.
        sharded: Whether the parameters are spread over the ranks instead of replicated.
    """

    name: str
    parameters: int
    flops: float
    activations: int = 0
    exchanged: int = 0
    sharded: bool = False


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A model that is a list of layers: a convolutional, recurrent or recommendation network.

    >>> Stack(name="one", layer_list=(Layer(name="fc", parameters=10, flops=20.0),)).flops_per_sample
    60.0
    """

    name: str
    layer_list: tuple[Layer, ...] = field(repr=False)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.layer_list)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return sum(layer.parameters for layer in self.layer_list)

    @property
    def active_parameters(self) -> int:
        """The parameters that a sample passes through: all that are not spread over the ranks."""
        return sum(layer.parameters for layer in self.layer_list if not layer.sharded)

    @property
    def flops_per_sample(self) -> float:
        """Model FLOPs of the forward and backward pass of one sample."""
        return 3.0 * sum(layer.flops for layer in self.layer_list)

    @property
    def samples_are(self) -> str:
        """The name of a sample."""
        return "samples"


Model: TypeAlias = Transformer | Stack
"""A model of either kind."""


def _positive(name: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be a positive number; got {value!r}")
