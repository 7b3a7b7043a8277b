"""Promotion, kinds and limits of dtypes."""

import mlx.core as mx

from ops_table import DTYPES, FLOATS, NAMES

KINDS = ("generic", "number", "integer", "signedinteger", "unsignedinteger", "inexact", "floating", "complexfloating")


def document():
    """For each dtype, in one order: what it promotes to beside each dtype, and the kinds that it is of."""
    rows = {}
    for a in DTYPES:
        row = {
            "promote": [NAMES[mx.result_type(a, b)] for b in DTYPES],
            "can_cast": [mx.can_cast(a, b) for b in DTYPES],
            "kinds": [mx.issubdtype(a, getattr(mx, kind)) for kind in KINDS],
        }
        if a in FLOATS or a == mx.complex64:
            info = mx.finfo(a)
            # Text, because JSON's readers may not keep the last bit.
            row["float"] = [str(info.bits)] + [repr(float(x)) for x in (info.min, info.max, info.eps, info.smallest_normal)]
        elif a != mx.bool_:
            info = mx.iinfo(a)
            row["integer"] = [str(info.min), str(info.max)]
        rows[NAMES[a]] = row
    return {"order": [NAMES[a] for a in DTYPES], "types": rows}
