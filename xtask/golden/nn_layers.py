"""Values and gradients of mlx.nn's layers, losses and activations.

A case is `name: (make, inputs)`: `make` gives a layer, or a function, which has no parameters. Its arrays:

    init/NAME      the parameters as the layer draws them, after mx.random.seed(the case's number)
    param/NAME     the parameters of all that follows: a little different, so that zeros and ones are none
    in/I           the inputs
    out/I          the outputs; the loss is the sum of outputs times cosines
    grad/NAME, grad_in/I   the loss's derivatives
    state/NAME     buffers after the pass
    bf16/out/I, ...   the same, computed from parameters and inputs in BF16
"""

import mlx.core as mx
import mlx.nn as nn
from mlx.nn import losses
from mlx.utils import tree_flatten, tree_map, tree_unflatten

KEYS = iter(range(1000, 100000))


def x(*shape, scale=1.0, shift=0.0):
    return mx.random.normal(shape, key=mx.random.key(next(KEYS))) * scale + shift


def ints(high, *shape):
    return mx.random.randint(0, high, shape, key=mx.random.key(next(KEYS)))


def probabilities(*shape):
    return mx.random.uniform(0.02, 0.98, shape, key=mx.random.key(next(KEYS)))


def signs(*shape):
    return mx.sign(x(*shape))


def evaluated(layer):
    layer.eval()
    return layer


def causal(n):
    return nn.MultiHeadAttention.create_additive_causal_mask(n)


def image():
    return x(2, 5, 6, 3)


