"""Networks of published benchmarks that neither timm nor torchvision has a name for.

`vision_presets.py` builds each function here without arguments; `SIZES` is the image that its
benchmark uses.
"""

from __future__ import annotations

import functools

import torch
from torch import nn

SIZES = {
    "densenet264": (224, 224),
    "mobilenetv1_025": (224, 224),
    "mobilenetv1_050": (224, 224),
    "mobilenetv1_075": (224, 224),
    "mobilenetv2_130": (224, 224),
    "ssd300_resnet50": (300, 300),
    "vit_base_patch16_reg8_gap_256": (256, 256),
    "vit_medium_patch16_reg4_256": (256, 256),
}
YOLO = {
    **{f"yolov5{size}u": f"yolov5{size}.yaml" for size in "nsmlx"},
    **{f"yolov9{size}": f"yolov9{size}.yaml" for size in "tsmce"},
    **{f"yolov10{size}": f"yolov10{size}.yaml" for size in "nsmblx"},
    **{f"yolo12{size}": f"yolo12{size}.yaml" for size in "nsmlx"},
    **{f"yolo26{size}": f"yolo26{size}.yaml" for size in "nsmlx"},
    **{
        f"{version}{size}{task.replace('-', '_')}": f"{version}{size}{task}.yaml"
        for version in ("yolov8", "yolo11")
        for task in ("", "-seg", "-pose", "-obb", "-cls")
        for size in ("nsm" if task else "nsmlx")
    },
}
"""Names of Ultralytics' networks, and what its package calls their definitions. Anchor-free
YOLOv5 is `yolov5nu` there."""


def _yolo_size(name):
    return (224, 224) if name.endswith("_cls") else (1024, 1024) if "_obb" in name else (640, 640)


SIZES |= {name: _yolo_size(name) for name in YOLO}


def _yolo(definition):
    from ultralytics.nn import tasks

    kinds = {"-seg": "Segmentation", "-pose": "Pose", "-obb": "OBB", "-cls": "Classification"}
    kind = next((kinds[task] for task in kinds if task in definition), "Detection")
    model = getattr(tasks, f"{kind}Model")(definition, verbose=False)
    # The head asks its strides for numbers, of which tensors of the meta device have none.
    if kind != "Classification":
        model.model[-1].register_forward_pre_hook(_with_numbers)
    return model


def _with_numbers(head, _):
    head.stride = [8.0, 16.0, 32.0]


globals().update({name: functools.partial(_yolo, given) for name, given in YOLO.items()})


def mobilenetv1_025():
    return _mobilenet_v1(0.25)


def mobilenetv1_050():
    return _mobilenet_v1(0.5)


def mobilenetv1_075():
    return _mobilenet_v1(0.75)


def _mobilenet_v1(width):
    from timm.models import efficientnet

    return efficientnet._gen_mobilenet_v1("mobilenetv1_100", channel_multiplier=width)


def mobilenetv2_130():
    from timm.models import efficientnet

    return efficientnet._gen_mobilenet_v2("mobilenetv2_100", channel_multiplier=1.3)


def densenet264():
    """Huang et al. 2016 (1608.06993), table 1, with the growth rate of 48 that timm once used."""
    from timm.models.densenet import DenseNet

    return DenseNet(growth_rate=48, block_config=(6, 12, 64, 48))


def vit_base_patch16_reg8_gap_256():
    import timm

    return timm.create_model("vit_base_patch16_reg4_gap_256", reg_tokens=8)


def vit_medium_patch16_reg4_256():
    import timm

    return timm.create_model(
        "vit_medium_patch16_reg4_gap_256", class_token=True, global_pool="token"
    )


class Ssd300(nn.Module):
    """SSD (1512.02325) on ResNet-50 as NVIDIA and Lambda train it, up to boxes and scores.

    The backbone ends with the third stage, whose stride is removed (a plane of 38 by 38); five
    pairs of convolutions lead to planes of 19, 10, 5, 3 and 1; 81 classes
    (DeepLearningExamples, PyTorch/Detection/SSD/ssd/model.py).
    """

    channels = (1024, 512, 512, 256, 256, 256)
    middle = (256, 256, 128, 128, 128)
    boxes = (4, 6, 6, 6, 4, 4)
    classes = 81

    def __init__(self):
        super().__init__()
        import torchvision

        whole = torchvision.models.resnet50(weights=None)
        self.features = nn.Sequential(*list(whole.children())[:7])
        first = self.features[-1][0]
        first.conv1.stride = first.conv2.stride = first.downsample[0].stride = (1, 1)
        self.extra = nn.ModuleList()
        ends = zip(self.channels[:-1], self.channels[1:], self.middle, strict=True)
        for place, (before, after, between) in enumerate(ends):
            step = {"padding": 1, "stride": 2} if place < 3 else {}
            self.extra.append(
                nn.Sequential(
                    nn.Conv2d(before, between, 1, bias=False),
                    nn.BatchNorm2d(between),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(between, after, 3, bias=False, **step),
                    nn.BatchNorm2d(after),
                    nn.ReLU(inplace=True),
                )
            )
        pairs = list(zip(self.channels, self.boxes, strict=True))
        self.places = nn.ModuleList(nn.Conv2d(one, 4 * many, 3, padding=1) for one, many in pairs)
        self.scores = nn.ModuleList(
            nn.Conv2d(one, self.classes * many, 3, padding=1) for one, many in pairs
        )

    def forward(self, image):  # noqa: D102
        planes = [self.features(image)]
        for layer in self.extra:
            planes.append(layer(planes[-1]))
        places = [head(one).flatten(1) for head, one in zip(self.places, planes, strict=True)]
        scores = [head(one).flatten(1) for head, one in zip(self.scores, planes, strict=True)]
        return torch.cat(places, 1), torch.cat(scores, 1)


def ssd300_resnet50():
    return Ssd300()
