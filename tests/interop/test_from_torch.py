"""PyTorch modules by torch.export: outputs and gradients of every weight are PyTorch's."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.interop.builder import translate
from edgelearn.interop.read_torch import HANDLERS, graph_of_module

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


class Small(nn.Module):
    """Layers of networks for pictures: shuffled and gated channels, in-place sums, several poolings."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(inplace=True))
        self.depthwise = nn.Conv2d(8, 8, 3, padding="same", groups=8)
        self.reduce, self.expand = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.norm = nn.BatchNorm2d(8, affine=False)
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(16 * 6, 5)

    def forward(self, x):
        x = self.stem(x)
        y = self.depthwise(x)
        y = y * torch.sigmoid(self.expand(F.relu(self.reduce(F.adaptive_avg_pool2d(y, 1)))))
        y += x
        a, b = y.chunk(2, dim=1)
        y = torch.cat((b, F.silu(a)), 1)
        n, c, h, w = y.shape
        y = y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        y = self.norm(y) / 2 + 1
        y = torch.cat((F.max_pool2d(y, 3, 2, 1), F.avg_pool2d(y, 2, 2, ceil_mode=True)), 1)
        return self.head(self.drop(F.leaky_relu(y).flatten(1)))


@pytest.fixture
def module():
    torch.manual_seed(0)
    made = Small()
    for norm in (made.stem[1], made.norm):
        norm.running_mean.normal_(0, 0.1)
        norm.running_var.uniform_(0.5, 1.5)
    return made


def test_parameters_that_pytorch_does_not_train(module):
    module.stem.requires_grad_(False)
    module.head.bias.requires_grad_(False)
    network = el.from_torch(module, torch.zeros(1, 3, 11, 7)).network
    fixed = {key for key in network.parameters if key not in network.trainable and "moving" not in key}
    assert fixed == {"stem.0/kernel", "stem.1/gamma", "stem.1/beta", "head/bias", "norm/gamma", "norm/beta"}


def test_outputs_and_gradients(module):
    x, y = torch.randn(2, 3, 11, 7), torch.tensor([1, 4])
    model = el.from_torch(module, x[:1])
    assert module.training
    assert model.network.nodes["drop"].op.rate == 0.25
    assert "norm/gamma" not in model.network.trainable
    image = x.numpy().transpose(0, 2, 3, 1)
    exact = module.double().eval()
    logits = exact(x.double())
    assert np.allclose(model.predict(image), logits.detach().numpy(), rtol=1e-4, atol=1e-5)
    F.cross_entropy(logits, y).backward()
    module.drop.p = 0.0
    found = el.from_torch(module.float(), x[:1]).gradients(image, y.numpy())
    for path, parameter in module.named_parameters():
        layer, _, role = path.rpartition(".")
        names = {"weight": ("kernel", "gamma"), "bias": ("bias", "beta")}[role]
        (gradient,) = (found[f"{layer}/{name}"] for name in names if f"{layer}/{name}" in found)
        expected = parameter.grad.numpy()
        if layer == "head" and role == "weight":  # its features lie in another order: compare what doesn't depend on it
            gradient, expected = np.sort(gradient.T, 1), np.sort(expected, 1)
        elif expected.ndim == 4:
            expected = expected.transpose(2, 3, 0, 1) if layer == "depthwise" else expected.transpose(2, 3, 1, 0)
        assert np.allclose(gradient, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max()), path


def test_a_value_changed_in_place_is_read_changed():
    class Changes(nn.Module):
        def forward(self, x):
            y = x * 2
            y.relu_()
            return y + 1

    model = el.from_torch(Changes(), torch.zeros(1, 4))
    assert np.allclose(model.predict(np.float32([[-1, 0, 1, 2]])), [[1, 1, 3, 5]])


def test_a_view_changed_in_place_is_refused():
    class Changes(nn.Module):
        def forward(self, x):
            y = x * 2
            y[:, :2].relu_()
            return y

    with pytest.raises(FormatError, match="relu_"):
        el.from_torch(Changes(), torch.zeros(1, 4))


