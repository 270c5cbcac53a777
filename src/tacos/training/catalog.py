"""Models by name, and from files: TACOS's own YAML, or the ``config.json`` of Hugging Face.

Shapes come from the papers and configuration files that published the models. Parameter counts follow from them
and are compared with the published ones in the tests.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacos.errors import FormatError, SpecError, nearest
from tacos.formats import markup
from tacos.formats.source import about
from tacos.training.models import (
    Experts,
    LatentAttention,
    Layer,
    Model,
    Stack,
    Transformer,
)

if TYPE_CHECKING:
    import os

__all__ = ["MODELS", "from_hugging_face", "model"]

_LLAMA: dict[str, Any] = {
    "gated": True,
    "bias": False,
    "norm": "rms",
    "positions": "rotary",
    "tied": False,
}


def _gpt(name: str, layers: int, hidden: int, heads: int, **others: Any) -> Transformer:
    """Return a GPT as in Megatron-LM's experiments; `others` overrides its fields."""
    shape = {"ffn": 4 * hidden, "vocabulary": 51200, "sequence": 2048} | others
    return Transformer(name=name, layers=layers, hidden=hidden, heads=heads, **shape)


def _mpt(name: str, layers: int, hidden: int, heads: int) -> Transformer:
    return _gpt(name, layers, hidden, heads, vocabulary=50368, bias=False)


def _llama(name: str, layers: int, hidden: int, heads: int, ffn: int, **others: Any) -> Transformer:
    shape = _LLAMA | {"vocabulary": 128256, "sequence": 8192, "kv_heads": 8} | others
    return Transformer(name=name, layers=layers, hidden=hidden, heads=heads, ffn=ffn, **shape)


def _resnet50() -> Stack:
    """Return ResNet-50: He et al., CVPR 2016, for images of 224 × 224 pixels; one layer per convolution with its batch norm."""
    layers = []

    def convolution(name: str, size: int, inputs: int, outputs: int, side: int) -> None:
        weights = size * size * inputs * outputs
        layers.append(
            Layer(
                name=name,
                parameters=weights + 2 * outputs,
                flops=2.0 * weights * side * side,
                activations=2 * outputs * side * side,
            )
        )

    convolution("conv1", 7, 3, 64, 112)
    inputs = 64
    for stage, (blocks, width, side) in enumerate(
        [(3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)]
    ):
        for block in range(blocks):
            name = f"conv{stage + 2}_{block + 1}"
            # The first block of a stage halves the image in its 3 × 3 convolution; its 1 × 1 sees the larger one.
            before = 2 * side if stage and not block else side
            convolution(f"{name}a", 1, inputs, width, before)
            convolution(f"{name}b", 3, width, width, side)
            convolution(f"{name}c", 1, width, 4 * width, side)
            if not block:
                convolution(f"{name}s", 1, inputs, 4 * width, side)
            inputs = 4 * width
    layers.append(
        Layer(name="fc", parameters=2048 * 1000 + 1000, flops=2.0 * 2048 * 1000, activations=1000)
    )
    return Stack(name="resnet50", layer_list=tuple(layers))


def _gnmt() -> Stack:
    """Return GNMT: Wu et al., 2016, eight LSTM layers of width 1024 on each side, 32,000 word pieces, sentences of 50."""
    hidden, words, length = 1024, 32000, 50

    def lstm(name: str, inputs: int) -> Layer:
        weights = 4 * hidden * (inputs + hidden)
        return Layer(
            name=name,
            parameters=weights + 8 * hidden,
            flops=2.0 * weights * length,
            activations=6 * hidden * length,
        )

    def embedding(name: str) -> Layer:
        return Layer(name=name, parameters=words * hidden, flops=0.0, activations=hidden * length)

    encoder = [
        embedding("source"),
        lstm("encoder1", hidden),
        lstm("encoder1r", hidden),
        lstm("encoder2", 2 * hidden),
    ]
    encoder += [lstm(f"encoder{i}", hidden) for i in range(3, 9)]
    attention = 2 * hidden * hidden + hidden
    decoder = [
        embedding("target"),
        Layer(
            name="attention",
            parameters=attention,
            flops=2.0 * attention * length + 4.0 * length * length * hidden,
            activations=2 * hidden * length,
        ),
    ]
    decoder += [lstm(f"decoder{i}", 2 * hidden) for i in range(1, 9)]
    output = Layer(
        name="output",
        parameters=hidden * words + words,
        flops=2.0 * hidden * words * length,
        activations=words * length,
    )
    return Stack(name="gnmt", layer_list=(*encoder, *decoder, output))


