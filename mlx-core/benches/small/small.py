"""What small things cost in Python's MLX: the same as main.rs beside this file, which runs it.

Prints one line "name: nanoseconds" for each: the least mean of five rounds.
"""

import mlx.core as mx
from turns import measure

x = mx.array([1.0, 2.0, 3.0, 4.0])
ready = x.sum()
square = mx.random.normal((64, 64))
mx.eval(ready, square)


def graph():
    y = x
    for _ in range(100):
        y = y + x


inputs, targets = mx.random.normal((16, 32)) * 0.1, mx.random.normal((16, 10)) * 0.1
weights = [mx.random.normal(shape) * 0.1 for shape in [(32, 64), (64,), (64, 10), (10,)]]
mx.eval(inputs, targets, weights)


def loss(w):
    hidden = mx.maximum(inputs @ w[0] + w[1], 0.0)
    return (hidden @ w[2] + w[3] - targets).square().mean()


value_and_grad = mx.value_and_grad(loss)


def step():
    global weights
    _, grads = value_and_grad(weights)
    weights = [w - g * 1e-3 for w, g in zip(weights, grads)]
    mx.eval(weights)


compiled = mx.compile(lambda x: mx.exp(x * x + x))
mx.eval(compiled(x))

print("graph:", measure(graph) / 100)
print("small evaluation:", measure(lambda: mx.eval(x + x)))
print("scalar of a new sum:", measure(lambda: x.sum().item()))
print("scalar of a ready array:", measure(ready.item))
print("slice:", measure(lambda: mx.eval(x[1:3])))
print("product of 64 x 64:", measure(lambda: mx.eval(square @ square)))
print("step of an MLP:", measure(step))
print("call of a compiled function:", measure(lambda: mx.eval(compiled(x))))
