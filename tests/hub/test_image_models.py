"""Image models in the files of transformers, timm and torchvision: equal logits, and folders that round-trip."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from PIL import Image
from torch import Tensor

import heedful
from golden.library import command
from heedful.data.images.image_spec import ImageSpec
from heedful.errors import UserError
from heedful.hub import pretrained, write
from heedful.hub.folder import read_config
from heedful.hub.image_folders import find_image_folder, image_exchanges, processor_json, read_processor
from heedful.hub.loading import Pretrained, task_model
from heedful.hub.unpickling import read_any_weights
from heedful.models import build, config_class
from tolerance import tolerance

VIT = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40,
    "image_size": 12, "patch_size": 4, "num_channels": 2, "num_labels": 5,
}  # fmt: skip
RESNET = {"num_channels": 2, "embedding_size": 6, "hidden_sizes": [8, 12, 16], "depths": [2, 1, 2], "num_labels": 5}
MODELS = {
    "ViTForImageClassification": ("ViTConfig", VIT),
    "ViTModel": ("ViTConfig", VIT),
    "DeiTForImageClassification": ("DeiTConfig", VIT),
    "DeiTForImageClassificationWithTeacher": ("DeiTConfig", VIT),
    "ResNetForImageClassification": ("ResNetConfig", RESNET),
    "ResNetModel": ("ResNetConfig", RESNET | {"layer_type": "basic"}),
}


def random_model(name: str) -> Any:
    """A model of `transformers` in which no weight and no running statistic is trivial."""
    torch.manual_seed(0)
    config, settings = MODELS[name]
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor) if key.endswith("running_var") else torch.randn_like(tensor) * 0.2)
            else:
                tensor.fill_(7)
    return model.eval()


def rebuilt(found: Pretrained) -> Any:
    """Our model with these weights; a last layer that is not in the files is random."""
    model = build(found.config).eval()
    missing, unexpected = model.load_state_dict(found.tensors, strict=False)
    assert not unexpected and all(name.startswith("head.") for name in missing)
    return model


def near(ours: Tensor, theirs: Tensor) -> bool:
    return float((ours - theirs).abs().max()) <= tolerance(theirs, 84)  # 1e-5 of the largest


@pytest.mark.claim("I5")
@pytest.mark.parametrize("size", [(12, 12), (20, 28), (4, 8)])
@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_transformers_and_folders_round_trip(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    model = random_model(name)
    model.save_pretrained(tmp_path / "theirs")
    found = pretrained(tmp_path / "theirs")
    images = torch.randn(3, 2, *size)
    more = {} if name.startswith("ResNet") or size == (12, 12) else {"interpolate_pos_encoding": True}
    with torch.no_grad():
        theirs, ours = model(images, **more), rebuilt(found)
        if name == "ViTModel":
            tokens = torch.cat([ours.features(images)[:, None], ours.map(images).flatten(2).mT], 1)
            assert near(tokens, theirs.last_hidden_state)
        elif name == "ResNetModel":
            assert near(ours.map(images), theirs.last_hidden_state)
            assert near(ours.features(images), theirs.pooler_output[..., 0, 0])
        else:
            assert near(ours(images), theirs.logits)
    before = safetensors.torch.load_file(tmp_path / "theirs" / "model.safetensors")
    assert {line.source for line in found.ledger} == set(before), "every tensor is accounted for"
    assert [line.source for line in found.ledger if line.name is None] == (
        ["pooler.dense.weight", "pooler.dense.bias"] if name == "ViTModel" else []
    )
    write(tmp_path / "back", found)
    after = safetensors.torch.load_file(tmp_path / "back" / "model.safetensors")
    assert before.keys() - after.keys() <= {"pooler.dense.weight", "pooler.dense.bias"}
    assert all(torch.equal(before[key], value) for key, value in after.items())
    again, report = getattr(transformers, name).from_pretrained(tmp_path / "back", output_loading_info=True)
    missing = report.pop("missing_keys")
    assert not any(report.values()) and set(missing) <= {"pooler.dense.weight", "pooler.dense.bias"}
    assert again.config.architectures == [name]


@pytest.mark.parametrize("kind", [kind for kind, exchange in image_exchanges().items() if exchange.MODEL_TYPES])
def test_tiny_models_round_trip(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    config: Any = config_class(kind).tiny()
    spec = ImageSpec(config.input, ("cat", "dog", "frog"), (0.4,), (0.3,), 16, "bicubic")
    found = Pretrained(config, spec, build(config).state_dict(), ())
    write(tmp_path / "theirs", found)
    again = pretrained(tmp_path / "theirs")
    assert again.config == config == read_config(tmp_path / "theirs", "image_encoder")
    assert again.tokenizer == spec
    assert again.tensors.keys() == found.tensors.keys()
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in found.tensors.items())


@pytest.mark.parametrize("kind", image_exchanges())
def test_tables_list_every_tensor_once(kind: str) -> None:
    exchange = image_exchanges()[kind]
    assert exchange.TITLE and exchange.ARCHITECTURES
    configs = [config_class(kind).tiny(), *(c for known in exchange.ARCHITECTURES.values() for c in known.values())]
    for config in configs:
        with torch.device("meta"):
            own = build(config).state_dict()
        for table in exchange.tables(config).values():
            assert sorted(rule.ours for rule in table.rules) == sorted(own)
            theirs = [name for rule in table.rules for name in rule.theirs]
            assert len(theirs) == len(set(theirs))


# ------------------------------------------------------------------ timm and torchvision
def narrow(kind: str, **settings: Any) -> Any:
    return config_class(kind).model_validate(config_class(kind).tiny().model_dump() | settings)


NETS: dict[str, tuple[str, dict[str, Any]]] = {  # a name that the libraries have, and our settings for a small one
    "alexnet": ("alexnet", {}),
    "vgg11_bn": ("vgg", {"depths": (1, 1, 2, 2, 2), "filters": (2, 3, 4, 5, 6), "size": (32, 32)}),
    "vgg13": ("vgg", {"norm": "none", "depths": (2, 2, 2, 2, 2), "filters": (2, 3, 4, 5, 6), "size": (32, 32)}),
    "googlenet": ("googlenet", {}),
    "resnet18": ("resnet", {"block": "basic"}),
    "resnet50": ("resnet", {}),
    "vit_b_16": ("vit", {}),
    "vit_base_patch16_224": ("vit", {}),
    "deit_base_distilled_patch16_224": ("vit", {"distillation": "head"}),
}
LAYOUTS = [(name, layout) for name in NETS for layout in image_exchanges()[NETS[name][0]].ARCHITECTURES
           if name in image_exchanges()[NETS[name][0]].ARCHITECTURES[layout]]  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Architectures of these names are small here, so that a test needs no hundred megabytes."""
    for name, (kind, settings) in NETS.items():
        for known in image_exchanges()[kind].ARCHITECTURES.values():
            if name in known:
                monkeypatch.setitem(known, name, narrow(kind, **settings))  # type: ignore[arg-type]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_layouts_round_trip(name: str, layout: Any, tmp_path: Path) -> None:
    kind, settings = NETS[name]
    config = narrow(kind, **settings)
    torch.manual_seed(2)
    model = build(config).eval()
    spec = ImageSpec(config.input, ("a", "b", "c"), (0.25,), (0.5,), max(config.size), "bicubic")
    write(tmp_path / "theirs", Pretrained(config, spec, model.state_dict(), ()), layout)
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["num_classes"] == 3
    again = pretrained(tmp_path / "theirs")
    assert (again.config, again.tokenizer) == (config, spec)
    images = torch.randn(2, *config.input)
    assert torch.equal(rebuilt(again)(images), model(images))
    before = safetensors.torch.load_file(tmp_path / "theirs" / "model.safetensors")
    assert {line.source for line in again.ledger} == set(before)
    write(tmp_path / "back", again, layout)
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "back" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes()


