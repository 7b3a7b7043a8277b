//! Adapters in files: mlx-lm's `adapter_config.json` and `adapters.safetensors`, and PEFT's `adapter_model.safetensors`,
//! are read and written.
//!
//! The tensors decide which layers get adapters: `q_proj.lora_a` puts one on `q_proj`, which may be a linear layer, an
//! embedding or a stack of experts. Tensors that name no layer are refused, all in one report.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_core::safetensors::save;
use mlx_core::{Array, Error, ErrorKind, Result, Safetensors};
use mlx_nn::{AdaptableLayer, Checkpoint, Layout, Lora, Module, Param, Rules, Visit, VisitMut};
use serde_json::{Map, Value, json};

use crate::checkpoint::names::OF_OTHER_TOWER;
use crate::checkpoint::weights::read_json;
use crate::model::Model;

mod exchange;
mod parts;
mod peft;

use parts::{made, set};

pub use exchange::{AdapterFormat, convert};

/// mlx-lm's name of an adapter's settings.
pub const CONFIG: &str = "adapter_config.json";
/// mlx-lm's name of an adapter's tensors.
pub const WEIGHTS: &str = "adapters.safetensors";

/// The kind of the parameters in an adapter's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterKind {
    /// A and B.
    Lora,
    /// A, B and magnitudes.
    Dora,
    /// Parameters of the model itself.
    Full,
}

impl AdapterKind {
    fn name(self) -> &'static str {
        match self {
            Self::Lora => "lora",
            Self::Dora => "dora",
            Self::Full => "full",
        }
    }
}

/// The result of reading an adapter's folder.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// The kind of its parameters.
    pub kind: AdapterKind,
    /// The names of its parameters in the model, in order.
    pub names: Vec<String>,
    /// The fraction of the inputs that training dropped.
    pub dropout: f32,
}

/// Reads the adapter in `dir` into `model`, and evaluates the model's parameters. Earlier adapters of the same layers are
/// replaced.
///
/// # Errors
/// The folder holds no adapter of a known format, or the adapter of another model: one report names
/// every tensor that fits no parameter.
pub fn load(dir: &Path, model: &mut dyn Model) -> Result<Adapter> {
    struct Values(Vec<Array>);
    impl Visit for Values {
        fn param(&mut self, _path: &mlx_nn::Path, param: &Param) -> Result<()> {
            self.0.push(param.value().clone());
            Ok(())
        }
    }
    let adapter = load_lazily(dir, model)?;
    let mut values = Values(Vec::new());
    model.visit(&mut mlx_nn::Path::default(), &mut values)?;
    mlx_core::eval(&values.0)?;
    Ok(adapter)
}

/// The low-rank corrections of an adapter's folder, for [`set_row_adapters`](mlx_nn::lora::set_row_adapters).
#[derive(Clone, Debug)]
pub struct LayerLoras {
    /// The kind: [`AdapterKind::Lora`] or [`AdapterKind::Dora`].
    pub kind: AdapterKind,
    /// The names of its parameters in the model, in order.
    pub names: Vec<String>,
    /// The fraction of the inputs that training dropped.
    pub dropout: f32,
    /// The correction of each layer, by the layer's path.
    pub layers: BTreeMap<String, Lora>,
}

impl LayerLoras {
    /// The largest rank.
    pub fn rank(&self) -> i32 {
        let ranks = self.layers.values().filter_map(Lora::rank);
        ranks.max().unwrap_or(0)
    }
}

/// Reads the adapter in `dir` for layers of `model`, which is not changed.
///
/// # Errors
/// As [`load`], or the folder has the model's own parameters ([`AdapterKind::Full`]).
pub fn read(dir: &Path, model: &dyn Model) -> Result<LayerLoras> {
    match find(dir, model)? {
        Found::Layers(adapter) => Ok(adapter),
        Found::Parameters(_) => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{}: fine_tune_type full: the folder has parameters of the model itself, which cannot be added to it for \
                 some requests only",
                dir.display()
            ),
        )),
    }
}