def _dlrm() -> Stack:
    """Return DLRM: Naumov et al., 2019, as in MLPerf, 26 tables of 128 columns for Criteo's terabyte, spread over the ranks."""
    rows, columns, tables = 187_767_399, 128, 26
    layers = [
        Layer(
            name="embeddings",
            parameters=rows * columns,
            flops=float(tables * columns),
            activations=tables * columns,
            exchanged=tables * columns,
            sharded=True,
        )
    ]
    pairs = tables * (tables + 1) // 2
    for name, widths in (
        ("bottom", (13, 512, 256, 128)),
        ("top", (columns + pairs, 1024, 1024, 512, 256, 1)),
    ):
        for i, (inputs, outputs) in enumerate(pairwise(widths)):
            layers.append(
                Layer(
                    name=f"{name}{i + 1}",
                    parameters=inputs * outputs + outputs,
                    flops=2.0 * inputs * outputs,
                    activations=outputs,
                )
            )
    return Stack(name="dlrm", layer_list=tuple(layers))


_ALL: tuple[Model, ...] = (
    # Narayanan et al., SC 2021, table 1.
    _gpt("gpt-1.7b", 24, 2304, 24),
    _gpt("gpt-3.6b", 30, 3072, 32),
    _gpt("gpt-7.5b", 36, 4096, 32),
    _gpt("gpt-18b", 40, 6144, 48),
    _gpt("gpt-22b", 48, 6144, 64),
    _gpt("gpt-39b", 48, 8192, 64),
    _gpt("gpt-76b", 60, 10240, 80),
    _gpt("gpt-145b", 80, 12288, 96),
    _gpt("gpt-310b", 96, 16384, 128),
    _gpt("gpt-530b", 105, 20480, 128),
    _gpt("gpt-1t", 128, 25600, 160),
    # Brown et al., 2020; Microsoft, 2020; the model of ZeRO-Infinity's and LIBRA's experiments.
    _gpt("gpt3-175b", 96, 12288, 96, vocabulary=50257),
    _gpt("turing-nlg", 78, 4256, 28, vocabulary=50257, sequence=1024),
    _gpt("msft-1t", 128, 25600, 160),
    # Touvron et al., 2023; Dubey et al., 2024.
    _llama("llama2-7b", 32, 4096, 32, 11008, kv_heads=32, vocabulary=32000, sequence=4096),
    _llama("llama2-13b", 40, 5120, 40, 13824, kv_heads=40, vocabulary=32000, sequence=4096),
    _llama("llama2-70b", 80, 8192, 64, 28672, vocabulary=32000, sequence=4096),
    _llama("llama3-8b", 32, 4096, 32, 14336),
    _llama("llama3-70b", 80, 8192, 64, 28672),
    _llama("llama3-405b", 126, 16384, 128, 53248),
    # MosaicML's llm-foundry.
    _mpt("mpt-125m", 12, 768, 12),
    _mpt("mpt-350m", 24, 1024, 16),
    _mpt("mpt-760m", 24, 1536, 12),
    _mpt("mpt-1b", 24, 2048, 16),
    _mpt("mpt-3b", 32, 2560, 20),
    _mpt("mpt-7b", 32, 4096, 32),
    _mpt("mpt-13b", 40, 5120, 40),
    _mpt("mpt-30b", 48, 7168, 56),
    _mpt("mpt-70b", 80, 8192, 64),
    # Jiang et al., 2024; DeepSeek-AI, 2024.
    _llama(
        "mixtral-8x7b",
        32,
        4096,
        32,
        0,
        vocabulary=32000,
        sequence=4096,
        experts=Experts(count=8, active=2, ffn=14336),
    ),
    _llama(
        "mixtral-8x22b",
        56,
        6144,
        48,
        0,
        vocabulary=32768,
        sequence=4096,
        experts=Experts(count=8, active=2, ffn=16384),
    ),
    _llama(
        "deepseek-v3",
        61,
        7168,
        128,
        18432,
        kv_heads=128,
        head=128,
        vocabulary=129280,
        sequence=4096,
        experts=Experts(count=256, active=8, ffn=2048, shared=1, dense=3),
        latent=LatentAttention(query=1536, key_value=512, position=64, content=128, value=128),
    ),
    # Devlin et al., 2019: the encoder with its pooler.
    _gpt(
        "bert-large",
        24,
        1024,
        16,
        vocabulary=30522,
        sequence=512,
        causal=False,
        token_types=2,
        embedding_norm=True,
        head_layers=1024 * 1024 + 1024,
    ),
    _resnet50(),
    _gnmt(),
    _dlrm(),
)

