//! Reads cases and compares results.

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use mlx_core::{Array, Complex64, DType, Ellipsis, Result, step};
use serde_json::Value;

/// Runs one case.
pub type Op = fn(&Case) -> Result<Vec<Array>>;

/// An operation with inputs, arguments and expected results.
pub struct Case {
    pub op: String,
    pub inputs: Vec<Array>,
    pub args: Vec<Value>,
    expected: Vec<Golden>,
    /// Whether MLX refuses the case.
    pub is_refused: bool,
}

/// An array in the format of the goldens.
struct Golden {
    dtype: DType,
    shape: Vec<i32>,
    values: Vec<f64>,
    /// How the array that is described shows these elements, for inputs of edge cases.
    view: Option<String>,
}

/// The goldens of a file, as JSON.
pub fn document(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../testdata/ops/{file}.json"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("goldens are JSON")
}

pub fn load(file: &str) -> Vec<Case> {
    let document = document(file);
    let inputs: BTreeMap<&str, Golden> = document["inputs"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| (name.as_str(), golden(value)))
        .collect();
    let cases = document["cases"].as_array().unwrap();
    cases
        .iter()
        .map(|case| Case {
            op: case["op"].as_str().unwrap().into(),
            inputs: list(&case["in"])
                .iter()
                .map(|name| inputs[name.as_str().unwrap()].array())
                .collect(),
            args: case
                .get("args")
                .map(|args| list(args).to_vec())
                .unwrap_or_default(),
            expected: case
                .get("out")
                .map(|out| list(out).iter().map(golden).collect())
                .unwrap_or_default(),
            is_refused: case.get("error").is_some(),
        })
        .collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

pub fn dtype(name: &str) -> DType {
    DType::ALL
        .into_iter()
        .find(|dtype| dtype.name() == name)
        .unwrap_or_else(|| panic!("dtype {name}"))
}

fn number(value: &Value) -> f64 {
    match value {
        Value::String(text) => text.parse().unwrap(),
        value => value.as_f64().unwrap(),
    }
}

/// The array that a golden describes.
pub fn array(value: &Value) -> Array {
    golden(value).array()
}

fn golden(value: &Value) -> Golden {
    Golden {
        dtype: dtype(value["d"].as_str().unwrap()),
        shape: list(&value["s"])
            .iter()
            .map(|n| n.as_i64().unwrap() as i32)
            .collect(),
        values: list(&value["v"]).iter().map(number).collect(),
        view: value["view"].as_str().map(str::to_owned),
    }
}

impl Golden {
    fn array(&self) -> Array {
        let dense = self.dense();
        let view = match self.view.as_deref() {
            None => return dense,
            Some("reversed") if dense.ndim() == 1 => dense.i(step(.., -1)),
            Some("reversed") => dense.i((step(.., -1), step(.., -1))),
            Some("turned") => dense.t(),
            Some("halved") => dense.i((Ellipsis, step(.., 2))),
            Some("broadcast") => dense.broadcast_to([&[2], &self.shape[..]].concat()),
            Some(other) => panic!("view {other}"),
        };
        view.unwrap()
    }

    fn dense(&self) -> Array {
        macro_rules! of {
            ($convert:expr) => {
                Array::from_slice(
                    &self
                        .values
                        .iter()
                        .copied()
                        .map($convert)
                        .collect::<Vec<_>>(),
                    &self.shape,
                )
            };
        }
        match self.dtype {
            DType::Bool => of!(|v| v != 0.0),
            DType::U8 => of!(|v| v as u8),
            DType::U16 => of!(|v| v as u16),
            DType::U32 => of!(|v| v as u32),
            DType::U64 => of!(|v| v as u64),
            DType::I8 => of!(|v| v as i8),
            DType::I16 => of!(|v| v as i16),
            DType::I32 => of!(|v| v as i32),
            DType::I64 => of!(|v| v as i64),
            DType::F16 => of!(f16::from_f64),
            DType::F32 => of!(|v| v as f32),
            DType::F64 => of!(|v| v),
            DType::BF16 => of!(bf16::from_f64),
            DType::C64 => {
                let pairs = self.values.chunks_exact(2);
                let values: Vec<_> = pairs
                    .map(|z| Complex64 {
                        re: z[0] as f32,
                        im: z[1] as f32,
                    })
                    .collect();
                Array::from_slice(&values, &self.shape)
            }
        }
        .unwrap()
    }
}

/// The elements as f64; a complex number is two elements.
pub fn values(array: &Array) -> Result<Vec<f64>> {
    macro_rules! to {
        ($ty:ty, $convert:expr) => {
            array.to_vec::<$ty>()?.into_iter().map($convert).collect()
        };
    }
    Ok(match array.dtype() {
        DType::Bool => to!(bool, |v| f64::from(u8::from(v))),
        DType::U8 => to!(u8, f64::from),
        DType::U16 => to!(u16, f64::from),
        DType::U32 => to!(u32, f64::from),
        DType::U64 => to!(u64, |v| v as f64),
        DType::I8 => to!(i8, f64::from),
        DType::I16 => to!(i16, f64::from),
        DType::I32 => to!(i32, f64::from),
        DType::I64 => to!(i64, |v| v as f64),
        DType::F16 => to!(f16, f64::from),
        DType::F32 => to!(f32, f64::from),
        DType::F64 => to!(f64, |v| v),
        DType::BF16 => to!(bf16, f64::from),
        DType::C64 => {
            let pairs = array.to_vec::<Complex64>()?;
            pairs
                .into_iter()
                .flat_map(|z| [f64::from(z.re), f64::from(z.im)])
                .collect()
        }
    })
}

/// Relative and absolute tolerance: a few units in the last place, for back ends that add in
/// another order. Integers are exact.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 | DType::C64 => 2e-6,
        DType::F64 => 1e-12,
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        _ => 0.0,
    }
}

