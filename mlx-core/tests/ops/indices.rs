//! Calls with indices. The arguments are the parts of an index, as `xtask/golden/ops_index.py` writes them.

use mlx_core::indexing::{IndexItem, Part};
use mlx_core::{Array, Ellipsis, IntoIndex, NewAxis, Result, Unique, step};
use serde_json::Value;

use crate::case::{Case, Op, rows};

pub fn rows() -> Vec<(&'static str, Op)> {
    rows! {
        "i" => |c| c.x(0).i(index(c));
        "set" => |c| c.x(0).set(index(c), values(c));
        "at_add" => |c| c.x(0).at(index(c)).add(values(c));
        "at_sub" => |c| c.x(0).at(index(c)).sub(values(c));
        "at_mul" => |c| c.x(0).at(index(c)).mul(values(c));
        "at_div" => |c| c.x(0).at(index(c)).div(values(c));
        "at_max" => |c| c.x(0).at(index(c)).max(values(c));
        "at_min" => |c| c.x(0).at(index(c)).min(values(c));
        "masked_select" => |c| c.x(0).masked_select(c.x(1));
        "nonzero" => |c| c.x(0).nonzero();
        "unique" => |c| c.x(0).unique();
        "unique_all" => |c| c.x(0).unique_all().map(parts);
        "unique_of_size" => |c| c.x(0).unique_of_size(c.int(0), None::<f32>).map(parts);
        "unique_filled" => |c| c.x(0).unique_of_size(c.int(0), Some(c.int(1))).map(parts);
    }
}

fn parts(unique: Unique) -> Vec<Array> {
    vec![unique.values, unique.index, unique.inverse, unique.counts]
}

fn values(case: &Case) -> &Array {
    case.inputs.last().expect("values")
}

struct Index(Vec<Box<dyn IndexItem>>);

impl IntoIndex for Index {
    fn parts(&self) -> Result<Vec<Part<'_>>> {
        self.0.iter().map(|item| item.part()).collect()
    }
}

fn index(case: &Case) -> Index {
    Index(case.args.iter().map(|part| item(case, part)).collect())
}

fn item(case: &Case, part: &Value) -> Box<dyn IndexItem> {
    let text = match part {
        Value::String(text) => text.as_str(),
        number => return Box::new(number.as_i64().expect("an integer")),
    };
    if let Some(input) = text.strip_prefix('x') {
        return Box::new(case.x(input.parse().expect("an input")).clone());
    }
    match text {
        "..." => return Box::new(Ellipsis),
        "new" => return Box::new(NewAxis),
        _ => {}
    }
    let ends: Vec<Option<i64>> = text.split(':').map(|end| end.parse().ok()).collect();
    let by = ends.get(2).copied().flatten().unwrap_or(1);
    match (ends[0], ends[1]) {
        (None, None) => Box::new(step(.., by)),
        (Some(start), None) => Box::new(step(start.., by)),
        (None, Some(stop)) => Box::new(step(..stop, by)),
        (Some(start), Some(stop)) => Box::new(step(start..stop, by)),
    }
}