MODELS: dict[str, Model] = {item.name: item for item in _ALL}
"""The models that have a name."""

_FIELDS = {item.name for item in dataclasses.fields(Transformer)}


def model(name: str | os.PathLike[str]) -> Model:
    """Return a model by its name, or from a YAML file or a Hugging Face ``config.json``.

    A YAML file has the fields of :class:`~tacos.training.models.Transformer`; ``base`` starts from a named model.

    >>> model("llama3-405b").parameters
    405853388800

    Raises:
        SpecError: The name is unknown; the message suggests the nearest one.
        FormatError: The file is not a model; the message names field and value.
    """
    text = str(name)
    if text in MODELS:
        return MODELS[text]
    file = Path(text)
    if file.suffix in (".json", ".yaml", ".yml") or file.exists():
        if file.is_dir():
            file /= "config.json"
        return _read(file)
    close = nearest(text, list(MODELS))
    hint = f"did you mean {close!r}?" if close else f"use one of {', '.join(MODELS)}, or a file"
    raise SpecError(f"unknown model {text!r}; {hint}")


def _read(file: Path) -> Transformer:
    with about(file):
        try:
            fields = markup.load(file)
        except FileNotFoundError:
            raise FormatError(f"{file}: there is no such file") from None
        if not isinstance(fields, dict):
            raise ValueError("the file must hold the fields of a model")  # noqa: TRY004, about a file
        if "model_type" in fields or "architectures" in fields:
            return from_hugging_face(fields, name=file.parent.name or file.stem)
        return _from_fields(fields, name=file.stem)


def _from_fields(fields: dict[str, Any], name: str) -> Transformer:
    shape = dict(fields)
    base = shape.pop("base", None)
    start: dict[str, Any] = {"name": name}
    if base is not None:
        known = MODELS.get(base)
        if not isinstance(known, Transformer):
            close = nearest(str(base), [k for k, v in MODELS.items() if isinstance(v, Transformer)])
            raise ValueError(
                f"base is {base!r}, which is not a named transformer"
                + (f"; did you mean {close!r}?" if close else "")
            )
        start = {item.name: getattr(known, item.name) for item in dataclasses.fields(known)} | start
    for part, kind in (("experts", Experts), ("latent", LatentAttention)):
        if isinstance(shape.get(part), dict):
            try:
                shape[part] = kind(**shape[part])
            except TypeError as error:
                raise ValueError(f"{part}: {str(error).split(') ', 1)[-1]}") from None
    for given, value in shape.items():
        if given not in _FIELDS:
            close = nearest(given, list(_FIELDS))
            raise ValueError(
                f"unknown field {given!r}"
                + (
                    f"; did you mean {close!r}?"
                    if close
                    else f"; use one of {', '.join(sorted(_FIELDS))}"
                )
            )
        if isinstance(value, float):
            raise ValueError(f"{given} must be a whole number; got {value!r}")  # noqa: TRY004, the same
    found = start | shape
    required = [
        one for one in dataclasses.fields(Transformer) if one.default is dataclasses.MISSING
    ]
    if lacking := [one.name for one in required if one.name not in found]:
        raise ValueError(f"the file lacks {', '.join(lacking)}")
    return Transformer(**found)


