"""What the initialisers of mlx.nn.init draw: bit by bit where the numbers are drawn directly, by moments of large arrays."""

import mlx.core as mx
import mlx.nn.init as init

SHAPE = (4, 3, 2)
LARGE = (200, 150)

INITIALIZERS = {
    "constant": (init.constant(0.7), SHAPE, {}),
    "normal": (init.normal(0.5, 2.0), SHAPE, {}),
    "uniform": (init.uniform(-0.5, 2.0), SHAPE, {}),
    "identity": (init.identity(), (3, 3), {}),
    "glorot_normal": (init.glorot_normal(), SHAPE, {}),
    "glorot_normal_gain": (init.glorot_normal(), SHAPE, {"gain": 2.0}),
    "glorot_uniform": (init.glorot_uniform(), SHAPE, {}),
    "glorot_uniform_gain": (init.glorot_uniform(), SHAPE, {"gain": 2.0}),
    "he_normal": (init.he_normal(), SHAPE, {}),
    "he_normal_out": (init.he_normal(), SHAPE, {"mode": "fan_out", "gain": 2.0}),
    "he_uniform": (init.he_uniform(), SHAPE, {}),
    "he_uniform_out": (init.he_uniform(), SHAPE, {"mode": "fan_out", "gain": 2.0}),
    "sparse": (init.sparse(0.3, 0.5, 2.0), (5, 7), {}),
    "orthogonal": (init.orthogonal(2.0), (5, 3), {}),
    "orthogonal_wide": (init.orthogonal(), (3, 5), {}),
}


def arrays():
    drawn = {}
    for number, (name, (initializer, shape, options)) in enumerate(INITIALIZERS.items()):
        mx.random.seed(number)
        drawn[name] = initializer(mx.zeros(shape), **options)
    return drawn


def moments():
    """Mean, mean of squares and of fourth powers of a large array."""
    result = {}
    for number, (name, (initializer, shape, options)) in enumerate(INITIALIZERS.items()):
        if len(shape) == 2 and name == "identity":
            continue
        mx.random.seed(number)
        drawn = initializer(mx.zeros(LARGE), **options)
        result[name] = [round(float(mx.mean(drawn**power)), 4) for power in (1, 2, 4)]
    return result