def test_all_unsupported_operators_at_once():
    class Strange(nn.Module):
        def forward(self, x):
            return torch.erfinv(F.relu(x)).cumsum(1)

    translation = translate(graph_of_module(Strange(), torch.zeros(1, 4)), HANDLERS)
    assert [problem.kind for problem in translation.problems] == ["erfinv", "cumsum"]
    with pytest.raises(UnsupportedError, match="cumsum"):
        el.from_torch(Strange(), torch.zeros(1, 4))


def test_sound():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv1d(4, 6, 3, 2, 1), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2), nn.AdaptiveAvgPool1d(1), nn.Flatten()
    ).eval()
    x = torch.randn(2, 4, 9)
    model = el.from_torch(module, x)
    found = model.predict(x.numpy().transpose(0, 2, 1), batch_size=2)
    assert {"0", "1", "3"} <= model.network.nodes.keys() and model.network.input_shape == (9, 4)
    assert np.allclose(found, module(x).detach().numpy(), atol=1e-5)


class Recurrent(nn.Module):
    """Two layers in both directions, then one whose last state counts."""

    def __init__(self, kind, biased):
        super().__init__()
        self.deep = kind(6, 8, num_layers=2, batch_first=True, bidirectional=True, bias=biased)
        self.last = kind(16, 5)
        self.head = nn.Linear(5 + 4 * 8, 3)

    def forward(self, x):
        y, ends = self.deep(x)
        ends = ends[0] if isinstance(ends, tuple) else ends
        _, h = self.last(y.transpose(0, 1))
        h = h[0] if isinstance(h, tuple) else h
        return self.head(torch.cat((h[-1], ends.transpose(0, 1).flatten(1)), 1))


@pytest.mark.parametrize(("kind", "biased"), [(nn.LSTM, True), (nn.GRU, True), (nn.GRU, False)])
def test_recurrent_layers(kind, biased):
    torch.manual_seed(0)
    module, x, y = Recurrent(kind, biased), torch.randn(3, 7, 6), torch.tensor([0, 2, 1])
    model = el.from_torch(module, x)
    logits = module(x)
    assert np.allclose(model.predict(x.numpy(), batch_size=3), logits.detach().numpy(), atol=1e-5)
    F.cross_entropy(logits, y).backward()
    found = model.gradients(x.numpy(), y.numpy())
    turned = {"LSTM": (0, 1, 2, 3), "GRU": (1, 0, 2)}[kind.__name__]
    expected = {"last/kernel": module.last.weight_ih_l0, "last/recurrent_kernel": module.last.weight_hh_l0,
                "deep_1_backward/kernel": module.deep.weight_ih_l1_reverse}  # fmt: skip
    for name, weight in expected.items():
        gates = np.split(weight.grad.numpy(), len(turned))
        assert np.allclose(found[name], np.concatenate([gates[gate] for gate in turned]).T, atol=1e-5), name


class GoesOn(nn.Module):
    """A state, (layers, batch, units), that is an input and an output."""

    def __init__(self, kind, directions=1):
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3)
        self.layer = kind(4, 5, num_layers=2, batch_first=True, bidirectional=directions == 2)
        self.head = nn.Linear(5 * directions, 3)

    def forward(self, x, state):
        y, state = self.layer(self.conv(x).relu().transpose(1, 2), state)
        return self.head(y[:, -1]), state


