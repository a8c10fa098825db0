"""The planner for microcontrollers: predictions beside the linker's map, what fits, and what would."""

import json
import re

import numpy as np
import pytest

import edgelearn as el
from edgelearn.bundles.fitting import choices_of_layers, leave_ranges
from edgelearn.bundles.functions import KERNELS
from edgelearn.bundles.memory_map import measured_sizes
from edgelearn.cli import main
from edgelearn.errors import PlanError

from .test_cortex_m import needs_tools, random_person_detector, used_bytes
from .test_opencl import dense_network, examples, separable_network
from .test_plain import residual_network, varied_network


def keywords():
    network = el.models.ds_cnn().freeze().unfreeze("block4_pointwise", "classifier")
    return el.Model(network, seed=1).compile(el.SGD(0.01, momentum=0.9), batchnorm="moving")


def simple(network, optimizer, **settings):
    return lambda: el.Model(network(), seed=1).compile(optimizer, **settings)


PREDICTED = {
    "keywords, fp32": keywords,
    "dense, Adam": simple(dense_network, el.Adam(0.01)), "varied": simple(varied_network, el.SGD(0.01)),
    "residual, int8": simple(residual_network, el.SGD(0.01), batchnorm="batch", precision="int8"),
    "separable, batch statistics": simple(separable_network, el.SGD(0.01, momentum=0.9), batchnorm="batch"),
}  # fmt: skip


@needs_tools
@pytest.mark.parametrize("name", PREDICTED)
def test_the_prediction_is_the_linkers_map_within_three_per_cent(name, tmp_path):
    written = el.bundle(PREDICTED[name](), tmp_path, batch_size=4, micro_batch=1, target="cortex-m")
    flash, sram = used_bytes(tmp_path)
    predicted_flash, predicted_sram = written.map.used
    assert predicted_flash == pytest.approx(flash, rel=0.03)
    assert predicted_sram == pytest.approx(sram, rel=0.005)
    assert re.search(rf"flash, predicted +{predicted_flash:,} of 1,048,576 bytes", str(written))


def test_every_kernel_was_measured():
    missing = set(KERNELS) - set(measured_sizes()["kernels"])
    assert not missing, "run tools/measure_board.py, which needs gcc-arm-none-eabi"


@needs_tools
def test_the_choice_fits_by_the_linker(tmp_path):
    network, weights = random_person_detector()
    model = el.Model(network, weights, seed=0).compile(el.SGD(0.01))
    fitting = el.plan_for_board(model, el.Board("256 KiB", "1 MiB"), 4, precision=("int8",))
    best = fitting.best
    assert best.map.fits and best.trained > 514 and "biases of" in best.layers
    assert best.trained == max(each.trained for each in fitting.trainings)
    assert all(each.flash > 1 << 20 or each.sram > 256 << 10 for each in fitting.ruled_out if each.sram)
    chosen = fitting.chosen()
    leave_ranges(chosen, *examples(network, 4, 0))
    el.bundle(chosen, tmp_path, batch_size=4, target="cortex-m", sram="256 KiB", flash="1 MiB")
    flash, sram = used_bytes(tmp_path)
    assert flash <= 1 << 20 and sram <= 256 << 10
    assert (flash, sram) == (pytest.approx(best.flash, rel=0.03), pytest.approx(best.sram, rel=0.005))
    assert f"Chosen: {best.layers}, in int8" in " ".join(fitting.notes)


def test_what_would_fit_is_said_with_bytes(tmp_path):
    model = el.Model(separable_network(), seed=0).compile(el.SGD(0.01), batchnorm="moving")
    board = el.Board("12 KiB", "64 KiB")
    fitting = el.plan_for_board(model, board, 4)
    assert not fitting.trainings
    needed = re.search(r"'predictions', \w+: needs ([\d,]+) bytes of SRAM \(([\d,]+) more\)", fitting.refusal)
    sram, more = (int(number.replace(",", "")) for number in needed.groups())
    assert sram - more == board.sizes[1]
    larger = el.plan_for_board(model, el.Board(sram, "64 KiB"), 4)
    assert larger.best.sram <= sram
    with pytest.raises(PlanError, match=r"needs [\d,]+ bytes of SRAM"):
        el.bundle(model, tmp_path / "b", batch_size=4, target="cortex-m", sram="12 KiB")
    with pytest.raises(PlanError, match="cortex-m"):
        el.bundle(model, tmp_path / "b", batch_size=4, target="c", sram="12 KiB")
    with pytest.raises(PlanError, match="stack"):
        el.Board("8 KiB")


def test_larger_micro_batches_and_recomputation_are_chosen_where_they_fit():
    model = el.Model(separable_network(), seed=0).compile(el.SGD(0.01), batchnorm="batch")
    of_one = el.plan_for_board(model, batch_size=8, trained=["*"], precision=["fp32"], micro_batch=1).best
    roomy = el.plan_for_board(model, batch_size=8, trained=["*"], precision=["fp32"]).best
    assert (of_one.micro_batch, roomy.micro_batch) == (1, 8) and of_one.policy == roomy.policy == "keep_all"
    network = el.models.ds_cnn()
    (training,) = el.plan_for_board(
        network, el.Board("236 KiB"), trained=["from block3_pointwise"], precision=["fp32"]
    ).trainings
    assert training.micro_batch == 1 and training.policy != "keep_all"


def test_choices_of_layers_grow():
    whole, biases = choices_of_layers(separable_network())
    from_on = [f"from '{name}' on" for name in ("pointwise", "depthwise")]
    assert [words for words, _ in whole] == ["'predictions'", *from_on, "all layers"]
    assert biases[-1] == (
        "'predictions' and the biases of 3 layers before it",
        ("predictions", "conv_bn/beta", "depthwise_bn/beta", "pointwise_bn/beta"),
    )


def test_the_commands_choose(tmp_path, capsys):
    saved = tmp_path / "separable.safetensors"
    el.Model(separable_network(), seed=0).save(saved)
    assert main(["memory", "plan", str(saved), "--target", "cortex-m", "--sram", "32KiB", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["board"]["sram"] == 32 << 10 and answer["board"]["trainings"] and answer["micro_batch"] >= 1
    x, y = examples(separable_network(), 4, 0)
    np.savez(tmp_path / "some.npz", x=x, y=y)
    words = ["bundle", str(saved), "--out", str(tmp_path / "b"), "--target", "cortex-m", "--batch-size", "4"]
    assert main([*words, "--sram", "64KiB", "--precision", "int8", "--examples", str(tmp_path / "some.npz")]) == 0
    page = (tmp_path / "b" / "plan.txt").read_text()
    assert f"of {64 << 10:,} bytes" in page
    assert f"LENGTH = {64 << 10}" in (tmp_path / "b" / "board.ld").read_text()