@pytest.mark.usefixtures("small")
def test_files_of_torchvision_by_name(tmp_path: Path) -> None:
    """A pickle named after its architecture, without settings and batch counters, as older ones are."""
    config = narrow("resnet", block="basic")
    model = build(config).eval()
    write(tmp_path / "x", Pretrained(config, None, model.state_dict(), ()), "torchvision")
    tensors = safetensors.torch.load_file(tmp_path / "x" / "model.safetensors")
    bare = {name: tensor for name, tensor in tensors.items() if "num_batches" not in name}
    (tmp_path / "there").mkdir()
    file = tmp_path / "there" / "resnet18-5c106cde.pth"
    torch.save(bare, file)
    for path in (file, file.parent):
        found = pretrained(path, read_any_weights)
        assert torch.equal(rebuilt(found)(torch.ones(1, *config.input)), model(torch.ones(1, *config.input)))
        assert found.tensors["stem.0.norm.num_batches_tracked"] == 0 and "no settings" in found.notes[0]
        with pytest.raises(UserError, match="these weights are a pickle, which could run code"):
            pretrained(path)
    safetensors.torch.save_file(bare, file.with_suffix(".safetensors"))
    with pytest.raises(UserError, match="there are several models in this folder"):
        pretrained(file.parent)
    assert pretrained(file.with_suffix(".safetensors")).config == config
    command("convert", file, tmp_path / "ours")
    predictor: Any = heedful.load(tmp_path / "ours")
    assert predictor.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