@pytest.mark.parametrize("batch", (1, 3, 4))
@pytest.mark.parametrize(("kind", "directions"), [(nn.LSTM, 1), (nn.LSTM, 2), (nn.GRU, 1)])
def test_states_are_inputs_and_outputs(kind, directions, batch):
    torch.manual_seed(0)
    module, lstm, x = GoesOn(kind, directions), kind is nn.LSTM, torch.randn(3, 4, 2, 8)
    state = tuple(torch.randn(2 * directions, 4, 5) for _ in range(2 if lstm else 1))
    example = tuple(part[:, :batch].contiguous() for part in state)
    model = el.from_torch(module, (x[0, :batch], example if lstm else example[0]))
    first, *names = model.network.inputs
    assert [model.network.inputs[name] for name in names] == [(2 * directions, 5)] * len(state)
    targets = {name: torch.randn(4, *model.network.shape_of(name)).numpy() for name in model.network.outputs}
    own = [part.transpose(0, 1).numpy() for part in state]
    for chunk in x:
        given = {first: chunk.transpose(1, 2).numpy()} | dict(zip(names, map(np.ascontiguousarray, own), strict=True))
        leaves = [part.detach().requires_grad_() for part in state]
        y, state = module(chunk, tuple(leaves) if lstm else leaves[0])
        state = state if lstm else (state,)
        found, *own = model.predict(given).values()
        assert np.allclose(found, y.detach().numpy(), atol=1e-5)
        for ours, theirs in zip(own, state, strict=True):
            assert np.allclose(ours, theirs.detach().transpose(0, 1).numpy(), atol=1e-5)
    pairs = zip((y, *(part.transpose(0, 1) for part in state)), targets.values(), strict=True)
    sum(F.mse_loss(value, torch.tensor(target)) for value, target in pairs).backward()
    model.compile(el.SGD(0.1), el.losses.MeanSquaredError())
    gradients = model.gradients(given, targets, of="inputs")
    for name, leaf in zip(names, leaves, strict=True):
        assert np.allclose(gradients[name], leaf.grad.transpose(0, 1).numpy(), atol=1e-6)
    kernel = model.gradients(given, targets)["conv/kernel"]
    assert np.allclose(kernel[0], module.conv.weight.grad.permute(2, 1, 0).numpy(), atol=1e-6)


def test_recurrent_layers_that_differ():
    class Begins(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(4, 5, batch_first=True, proj_size=3)

        def forward(self, x):
            return self.layer(x)[0]

    with pytest.raises(UnsupportedError, match="projections"):
        el.from_torch(Begins(), torch.zeros(2, 3, 4))


def test_instances_are_normalized():
    """By their own statistics, or by those that a module has kept; with logarithms of probabilities behind."""
    torch.manual_seed(0)
    kept = nn.InstanceNorm2d(4, momentum=0.25, track_running_stats=True)
    kept.running_var.uniform_(0.5, 1.5)
    module = nn.Sequential(nn.InstanceNorm2d(4, affine=True), kept, nn.Flatten(), nn.LogSoftmax(-1)).eval()
    module[0].weight.data.uniform_(0.5, 1.5)
    x = torch.randn(2, 4, 5, 3)
    model = el.from_torch(module, x[:1])
    assert [node.op.momentum for node in model.network.nodes.values() if hasattr(node.op, "momentum")] == [0.75]
    found = model.predict(x.permute(0, 2, 3, 1).numpy(), batch_size=2)
    expected = module(x).detach().numpy().reshape(2, 4, 15)
    assert np.allclose(np.sort(found.reshape(2, -1)), np.sort(expected.reshape(2, -1)), atol=1e-5)


class Attending(nn.Module):
    """Attention, values that a comparison chooses, unit length, and padding by the edge."""

    def __init__(self):
        super().__init__()
        self.conv, self.query, self.key = nn.Conv2d(3, 8, 1), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.conv(F.pad(x, (1, 2, 1, 0), mode="replicate")).flatten(2).transpose(1, 2)
        y = F.scaled_dot_product_attention(self.query(y), self.key(y), y)
        y = torch.where(y > 0.1, y, -y.mean(1, keepdim=True))
        return F.log_softmax(F.normalize(y.amax(1)), -1)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


def test_products_of_computed_values_and_rows_by_number():
    torch.manual_seed(0)
    module, x = Attending().eval(), torch.randn(2, 3, 4, 5)
    found = el.from_torch(module, x).predict(x.permute(0, 2, 3, 1).numpy(), batch_size=2)
    assert np.allclose(found, module(x).detach().numpy(), atol=1e-5)
    module, x = Words().eval(), torch.tensor([[1, 2, 6], [0, 0, 3]])
    model = el.from_torch(module, x)
    assert np.allclose(model.predict(x.numpy(), batch_size=2), module(x).detach().numpy(), atol=1e-5)
    assert "table/embeddings" in model.network.trainable


class Bert(nn.Module):
    """Parts of transformers' BertModel: positions and types by numbers, and a mask that leaves nothing out."""

    def __init__(self, causal=False):
        super().__init__()
        self.causal = causal
        self.words, self.positions, self.types = nn.Embedding(9, 8), nn.Embedding(16, 8), nn.Embedding(2, 8)
        self.register_buffer("numbers", torch.arange(16)[None])
        self.register_buffer("first", torch.zeros(1, 16, dtype=torch.long))
        self.query, self.key, self.norm, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        n, steps = x.shape
        numbers = self.numbers[:, :steps]
        types = torch.gather(self.first.expand(n, -1), 1, numbers.expand(n, -1))
        y = self.norm(self.words(x) + self.types(types) + self.positions(numbers))
        places = torch.arange(steps)
        mask = places[:, None] >= (places[None] if self.causal else 0 * places[None])
        q, k, v = (each.view(n, steps, 2, 4).transpose(1, 2) for each in (self.query(y), self.key(y), y))
        y = F.scaled_dot_product_attention(q, k, v, mask.expand(n, 1, steps, steps))
        return self.head(y.transpose(1, 2).reshape(n, steps, 8)[:, 0])


def test_what_depends_on_no_input_is_computed_by_pytorch():
    torch.manual_seed(0)
    module, x = Bert().eval(), torch.tensor([[1, 2, 6, 8, 0]])
    model = el.from_torch(module, x)
    assert np.allclose(model.predict(x.numpy()), module(x).detach().numpy(), atol=1e-5)
    assert "words/embeddings" in model.network.trainable
    model = el.from_torch(Bert(causal=True).eval(), x)
    (op,) = (node.op for node in model.network.nodes.values() if isinstance(node.op, el.ops.Attention))
    assert op.causal


class Masked(nn.Module):
    """Attention with a mask that a function makes of an input."""

    def __init__(self, mask):
        super().__init__()
        self.mask, self.qkv = mask, nn.Linear(8, 24)

    def forward(self, x, given):
        q, k, v = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, 2))
        return F.scaled_dot_product_attention(q, k, v, self.mask(given)).transpose(1, 2).flatten(2)


