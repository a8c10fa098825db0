"""The runtimes that apps carry to a device: LiteRT and ONNX Runtime, which read the network from an exported file.

Tried, and left out: training by ExecuTorch 1.5.1, whose runtime lacks an operator of MobileNet's backward pass (error
0x14), and by LiteRT 2.1.4, which couldn't load training models.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from edgelearn.interop.formats import write_model
from edgelearn.interop.safetensors import ModelFile

from .workloads import FULL, Problem, Workload, make_problem

ORT_TRAINING_IR = 8  # the newest version of ONNX's files that onnxruntime-training 1.19.2 reads


class LiteRt:
    """LiteRT on XNNPACK, forward alone."""

    name = "litert"

    def __init__(self, cores: int, device: str) -> None:
        self.cores = cores

    def variants(self, workload: Workload) -> list[str]:
        return ["xnnpack"] if _is_inference(workload) else []

    def prepare(self, workload: Workload, variant: str) -> Callable[[], Any]:
        from ai_edge_litert.interpreter import Interpreter

        problem = make_problem(workload)
        assert isinstance(problem, Problem)
        runner = Interpreter(model_content=_exported(problem, ".tflite"), num_threads=self.cores)
        given, found = runner.get_input_details()[0]["index"], runner.get_output_details()[0]["index"]
        runner.resize_tensor_input(given, problem.inputs.shape)
        runner.allocate_tensors()
        runner.set_tensor(given, problem.inputs)

        def infer() -> Any:
            runner.invoke()
            return runner.get_tensor(found)

        return infer


class OnnxRuntime:
    """ONNX Runtime on its CPU provider: forward, and with the package onnxruntime-training, which takes the place of
    onnxruntime and ended with 1.19.2, the updates without momentum of `train` and `accumulate`, from PyTorch's export.
    """

    name = "onnxruntime"

    def __init__(self, cores: int, device: str) -> None:
        self.cores = cores

    def variants(self, workload: Workload) -> list[str]:
        if workload.trains and find_spec("torch") and find_spec("onnxruntime.training"):
            return ["cpu"] if not workload.op and workload.compute == FULL and not workload.momentum else []
        return ["cpu"] if _is_inference(workload) else []

    def prepare(self, workload: Workload, variant: str) -> Callable[[], Any]:
        import onnxruntime

        problem = make_problem(workload)
        assert isinstance(problem, Problem)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.cores
        if workload.trains:
            return _training(problem, workload, options)
        session = onnxruntime.InferenceSession(_exported(problem, ".onnx"), options, ["CPUExecutionProvider"])
        given = session.get_inputs()[0]
        channels_first = problem.inputs.ndim == 4 and given.shape[1:] != [*problem.inputs.shape[1:]]
        inputs = {given.name: problem.inputs.transpose(0, 3, 1, 2).copy() if channels_first else problem.inputs}
        return lambda: session.run(None, inputs)[0]


def _training(problem: Problem, workload: Workload, options: Any) -> Callable[[], float]:
    """A function that updates the network and returns the loss before."""
    import onnx
    import torch
    from onnxruntime.training import artifacts
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    from edgelearn.interop.to_torch import to_torch

    net = to_torch(problem.network, problem.weights, batchnorm="moving", logits=True, mirrored=True)
    parts = [(net.encode(x), y.astype(np.int64)) for x, y in problem.parts(workload.micro_batch)]
    with TemporaryDirectory(prefix="edgelearn-bench-") as folder:
        path = f"{folder}/forward.onnx"
        mode = torch.onnx.TrainingMode.TRAINING  # or batch normalizations are folded into convolutions
        torch.onnx.export(
            net, (parts[0][0],), path, dynamo=False, training=mode, do_constant_folding=False, opset_version=15
        )
        model = onnx.load(path)
        _normalize_by_moving(model.graph)
        model.ir_version = ORT_TRAINING_IR
        trained = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
        names = [tensor.name for tensor in model.graph.initializer]
        artifacts.generate_artifacts(
            model, [n for n in names if n in trained], [n for n in names if n not in trained],
            loss=artifacts.LossType.CrossEntropyLoss, optimizer=artifacts.OptimType.SGD, artifact_directory=folder,
        )  # fmt: skip
        files = [f"{folder}/{name}_model.onnx" for name in ("training", "eval", "optimizer")]
        for file in files:
            made = onnx.load(file)
            made.ir_version = ORT_TRAINING_IR
            onnx.save(made, file)
        module = Module(
            files[0], CheckpointState.load_checkpoint(f"{folder}/checkpoint"), files[1], session_options=options
        )
        optimizer = Optimizer(files[2], module)
    optimizer.set_learning_rate(workload.learning_rate / len(parts))  # its gradients are sums over the parts
    module.train()
    inputs = [(x.numpy(), y) for x, y in parts]

    def update() -> float:
        losses = [float(module(x, y)) for x, y in inputs]
        optimizer.step()
        module.lazy_reset_grad()
        return sum(losses) / len(losses)

    return update


def _normalize_by_moving(graph: Any) -> None:
    """Have batch normalizations of an ONNX graph compute with their stored statistics, written as sums and products:
    ONNX Runtime has no gradient of the operator that doesn't take the batch's."""
    import onnx

    nodes = list(graph.node)
    del graph.node[:]
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, -1, 1, 1]), "per_channel"))
    for node in nodes:
        if node.op_type != "BatchNormalization":
            graph.node.append(node)
            continue
        y, (epsilon,) = node.output[0], [a.f for a in node.attribute if a.name == "epsilon"]
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(epsilon, np.float32), f"{y}/epsilon"))
        x, *per_channel = node.input
        gamma, beta, mean, variance = (f"{y}/{role}" for role in ("gamma", "beta", "mean", "variance"))
        reshapes = zip(per_channel, (gamma, beta, mean, variance), strict=True)
        for kind, inputs, output in (
            *(("Reshape", (given, "per_channel"), shaped) for given, shaped in reshapes),
            ("Add", (variance, f"{y}/epsilon"), f"{y}/safe"), ("Sqrt", (f"{y}/safe",), f"{y}/deviation"),
            ("Sub", (x, mean), f"{y}/centered"), ("Div", (f"{y}/centered", f"{y}/deviation"), f"{y}/normalized"),
            ("Mul", (f"{y}/normalized", gamma), f"{y}/scaled"), ("Add", (f"{y}/scaled", beta), y),
        ):  # fmt: skip
            graph.node.append(onnx.helper.make_node(kind, inputs, [output]))


def _is_inference(workload: Workload) -> bool:
    return not workload.trains and not workload.op and workload.compute == FULL


def _exported(problem: Problem, suffix: str) -> bytes:
    """The network as a file of the format that `suffix` names."""
    with TemporaryDirectory(prefix="edgelearn-bench-") as folder:
        path = Path(folder) / f"network{suffix}"
        write_model(path, ModelFile(problem.network, problem.weights))
        return path.read_bytes()