def layers():
    return {
        "linear": (lambda: nn.Linear(4, 3), [x(2, 4)]),
        "linear_no_bias": (lambda: nn.Linear(4, 3, bias=False), [x(2, 4)]),
        "bilinear": (lambda: nn.Bilinear(3, 4, 5), [x(2, 2, 3), x(2, 2, 4)]),
        "bilinear_no_bias": (lambda: nn.Bilinear(3, 4, 5, bias=False), [x(2, 3), x(2, 4)]),
        "embedding": (lambda: nn.Embedding(7, 4), [ints(7, 2, 3)]),
        "identity": (lambda: nn.Identity(), [x(3)]),
        "conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1, dilation=2), [x(2, 9, 3)]),
        "conv1d_groups": (lambda: nn.Conv1d(4, 6, 2, groups=2, bias=False), [x(1, 5, 4)]),
        "conv2d": (lambda: nn.Conv2d(3, 4, 3), [image()]),
        "conv2d_all": (
            lambda: nn.Conv2d(4, 6, (2, 3), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
            [x(2, 5, 6, 4)],
        ),
        "conv3d": (lambda: nn.Conv3d(2, 3, (2, 1, 2), stride=2, padding=(0, 1, 1)), [x(1, 4, 3, 4, 2)]),
        "conv_transpose1d": (
            lambda: nn.ConvTranspose1d(3, 4, 3, stride=2, padding=1, dilation=2, output_padding=1),
            [x(2, 4, 3)],
        ),
        "conv_transpose2d": (lambda: nn.ConvTranspose2d(3, 2, (2, 3), stride=(2, 1), padding=(0, 1)), [image()]),
        "conv_transpose3d": (lambda: nn.ConvTranspose3d(2, 2, 2, stride=2, bias=False), [x(1, 2, 2, 2, 2)]),
        "max_pool1d": (lambda: nn.MaxPool1d(3, stride=2, padding=1), [x(2, 7, 2)]),
        "max_pool2d": (lambda: nn.MaxPool2d(2), [x(2, 4, 6, 2)]),
        "max_pool2d_uneven": (lambda: nn.MaxPool2d((2, 3), stride=(2, 1), padding=(1, 0)), [image()]),
        "max_pool3d": (lambda: nn.MaxPool3d(2, stride=1), [x(1, 3, 3, 4, 2)]),
        "avg_pool1d": (lambda: nn.AvgPool1d(3), [x(2, 8, 2)]),
        "avg_pool2d": (lambda: nn.AvgPool2d(3, stride=2, padding=1), [image()]),
        "avg_pool3d": (lambda: nn.AvgPool3d((1, 2, 2)), [x(1, 2, 4, 4, 2)]),
        "layer_norm": (lambda: nn.LayerNorm(5), [x(3, 5, scale=0.02)]),
        "layer_norm_plain": (lambda: nn.LayerNorm(5, eps=0.1, affine=False), [x(3, 5)]),
        "layer_norm_no_bias": (lambda: nn.LayerNorm(5, bias=False), [x(3, 5)]),
        "rms_norm": (lambda: nn.RMSNorm(5), [x(3, 5, scale=0.02)]),
        "group_norm": (lambda: nn.GroupNorm(2, 6), [x(2, 3, 6, scale=0.02)]),
        "group_norm_pytorch": (lambda: nn.GroupNorm(3, 6, eps=0.1, pytorch_compatible=True), [x(2, 2, 3, 6)]),
        "group_norm_plain": (lambda: nn.GroupNorm(2, 6, affine=False), [x(2, 4, 6)]),
        "instance_norm": (lambda: nn.InstanceNorm(4), [x(2, 5, 4, scale=0.02)]),
        "instance_norm_affine": (lambda: nn.InstanceNorm(4, eps=0.1, affine=True), [x(2, 3, 3, 4)]),
        "batch_norm": (lambda: nn.BatchNorm(4), [x(5, 4, scale=0.02, shift=1.0)]),
        "batch_norm_image": (lambda: nn.BatchNorm(3, eps=0.1, momentum=0.4), [image()]),
        "batch_norm_eval": (lambda: evaluated(nn.BatchNorm(4)), [x(2, 3, 4)]),
        "batch_norm_plain": (lambda: nn.BatchNorm(4, affine=False, track_running_stats=False), [x(6, 4)]),
        "dropout": (lambda: nn.Dropout(0.3), [x(4, 6)]),
        "dropout2d": (lambda: nn.Dropout2d(0.4), [image()]),
        "dropout3d": (lambda: nn.Dropout3d(0.4), [x(2, 2, 3, 2, 5)]),
        "dropout_eval": (lambda: evaluated(nn.Dropout(0.3)), [x(4, 6)]),
        "rnn": (lambda: nn.RNN(3, 4), [x(2, 5, 3)]),
        "rnn_from": (lambda: nn.RNN(3, 4, bias=False, nonlinearity=nn.relu), [x(5, 3), x(4)]),
        "gru": (lambda: nn.GRU(3, 4), [x(2, 5, 3)]),
        "gru_from": (lambda: nn.GRU(3, 4, bias=False), [x(2, 3, 3), x(2, 4)]),
        "lstm": (lambda: nn.LSTM(3, 4), [x(2, 5, 3)]),
        "lstm_from": (lambda: nn.LSTM(3, 4, bias=False), [x(2, 3, 3), x(2, 4), x(2, 4)]),
        "attention": (lambda: nn.MultiHeadAttention(8, 2), [x(2, 3, 8), x(2, 4, 8), x(2, 4, 8)]),
        "attention_all": (
            lambda: nn.MultiHeadAttention(
                8,
                2,
                query_input_dims=5,
                key_input_dims=6,
                value_input_dims=7,
                value_dims=4,
                value_output_dims=3,
                bias=True,
            ),
            [x(1, 3, 5), x(1, 3, 6), x(1, 3, 7), causal(3)],
        ),
        "encoder_layer": (lambda: nn.TransformerEncoderLayer(8, 2, mlp_dims=6), [x(1, 3, 8), causal(3)]),
        "encoder_layer_last": (
            lambda: nn.TransformerEncoderLayer(8, 2, mlp_dims=6, norm_first=False, activation=nn.gelu),
            [x(1, 3, 8), causal(3)],
        ),
        "encoder": (lambda: nn.TransformerEncoder(2, 8, 2, mlp_dims=6), [x(1, 3, 8), causal(3)]),
        "encoder_dropout": (
            lambda: nn.TransformerEncoder(1, 8, 2, mlp_dims=6, dropout=0.2),
            [x(1, 3, 8), causal(3)],
        ),
        "decoder_layer": (
            lambda: nn.TransformerDecoderLayer(8, 2, mlp_dims=6),
            [x(1, 3, 8), x(1, 4, 8), causal(3), x(3, 4)],
        ),
        "decoder_layer_last": (
            lambda: nn.TransformerDecoderLayer(8, 2, mlp_dims=6, norm_first=False),
            [x(1, 3, 8), x(1, 4, 8), causal(3), x(3, 4)],
        ),
        "decoder": (
            lambda: nn.TransformerDecoder(2, 8, 2, mlp_dims=6),
            [x(1, 3, 8), x(1, 4, 8), causal(3), x(3, 4)],
        ),
        "transformer": (
            lambda: nn.Transformer(8, 2, 1, 1, mlp_dims=6),
            [x(1, 4, 8), x(1, 3, 8), x(4, 4), causal(3), x(3, 4)],
        ),
        "sinusoidal": (lambda: nn.SinusoidalPositionalEncoding(6), [x(2, 3, scale=3.0)]),
        "sinusoidal_all": (
            lambda: nn.SinusoidalPositionalEncoding(4, 0.01, 0.5, scale=1.0, cos_first=True, full_turns=True),
            [x(3)],
        ),
        "sinusoidal_two": (lambda: nn.SinusoidalPositionalEncoding(2), [x(3)]),
        "prelu": (lambda: nn.PReLU(), [x(3, 4)]),
        "prelu_features": (lambda: nn.PReLU(4, 0.1), [x(3, 4)]),
        "sequential": (
            lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.MaxPool1d(2), lambda y: y.sum(1), nn.Linear(3, 2)),
            [x(2, 5, 2)],
        ),
        **upsamplings(),
    }


