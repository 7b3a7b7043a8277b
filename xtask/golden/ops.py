"""Writes testdata/ops: operations of mlx-core with inputs, arguments and results of MLX.

    python ops.py OUT

Results are MLX's own; where NumPy has the operation, the two are held against each other here, and
the case says so ("np"). Random inputs come from one seeded generator.
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np

import ops_array
import ops_edges
import ops_elementwise
import ops_index
import ops_matrix
import ops_numeric
import ops_promotion
import ops_short
import ops_text
import ops_types
from ops_table import Table



def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    mx.set_default_device(mx.cpu)
    for module in (ops_elementwise, ops_array, ops_matrix, ops_numeric, ops_index, ops_short):
        name = module.__name__.removeprefix("ops_")
        table = Table(np.random.default_rng(7))
        module.fill(table)
        write(out / f"{name}.json", table.document())
        print(f"{name}: {len(table.cases)} cases, {table.checked} of them equal to NumPy's")
    write(out / "edges.json", ops_edges.document())
    write(out / "promotion.json", ops_promotion.document())
    write(out / "types.json", ops_types.document())
    write(out / "text.json", ops_text.document())


def write(path, document):
    head = {"versions": {"mlx": mx.__version__, "numpy": np.__version__}}
    path.write_text(json.dumps(head | document, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
