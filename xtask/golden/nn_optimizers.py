"""What the optimisers of mlx.optimizers do in 20 steps, and the rates of its schedules."""

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_map

STEPS = 20
RATE = 0.1
SHAPES = {"wide": (3, 5), "tall": (6, 2), "vector": (4,), "kernel": (2, 3, 2)}

# Case, optimiser. The Rust test makes the same by the case's name.
OPTIMIZERS = {
    "sgd": lambda: optim.SGD(RATE),
    "sgd_momentum": lambda: optim.SGD(RATE, momentum=0.9, weight_decay=0.02, nesterov=True),
    "sgd_dampening": lambda: optim.SGD(RATE, momentum=0.8, dampening=0.3),
    "rmsprop": lambda: optim.RMSprop(RATE, alpha=0.9, eps=1e-3),
    "adagrad": lambda: optim.Adagrad(RATE, eps=1e-3),
    "adadelta": lambda: optim.AdaDelta(RATE, rho=0.8, eps=1e-3),
    "adam": lambda: optim.Adam(RATE),
    "adam_corrected": lambda: optim.Adam(RATE, betas=[0.8, 0.95], eps=1e-3, bias_correction=True),
    "adamw": lambda: optim.AdamW(RATE),
    "adamw_corrected": lambda: optim.AdamW(RATE, weight_decay=0.1, eps=1e-3, bias_correction=True),
    "adamax": lambda: optim.Adamax(RATE, betas=[0.8, 0.9], eps=1e-3),
    "lion": lambda: optim.Lion(RATE, betas=[0.8, 0.9], weight_decay=0.05),
    "adafactor": lambda: optim.Adafactor(),
    "adafactor_all": lambda: optim.Adafactor(
        RATE,
        eps=(1e-5, 1e-2),
        clip_threshold=0.7,
        decay_rate=-0.6,
        beta_1=0.8,
        weight_decay=0.1,
        scale_parameter=False,
        relative_step=False,
    ),
    "muon": lambda: optim.Muon(RATE),
    "muon_plain": lambda: optim.Muon(RATE, momentum=0.8, weight_decay=0.1, nesterov=False, ns_steps=4),
    "scheduled": lambda: optim.AdamW(optim.step_decay(RATE, 0.5, 4)),
    "multi": lambda: optim.MultiOptimizer(
        [optim.Muon(0.02), optim.Lion(0.01), optim.SGD(RATE)],
        [lambda name, grad: grad.ndim == 2, lambda name, grad: name == "vector"],
    ),
}

SCHEDULES = {
    "exponential": lambda: optim.exponential_decay(0.1, 0.9),
    "step": lambda: optim.step_decay(0.1, 0.5, 4),
    "cosine": lambda: optim.cosine_decay(0.1, 12, 0.01),
    "linear": lambda: optim.linear_schedule(0.0, 0.1, 7),
    "joined": lambda: optim.join_schedules(
        [optim.linear_schedule(0.0, 0.1, 5), optim.cosine_decay(0.1, 10), lambda step: mx.array(0.03)], [5, 12]
    ),
}


def draw(shape, key):
    return mx.random.normal(shape, key=mx.random.key(key))


def start():
    return {name: draw(shape, 100 + i) for i, (name, shape) in enumerate(SHAPES.items())}


def gradients(step):
    """Their size changes from step to step, so that decays show."""
    return {name: draw(shape, 10 * step + i) * (1 + step % 4) for i, (name, shape) in enumerate(SHAPES.items())}


def optimizers():
    """Arrays by name: the start, the gradients of each step, and the parameters after steps 1, 2, 5 and 20."""
    arrays = {f"start/{name}": array for name, array in start().items()}
    for step in range(STEPS):
        arrays |= {f"grads/{step}/{name}": grad for name, grad in gradients(step).items()}
    for case, make in OPTIMIZERS.items():
        for dtype, suffix in ((mx.float32, ""), (mx.bfloat16, ".bf16")):
            optimizer, params = make(), tree_map(lambda x: x.astype(dtype), start())
            for step in range(STEPS):
                grads = tree_map(lambda x: x.astype(dtype), gradients(step))
                params = optimizer.apply_gradients(grads, params)
                mx.eval(params, optimizer.state)
                # In 16 bits MLX keeps the moments in 16 bits too, so that later steps drift away from ours.
                if step + 1 in ((1, 2, 5, STEPS) if dtype == mx.float32 else (1,)):
                    arrays |= {f"after/{case}{suffix}/{step + 1}/{name}": array for name, array in params.items()}
    return arrays


def schedules():
    """The rates of the first 20 steps."""
    return {name: [round(float(make()(mx.array(step))), 8) for step in range(STEPS)] for name, make in SCHEDULES.items()}
