"""The Python sides of the small benches: times of calls on the CPU, as turns.rs beside this file reads them."""

import time

import mlx.core as mx

mx.set_default_device(mx.cpu)


def measure(f):
    """Nanoseconds of a call: the least mean of five rounds."""
    calls, started = 0, time.perf_counter()
    while time.perf_counter() - started < 0.02:
        f()
        calls += 1
    least = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(calls):
            f()
        least = min(least, (time.perf_counter() - started) / calls)
    return least * 1e9
