"""The built-in models as PyTorch modules. The names in their state_dict are Capstan's."""

from collections import OrderedDict

INPUTS = {'lenet': (1, 28, 28), 'lenet_d2l': (1, 28, 28), 'resnet18_v1': (3, 32, 32), 'alexnet': (3, 32, 32), 'mobilenet_v1': (3, 32, 32),
          'vgg16': (3, 32, 32)}


def build(torch, name):
    """The model with 10 classes and weights drawn from PyTorch's generator."""
    nn = torch.nn

    def relu():
        return nn.ReLU(inplace=True)

    if name == 'lenet':
        return nn.Sequential(OrderedDict(
            conv1=nn.Conv2d(1, 6, 5), relu1=relu(), pool1=nn.MaxPool2d(2), conv2=nn.Conv2d(6, 16, 3), relu2=relu(), pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(), fc1=nn.Linear(400, 120), relu3=relu(), fc2=nn.Linear(120, 84), relu4=relu(), fc3=nn.Linear(84, 10)))
    if name == 'lenet_d2l':
        return nn.Sequential(OrderedDict(
            conv1=nn.Conv2d(1, 20, 3), relu1=relu(), pool1=nn.AvgPool2d(2), conv2=nn.Conv2d(20, 50, 5), relu2=relu(), pool2=nn.AvgPool2d(2),
            flatten=nn.Flatten(), fc1=nn.Linear(800, 128), relu3=relu(), fc2=nn.Linear(128, 10)))
    if name == 'resnet18_v1':
        return resnet18(torch)
    if name in ('alexnet', 'vgg16'):
        return deep_chain(torch, name)
    if name == 'mobilenet_v1':
        return mobilenet_v1(torch)
    raise ValueError(f'no model {name}, have {", ".join(INPUTS)}')


def resnet18(torch):
    """torchvision's resnet18 (names, order and first weights of its layers) with the stem for small images."""
    nn = torch.nn

    class Block(nn.Module):

        def __init__(self, inputs, width, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.relu = nn.ReLU(inplace=True)
            self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(width)
            self.downsample = None
            if stride != 1 or inputs != width:
                self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

        def forward(self, x):
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            return self.relu(y + (x if self.downsample is None else self.downsample(x)))

    layers = OrderedDict(conv1=nn.Conv2d(3, 64, 3, 1, 1, bias=False), bn1=nn.BatchNorm2d(64), relu=nn.ReLU(inplace=True))
    inputs = 64
    for stage, width in enumerate((64, 128, 256, 512), start=1):
        layers[f'layer{stage}'] = nn.Sequential(Block(inputs, width, 1 if stage == 1 else 2), Block(width, width, 1))
        inputs = width
    layers.update(avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(512, 10))
    net = nn.Sequential(layers)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode='fan_out', nonlinearity='relu')
    return net


def deep_chain(torch, name):
    """torchvision's alexnet or vgg16, without dropout, as Capstan has them for images of 32 x 32."""
    nn = torch.nn
    features, inputs = [], 3
    # Channels and kernel of a convolution; None: a pooling.
    plan = ([(64, 3), None, (192, 5), None, (384, 3), (256, 3), (256, 3), None] if name == 'alexnet' else
            [*[(64, 3)] * 2, None, *[(128, 3)] * 2, None, *[(256, 3)] * 3, None, *[(512, 3)] * 3, None, *[(512, 3)] * 3, None])
    for layer in plan:
        if layer is None:
            features.append(nn.MaxPool2d(2))
        else:
            features += [nn.Conv2d(inputs, layer[0], layer[1], padding=layer[1] // 2), nn.ReLU(inplace=True)]
            inputs = layer[0]
    width, read = (1024, 256 * 4 * 4) if name == 'alexnet' else (512, 512)
    dense = [nn.Linear(read, width), nn.ReLU(inplace=True)], [nn.Linear(width, width), nn.ReLU(inplace=True)], [nn.Linear(width, 10)]
    drop = [nn.Identity()]
    first, second, last = dense
    classifier = [*drop, *first, *drop, *second, *last] if name == 'alexnet' else [*first, *drop, *second, *drop, *last]
    return nn.Sequential(OrderedDict(features=nn.Sequential(*features), flatten=nn.Flatten(), classifier=nn.Sequential(*classifier)))


def mobilenet_v1(torch):
    """MobileNet (arXiv:1704.04861) with timm's names, Relu, and a stem of stride 1."""
    nn = torch.nn

    def conv(inputs, outputs, kernel, stride=1, groups=1):
        return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)

    def block(inputs, outputs, stride):
        return nn.Sequential(OrderedDict(
            conv_dw=conv(inputs, inputs, 3, stride, inputs), bn1=nn.BatchNorm2d(inputs), relu1=nn.ReLU(inplace=True),
            conv_pw=conv(inputs, outputs, 1), bn2=nn.BatchNorm2d(outputs), relu2=nn.ReLU(inplace=True)))

    stages, inputs = [], 32
    for stage, (blocks, outputs) in enumerate(((1, 64), (2, 128), (2, 256), (6, 512), (2, 1024))):
        layers = []
        for number in range(blocks):
            layers.append(block(inputs, outputs, 2 if stage > 0 and number == 0 else 1))
            inputs = outputs
        stages.append(nn.Sequential(*layers))
    net = nn.Sequential(OrderedDict(
        conv_stem=conv(3, 32, 3), bn1=nn.BatchNorm2d(32), relu=nn.ReLU(inplace=True), blocks=nn.Sequential(*stages),
        avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), classifier=nn.Linear(1024, 10)))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode='fan_in', nonlinearity='relu')
    return net
