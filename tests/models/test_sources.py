import json
import os
import sys

import pytest
import torch
from torch import nn

from snncompress import registry
from snncompress.errors import ModelError, UsageError
from snncompress.models.sources import ModelSource, WithoutMemory, build, default_input_shape, resolve

NET = """
from torch import nn

def build(width=4, classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.ReLU(), nn.Linear(width, classes))

def number():
    return 3

def broken():
    raise KeyError("no such thing")
"""


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "my_net.py"
    path.write_text(NET)
    return path


def same_shapes(left, right):
    return {k: v.shape for k, v in left.state_dict().items()} == {k: v.shape for k, v in right.state_dict().items()}


@pytest.mark.parametrize("name", list(registry.entries("models")))
def test_zoo_sources_round_trip(name):
    source = resolve(name, classes=6)
    again = ModelSource.from_json(json.loads(json.dumps(source.to_json())))
    assert again == source
    assert source.arguments["classes"] == 6
    with WithoutMemory():
        assert same_shapes(build(source), build(again))
    assert default_input_shape(source) == registry.load("models", name).INPUT_SHAPE


def test_all_arguments_are_recorded_and_the_user_s_come_first():
    assert resolve("resnet20").arguments == {"classes": 10, "image_shape": [3, 32, 32], "shortcut": "A"}
    source = resolve("mlp", {"widths": "5-4", "classes": 3}, classes=10, image_shape=(1, 8, 8))
    assert source.arguments == {"widths": "5-4", "classes": 3, "image_shape": [1, 8, 8]}
    assert default_input_shape(source) == (1, 8, 8)
    assert build(source)(torch.zeros(1, 1, 8, 8)).shape == (1, 3)


def test_unknown_names():
    with pytest.raises(UsageError, match=r"did you mean 'lenet5'.*resnet20.*torchvision:NAME.*file.py:function"):
        resolve("lenet-5")
    with pytest.raises(UsageError, match="did you mean 'torchvision:resnet18'"):
        resolve("resnet18")
    with pytest.raises(UsageError, match="unknown torchvision model 'resnet19'; did you mean 'resnet1"):
        resolve("torchvision:resnet19")
    with pytest.raises(UsageError, match="unknown torchvision model 'fasterrcnn_resnet50_fpn'"):
        resolve("torchvision:fasterrcnn_resnet50_fpn")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 3}, "'depth'.*takes: classes, image_shape"),
        ({"classes": 0}, "classes=0 of lenet5"),
        ({"classes": "ten"}, "classes='ten'"),
        ({"image_shape": [28, 28]}, "channels, height and width"),
        ({"image_shape": "big"}, "channels, height and width"),
        ({"classes": object()}, "JSON"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(UsageError, match=message):
        resolve("lenet5", arguments)


def test_torchvision():
    source = resolve("torchvision:resnet18", classes=4)
    assert source.arguments == {"num_classes": 4}
    assert default_input_shape(source) == (3, 224, 224)
    with WithoutMemory():
        assert build(source).fc.out_features == 4
    assert resolve("torchvision:resnet18").arguments == {"num_classes": 1000}
    assert resolve("torchvision:resnet18", {"classes": 5}, classes=4).arguments == {"num_classes": 5}
    assert default_input_shape(resolve("torchvision:inception_v3")) == (3, 299, 299)
    assert default_input_shape(resolve("torchvision:vit_b_16", {"image_size": 32})) == (3, 32, 32)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["googlenet", "inception_v3", "regnet_x_400mf", "mobilenet_v3_small"])
def test_torchvision_models_build_without_warnings_and_auxiliary_heads(name):
    with WithoutMemory():
        model = build(resolve(f"torchvision:{name}", classes=4))
    assert not any("aux" in key.lower() for key in model.state_dict())
    assert all(parameter.is_meta for parameter in model.parameters())


def test_torchvision_s_wrong_arguments():
    with pytest.raises(UsageError, match=r"cannot be built with depth \(it takes: num_classes.*groups"):
        build(resolve("torchvision:resnet18", {"depth": 3}))
    with pytest.raises(UsageError, match="--checkpoint"):
        resolve("torchvision:resnet18", {"weights": "DEFAULT"})


