"""TFLite files for tests, from operators and tensors by name, and their outputs in LiteRT."""

import flatbuffers
import numpy as np
import pytest

TYPES = {"bool": "BOOL", "float32": "FLOAT32", "float16": "FLOAT16", "int32": "INT32", "uint8": "UINT8", "int8": "INT8"}


def schema():
    return pytest.importorskip("ai_edge_litert.schema_py_generated")


class File:
    """A graph that grows: `tensor` and `operator` append, `write` makes a file of it.

    >>> file = File()
    >>> file.tensor("x", (1, 4)), file.tensor("y", (1, 4))
    >>> file.operator("RELU", ["x"], ["y"])
    >>> file.write(path, ["x"], ["y"])
    """

    def __init__(self):
        self.schema, self.tensors, self.operators = schema(), {}, []
        self.buffers = [self.schema.BufferT()]

    def tensor(self, name, shape, dtype="float32", data=None, scale=None, zero=0, axis=0, **fields):
        """Append a tensor; `scale` is a number or one for each index of `axis`, `fields` are those of the schema."""
        s, number = self.schema, 0
        if data is not None:
            buffer = s.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            self.buffers.append(buffer)
            number = len(self.buffers) - 1
        quantization = None
        if scale is not None:
            scales = np.atleast_1d(np.float32(scale))
            quantization = s.QuantizationParametersT()
            quantization.scale, quantization.quantizedDimension = scales, axis
            quantization.zeroPoint = np.full(scales.shape, zero, np.int64)
        found = s.TensorT()
        found.shape, found.type, found.name = np.array(shape, np.int32), getattr(s.TensorType, TYPES[dtype]), name
        found.buffer, found.quantization = number, quantization
        for key, value in fields.items():
            setattr(found, key, value)
        self.tensors[name] = found
        return name

    def constant(self, name, array, **quantization):
        array = np.asarray(array)
        return self.tensor(name, array.shape, str(array.dtype), array, **quantization)

    def operator(self, code, inputs, outputs, options="", **fields):
        self.operators.append((code, inputs, outputs, options, fields))

    def write(self, path, inputs, outputs):
        s, index = self.schema, {name: place for place, name in enumerate(self.tensors)}
        codes = list(dict.fromkeys(code for code, *_ in self.operators))
        graph, model = s.SubGraphT(), s.ModelT()
        graph.tensors = list(self.tensors.values())
        graph.inputs, graph.outputs = ([index[name] for name in names] for names in (inputs, outputs))
        graph.operators = []
        for code, reads, writes, options, fields in self.operators:
            operator = s.OperatorT()
            operator.opcodeIndex = codes.index(code)
            operator.inputs, operator.outputs = ([index.get(name, -1) for name in names] for names in (reads, writes))
            if options:
                operator.builtinOptionsType = getattr(s.BuiltinOptions, options)
                operator.builtinOptions = getattr(s, f"{options}T")()
                for key, value in fields.items():
                    setattr(operator.builtinOptions, key, value)
            graph.operators.append(operator)
        model.version, model.subgraphs, model.buffers, model.operatorCodes = 3, [graph], self.buffers, []
        for code in codes:
            entry = s.OperatorCodeT()
            entry.builtinCode = getattr(s.BuiltinOperator, code)
            entry.deprecatedBuiltinCode, entry.version = min(entry.builtinCode, 127), 2 if code == "BROADCAST_TO" else 1
            model.operatorCodes.append(entry)
        save(model, path)
        return path


def load(path):
    """The objects of a file, which can be changed and saved."""
    s = schema()
    return s.ModelT.InitFromObj(s.Model.GetRootAs(path.read_bytes()))


def save(model, path):
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))


def run(path, *inputs):
    """The first output in LiteRT, for inputs in the type of the file's."""
    runner = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(str(path))
    runner.allocate_tensors()
    for place, array in zip(runner.get_input_details(), inputs, strict=True):
        runner.set_tensor(place["index"], array)
    runner.invoke()
    return runner.get_tensor(runner.get_output_details()[0]["index"])


def fold_clamps(source, target, unsigned):
    """Write an int8 file as older converters do: each RELU6 is the range 0 to 6 of an operator without an activation.

    `unsigned`: uint8 throughout, kernels with one scale.
    """
    model = load(source)
    (graph,) = model.subgraphs
    s, tensors = schema(), graph.tensors
    kinds = [code.builtinCode for code in model.operatorCodes]
    names = s.BuiltinOperator
    multiply = (names.CONV_2D, names.DEPTHWISE_CONV_2D, names.FULLY_CONNECTED)
    linear = [o for o in graph.operators if kinds[o.opcodeIndex] in multiply]
    biases = [_numbers(model, tensors[o.inputs[2]]) for o in linear]
    for operator in linear:
        options = operator.builtinOptions
        if options.fusedActivationFunction == s.ActivationFunctionType.RELU6:
            options.fusedActivationFunction = s.ActivationFunctionType.NONE
            q = tensors[operator.outputs[0]].quantization
            q.scale, q.zeroPoint = np.float32([6 / 255]), np.int64([-128])
    for tensor in tensors if unsigned else ():
        if tensor.type != s.TensorType.INT8:
            continue
        if model.buffers[tensor.buffer].data is None:
            tensor.quantization.zeroPoint = tensor.quantization.zeroPoint + 128
        else:
            kernel = _numbers(model, tensor)
            scale = np.abs(kernel).max() / 127
            _put(model, tensor, np.uint8(np.rint(kernel / scale) + 128))
            tensor.quantization.scale, tensor.quantization.zeroPoint = np.float32([scale]), np.int64([128])
        tensor.type = s.TensorType.UINT8
    for operator, bias in zip(linear, biases, strict=True):
        x, kernel, tensor = (tensors[n] for n in operator.inputs)
        scale = x.quantization.scale * kernel.quantization.scale
        _put(model, tensor, np.rint(bias / scale).astype(np.int32))
        tensor.quantization.scale, tensor.quantization.zeroPoint = scale, np.zeros(len(scale), np.int64)
    save(model, target)
    return target


def _numbers(model, tensor):
    q = tensor.quantization
    kind = {schema().TensorType.INT32: np.int32, schema().TensorType.INT8: np.int8}[tensor.type]
    array = np.frombuffer(bytes(model.buffers[tensor.buffer].data), kind).reshape(tensor.shape)
    shape = [len(q.scale) if n == q.quantizedDimension else 1 for n in range(array.ndim)] if len(q.scale) > 1 else -1
    return (array - np.int64(0)) * np.reshape(q.scale, shape)


def _put(model, tensor, array):
    buffer = schema().BufferT()  # tensors that are alike share one
    buffer.data = np.frombuffer(array.tobytes(), np.uint8)
    model.buffers.append(buffer)
    tensor.buffer = len(model.buffers) - 1
