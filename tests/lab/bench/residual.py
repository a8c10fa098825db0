"""A network with residual blocks that computes little."""

from edgelearn.models import resnet18_cifar


def narrow():
    return resnet18_cifar((16, 16, 3), alpha=0.25)
