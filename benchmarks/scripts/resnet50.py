"""ResNet-50, channels_last, mixed precision, SGD with momentum."""

import argparse
import os
import time

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.nn as nn

parser = argparse.ArgumentParser(description="ImageNet-like training on random images")
parser.add_argument("-b", "--batch", default=256, type=int)
parser.add_argument("--image", default=224, type=int)
parser.add_argument("--width", default=64, type=int, help="channels after the stem")
parser.add_argument("--blocks", default="3,4,6,3", help="bottlenecks per stage")
parser.add_argument("--classes", default=1000, type=int)
parser.add_argument("--lr", default=0.1, type=float)
parser.add_argument("--momentum", default=0.9, type=float)
parser.add_argument("--steps", default=20, type=int)


def conv(inputs, outputs, size, stride=1):
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs, planes, stride=1):
        super().__init__()
        outputs = planes * self.expansion
        self.conv1, self.bn1 = conv(inputs, planes, 1), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = conv(planes, planes, 3, stride), nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = conv(planes, outputs, 1), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, blocks, width, classes):
        super().__init__()
        self.stem = nn.Sequential(
            conv(3, width, 7, 2), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)
        )
        stages, inputs = [], width
        for i, count in enumerate(blocks):
            planes = width * 2**i
            for j in range(count):
                stages.append(Bottleneck(inputs, planes, stride=2 if i > 0 and j == 0 else 1))
                inputs = planes * Bottleneck.expansion
        self.stages = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.avgpool(self.stages(self.stem(x)))
        return self.fc(torch.flatten(x, 1))


def accuracy(output, target):
    with torch.no_grad():
        return output.argmax(dim=1).eq(target).float().mean() * 100


def main():
    args = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29508")
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    cudnn.benchmark = True
    gpu = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(gpu)
    dist.init_process_group(backend="nccl", init_method="env://")

    model = ResNet([int(n) for n in args.blocks.split(",")], args.width, args.classes)
    model = model.cuda().to(memory_format=torch.channels_last)
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[gpu], output_device=gpu)
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=1e-4, nesterov=True)

    images = torch.randn(args.batch, 3, args.image, args.image, device="cuda").to(memory_format=torch.channels_last)
    target = torch.randint(args.classes, (args.batch,), device="cuda")
    model.train()
    batch_time = []
    for i in range(args.steps):
        torch.cuda.synchronize()
        end = time.perf_counter()
        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
            output = model(images)
            loss = criterion(output, target)
        top1 = accuracy(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        batch_time.append(time.perf_counter() - end)
        print(f"[{i:3d}] Time {batch_time[-1]:.3f} Loss {loss.item():.4e} Acc@1 {top1.item():.2f}")
    half = batch_time[len(batch_time) // 2 :]
    print(f"step_ms={sum(half) / len(half) * 1000:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