# Names of tensors as timm 1.0.31 and torchvision 0.29 have them, with which they were compared.
KNOWN = {
    ("resnet18", "timm"): ["conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer2.0.downsample.0.weight",
                           "layer2.0.downsample.1.num_batches_tracked", "layer4.1.bn2.bias", "fc.weight"],
    ("vgg16", "torchvision"): ["features.0.weight", "features.28.bias", "classifier.0.weight", "classifier.6.bias"],
    ("vgg16", "timm"): ["features.0.weight", "features.28.bias", "pre_logits.fc1.weight", "head.fc.bias"],
    ("vgg16_bn", "torchvision"): ["features.1.running_var", "features.41.num_batches_tracked", "classifier.3.bias"],
    ("alexnet", "torchvision"): ["features.10.weight", "classifier.4.bias", "classifier.6.weight"],
    ("googlenet", "torchvision"): ["conv3.bn.running_mean", "inception4e.branch3.1.conv.weight", "aux2.fc2.bias",
                                   "inception5b.branch4.1.bn.weight", "aux1.conv.conv.weight", "fc.bias"],
    ("vit_base_patch16_224", "timm"): ["cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.11.attn.qkv.bias",
                                       "blocks.0.norm2.weight", "blocks.3.mlp.fc2.weight", "norm.bias", "head.weight"],
    ("deit_base_distilled_patch16_224", "timm"): ["dist_token", "head_dist.bias"],
    ("vit_b_16", "torchvision"): ["class_token", "conv_proj.bias", "encoder.pos_embedding", "encoder.ln.weight",
                                  "encoder.layers.encoder_layer_11.self_attention.in_proj_weight", "heads.head.bias",
                                  "encoder.layers.encoder_layer_0.mlp.3.weight"],
}  # fmt: skip
COUNTS = {
    ("resnet18", "timm"): 122, ("vgg16", "torchvision"): 32, ("vgg16", "timm"): 32, ("vgg16_bn", "torchvision"): 97,
    ("alexnet", "torchvision"): 16, ("googlenet", "torchvision"): 364, ("vit_base_patch16_224", "timm"): 152,
    ("deit_base_distilled_patch16_224", "timm"): 155, ("vit_b_16", "torchvision"): 152,
}  # fmt: skip