def test_user_code(net, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    source = resolve("my_net.py:build", {"width": 6}, classes=3, image_shape=(1, 2, 2))
    assert source.name == f"{net}:build"  # absolute, so that a run loads from anywhere
    assert source.arguments == {"width": 6, "classes": 3}  # image_shape is not named in the signature
    assert default_input_shape(source) is None
    monkeypatch.chdir("/")
    model = build(ModelSource.from_json(source.to_json()))
    assert model(torch.zeros(2, 1, 2, 2)).shape == (2, 3)
    assert str(tmp_path) not in sys.path


def test_changed_user_code_is_not_executed(net, tmp_path):
    source = resolve(f"{net}:build")
    mark = tmp_path / "executed"
    net.write_text(NET.replace("width=4", "width=9") + f"\nopen({str(mark)!r}, 'w').close()\n")
    with pytest.raises(ModelError, match="--trust-source"):
        build(source)
    with pytest.raises(ModelError, match="--trust-source"):
        build(ModelSource(source.name, source.arguments))
    assert not mark.exists()
    assert build(source, trust=True)[1].out_features == 9
    assert mark.exists()
    net.unlink()
    with pytest.raises(ModelError, match="no such file"):
        build(source, trust=True)


def test_a_change_of_the_same_size_and_time_is_seen(net):
    before = net.stat()
    assert build(resolve(f"{net}:build"))[1].out_features == 4
    net.write_text(NET.replace("width=4", "width=5"))
    os.utime(net, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert build(resolve(f"{net}:build"))[1].out_features == 5


def test_siblings_of_two_folders_are_not_confused(tmp_path):
    for folder, width in (("a", 3), ("b", 5)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "shared_layers.py").write_text(f"from torch import nn\nlayer = nn.Linear(1, {width})\n")
        text = "def build():\n    from shared_layers import layer\n    return layer\n"
        (tmp_path / folder / "net.py").write_text(text)
    widths = [build(resolve(f"{tmp_path / folder / 'net.py'}:build")).out_features for folder in "aba"]
    assert widths == [3, 5, 3]


@pytest.mark.parametrize(
    ("content", "function", "message"),
    [
        (NET, "broken", r"my_net.py:11: KeyError: 'no such thing'"),
        (NET, "number", "returned int, not a torch.nn.Module"),
        ("import nowhere_to_be_found", "build", "my_net.py:1: ModuleNotFoundError"),
        ("def build(:", "build", "my_net.py:1: SyntaxError"),
        ("raise SystemExit(3)", "build", "my_net.py:1: SystemExit: 3"),
    ],
)
def test_errors_of_user_code_name_file_and_cause(net, content, function, message):
    net.write_text(content)
    with pytest.raises(ModelError, match=message) as caught:
        build(resolve(f"{net}:{function}"))
    assert "\n" not in str(caught.value)


def test_wrong_use_of_user_code(net, tmp_path):
    with pytest.raises(UsageError, match=r"no function 'make' \(it defines: broken, build, number\)"):
        resolve(f"{net}:make")
    with pytest.raises(UsageError, match=r"'depth' \(it takes: width, classes\)"):
        resolve(f"{net}:build", {"depth": 1})
    with pytest.raises(UsageError, match=r"my_net\.py:build"):
        resolve(str(net))
    with pytest.raises(ModelError, match="no such file"):
        resolve(f"{tmp_path / 'other.py'}:build")
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ModelError, match="cannot read"):
        resolve(f"{tmp_path / 'folder.py'}:build")


def test_a_class_is_a_builder_too(net):
    net.write_text(
        "from torch import nn\nclass Net(nn.Linear):\n    def __init__(self, num_classes):\n"
        "        super().__init__(2, num_classes)\n"
    )
    model = build(resolve(f"{net}:Net", classes=3))
    assert isinstance(model, nn.Linear)
    assert model.out_features == 3
    with pytest.raises(UsageError, match="missing a required argument: 'num_classes'"):
        resolve(f"{net}:Net")