/// Whether the adapter in `dir` has the model's own parameters.
///
/// # Errors
/// Its settings cannot be read.
pub fn is_full(dir: &Path) -> Result<bool> {
    let config = read_json(dir, CONFIG)?;
    let kind = config.get("fine_tune_type").and_then(Value::as_str);
    Ok(config.get("peft_type").is_none() && kind == Some("full"))
}

/// The content of an adapter's folder.
enum Found {
    Layers(LayerLoras),
    /// The values of parameters, by their names in the model.
    Parameters(BTreeMap<String, Array>),
}

fn load_lazily(dir: &Path, model: &mut dyn Model) -> Result<Adapter> {
    match find(dir, model)? {
        Found::Layers(adapter) => {
            set(model, adapter.layers)?;
            Ok(Adapter {
                kind: adapter.kind,
                names: adapter.names,
                dropout: adapter.dropout,
            })
        }
        Found::Parameters(tensors) => fill(&dir.display().to_string(), model, tensors),
    }
}

fn find(dir: &Path, model: &dyn Model) -> Result<Found> {
    let config = read_json(dir, CONFIG)?;
    let label = dir.display().to_string();
    let fail = |message: String| {
        Error::new(
            ErrorKind::Unsupported,
            format!("{label}: {CONFIG}: {message}"),
        )
    };
    if config.get("peft_type").is_some() {
        return peft::read(dir, &config, model);
    }
    let kind = match config.get("fine_tune_type").map(Value::as_str) {
        None | Some(Some("lora")) => AdapterKind::Lora,
        Some(Some("dora")) => AdapterKind::Dora,
        Some(Some("full")) => AdapterKind::Full,
        _ => {
            let found = &config["fine_tune_type"];
            return Err(fail(format!(
                "fine_tune_type {found} is not known; known: lora, dora, full"
            )));
        }
    };
    let parameters = &config["lora_parameters"];
    let number = |key: &str, or: Option<f64>| {
        let found = &parameters[key];
        let number = found.as_f64().or(or.filter(|_| found.is_null()));
        number.filter(|number| number.is_finite()).ok_or_else(|| {
            fail(format!(
                "lora_parameters.{key}: expected a number, found {found}"
            ))
        })
    };
    let (scale, dropout) = match kind {
        AdapterKind::Full => (1.0, 0.0),
        _ => (number("scale", None)?, number("dropout", Some(0.0))?),
    };
    let file = Safetensors::open(dir.join(WEIGHTS))?;
    let rules = model.names().written();
    if kind == AdapterKind::Full {
        return full(&label, file, &rules).map(Found::Parameters);
    }
    let mut tensors = BTreeMap::new();
    let mut faults = Vec::new();
    for published in file.names() {
        let array = file.array(published)?;
        match published.rsplit_once('.') {
            Some((layer, part)) => {
                spread(&rules, Adapted::Module(layer), part, &array, &mut tensors)?
            }
            None => Err("not a tensor of an adapter".to_owned()),
        }
        .unwrap_or_else(|fault| faults.push(format!("{published}: {fault}")));
    }
    report(&label, "tensors of the adapter", &faults)?;
    made(
        &label,
        model,
        tensors,
        &|_| scale as f32,
        dropout as f32,
        kind,
    )
}

/// The tensors of a full fine-tuning, under the names of the model's parameters.
fn full(label: &str, file: Safetensors, rules: &Rules) -> Result<BTreeMap<String, Array>> {
    let mut faults = Vec::new();
    for published in file.names() {
        if let Err(reason) = rules.pieces(published) {
            faults.push(format!("{published}: {reason}"));
        }
    }
    let checkpoint = Checkpoint::new(label, vec![file], rules)?;
    let mut tensors = BTreeMap::new();
    for name in checkpoint.names() {
        match checkpoint.array(name)? {
            Some(array) => drop(tensors.insert(name.to_owned(), array)),
            None => faults.push(format!("{name}: its parts do not fit each other")),
        }
    }
    report(label, "parameters", &faults)?;
    Ok(tensors)
}

