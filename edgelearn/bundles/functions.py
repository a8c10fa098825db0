"""The C functions of target c by the kernels whose meaning they have: runtime/c/kernels.h has the same names.

KERNELS says how the arguments of a C function follow from a launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from edgelearn.errors import PlanError
from edgelearn.graph import Network
from edgelearn.launch import Launch

from .tables import Place, Step

# Element-wise functions, by the numbers of kernels.h
FUNCTIONS = (
    "linear", "relu", "relu6", "clip", "leaky_relu", "elu", "tanh", "softsign", "sigmoid", "hard_sigmoid", "silu",
    "hard_swish",
)  # fmt: skip

# Functions that layers of their own apply and no other kernel does, likewise
LAYERS = (
    "softplus", "exp", "sqrt", "rsqrt", "reciprocal", "affine", "log", "square", "abs", "gelu", "gelu_tanh", "mish",
)  # fmt: skip

# Functions of two operands, likewise
BINARY = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "prelu", "greater", "less", "same", "where",
    "otherwise",
)  # fmt: skip

# By kernel: the arguments of its launch in order, some of them there only if a macro is set (`name?MACRO`), isn't
# (`name?!MACRO`) or has a value (`name?MACRO=2`); then what the C function takes. In capitals: the value of a macro, or
# one of GROUPS. A digit is the grid's size in that dimension, one with "*" times the value of that macro. A "-" is an
# argument that isn't there. "stored_NAME" is kernel NAME where it reads or writes integers.
ROWS, SIZES, JOBS = "m count", "height width out_height out_width", "table jobs items"
UPDATE = "w g scalars counters blocks decay pieces?MEASURED extremes?MEASURED"
UPDATED = "w g scalars counters blocks decay pieces extremes 0"
SET, SETS = "m share?SUB_BANDS", "m share SUB_BANDS"
STATISTICS = "gamma beta scale shift mean inverse moving_mean moving_variance"
MASKED = "activation?MASK activation_range?MASKED_BY"
OUT, DX = "scale?SCALE shift?SHIFT", f"dx {MASKED}"
IMAGES = "images height width channels out_height out_width"
GROUPED = f"{IMAGES} filters groups"
RESPONSE, STEP = "channels before after bias alpha beta", "step inverse"
REPEATED = "height width own_height own_width images down right groups count"
SETS_OF = "m span channels groups weight_rows"
STRETCH = "n units place direction used"
AROUND = "before?CONTINUES states?INNER mask?MASKED dy?READS_OUTPUT later?READS_LATER"
LATER = "first steps truncate rows later_rows later_first"
ATTENTION = "n t s heads share scale"
HEADS = f"{ATTENTION} HEAD CAUSAL"
TABLE = "images taken size inner"
AXES = "from_rows rows channels aligned"
TAPS = "taps kernel_w stride_y stride_x dilation_y dilation_x top left"
TRANSPOSED = f"{IMAGES} out groups {TAPS}"
LOSS, SLOPES = "x targets losses right n classes", "scalars?GRADIENT gradient?GRADIENT"
FOCAL = "smoothing gamma alpha"
EPISODE = "WAYS SHOTS DUMMIES"
CONDITION = "c c_image c_down c_right c_m"
PAIR = "a a_image a_down a_right a_m b b_image b_down b_right b_m"


def _if(macro: str, words: str) -> str:
    """Arguments that are there only if a macro is set."""
    return " ".join(f"{word}?{macro}" for word in words.split())


COLLECTED = _if("STATISTICS", "records values add_records")
DRAWN = _if("STOCHASTIC", "scalars counters m images blocks tensor")
RESULT = " ".join([
    "result", _if("QUANTIZED", "result_range bottom top"),
    _if("STOCHASTIC", "scalars counters pixels result_blocks tensor"), COLLECTED,
])  # fmt: skip
RESIDUAL = " ".join([
    _if("RESIDUAL", "own_range own_bottom own_top other other_range"),
    _if("SUM_ACTIVATION", "sum_range sum_bottom sum_top"),
])  # fmt: skip
KERNELS = {
    "fold_statistics": (
        f"gamma beta mean variance scale shift inverse bias?BIAS {JOBS} epsilon",
        f"gamma beta mean variance scale shift inverse bias {JOBS} epsilon",
    ),
    "convolution_forward": (
        f"x w y images height width channels out_height out_width {OUT}",
        "x w y images height width channels out_height out_width 1*PANELS IN_BLOCK COLUMN_BLOCKS WINDOW EPILOGUE",
    ),
    "convolution_backward_data": (
        f"dy t images height width out out_height out_width {DX}",
        "dy t images height width out out_height out_width 1*PANELS COLUMN_BLOCKS WINDOW GRADIENT",
    ),
    "convolution_backward_weights": (
        "x dy dw images height width channels out_height out_width rows blocks add",
        "x dy dw images height width channels out_height out_width rows blocks add 2 IN_BLOCK COLUMN_BLOCKS WINDOW",
    ),
    "depthwise_forward": (
        f"x w y images {SIZES} rows steps {OUT}", f"x w y images {SIZES} 1 WINDOW EPILOGUE",
    ),
    "depthwise_backward_data": (
        f"dy w images {SIZES} rows steps {DX}", f"dy w images {SIZES} 1 WINDOW GRADIENT",
    ),
    "depthwise_backward_weights": (
        f"x dy dw sums?SUMS images {SIZES} rows blocks add parts",
        f"x dy dw sums images {SIZES} rows blocks add 0 WINDOW",
    ),
    "pointwise_forward": (f"x w y m k {OUT}", "x w y m k 1*PANELS EPILOGUE"),
    "pointwise_backward_data": (f"dy t m k {DX}", "dy t m k 1*PANELS GRADIENT"),
    "pointwise_backward_weights": (
        "x dy dw sums?SUMS m k blocks first count add flags?CHECKED",
        "x dy dw sums m k blocks first count add flags 0 1 2",
    ),
    "few_rows_backward_data": (f"dy w m k blocks {DX}", "dy w m k blocks GRADIENT"),
    "transpose_blocks": (f"w t scale?SCALE {JOBS}", f"w t scale {JOBS}"),
    "scale_taps": (f"w t scale {JOBS}", f"w t scale {JOBS}"),
    "whole_forward": (
        f"y {STATISTICS} z {SET} blocks epsilon pace", f"y {STATISTICS} z {SETS} blocks epsilon pace FUNCTION",
    ),
    "whole_backward": (
        f"dz y scale mean inverse dgamma dbeta {DX} {SET} blocks moving add",
        f"dz y scale mean inverse dgamma dbeta {SETS} blocks moving add GRADIENT",
    ),
    "normalize_forward": (f"y scale shift z {SET} count", f"y scale shift z {SETS} 1 FUNCTION"),
    "channel_sums": ("x sums m blocks count add", "x sums m blocks count add 0"),
    "global_average_forward": ("x y images pixels", "x y images pixels 1"),
    "global_average_backward": (f"dy {ROWS} pixels {DX}", "dy m 1 pixels GRADIENT"),
    "max_forward": (f"x y {ROWS} {SIZES}", f"x y m 1 {SIZES} WINDOW"),
    "max_taps": (f"x y chosen {ROWS} {SIZES}", f"x y chosen m 1 {SIZES} WINDOW"),
    "max_backward_taps": (f"chosen dy {ROWS} {SIZES} {DX}", f"chosen dy m 1 {SIZES} WINDOW GRADIENT"),
    "average_forward": (f"x y {ROWS} {SIZES}", f"x y m 1 {SIZES} WINDOW"),
    "average_backward": (f"dy {ROWS} {SIZES} {DX}", f"- dy m 1 {SIZES} WINDOW GRADIENT"),
    "activation_forward": (f"x y {ROWS} channels?PADDED", "x y m 1 channels OWN"),
    "activation_backward": (f"own dy {ROWS} channels?PADDED {DX}", "own dy m 1 channels OWN GRADIENT"),
    "add": (f"a b y {ROWS}", "a b y m 1 FUNCTION"),
    "copy": (f"x {ROWS} {DX}", "x m 1 GRADIENT"),
    "pad_channels": (f"x {ROWS} channels {DX}", "x m channels GRADIENT"),
    "reshape": (
        f"x {ROWS} from_rows from_channels to_rows to_channels {DX}",
        "x m from_rows from_channels to_rows to_channels GRADIENT",
    ),
    "function_forward": (f"x y {ROWS} channels?PADDED", "x y m 1 channels LAYER OWN_A OWN_B"),
    "function_backward": (f"own dy {ROWS} channels?PADDED {DX}", "own dy m 1 channels LAYER OWN_A OWN_B GRADIENT"),
    "softmax": ("x p n classes", "x p n classes LOGARITHM"),
    "softmax_backward": (f"p dy m blocks {DX}", "p dy m blocks GRADIENT"),
    "log_softmax_backward": (f"y dy m blocks channels?PADDED {DX}", "y dy m blocks channels GRADIENT"),
    "softmax_cross_entropy": (
        "x labels losses right n classes smoothing scalars?GRADIENT gradient?GRADIENT",
        "x labels losses right n classes smoothing scalars gradient",
    ),
    "regression": (f"{LOSS} delta {SLOPES}", f"{LOSS} delta ERROR scalars gradient"),
    "cosine_hinge": (f"{LOSS} margin {SLOPES}", f"{LOSS} margin SQUARED scalars gradient"),
    "binary_cross_entropy": (f"{LOSS} {FOCAL} {SLOPES}", f"{LOSS} {FOCAL} FOCAL scalars gradient"),
    "categorical_cross_entropy": (f"{LOSS} {FOCAL} {SLOPES}", f"{LOSS} {FOCAL} FOCAL scalars gradient"),
    "minimum_entropy": (f"{LOSS} weight {SLOPES}", f"{LOSS} weight scalars gradient"),
    "ctc": (
        f"x labels losses right ahead n classes frames states blank behind?GRADIENT {SLOPES}",
        "x labels losses right ahead n classes frames states blank behind scalars gradient",
    ),
    "triplets": (
        "x labels losses right triplets n size margin", "x labels losses right triplets n size margin GIVEN SQUARED",
    ),
    "triplet_gradient": ("x triplets scalars dx n", "x triplets scalars dx n 1"),
    "prototypes": ("x p n size", f"x p n size {EPISODE}"),
    "prototypical": (
        "x p labels losses right n size scale dummy_scale open_weight share scalars?GRADIENT slopes?GRADIENT",
        f"x p labels losses right n size scale dummy_scale open_weight share scalars slopes {EPISODE} COSINE",
    ),
    "prototypical_gradient": ("x p slopes dx n size padded", f"x p slopes dx n size padded {EPISODE}"),
    "count_examples": (
        "losses right counters rows examples share weight place",
        "losses right counters rows examples share weight place",
    ),
    "finish_sum": (
        f"total flags partials?PARTIALS scale?SCALE w?GAMMA w_range?STORED sums?GAMMA {JOBS}",
        f"total flags partials scale w w_range sums {JOBS} PER_CHANNEL",
    ),
    "finish_gamma": (
        f"dgamma flags sums mean inverse dbeta bias?BIAS {JOBS}", f"dgamma flags sums mean inverse dbeta bias {JOBS}",
    ),
    "finish_bias": (f"dbias flags dbeta scale {JOBS}", f"dbias flags dbeta scale {JOBS}"),
    "count_nonfinite": ("flags counters count step", "flags counters count step"),
    "sgd": (UPDATE, UPDATED),
    "sgd_momentum": (f"{UPDATE} velocity momentum nesterov", f"{UPDATED} velocity momentum nesterov"),
    "adam": (
        f"{UPDATE} first second pace1 pace2 epsilon", f"{UPDATED} first second pace1 pace2 epsilon",
    ),
    "rmsprop": (
        f"{UPDATE} velocity momentum?MOMENTUM average?CENTERED pace epsilon inertia",
        f"{UPDATED} velocity momentum average pace epsilon inertia",
    ),
    "lion": (f"{UPDATE} momentum pace1 pace2", f"{UPDATED} momentum pace1 pace2"),
    "moving_average": ("average w scalars counters blocks pace", "average w scalars counters blocks pace"),
    "proximal": ("g reference w scalars counters blocks pull", "g reference w scalars counters blocks pull"),
    "commit": ("x y counters blocks", "x y counters blocks"),
    "square_sums": (f"x sums {JOBS}", f"x sums {JOBS}"),
    "clip_factor": (f"sums factor flags {JOBS} limit", "sums factor flags table jobs limit"),
    "clip_by_factor": (f"g factor counters {JOBS}", f"g factor counters {JOBS}"),
    "clip_values": ("g counters blocks limit", "g counters blocks limit"),
    "lamb_moments": (
        f"first second w g scalars counters sums {JOBS} pace1 pace2 epsilon decay",
        f"first second w g scalars counters sums {JOBS} pace1 pace2 epsilon decay",
    ),
    "lamb_ratio": (f"sums ratio {JOBS}", "sums ratio table jobs"),
    "lamb_step": (
        f"first second w ratio scalars counters {JOBS} epsilon decay",
        f"first second w ratio scalars counters {JOBS} epsilon decay",
    ),
    "statistics": (f"x {COLLECTED} rows rest", "x COLLECTED rows rest 0"),
    "quantize": (
        f"x y range {COLLECTED} rows rest bottom top {DRAWN}",
        "x y range COLLECTED rows rest bottom top scalars counters m images blocks tensor PLAIN WRITTEN 0",
    ),
    "measured_range": (
        "records range parts bits symmetric momentum", "records range parts bits symmetric momentum",
    ),
    "next_range": (f"range {JOBS}", "range table jobs"),
    "check_finite": (f"records flag {JOBS}", "records flag table jobs"),
    "learn_range": (f"range records counters {JOBS} momentum", "range records counters table jobs momentum RULE"),
    "weight_statistics": (f"w scale?SCALE extremes {JOBS}", "w scale extremes table jobs TRANSPOSED"),
    "weight_range": (f"extremes range {JOBS}", "extremes range table jobs PER_CHANNEL"),
    "weight_quantize": (
        f"w scale?SCALE y range records?STATISTICS scalars?STOCHASTIC {JOBS} bottom top",
        "w scale y range records scalars table jobs bottom top TRANSPOSED PER_CHANNEL WRITTEN",
    ),
    "transpose_integers": (f"w t {JOBS}", "w t table jobs"),
    "quantized_convolution_forward": (
        f"x x_range w w_range {RESULT} {IMAGES} blocks {OUT} {RESIDUAL}",
        f"x x_range w w_range RESULT {IMAGES} blocks IN_BLOCK PER_CHANNEL WINDOW EPILOGUE ADDED_TENSOR",
    ),
    "quantized_convolution_backward_data": (
        f"dy dy_range t t_range {RESULT} images height width out out_height out_width blocks {MASKED}",
        "dy dy_range t t_range RESULT images height width out out_height out_width blocks PER_CHANNEL WINDOW MASKED",
    ),
    "quantized_convolution_backward_weights": (
        f"x x_range dy dy_range dw {IMAGES} rows blocks items add flags?CHECKED",
        f"x x_range dy dy_range dw {IMAGES} rows blocks add flags 0 1 2 IN_BLOCK WINDOW",
    ),
    "quantized_depthwise_forward": (
        f"x x_range w w_range {RESULT} images {SIZES} blocks {OUT}",
        f"x x_range w w_range RESULT images {SIZES} blocks PER_CHANNEL WINDOW EPILOGUE",
    ),
    "quantized_depthwise_backward_data": (
        f"dy dy_range w w_range {RESULT} images {SIZES} blocks {MASKED}",
        f"dy dy_range w w_range RESULT images {SIZES} blocks PER_CHANNEL WINDOW MASKED",
    ),
    "quantized_depthwise_backward_weights": (
        f"x x_range dy dy_range dw images {SIZES} rows groups blocks add",
        f"x x_range dy dy_range dw images {SIZES} rows groups blocks add WINDOW",
    ),
    "integer_channel_sums": ("x x_range sums m blocks count add", "x x_range sums m blocks count add 1"),
    "to_floats": (f"x x_range?STORED {RESULT} m blocks {MASKED}", "x x_range RESULT m blocks MASKED"),
    "stored_forward": (
        f"a a_range?STORED b?ADDED b_range?ADDED {RESULT} m blocks", "a a_range b b_range RESULT m blocks FUNCTION",
    ),
    "stored_max_forward": (f"x y {ROWS} {SIZES}", f"x y m 1 {SIZES} WINDOW"),
    "stored_max_taps": (f"x y chosen {ROWS} {SIZES}", f"x y chosen m 1 {SIZES} WINDOW"),
    "max_backward": (f"x y dy {ROWS} {SIZES} {DX}", f"x y dy m 1 {SIZES} WINDOW GRADIENT"),
    "dropout": (
        f"x scalars counters {ROWS} images drawn layer rate scale {DX}",
        "x scalars counters m 1 images drawn layer rate scale GRADIENT",
    ),
    "combine": (f"{PAIR} y {ROWS} channels?PADDED height width", "OPERANDS y m 1 channels height width BINARY"),
    "combine_gradient": (
        f"{PAIR} dy {ROWS} channels?PADDED height width {DX}",
        "OPERANDS dy m 1 channels height width BINARY FIRST GRADIENT",
    ),
    "combine_gradient_sum": (
        f"{PAIR} dy m full channels {REPEATED} {DX}",
        f"OPERANDS dy m full 1 channels PADDED ONE_CHANNEL {REPEATED} BINARY FIRST GRADIENT",
    ),
    "choose": (
        f"{CONDITION} {PAIR} y {ROWS} channels?PADDED height width",
        f"{CONDITION} KIND_C OPERANDS y m 1 channels height width",
    ),
    "repeat": (
        f"x {ROWS} from_h from_w height width factor {DX}", "x m 1 from_h from_w height width factor GRADIENT",
    ),
    "sum_repeated": (
        f"x {ROWS} from_h from_w height width factor {DX}", "x m 1 from_h from_w height width factor GRADIENT",
    ),
    "concatenate_forward": (f"x y {ROWS} channels offset", "x y m 1 channels offset"),
    "concatenate_backward": (f"dy {ROWS} channels offset {DX}", "dy m 1 channels offset GRADIENT"),
    "move_image": (
        f"x {ROWS} from_height from_width height width down right {DX}",
        "x m 1 from_height from_width height width down right GRADIENT",
    ),
    "stored_whole_forward": (
        f"y y_range?STORED {STATISTICS} {RESULT} m blocks epsilon pace",
        f"y y_range {STATISTICS} RESULT m blocks epsilon pace FUNCTION",
    ),
    "stored_whole_backward": (
        f"dz y y_range?STORED scale mean inverse dgamma dbeta {RESULT} m blocks moving add",
        "dz y y_range scale mean inverse dgamma dbeta RESULT m blocks moving add",
    ),
    "grouped_forward": (f"x w y {GROUPED} {OUT}", f"x w y {GROUPED} 1 IN_BLOCK WINDOW EPILOGUE"),
    "grouped_backward_data": (f"dy w {GROUPED} {DX}", f"dy w {GROUPED} 1 WINDOW GRADIENT"),
    "grouped_backward_weights": (f"x dy dw {GROUPED} rows add", f"x dy dw {GROUPED} rows add 1 2 IN_BLOCK WINDOW"),
    "transpose_columns": ("w t taps in_group out_group", "w t taps in_group out_group 0 1"),
    "local_response_forward": (f"x y {ROWS} {RESPONSE}", f"x y m 1 {RESPONSE}"),
    "local_response_terms": (f"x dy terms {ROWS} {RESPONSE}", f"x dy terms m 1 {RESPONSE}"),
    "local_response_backward": (f"x dy terms {ROWS} {RESPONSE} {DX}", f"x dy terms m 1 {RESPONSE} GRADIENT"),
    "begin": (f"x y {ROWS} {STEP}", f"x y m 1 {STEP}"),
    "couple": (f"a f y {ROWS} {_if('EXACT', STEP)}", f"a f y m 1 {STEP}"),
    "uncouple": (f"a f y {ROWS} {_if('EXACT', STEP)}", f"a f y m 1 {STEP}"),
    "gather": (
        f"x axes {ROWS} count_of_axes from_rows rows channels aligned factor fill {DX}",
        "x axes m 1 count_of_axes from_rows rows channels aligned factor fill GRADIENT",
    ),
    "move_channels": (
        f"x {ROWS} first from_channels channels shift {DX}", "x m 1 first from_channels channels shift GRADIENT",
    ),
    "set_statistics": (f"x statistics {SETS_OF} epsilon", f"x statistics {SETS_OF} epsilon CENTERED"),
    "normalize_examples": (
        f"x statistics y {SETS_OF} count gamma?GAMMA beta?BETA", f"x statistics y {SETS_OF} gamma beta",
    ),
    "set_gradients": (f"x dy statistics {SETS_OF} gamma?GAMMA", f"x dy statistics {SETS_OF} gamma CENTERED"),
    "normalize_examples_backward": (
        f"x dy statistics {SETS_OF} count {DX} gamma?GAMMA", f"x dy statistics {SETS_OF} gamma GRADIENT",
    ),
    "weight_gradients": (
        f"x dy statistics sums {SETS_OF} count scaled add", f"x dy statistics sums {SETS_OF} count scaled add 1 0",
    ),
    "cell_sums": (
        "x kernel bias?BIAS sums n steps inputs units place direction used",
        "x kernel bias sums n steps inputs place direction used CELL 1",
    ),
    "cell_forward": (
        f"sums recurrent before?CONTINUES mask?MASKED states?INNER after kept?KEEPS {STRETCH}",
        f"sums recurrent before mask states after kept {STRETCH} CELL",
    ),
    "copy_states": ("after states?INNER y n rows place set used", "after states y n rows place set used CELL 1"),
    "cell_backward": (
        f"gates turned {AROUND} gradients earlier {STRETCH} {LATER}",
        f"gates turned before states mask dy later gradients earlier {STRETCH} CELL {LATER} SEQUENCES",
    ),
    "turn_kernel": ("weights turned inputs units", "weights turned inputs units CELL 1"),
    "cell_backward_input": (
        f"gradients turned n units used steps first step {DX}",
        "gradients turned n units used steps first step CELL 1 GRADIENT",
    ),
    "cell_weights": (
        "values gradients total n inputs used begin end m slot_stride image_stride first from_state add",
        "values gradients total n inputs used begin end m slot_stride image_stride first from_state add CELL 1",
    ),
    "cell_bias": ("gradients total n used add", "gradients total n used add CELL 1"),
    "attend": (f"q k v mask?MASKED y {ATTENTION}", f"q k v mask y {HEADS}"),
    "attention_statistics": (
        f"q k mask?MASKED y dy statistics {ATTENTION}", f"q k mask y dy statistics {HEADS}",
    ),
    "attend_backward_queries": (
        f"q k v mask?MASKED dy statistics dq {ATTENTION}", f"q k v mask dy statistics dq {HEADS}",
    ),
    "attend_backward_keys": (
        f"q k v mask?MASKED dy statistics dk dv {ATTENTION}", f"q k v mask dy statistics dk dv {HEADS}",
    ),
    "rotate_pairs": (
        f"x positions?POSITIONED {ROWS} steps channels size interleaved begin rate rest back {DX}",
        "x positions m 1 steps channels size interleaved begin rate rest back GRADIENT",
    ),
    "take": (
        f"x numbers {ROWS} channels?PADDED {TABLE} shared {DX}", f"x numbers m 1 channels {TABLE} shared GRADIENT",
    ),
    "give_back": (f"numbers dy {ROWS} {TABLE} {DX}", f"numbers dy m 1 {TABLE} GRADIENT"),
    "give_back_shared": (
        "numbers dy sums m count images taken groups ranges span",
        "numbers dy sums m count images taken groups 1 ACCUMULATE",
    ),
    "reduce": (
        f"x table y m axes reduced total {AXES} factor most?KIND=2 dy?KIND=2",
        f"x table y m 1 axes reduced total {AXES} factor most dy KIND",
    ),
    "finish_outputs": (f"y {ROWS} {OUT}", "y m 1 EPILOGUE"),
    "transposed_backward_weights": (
        f"x dy dw {IMAGES} {TAPS} rows blocks add", f"x dy dw {IMAGES} - - {TAPS} rows blocks add 2",
    ),
    "transposed_groups_forward": (f"x w y {TRANSPOSED} {OUT}", f"x w y {TRANSPOSED} 1 EPILOGUE"),
    "transposed_groups_backward_data": (f"dy w {TRANSPOSED} {DX}", f"dy w {TRANSPOSED} 1 GRADIENT"),
    "transposed_groups_backward_weights": (
        f"x dy dw {TRANSPOSED} rows add", f"x dy dw {TRANSPOSED} rows add 1 2",
    ),
    "map_image": (
        f"x rows columns {ROWS} from_height from_width height width {DX}",
        "x rows columns m 1 from_height from_width height width GRADIENT",
    ),
    "space_to_depth": (
        f"x {ROWS} height width channels from_channels size {DX}",
        "x m 1 height width channels from_channels size BACK GRADIENT",
    ),
    "multiply": (f"a b images m k {DX}", "a b images m k 1 ACROSS GRADIENT"),
    "pack_bits": (f"x y {ROWS}", "x y m 1 FUNCTION"),
    "unpack_bits": (f"y x {ROWS}", "y x m 1"),
    "pass_to_maxima": (f"x most share table {ROWS} axes {AXES} {DX}", f"x most share table m 1 axes {AXES} GRADIENT"),
}  # fmt: skip
# Kernels without a C function, by the reason. A test holds this table against all kernels, and the guide shows it.
WITHOUT = {
    "for GPUs": (
        "convolution_local_forward convolution_local_backward_data convolution_local_backward_weights "
        "convolution_units_forward convolution_units_backward_data convolution_units_backward_weights "
        "quantized_units_forward quantized_units_backward_data quantized_units_backward_weights transpose_rows "
        "gather_flags pad_integers squares_of_pixels move_rows"
    ),
    "for several cores": (
        "group_statistics finish_statistics finish_forward normalize_forward_result group_gradients finish_gradients "
        "normalize_backward normalize_backward_result finish_backward winograd_kernel winograd_forward "
        "winograd_backward_data winograd_backward_weights normalize_rows normalize_rows_backward attend_backward"
    ),
    "16-bit floats": "unscale round_halves weight_halves",
    "frozen weights in blocks of few bits": "frozen_forward frozen_backward_data frozen_few_rows frozen_rows",
    "8-bit ranges that observers search": "try_ranges choose_range",
    "losses that are functions of your own": "own_loss",
    "texts written step by step, without training": "remember",
    "self-tests of a device": (
        "triad multiply_add repeat_quads repeat_products repeat_products_of_warpgroups add_quads_of_blocks "
        "add_products_of_tiles add_products_of_warpgroups"
    ),
}
FUNCTION, AFTER = "ACTIVATION ACTIVATION_A ACTIVATION_B", "SUM_ACTIVATION SUM_ACTIVATION_A SUM_ACTIVATION_B"
RECORDS = "records values add_records"
GROUPS = {
    "WINDOW": "KERNEL_H KERNEL_W STRIDE_Y STRIDE_X DILATION_Y DILATION_X PAD_TOP PAD_LEFT",
    "FUNCTION": FUNCTION, "OWN": "OWN OWN_A OWN_B", "EPILOGUE": f"scale shift {FUNCTION}",
    "GRADIENT": f"dx activation activation_range MASK ACCUMULATE {FUNCTION}",
    "MASKED": f"activation activation_range MASK ACCUMULATE {FUNCTION}",
    "RESULT": f"result result_range bottom top scalars counters pixels result_blocks tensor {RECORDS} WRITTEN 0",
    "COLLECTED": RECORDS,
    "OPERANDS": "a a_image a_down a_right a_m KIND_A b b_image b_down b_right b_m KIND_B",
    "ADDED_TENSOR": f"own_range own_bottom own_top other other_range sum_range sum_bottom sum_top {AFTER}",
}  # fmt: skip
# Macros without a meaning of their own
TILING = {
    "DIRECT", "ROWS", "PANELS", "TILE", "DEPTH", "CHUNK", "VECTOR_WIDTH", "SHARED", "IN_BLOCK", "FLOATS", "QUERIES",
    "TOGETHER",
}  # fmt: skip
TYPES, FLOATS, INTEGERS = (
    ("STORED", "WRITTEN", "MASKED_BY"),
    0,
    2,
)  # macros of types of values, and those that there are
NAMED = {"MASK_SUM": 2, "INFINITY": inf, "-INFINITY": -inf, "LSTM": 0, "GRU": 1}  # values of macros that have names
DEFAULTS = {"OWN": "linear_", "ACTIVATION": "linear_", "SUM_ACTIVATION": 0, "CENTERED": 1}  # of macros; others are 0

Value = Place | int | float


class _MissingFunction(Exception):
    """A kernel, or a variant of one, has no C function; the text names it."""


def values_of(step: Step, network: Network) -> list[Value]:
    """The arguments of the C function of a step's kernel. Raises PlanError for a kernel, or a variant of one, without a
    function, naming the layer and its op."""
    try:
        return _values_of(step)
    except _MissingFunction as missing:
        layer = step.launch.layer
        op = f"'{layer}' ({type(network.nodes[layer].op).__name__})" if layer in network.nodes else "The end of a step"
        raise PlanError(
            f"{op} needs the kernel {missing}, which target c has no C function for. Freeze the layers up to it, take "
            f"another layer or optimizer, or bundle for target='opencl'."
        ) from None


def _values_of(step: Step) -> list[Value]:
    launch = step.launch
    if (function := function_of(launch)) not in KERNELS:
        raise _missing(launch, "")
    taken, passed = KERNELS[function]
    macros = DEFAULTS | dict(launch.macros)
    if others := [f"{name}={macros[name]}" for name in TYPES if macros.get(name, FLOATS) not in (FLOATS, INTEGERS)]:
        raise _missing(launch, f" with {', '.join(others)}")
    words = [word.partition("?")[::2] for word in taken.split()]
    names = [name for name, condition in words if _holds(condition, macros)]
    if len(names) != len(step.arguments):
        raise _missing(launch, " in this form")
    arguments: dict[str, Value] = dict(zip(names, step.arguments, strict=True))
    passes = list(_expanded(passed))
    conditions = {condition.lstrip("!").partition("=")[0] for _, condition in words}
    known = {*TILING, "FUNCTION", "INTEGERS", "PADDED", "OWN", *passes, *conditions}
    odd = {name: value for name, value in macros.items() if name not in known and value != DEFAULTS.get(name, 0)}
    if odd:
        raise _missing(launch, f" with {', '.join(f'{name}={value}' for name, value in odd.items())}")
    return [_value(word, arguments, macros, launch) for word in passes]


def _holds(condition: str, macros: dict[str, int | str]) -> bool:
    """True if an argument under a condition, such as "MASK", "!BEGINS" or "KIND=2", is there."""
    name, _, value = condition.lstrip("!").partition("=")
    is_set = macros.get(name) == int(value) if value else bool(macros.get(name))
    return not condition or is_set != condition.startswith("!")


def function_of(launch: Launch) -> str:
    """The name of the C function of a launch: that of its kernel, or of the kernel's variant for stored integers or for
    functions of LAYERS."""
    stored, macros = f"stored_{launch.kernel}", dict(launch.macros)
    if launch.kernel.startswith("activation_") and str(macros.get("OWN")).removesuffix("_") in LAYERS:
        return launch.kernel.replace("activation", "function")
    holds_integers = macros.get("STORED") or macros.get("INTEGERS") or "STATISTICS" in macros
    return stored if stored in KERNELS and holds_integers else launch.kernel


def _expanded(words: str) -> Iterator[str]:
    """The words, with those of GROUPS for theirs."""
    for word in words.split():
        yield from GROUPS.get(word, word).split()


def _value(word: str, arguments: dict[str, Value], macros: dict[str, int | str], launch: Launch) -> Value:
    if word == "-":
        return 0
    dimension, _, macro = word.partition("*")
    if dimension.isdigit():
        return launch.grid[int(dimension)] * int(macros.get(macro, 1))
    if word in ("ACTIVATION", "OWN", "SUM_ACTIVATION"):
        return _number_of(str(macros[word] or "linear"), FUNCTIONS, launch)
    if word == "BINARY":
        return _number_of(str(macros["FUNCTION"]), BINARY, launch)
    if word == "LAYER":
        return _number_of(str(macros["OWN"]), LAYERS, launch)
    if word.isupper():
        value = macros.get(word, 0.0 if word.endswith(("_A", "_B")) else 0)
        return _number(value) if isinstance(value, str) else value
    return arguments.get(word, 0)


def _number_of(name: str, functions: tuple[str, ...], launch: Launch) -> int:
    name = name.removesuffix("_")
    if name not in functions:
        raise _missing(launch, f" with the function {name}")
    return functions.index(name)


def _number(text: str) -> int | float:
    """The value of a macro: a name, or a float32 in hexadecimal."""
    return NAMED[text] if text in NAMED else float.fromhex(text.removesuffix("f"))


def _missing(launch: Launch, variant: str) -> _MissingFunction:
    return _MissingFunction(f"{launch.kernel}{variant}")
