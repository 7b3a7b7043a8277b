"""What a training step of a small network costs in Python's MLX: the same as main.rs beside this file, which runs it.

Prints one line "name: nanoseconds" for each: the least mean of five rounds.
"""

import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

sys.path.insert(0, str(Path(__file__).parents[3] / "mlx-core/benches/small"))
from turns import measure  # noqa: E402


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(32, 64)
        self.l2 = nn.Linear(64, 10)

    def __call__(self, x):
        return self.l2(nn.relu(self.l1(x)))


x, y = mx.random.normal((16, 32)), mx.random.normal((16, 10))
model = Mlp()
optimizer = optim.AdamW(learning_rate=1e-3)
value_and_grad = nn.value_and_grad(model, lambda model: nn.losses.mse_loss(model(x), y))
_, fixed = value_and_grad(model)
mx.eval(x, y, model.parameters(), fixed)


def update(grads):
    optimizer.update(model, grads)
    mx.eval(model.parameters(), optimizer.state)


def step():
    _, grads = value_and_grad(model)
    update(grads)


print("update by AdamW:", measure(lambda: update(fixed)))
print("step by AdamW:", measure(step))