def upsamplings():
    nearest = {"2": 2.0, "1.7": 1.7, "0.6": 0.6, "2_1.5": (2.0, 1.5), "0.7_2": (0.7, 2.0)}
    yes = {}
    for name, factor in nearest.items():
        several = isinstance(factor, tuple)
        modes = {
            "nearest": {},
            "linear": {"mode": "linear"},
            "cubic": {"mode": "cubic"},
            "linear_aligned": {"mode": "linear", "align_corners": True},
            "cubic_aligned": {"mode": "cubic", "align_corners": True},
            "linear_smooth": {"mode": "linear", "antialias": True},
            "cubic_smooth": {"mode": "cubic", "antialias": True},
        }
        for mode, options in modes.items():
            shape = (1, 4, 5, 2) if several else (2, 6, 1)
            yes[f"upsample_{name}_{mode}"] = (
                lambda factor=factor, options=options: nn.Upsample(factor, **options),
                [x(*shape)],
            )
    return yes


def activations():
    names = (
        "celu elu gelu gelu_approx gelu_fast_approx glu hard_shrink hard_tanh hardswish leaky_relu log_sigmoid log_softmax "
        "mish relu relu2 relu6 selu sigmoid silu softmax softmin softplus softshrink softsign step tanh"
    )
    cases = {name: (lambda name=name: getattr(nn, name), [x(2, 8, scale=3.0)]) for name in names.split()}
    return {f"activation_{name}": case for name, case in cases.items()} | {
        "activation_celu_with": (lambda: lambda y: nn.celu(y, 0.5), [x(2, 8, scale=3.0)]),
        "activation_elu_with": (lambda: lambda y: nn.elu(y, 0.5), [x(2, 8, scale=3.0)]),
        "activation_glu_with": (lambda: lambda y: nn.glu(y, 0), [x(4, 3)]),
        "activation_hard_shrink_with": (lambda: lambda y: nn.hard_shrink(y, 1.5), [x(2, 8, scale=3.0)]),
        "activation_hard_tanh_with": (lambda: lambda y: nn.hard_tanh(y, -0.5, 2.0), [x(2, 8, scale=3.0)]),
        "activation_leaky_relu_with": (lambda: lambda y: nn.leaky_relu(y, 0.3), [x(2, 8)]),
        "activation_log_softmax_with": (lambda: lambda y: nn.log_softmax(y, 0), [x(4, 3)]),
        "activation_softmax_with": (lambda: lambda y: nn.softmax(y, 0), [x(4, 3)]),
        "activation_softmin_with": (lambda: lambda y: nn.softmin(y, 0), [x(4, 3)]),
        "activation_softshrink_with": (lambda: lambda y: nn.softshrink(y, 1.5), [x(2, 8, scale=3.0)]),
        "activation_step_with": (lambda: lambda y: nn.step(y, 0.7), [x(2, 8)]),
        "activation_prelu": (lambda: nn.prelu, [x(2, 4), x(4)]),
    }