/// The layouts of the layers that can have adapters.
#[derive(Default)]
struct Layouts(BTreeMap<String, Layout>);

impl Layouts {
    fn of(model: &dyn Model) -> Result<Self> {
        let mut layouts = Self::default();
        model.visit(&mut mlx_nn::Path::default(), &mut layouts)?;
        Ok(layouts)
    }

    /// The layout of the layers that a tensor of files becomes a part of.
    fn of_tensor(&self, rules: &Rules, tensor: &str) -> Option<Layout> {
        let pieces = rules.pieces(tensor).ok()?;
        let layers = pieces.first()?.name().strip_suffix(WEIGHT);
        self.0.get(layers?).copied()
    }
}

impl Visit for Layouts {
    fn adaptable(&mut self, path: &mlx_nn::Path, layer: AdaptableLayer<'_>) -> Result<()> {
        self.0.insert(path.as_str().to_owned(), layer.layout);
        Ok(())
    }
}

/// What an adapter belongs to, by its name in files.
#[derive(Clone, Copy)]
enum Adapted<'a> {
    Module(&'a str),
    /// A tensor that holds the matrices of several modules.
    Tensor(&'a str),
}

/// The end of the name of a module's matrix.
const WEIGHT: &str = ".weight";

/// Puts `part` of an adapter into `tensors`, for every layer of the model that holds a piece of the
/// adapted matrix. The inner error is a fault of the adapter.
fn spread(
    rules: &Rules,
    adapted: Adapted<'_>,
    part: &str,
    array: &Array,
    tensors: &mut BTreeMap<String, Array>,
) -> Result<Result<(), String>> {
    let whole = Rules::none();
    let (layer, pieces) = match adapted {
        Adapted::Module(layer) => (layer, rules.modules(layer)),
        Adapted::Tensor(name) => (name, rules.pieces(name)),
    };
    let pieces = match pieces {
        // Like the tensors of those towers themselves.
        Err(OF_OTHER_TOWER) => return Ok(Ok(())),
        // The rules drop some matrices of checkpoints, such as a tied head. Then the name stays as it
        // is, and `made` refuses it.
        Err(_) => whole.modules(layer).unwrap_or_default(),
        Ok(pieces) => pieces,
    };
    for piece in pieces {
        let Some(array) = piece.adapter(part, array)? else {
            return Ok(Err(format!(
                "the model has {layer} in another form ({}), to which this adapter cannot be brought; merge it \
                 with its checkpoint first",
                piece.name()
            )));
        };
        let path = piece.name();
        let name = format!("{}.{part}", path.strip_suffix(WEIGHT).unwrap_or(path));
        if tensors.insert(name.clone(), array).is_some() {
            return Ok(Err(format!("another tensor is {name} too")));
        }
    }
    Ok(Ok(()))
}

/// Sets the model's own parameters to the values of `tensors`.
fn fill(label: &str, module: &mut dyn Module, tensors: BTreeMap<String, Array>) -> Result<Adapter> {
    struct Fill<'a> {
        tensors: &'a BTreeMap<String, Array>,
        write: bool,
        found: Vec<String>,
        faults: Vec<String>,
    }
    impl VisitMut for Fill<'_> {
        fn param(&mut self, path: &mlx_nn::Path, param: &mut Param) -> Result<()> {
            let name = path.as_str();
            let Some(array) = self.tensors.get(name) else {
                return Ok(());
            };
            let (found, expected) = (array.shape(), &param.whole_shape()[..]);
            let (dtype, wanted) = (array.dtype(), param.value().dtype());
            if found != expected || dtype.is_float() != wanted.is_float() {
                self.faults.push(format!(
                    "{name}: expected {expected:?} {wanted}, found {found:?} {dtype}"
                ));
            } else if self.write {
                param.set_whole(&array.astype(wanted)?)?;
            }
            self.found.push(name.to_owned());
            Ok(())
        }
    }
    not_empty(label, &tensors)?;
    let mut names = Vec::new();
    for write in [false, true] {
        let mut visitor = Fill {
            tensors: &tensors,
            write,
            found: Vec::new(),
            faults: Vec::new(),
        };
        module.visit_mut(&mut mlx_nn::Path::default(), &mut visitor)?;
        let Fill {
            found, mut faults, ..
        } = visitor;
        let strangers = tensors.keys().filter(|name| !found.contains(name));
        faults.extend(strangers.map(|name| format!("{name}: no parameter of the model")));
        report(label, "parameters", &faults)?;
        names = found;
    }
    Ok(Adapter {
        kind: AdapterKind::Full,
        names,
        dropout: 0.0,
    })
}