@pytest.mark.parametrize(("name", "layout"), KNOWN)
def test_names_of_tensors(name: str, layout: Any) -> None:
    exchange = next(e for e in image_exchanges().values() if name in e.ARCHITECTURES.get(layout, {}))
    names = [one for rule in exchange.tables(exchange.ARCHITECTURES[layout][name])[layout].rules for one in rule.theirs]
    assert set(KNOWN[name, layout]) <= set(names)
    assert len(names) == COUNTS[name, layout]


# ------------------------------------------------------------------ preprocessing
@pytest.mark.parametrize("shorter", [None, 16, 21])
@pytest.mark.parametrize("shape", [(30, 41), (33, 20)])
def test_images_are_prepared_as_in_transformers(shorter: int | None, shape: tuple[int, int], tmp_path: Path) -> None:
    config = narrow("vit", channels=3, size=(16, 16))
    spec = ImageSpec(config.input, ("a", "b", "c"), (0.5, 0.4, 0.3), (0.2, 0.3, 0.25), shorter, "bicubic")
    write(tmp_path / "theirs", Pretrained(config, spec, build(config).state_dict(), ()))
    settings = json.loads((tmp_path / "theirs" / "preprocessor_config.json").read_text())
    theirs = getattr(transformers, f"{settings['image_processor_type']}Pil")(**settings)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8))
    predictor: Any = heedful.load(tmp_path / "theirs")
    ours = predictor.inputs([image])
    expected = torch.as_tensor(np.asarray(theirs(image, return_tensors="np")["pixel_values"]))
    if shorter == 21:  # an odd number of pixels is cropped at both ends
        expected = expected[..., : ours.shape[-2], : ours.shape[-1]]
        assert ours.shape == expected.shape
    else:
        assert float((ours - expected).abs().max()) < 1e-5
    assert predictor.predict([image])[0].label in ("a", "b", "c")