fn close(found: f64, expected: f64, tolerance: f64) -> bool {
    if found.is_nan() || expected.is_nan() {
        return found.is_nan() && expected.is_nan();
    }
    found == expected || (found - expected).abs() <= tolerance * (1.0 + expected.abs())
}

impl Case {
    /// A case without a golden.
    pub fn new(op: &str, inputs: Vec<Array>, args: Value) -> Self {
        Self {
            op: op.into(),
            inputs,
            args: list(&args).to_vec(),
            expected: Vec::new(),
            is_refused: false,
        }
    }

    /// The operation with other inputs and arguments.
    pub fn with(&self, inputs: Vec<Array>, args: Vec<Value>) -> Self {
        Self {
            args,
            ..Self::new(&self.op, inputs, Value::Array(Vec::new()))
        }
    }

    pub fn x(&self, index: usize) -> &Array {
        &self.inputs[index]
    }

    fn arg(&self, index: usize) -> &Value {
        self.args
            .get(index)
            .unwrap_or_else(|| panic!("{} has no argument {index}", self.op))
    }

    pub fn int(&self, index: usize) -> i32 {
        self.arg(index)
            .as_i64()
            .and_then(|n| i32::try_from(n).ok())
            .expect("an i32")
    }

    pub fn seed(&self, index: usize) -> u64 {
        self.arg(index).as_u64().expect("a seed")
    }

    pub fn is_int(&self, index: usize) -> bool {
        self.arg(index).is_i64()
    }

    pub fn is_list_of_ints(&self, index: usize) -> bool {
        list(self.arg(index)).iter().all(Value::is_i64)
    }

    pub fn ints(&self, index: usize) -> Vec<i32> {
        list(self.arg(index))
            .iter()
            .map(|n| n.as_i64().unwrap() as i32)
            .collect()
    }

