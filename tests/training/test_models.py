"""Models: parameters and FLOPs against published counts, files, and wrong input."""

from __future__ import annotations

import json

import pytest

from tacos.errors import FormatError, SpecError
from tacos.training import MODELS, Experts, Stack, Transformer, model


def named(name: str) -> Transformer:
    found = model(name)
    assert isinstance(found, Transformer)
    return found


# Counts of the published weights, as their model cards or files state them.
EXACT = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "deepseek-v3": 671_026_404_352,
    "bert-large": 335_141_888,
    "resnet50": 25_557_032,
}
# In billions, as the papers round them (Narayanan et al., table 1; Brown et al.; Microsoft).
ROUNDED = {
    "gpt-1.7b": 1.7,
    "gpt-3.6b": 3.6,
    "gpt-7.5b": 7.5,
    "gpt-18b": 18.4,
    "gpt-39b": 39.1,
    "gpt-76b": 76.1,
    "gpt-145b": 145.6,
    "gpt-310b": 310.1,
    "gpt-530b": 529.6,
    "gpt-1t": 1008.0,
    "gpt3-175b": 174.6,
    "turing-nlg": 17.2,
    "mpt-1b": 1.3,
    "mpt-7b": 6.7,
    "mpt-30b": 30.0,
}


@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_parameters_equal_those_of_the_published_weights(name, count):
    assert model(name).parameters == count


@pytest.mark.parametrize(("name", "billions"), ROUNDED.items())
def test_parameters_round_to_those_of_the_papers(name, billions):
    assert round(model(name).parameters / 1e9, 1) == billions


@pytest.mark.parametrize(
    ("name", "billions"), [("mixtral-8x7b", 12.9), ("mixtral-8x22b", 39.2), ("deepseek-v3", 37.6)]
)
def test_active_parameters_of_experts(name, billions):
    assert round(model(name).active_parameters / 1e9, 1) == billions


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("gpt-")])
def test_model_flops_are_those_of_megatron(name):
    """72·s·l·h²·(1 + s/6h + V/12lh) for each sequence."""
    gpt = named(name)
    s, layers, h, v = gpt.sequence, gpt.layers, gpt.hidden, gpt.vocabulary
    expected = 72 * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    assert gpt.flops_per_sample == pytest.approx(expected, rel=1e-12)


def test_resnet_has_the_published_flops():
    """4.09·10⁹ multiplications and additions per image of 224 × 224."""
    assert model("resnet50").flops_per_sample / 6 == pytest.approx(4.09e9, rel=0.01)


def test_other_networks_have_about_the_published_sizes():
    assert model("gnmt").parameters == pytest.approx(278e6, rel=0.02)  # Wu et al., 2016
    dlrm = model("dlrm")
    assert isinstance(dlrm, Stack)
    assert round(dlrm.parameters / 1e9, 2) == 24.04
    assert dlrm.layer_list[0].sharded
    assert round(dlrm.active_parameters / 1e6, 2) == 2.37


def test_every_model_has_its_own_name():
    assert all(name == item.name for name, item in MODELS.items())
    assert len(MODELS) == 36


def test_a_yaml_file_can_start_from_a_named_model(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text("base: llama3-8b\nlayers: 16\n")
    small = model(file)
    assert small.name == "small"
    assert small.parameters == 8_030_261_248 - 16 * named("llama3-8b").layer_parameters(0)


def test_a_yaml_file_with_all_fields(tmp_path):
    file = tmp_path / "moe.yaml"
    file.write_text(
        "layers: 2\nhidden: 64\nheads: 4\nffn: 0\nvocabulary: 100\nsequence: 32\ngated: true\nbias: false\n"
        "experts: {count: 4, active: 2, ffn: 128}\n"
    )
    moe = model(file)
    assert isinstance(moe, Transformer)
    assert moe.experts == Experts(count=4, active=2, ffn=128)
    assert moe.parameters - moe.active_parameters == 2 * 2 * 3 * 64 * 128


HUGGING_FACE: dict[str, tuple[dict[str, object], int]] = {
    "gpt2": (
        {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024},
        124_439_808,
    ),
    "bert": (
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "vocab_size": 30522,
        },
        109_482_240,
    ),
    "mpt": (
        {
            "d_model": 4096,
            "n_layers": 32,
            "n_heads": 32,
            "vocab_size": 50432,
            "attn_config": {"alibi": True},
        },
        6_649_286_656,
    ),
    "qwen3_moe": (
        {
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "vocab_size": 151936,
        },
        30_532_122_624,
    ),
}


@pytest.mark.parametrize("kind", HUGGING_FACE)
def test_hugging_face_configurations(tmp_path, kind):
    fields, count = HUGGING_FACE[kind]
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": kind} | fields))
    assert model(file).parameters == count
    assert model(tmp_path).parameters == count


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("llama3-450b", "unknown model 'llama3-450b'; did you mean 'llama3-405b'?"),
        ("zzz", "unknown model 'zzz'; use one of gpt-1.7b, "),
    ],
)
def test_unknown_models_get_a_suggestion(name, sentence):
    with pytest.raises(SpecError) as error:
        model(name)
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("base: llama3-8b\nlayer: 3\n", "unknown field 'layer'; did you mean 'layers'?"),
        (
            "base: lama3-8b\n",
            "base is 'lama3-8b', which is not a named transformer; did you mean 'llama3-8b'?",
        ),
        (
            "base: llama3-8b\nheads: 31\nkv_heads: 31\nhead: 0\n",
            "hidden must be a multiple of heads; got 4096 and 31",
        ),
        ("base: llama3-8b\nlayers: 0\n", "layers must be a positive number; got 0"),
        ("base: llama3-8b\nlayers: 1.5\n", "layers must be a whole number; got 1.5"),
        ("layers: 2\nhidden: 64\n", "the file lacks heads, ffn, vocabulary, sequence"),
        (
            "base: llama3-8b\nexperts: {count: 4, active: 8, ffn: 16}\n",
            "experts.active must be at most 4; got 8",
        ),
        (
            "model_type: t5\n",
            "model_type is 't5', which is not supported; use one of llama, mistral, ",
        ),
        (
            "model_type: llama\n",
            "a config.json of model_type 'llama' must have the field 'num_attention_heads'",
        ),
    ],
)
def test_wrong_files_get_one_sentence(tmp_path, text, sentence):
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(FormatError) as error:
        model(file)
    assert str(error.value).startswith(f"{file}: {sentence}")


def test_a_missing_file_is_named():
    with pytest.raises(FormatError, match=r"^nowhere\.yaml: there is no such file$"):
        model("nowhere.yaml")


def test_another_sequence_length_changes_flops_but_only_learned_positions():
    llama = named("llama3-8b")
    longer = llama.at(sequence=16384)
    assert longer.parameters == llama.parameters
    assert longer.flops_per_sample > 2 * llama.flops_per_sample
