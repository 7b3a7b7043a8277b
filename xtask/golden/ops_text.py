"""What MLX says in text: arrays as they print, and the paths and reports of einsum."""

import mlx.core as mx
import numpy as np

from ops_table import DTYPES, FLOATS, encode

# Subscripts and the shapes of the operands.
EINSUMS = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("ij,jk,kl->il", [(50, 2), (2, 50), (50, 3)]),
    ("ab,bc,cd,de->ae", [(9, 2), (2, 8), (8, 3), (3, 7)]),
    ("ab,bc,cd,de,ef->af", [(4, 6), (6, 2), (2, 9), (9, 3), (3, 5)]),
    ("abc,bd,cd,ae->e", [(2, 3, 4), (3, 5), (4, 5), (2, 6)]),
    ("ii->", [(3, 3)]),
    ("ij->ji", [(2, 3)]),
    ("ij", [(2, 3)]),
    ("i,j->ij", [(4,), (5,)]),
    ("i,i->", [(4,), (4,)]),
    ("bij,bjk->bik", [(3, 2, 4), (3, 4, 2)]),
    ("bhid,bhjd->bhij", [(1, 2, 3, 4), (1, 2, 5, 4)]),
    ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ea,fb,abcd,gc,hd->efgh", [(5, 5), (5, 5), (5, 5, 5, 5), (5, 5), (5, 5)]),
    ("a,ab,abc->abc", [(2,), (2, 3), (2, 3, 4)]),
    ("ij,ij,ij->", [(3, 4), (3, 4), (3, 4)]),
    ("a,b,c,d->abcd", [(2,), (3,), (4,), (5,)]),
    (",ij->ij", [(), (2, 3)]),
    ("i,,j->ij", [(2,), (), (3,)]),
    ("->", [()]),
    ("...i->...", [(2, 3)]),
]
WRONG = [
    ("ij,jk->ik", [(2, 3)]),
    ("ij,jk->ik", [(2, 3), (4, 5)]),
    ("i2->i", [(2, 2)]),
    ("", []),
    ("ijk->i", [(2, 3)]),
    ("i->ii", [(2,)]),
]


def paths():
    rows = []
    for subscripts, shapes in EINSUMS:
        path, report = mx.einsum_path(subscripts, *[mx.zeros(shape) for shape in shapes])
        rows.append({"subscripts": subscripts, "shapes": shapes, "path": path, "report": report})
    for subscripts, shapes in WRONG:
        try:
            mx.einsum_path(subscripts, *[mx.zeros(shape) for shape in shapes])
        except ValueError:
            rows.append({"subscripts": subscripts, "shapes": shapes})
        else:
            raise AssertionError((subscripts, shapes))
    return rows


def arrays():
    rng = np.random.default_rng(11)
    yield mx.array(0.1)
    yield mx.array([])
    yield mx.array([1.23456789, -0.0, 1e-7, 12345678.0, float("nan"), float("inf"), -float("inf")])
    yield mx.array(np.round(rng.uniform(-3, 3, (2, 3)), 4).astype(np.float32))
    yield mx.arange(2000).reshape(40, 50)
    yield mx.arange(24).reshape(2, 3, 4)
    yield mx.zeros((2, 0))
    yield mx.array([1 + 2j, -0.5j])
    for dtype in DTYPES:
        if dtype != mx.bool_ and dtype != mx.complex64:
            yield mx.array([0.5, 3.25, 100.0]).astype(dtype) if dtype in FLOATS else mx.array([0, 3, 100]).astype(dtype)


def prints():
    rows = []
    for array in arrays():
        texts = {}
        for precision in (-1, 0, 2, 5):
            with mx.printoptions(precision=precision):
                texts[precision] = str(array)
        rows.append({"array": encode(array), "texts": texts})
    return rows


def document():
    return {"einsum": paths(), "print": prints()}