    /// A list of lists.
    pub fn rows(&self, index: usize) -> Vec<Vec<i32>> {
        let row = |row| {
            list(row)
                .iter()
                .map(|n| n.as_i64().unwrap() as i32)
                .collect()
        };
        list(self.arg(index)).iter().map(row).collect()
    }

    pub fn float(&self, index: usize) -> f64 {
        number(self.arg(index))
    }

    pub fn bool(&self, index: usize) -> bool {
        self.arg(index).as_bool().expect("a bool")
    }

    pub fn text(&self, index: usize) -> &str {
        self.arg(index).as_str().expect("text")
    }

    pub fn dtype(&self, index: usize) -> DType {
        dtype(self.text(index))
    }

    pub fn is_null(&self, index: usize) -> bool {
        self.arg(index).is_null()
    }

    pub fn describe(&self) -> String {
        let args = Value::Array(self.args.clone());
        format!("{}({:?}, {args})", self.op, self.inputs)
    }

    /// The differences between the results found and those expected.
    pub fn compare(&self, found: &[Array]) -> Vec<String> {
        self.compare_by(found, close)
    }

    /// As [`compare`](Self::compare); zeros must have the same sign, and infinities and numbers that are not
    /// normal or zero must be the same.
    pub fn compare_edges(&self, found: &[Array]) -> Vec<String> {
        self.compare_by(found, |a, b, tolerance| {
            let is_plain = |x: f64| x.is_finite() && x != 0.0;
            if is_plain(a) && is_plain(b) {
                return close(a, b, tolerance);
            }
            a == b && a.is_sign_negative() == b.is_sign_negative() || a.is_nan() && b.is_nan()
        })
    }

    fn compare_by(&self, found: &[Array], same: fn(f64, f64, f64) -> bool) -> Vec<String> {
        if found.len() != self.expected.len() {
            return vec![format!(
                "{}: {} results, expected {}",
                self.describe(),
                found.len(),
                self.expected.len()
            )];
        }
        found
            .iter()
            .zip(&self.expected)
            .filter_map(|(found, expected)| self.compare_one(found, expected, same))
            .collect()
    }

    fn compare_one(
        &self,
        found: &Array,
        expected: &Golden,
        same: fn(f64, f64, f64) -> bool,
    ) -> Option<String> {
        let say = |what: String| Some(format!("{}: {what}", self.describe()));
        if found.dtype() != expected.dtype || found.shape() != expected.shape {
            return say(format!(
                "{found:?}, expected {} {:?}",
                expected.dtype, expected.shape
            ));
        }
        let elements = match values(found) {
            Ok(elements) => elements,
            Err(error) => return say(format!("{error:?}")),
        };
        let tolerance = tolerance(expected.dtype);
        if elements.len() != expected.values.len() {
            return say(format!(
                "{} elements, expected {}",
                elements.len(),
                expected.values.len()
            ));
        }
        let differ = elements
            .iter()
            .zip(&expected.values)
            .position(|(&a, &b)| !same(a, b, tolerance));
        differ.and_then(|at| {
            say(format!(
                "element {at} is {}, expected {}",
                elements[at], expected.values[at]
            ))
        })
    }
}

/// The results of an operation, as a list.
pub trait Results {
    fn list(self) -> Vec<Array>;
}

impl Results for Array {
    fn list(self) -> Vec<Array> {
        vec![self]
    }
}

impl Results for Vec<Array> {
    fn list(self) -> Vec<Array> {
        self
    }
}

impl Results for (Array, Array) {
    fn list(self) -> Vec<Array> {
        vec![self.0, self.1]
    }
}

impl Results for (Array, Array, Array) {
    fn list(self) -> Vec<Array> {
        vec![self.0, self.1, self.2]
    }
}

/// Rows of the table: a name and an expression over the case.
macro_rules! rows {
    ($($name:literal => |$c:ident| $body:expr;)*) => {
        vec![$( ($name, (|$c: &$crate::case::Case| Ok($crate::case::Results::list($body?))) as $crate::case::Op) ),*]
    };
}
pub(crate) use rows;