@pytest.mark.parametrize(
    ("settings", "size", "shorter"),
    [
        ({"size": {"height": 20, "width": 30}}, (20, 30), None),
        ({"size": 24}, (24, 24), None),
        ({"size": {"height": 32, "width": 32}, "do_center_crop": True, "crop_size": 28}, (28, 28), 32),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, (224, 224), 256),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.95}, (384, 384), None),
    ],
)
def test_sizes_of_image_processors(settings: dict[str, Any], size: tuple[int, int], shorter: int | None) -> None:
    found = read_processor(settings | {"do_normalize": False}, Path("p.json"), 3)
    assert (found.size, found.shorter, found.mean) == (size, shorter, ())
    again = processor_json(ImageSpec((3, *size), (), (), (), found.shorter, found.resample))
    assert read_processor(again, Path("p.json"), 3) == found


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rescale_factor": 0.5}, "invalid value for rescale_factor"),
        ({"do_rescale": False}, "invalid value for rescale_factor"),
        ({"resample": 9}, "invalid value for resample"),
        ({"image_mean": [0.5]}, "invalid value for image_mean"),
        ({"image_std": [0.5, 0.0, 1.0]}, "invalid value for image_std"),
        ({"size": {"height": 0, "width": 3}}, "invalid value for size"),
        ({"size": {"longest_edge": 3}}, "invalid value for size"),
        ({"do_pad": True}, "invalid value for do_pad"),
    ],
)
def test_image_processors_that_cannot_be_followed(settings: dict[str, Any], message: str) -> None:
    usual = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 24}
    with pytest.raises(UserError, match=message):
        read_processor(usual | settings, Path("p.json"), 3)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ViTForImageClassification", {"qkv_bias": False}, "qkv_bias: not supported"),
        ("ViTForImageClassification", {"id2label": {"0": "age"}}, "id2label: not supported"),
        ("ResNetForImageClassification", {"num_labels": 1}, "num_labels: not supported"),
        ("ViTForImageClassification", {"image_size": 13}, "no whole patches of 4 x 4"),
        ("ViTForImageClassification", {"image_size": "big"}, "invalid value for image_size"),
        ("ResNetForImageClassification", {"downsample_in_bottleneck": True}, "downsample_in_bottleneck: not supported"),
        ("ResNetForImageClassification", {"hidden_act": "gelu"}, "hidden_act: not supported"),
        ("ResNetForImageClassification", {"layer_type": "wide"}, "not supported: layer_type 'wide'"),
        ("ResNetForImageClassification", {"depths": 3}, "invalid value for depths"),
        ("ResNetForImageClassification", {"depths": [2, 1, 3]}, "the weights do not fit the model"),
    ],
)
def test_settings_that_cannot_be_followed(name: str, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    random_model(name).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(UserError, match=message):
        pretrained(tmp_path)


def test_unknown_architectures_and_sizes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architecture": "efficientnet_b0"}')
    with pytest.raises(UserError, match="not supported: models of this architecture"):
        find_image_folder(tmp_path)
    for kind, layout, message in (
        ("alexnet", "transformers", "transformers has no AlexNet"),
        ("alexnet", "torchvision", "torchvision has no AlexNet of this size"),
        ("googlenet", "timm", "timm has no GoogLeNet of this size"),
    ):
        config = config_class(kind).tiny()
        model: Any = Pretrained(config, None, build(config).state_dict(), ())
        with pytest.raises(UserError, match=message):
            write(tmp_path / "new", model, layout)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_a_model_without_classes_is_no_predictor(tmp_path: Path) -> None:
    random_model("ViTModel").save_pretrained(tmp_path)
    found = pretrained(tmp_path, role="image_encoder")
    assert found.config.classes is None and "head.weight" not in found.tensors
    with pytest.raises(UserError, match="no last layer, and so no classes"):
        task_model(found)


def test_two_classes_of_one_name(tmp_path: Path) -> None:
    """ImageNet has two cranes."""
    model = random_model("ViTForImageClassification")
    model.config.id2label = {0: "crane", 1: "cat", 2: "crane", 3: "dog", 4: "frog"}
    model.save_pretrained(tmp_path)
    assert pretrained(tmp_path).tokenizer.names == ("crane", "cat", "crane (2)", "dog", "frog")


def test_a_run_starts_from_a_published_model(tmp_path: Path) -> None:
    """Other classes: all weights but the last layer's are those of the folder, and so is the normalization."""
    config = narrow("resnet", size=(8, 8), classes=5)
    torch.manual_seed(3)
    spec = ImageSpec(config.input, tuple("abcde"), (0.125,), (0.5,))
    published = build(config).state_dict()
    write(tmp_path / "theirs", Pretrained(config, spec, published, ()))
    model = config.model_dump(mode="json") | {"classes": None, "freeze": True}
    recipe = {
        "task": {"kind": "image_classification"}, "data": {"kind": "digits"}, "model": model,
        "start": {"folder": str(tmp_path / "theirs")},
        "train": {"budget": {"steps": 2}, "batch_examples": 8, "device": "cpu", "samples": 0},
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    list(heedful.train(heedful.load_recipe(str(tmp_path / "recipe.yaml")), tmp_path / "run"))
    predictor: Any = heedful.load(tmp_path / "run")
    assert predictor.labels == tuple("0123456789") and predictor.tokenizer.mean == (0.125,)
    trained = predictor.model.state_dict()
    assert trained["head.weight"].shape == (10, 12)
    assert all(torch.equal(trained[name], published[name]) for name in published if name.endswith("conv.weight"))
    recipe["model"] = model | {"block": "basic"}
    (tmp_path / "other.yaml").write_text(json.dumps(recipe))
    with pytest.raises(UserError, match="the model to start from differs from the recipe"):
        list(heedful.train(heedful.load_recipe(str(tmp_path / "other.yaml")), tmp_path / "other"))