BEFORE = torch.ones(5, 5, dtype=torch.bool).tril()
KEYS, EACH = torch.tensor([[1, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 1, 0]]).bool(), torch.rand(3, 5, 5) > 0.5
MASKS = {  # the mask, what is given, and inputs of an Attention, of which a fourth one is the mask; 0 for stored scores
    "of keys": (lambda given: given[:, None, None], KEYS, 4),
    "of keys by number": (lambda given: given[:, None, None].to(torch.bool), KEYS.long(), 4),
    "of keys, repeated": (lambda given: given[:, None, None].expand(-1, 1, 5, 5), KEYS, 4),
    "of keys, added": (lambda given: (1 - given[:, None, None].float()) * -1e9, KEYS[::2], 4),
    "of keys that are left out": (lambda given: ~given[:, None, None], ~KEYS, 4),
    "of keys before": (lambda given: given[:, None, None] & BEFORE, KEYS, 4),
    "of some keys behind": (lambda given: BEFORE.T & given[:, None, None], KEYS, 0),
    "of each query": (lambda given: given[:, None], EACH, 0),
    "numbers": (lambda given: given[:, None, None], torch.randn(3, 5), 0),
    "filled": (lambda given: (0 * given).masked_fill(given > 0, -1e9)[:, None, None], torch.randn(3, 5), 0),
}


@pytest.mark.parametrize("case", MASKS)
def test_attention_with_a_mask(case):
    torch.manual_seed(0)
    mask, given, inputs = MASKS[case]
    module, x = Masked(mask), torch.randn(len(given), 5, 8)
    model = el.from_torch(module, (x, given))
    found = [len(node.inputs) for node in model.network.nodes.values() if isinstance(node.op, el.ops.Attention)]
    assert found == ([inputs] if inputs else [])
    arrays = {"x": x.numpy(), "given": given.numpy().astype(np.float32)}
    target, expected = torch.randn(len(given), 5, 8), module(x, given)
    assert np.allclose(model.predict(arrays, batch_size=3), expected.detach().numpy(), atol=1e-6)
    F.mse_loss(expected, target).backward()
    model.compile(el.SGD(0.1), el.losses.MeanSquaredError())
    kernel = model.gradients(arrays, target.numpy())["qkv/kernel"]
    assert np.allclose(kernel.reshape(8, 24), module.qkv.weight.grad.numpy().T, atol=1e-6)
    assert set(model.network.trainable) == {"qkv/kernel", "qkv/bias"}


