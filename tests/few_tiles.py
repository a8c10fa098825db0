"""Tiles of few sizes: one kernel serves layers of many shapes, and small ones compile sooner. For tests about networks,
not about tiles; those of all sizes are tried in tests/ops."""

from edgelearn.ops import products

SIZES = {
    "product_rows": lambda rows, panels=1: 4 if rows >= 4 else 1,
    "panels": lambda blocks: 1,
    "row_tile": lambda width: 4 if width >= 4 else 1,
    "depthwise_tile": lambda width, stride=1: 4,
}


def use(assign=setattr):
    """Replace the functions of `products` that choose sizes, on CPUs alone; `assign` is setattr, or a MonkeyPatch's."""
    for name, size in SIZES.items():
        assign(products, name, _few(getattr(products, name), size))


def _few(chosen, size):
    return lambda traits, *shape: chosen(traits, *shape) if traits.gpu else size(*shape)