def loss_cases():
    def of(function, **options):
        return lambda: lambda *arrays: function(*arrays, **options)

    pair = lambda: [x(3, 4), x(3, 4)]
    return {
        "loss_cross_entropy": (of(losses.cross_entropy), [x(3, 5), ints(5, 3)]),
        "loss_cross_entropy_smooth": (
            of(losses.cross_entropy, label_smoothing=0.2, reduction="mean"),
            [x(3, 5), ints(5, 3)],
        ),
        "loss_cross_entropy_axis": (of(losses.cross_entropy, axis=1, reduction="sum"), [x(2, 5, 3), ints(5, 2, 3)]),
        "loss_cross_entropy_weights": (
            lambda: lambda logits, targets, weights: losses.cross_entropy(logits, targets, weights),
            [x(3, 5), ints(5, 3), probabilities(3)],
        ),
        "loss_cross_entropy_class_weights": (
            lambda: lambda logits, targets, weights: losses.cross_entropy(logits, targets, weights[targets]),
            [x(3, 5), ints(5, 3), probabilities(5)],
        ),
        "loss_cross_entropy_probabilities": (
            of(losses.cross_entropy, label_smoothing=0.1),
            [x(3, 5), mx.softmax(x(3, 5), axis=-1)],
        ),
        "loss_binary_cross_entropy": (of(losses.binary_cross_entropy), [x(3, 4), probabilities(3, 4)]),
        "loss_binary_cross_entropy_plain": (
            lambda: lambda p, t, w: losses.binary_cross_entropy(p, t, w, with_logits=False, reduction="none"),
            [probabilities(3, 4), probabilities(3, 4), probabilities(3, 4)],
        ),
        "loss_cosine_similarity": (of(losses.cosine_similarity_loss), pair()),
        "loss_cosine_similarity_axis": (of(losses.cosine_similarity_loss, axis=0, eps=5.0, reduction="mean"), pair()),
        "loss_gaussian_nll": (of(losses.gaussian_nll_loss), [x(3, 4), x(3, 4), probabilities(3, 4)]),
        "loss_gaussian_nll_full": (
            of(losses.gaussian_nll_loss, full=True, eps=0.5, reduction="sum"),
            [x(3, 4), x(3, 4), probabilities(3, 4)],
        ),
        "loss_hinge": (of(losses.hinge_loss), [x(3, 4), signs(3, 4)]),
        "loss_hinge_mean": (of(losses.hinge_loss, reduction="mean"), [x(3, 4), signs(3, 4)]),
        "loss_huber": (of(losses.huber_loss), pair()),
        "loss_huber_delta": (of(losses.huber_loss, delta=0.4, reduction="sum"), pair()),
        "loss_kl_div": (of(losses.kl_div_loss), [nn.log_softmax(x(3, 4)), nn.log_softmax(x(3, 4))]),
        "loss_kl_div_axis": (of(losses.kl_div_loss, axis=0, reduction="mean"), pair()),
        "loss_l1": (of(losses.l1_loss), pair()),
        "loss_l1_none": (of(losses.l1_loss, reduction="none"), pair()),
        "loss_log_cosh": (of(losses.log_cosh_loss), pair()),
        "loss_log_cosh_mean": (of(losses.log_cosh_loss, reduction="mean"), pair()),
        "loss_margin_ranking": (of(losses.margin_ranking_loss), [x(6), x(6), signs(6)]),
        "loss_margin_ranking_margin": (
            of(losses.margin_ranking_loss, margin=0.7, reduction="mean"),
            [x(6), x(6), signs(6)],
        ),
        "loss_mse": (of(losses.mse_loss), pair()),
        "loss_mse_sum": (of(losses.mse_loss, reduction="sum"), pair()),
        "loss_nll": (of(losses.nll_loss), [nn.log_softmax(x(3, 4)), ints(4, 3)]),
        "loss_nll_axis": (of(losses.nll_loss, axis=0, reduction="mean"), [x(3, 4), ints(3, 4)]),
        "loss_smooth_l1": (of(losses.smooth_l1_loss), pair()),
        "loss_smooth_l1_beta": (of(losses.smooth_l1_loss, beta=0.4, reduction="none"), pair()),
        "loss_triplet": (of(losses.triplet_loss), [x(3, 4), x(3, 4), x(3, 4)]),
        "loss_triplet_all": (
            of(losses.triplet_loss, axis=0, p=3, margin=0.3, eps=0.01, reduction="sum"),
            [x(3, 4), x(3, 4), x(3, 4)],
        ),
    }