CONSTANTS = {
    "causal": (BEFORE, True, 3),
    "causal, added": (torch.zeros(5, 5).masked_fill(~BEFORE, -torch.inf), True, 3),
    "causal, without two keys": (BEFORE & torch.tensor([1, 1, 0, 1, 0]).bool(), True, 4),
    "of keys": (torch.tensor([[1, 1, 0, 1, 0]]).bool(), False, 4),
    "nothing": (torch.zeros(1, 1, 5, 5), False, 3),
    "neighbours": (BEFORE & ~BEFORE.tril(-2), None, 0),
    "of heads": (torch.stack([BEFORE, BEFORE.T]), None, 0),
}


@pytest.mark.parametrize("case", CONSTANTS)
def test_attention_with_a_constant_mask(case):
    torch.manual_seed(0)
    mask, causal, inputs = CONSTANTS[case]

    class Constant(Masked):
        def forward(self, x):
            return super().forward(x, mask)

    module, x = Constant(lambda given: given), torch.randn(3, 5, 8)
    model = el.from_torch(module, x)
    found = [(node.op.causal, len(node.inputs)) for node in model.network.nodes.values()
             if isinstance(node.op, el.ops.Attention)]  # fmt: skip
    assert found == ([(causal, inputs)] if inputs else [])
    assert np.allclose(model.predict(x.numpy(), batch_size=3), module(x).detach().numpy(), atol=1e-6)
    assert set(model.network.trainable) == {"qkv/kernel", "qkv/bias"}


def test_masks_that_are_refused():
    x = torch.randn(2, 5, 8)
    for mask, words in [(EACH[:2, None], "each example"), (BEFORE.T & BEFORE.tril(-1), "sees no key")]:
        with pytest.raises(UnsupportedError, match=words):
            el.from_torch(Masked(lambda given, mask=mask: mask), (x, x))


class Decoder(nn.Module):
    """A block of nanoGPT, with fewer heads of keys than of queries."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(9, 12), nn.Embedding(16, 12)
        self.norm1, self.qkv, self.mixed = nn.LayerNorm(12), nn.Linear(12, 20), nn.Linear(12, 12)
        self.norm2, self.wide, self.narrow = nn.LayerNorm(12), nn.Linear(12, 24), nn.Linear(24, 12)
        self.head = nn.Linear(12, 9, bias=False)

    def forward(self, numbers):
        n, steps = numbers.shape
        x = self.words(numbers) + self.places(torch.arange(steps))
        parts = self.qkv(self.norm1(x)).split((12, 4, 4), 2)
        q, k, v = (part.view(n, steps, -1, 4).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.mixed(y.transpose(1, 2).reshape(n, steps, 12))
        x = x + self.narrow(F.gelu(self.wide(self.norm2(x))))
        return self.head(x)[:, -1]


def test_a_decoder_with_causal_attention():
    torch.manual_seed(0)
    module, x, y = Decoder().eval(), torch.randint(0, 9, (2, 6)), torch.tensor([3, 7])
    model = el.from_torch(module, x)
    attention = [node.op for node in model.network.nodes.values() if isinstance(node.op, el.ops.Attention)]
    assert [(op.heads, op.key_heads, op.causal) for op in attention] == [(3, 1, True)]
    assert np.allclose(model.predict(x.numpy(), batch_size=2), module(x).detach().numpy(), atol=1e-5)
    F.cross_entropy(module(x), y).backward()
    model.compile(el.SGD(0.01))
    gradients = model.gradients(x.numpy(), y.numpy())
    theirs = module.qkv.weight.grad.numpy().T
    assert np.allclose(gradients["qkv/kernel"].reshape(theirs.shape), theirs, atol=1e-5 * np.abs(theirs).max() + 1e-7)