def from_hugging_face(config: dict[str, Any], *, name: str = "model") -> Transformer:
    """Return the model that a Hugging Face ``config.json`` describes, given as its fields.

    >>> config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...           "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    ...           "max_position_embeddings": 8192, "tie_word_embeddings": False}
    >>> from_hugging_face(config).parameters == MODELS["llama3-8b"].parameters
    True

    Raises:
        ValueError: The architecture is not supported, or a field is missing.
    """
    kind = config.get("model_type")
    read = _ARCHITECTURES.get(str(kind))
    if read is None:
        raise ValueError(
            f"model_type is {kind!r}, which is not supported; use one of {', '.join(_ARCHITECTURES)}"
        )
    try:
        return read(config, name)
    except KeyError as error:
        raise ValueError(
            f"a config.json of model_type {kind!r} must have the field {error}"
        ) from None


def _hf_llama(config: dict[str, Any], name: str) -> Transformer:
    """Return a model of the Llama family, with experts if the configuration has any."""
    heads = config["num_attention_heads"]
    experts = None
    if (
        count := config.get("num_local_experts")
        or config.get("num_experts")
        or config.get("n_routed_experts")
    ):
        width = config.get("moe_intermediate_size", config["intermediate_size"])
        experts = Experts(
            count=count,
            active=config["num_experts_per_tok"],
            ffn=width,
            shared=config.get("n_shared_experts") or 0,
            dense=config.get("first_k_dense_replace", 0),
        )
    latent = None
    if "kv_lora_rank" in config:
        latent = LatentAttention(
            query=config["q_lora_rank"],
            key_value=config["kv_lora_rank"],
            position=config["qk_rope_head_dim"],
            content=config["qk_nope_head_dim"],
            value=config["v_head_dim"],
        )
    return Transformer(
        name=name,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head=config.get("head_dim") or config.get("v_head_dim") or 0,
        ffn=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        sequence=config.get("max_position_embeddings", 4096),
        gated=True,
        bias=bool(config.get("mlp_bias", False)),
        norm="rms",
        positions="rotary",
        tied=bool(config.get("tie_word_embeddings", False)),
        qk_norm=str(config["model_type"]).startswith("qwen3"),
        experts=experts,
        latent=latent,
    )


def _hf_gpt2(config: dict[str, Any], name: str) -> Transformer:
    hidden = config["n_embd"]
    return Transformer(
        name=name,
        layers=config["n_layer"],
        hidden=hidden,
        heads=config["n_head"],
        ffn=config.get("n_inner") or 4 * hidden,
        vocabulary=config["vocab_size"],
        sequence=config.get("n_positions", 1024),
    )


def _hf_mpt(config: dict[str, Any], name: str) -> Transformer:
    hidden = config["d_model"]
    alibi = config.get("attn_config", {}).get("alibi", False)
    return Transformer(
        name=name,
        layers=config["n_layers"],
        hidden=hidden,
        heads=config["n_heads"],
        ffn=config.get("expansion_ratio", 4) * hidden,
        vocabulary=config["vocab_size"],
        sequence=config.get("max_seq_len", 2048),
        bias=not config.get("no_bias", True),
        positions="alibi" if alibi else "learned",
    )


def _hf_bert(config: dict[str, Any], name: str) -> Transformer:
    hidden = config["hidden_size"]
    return Transformer(
        name=name,
        layers=config["num_hidden_layers"],
        hidden=hidden,
        heads=config["num_attention_heads"],
        ffn=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        sequence=config.get("max_position_embeddings", 512),
        causal=False,
        token_types=config.get("type_vocab_size", 2),
        embedding_norm=True,
        head_layers=hidden * hidden + hidden,
    )


_ARCHITECTURES = {
    "llama": _hf_llama,
    "mistral": _hf_llama,
    "mixtral": _hf_llama,
    "qwen3": _hf_llama,
    "qwen3_moe": _hf_llama,
    "deepseek_v3": _hf_llama,
    "gpt2": _hf_gpt2,
    "mpt": _hf_mpt,
    "bert": _hf_bert,
}
"""How the configuration of each architecture is read."""