def is_float(array):
    return mx.issubdtype(array.dtype, mx.floating)


def outputs(result):
    return list(result) if isinstance(result, tuple) else [result]


def differentiated(layer, inputs, seed):
    """Outputs and derivatives by name."""
    is_module = isinstance(layer, nn.Module)
    params = dict(tree_flatten(layer.trainable_parameters())) if is_module else {}
    floats = [i for i, array in enumerate(inputs) if is_float(array)]

    def loss(params, chosen):
        if params:
            layer.update(tree_unflatten(list(params.items())))
        arrays = list(inputs)
        for i, array in zip(floats, chosen):
            arrays[i] = array
        mx.random.seed(seed)
        results = outputs(layer(*arrays))
        total = sum((y * mx.cos(mx.arange(y.size)).reshape(y.shape).astype(y.dtype)).sum() for y in results)
        return total, results

    (_, results), (grads, grads_in) = mx.value_and_grad(loss, argnums=(0, 1))(params, [inputs[i] for i in floats])
    if params:  # no tracers are left in the layer
        layer.update(tree_unflatten(list(params.items())))
    arrays = {f"out/{i}": y for i, y in enumerate(results)}
    arrays |= {f"grad/{name}": grad for name, grad in grads.items()}
    return arrays | {f"grad_in/{i}": grad for i, grad in zip(floats, grads_in)}


def case(number, make, inputs):
    mx.random.seed(number)
    layer = make()
    arrays = {f"in/{i}": array for i, array in enumerate(inputs)}
    is_module = isinstance(layer, nn.Module)
    if is_module:
        params = dict(tree_flatten(layer.parameters()))
        arrays |= {f"init/{name}": array for name, array in params.items()}
        moved = {name: array + x(*array.shape, scale=0.1) for name, array in params.items()}
        moved = {name: mx.abs(array) if name.endswith("running_var") else array for name, array in moved.items()}
        layer.update(tree_unflatten(list(moved.items())))
        arrays |= {f"param/{name}": array for name, array in moved.items()}
    arrays |= differentiated(layer, inputs, number)
    state = lambda: {name: array for name, array in tree_flatten(layer.parameters()) if "running" in name}
    if is_module and state():
        if layer.training:
            layer.update(tree_unflatten([(k, v) for k, v in moved.items() if "running" in k]))
            layer(*inputs)
        arrays |= {f"state/{name}": array for name, array in state().items()}
        layer.update(tree_unflatten([(k, v) for k, v in moved.items() if "running" in k]))
    narrow = lambda array: array.astype(mx.bfloat16) if is_float(array) else array
    if is_module:
        layer.update(tree_map(narrow, layer.parameters()))
    results = differentiated(layer, [narrow(array) for array in inputs], number)
    arrays |= {f"bf16/{name}": array for name, array in results.items()}
    mx.eval(arrays)
    return arrays


def cases():
    return layers() | activations() | loss_cases()


def arrays():
    """All arrays as CASE/NAME, and the names of the cases; the number of a case is its place."""
    named = cases()
    arrays = {}
    for number, (name, (make, inputs)) in enumerate(named.items()):
        arrays |= {f"{name}/{key}": array for key, array in case(number, make, inputs).items()}
    return arrays, list(named)