/// Refuses an adapter without tensors, which is what a failed training run or an incomplete copy
/// leaves.
fn not_empty(label: &str, tensors: &BTreeMap<String, Array>) -> Result<()> {
    if !tensors.is_empty() {
        return Ok(());
    }
    let message = format!("{label}: the adapter has no tensors");
    Err(Error::new(ErrorKind::Format, message))
}

fn report(label: &str, what: &str, faults: &[String]) -> Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    let shown = faults.iter().take(8).cloned().collect::<Vec<_>>();
    let more = match faults.len().saturating_sub(8) {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    };
    let message = format!(
        "the {what} in {label} do not fit the model:\n  {}{more}",
        shown.join("\n  ")
    );
    Err(Error::new(ErrorKind::Format, message))
}

/// The content of `adapter_config.json`, for [`write()`].
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// The kind of the parameters in the file.
    pub kind: AdapterKind,
    /// The adapters' rank, scale and dropout; not used for [`AdapterKind::Full`].
    pub rank: i32,
    /// The factor of the product of A and B: alpha / rank.
    pub scale: f32,
    /// The fraction of the inputs that training drops.
    pub dropout: f32,
    /// How many of the last layers have adapters; -1 means all.
    pub num_layers: i64,
    /// The names of the adapted layers in mlx-lm: relative to a decoder layer, or in full.
    pub keys: Vec<String>,
    /// Further keys of the file, which have no effect when it is read.
    pub facts: Map<String, Value>,
}

/// Writes `adapters.safetensors` and `adapter_config.json` in mlx-lm's format. The tensors are
/// written first, and each file appears whole or not at all.
///
/// # Errors
/// A file cannot be written.
pub fn write<'a>(
    dir: &Path,
    config: &AdapterConfig,
    arrays: impl IntoIterator<Item = (&'a str, &'a Array)>,
) -> Result<()> {
    let mut json = config.facts.clone();
    json.insert("fine_tune_type".into(), config.kind.name().into());
    json.insert("num_layers".into(), config.num_layers.into());
    if config.kind != AdapterKind::Full {
        json.insert(
            "lora_parameters".into(),
            json!({
                "rank": config.rank,
                // As an f64, the number would be written with digits that an f32 does not have.
                "scale": shortest(config.scale),
                "dropout": shortest(config.dropout),
                "keys": config.keys,
            }),
        );
    }
    std::fs::create_dir_all(dir)?;
    save(dir.join(WEIGHTS), arrays, &BTreeMap::new())?;
    let text = serde_json::to_string_pretty(&Value::Object(json)).map_err(std::io::Error::from)?;
    let scratch = dir.join(format!(".{CONFIG}.part"));
    std::fs::write(&scratch, text + "\n")?;
    std::fs::rename(&scratch, dir.join(CONFIG))?;
    Ok(())
}

fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
