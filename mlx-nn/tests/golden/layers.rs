//! Layers, activations and losses: initial values, outputs, derivatives by parameters and inputs,
//! new states, in F32 and in BF16.

mod functions;
mod make;

use std::collections::BTreeMap;

use mlx_core::ops::create::arange;
use mlx_core::safetensors::Safetensors;
use mlx_core::{Array, DType, Result, random, transforms};
use mlx_nn::training::with_state;
use mlx_nn::{
    Activation, BatchNorm, Conv2d, Layer, MaxPool2d, Module, Path, Sequential, TransformerConfig,
    TransformerEncoderLayer, Visit, VisitMut, value_and_grad,
};

use crate::{arrays, distance, folder, index, names};

/// A case of the golden, and the distance of the layer's results from it.
pub struct Case<'g> {
    golden: &'g Safetensors,
    name: String,
    /// The seed before the layer was made, and before each pass.
    seed: u64,
    /// The names of the golden's arrays that have not been compared yet.
    left: Vec<String>,
    /// The largest distance in F32, and the array that has it.
    pub off: (f32, String),
    /// The same in BF16.
    pub off_narrow: (f32, String),
}

impl<'g> Case<'g> {
    fn new(golden: &'g Safetensors, name: &str, seed: u64) -> Self {
        let prefix = format!("{name}/");
        let all = golden.names().filter_map(|name| name.strip_prefix(&prefix));
        Self {
            golden,
            name: name.to_owned(),
            seed,
            left: all.map(str::to_owned).collect(),
            off: (0.0, String::new()),
            off_narrow: (0.0, String::new()),
        }
    }

    fn array(&self, name: &str) -> Array {
        let name = format!("{}/{name}", self.name);
        self.golden.array(&name).unwrap()
    }

    fn compare(&mut self, name: &str, found: &Array) {
        let at = self.left.iter().position(|left| left == name);
        let Some(at) = at else {
            panic!("{}: the golden has no {name}", self.name);
        };
        self.left.swap_remove(at);
        let off = distance(found, &self.array(name));
        let worst = match name.starts_with("bf16/") {
            true => &mut self.off_narrow,
            false => &mut self.off,
        };
        if off >= worst.0 {
            *worst = (off, name.to_owned());
        }
    }

    /// The arrays `part/..` of the golden by name.
    fn part(&self, part: &str) -> BTreeMap<String, Array> {
        let prefix = format!("{}/{part}/", self.name);
        let names = self
            .golden
            .names()
            .filter_map(|name| name.strip_prefix(&prefix));
        names
            .map(|name| (name.to_owned(), self.array(&format!("{part}/{name}"))))
            .collect()
    }

    /// Compares a new layer, and its passes.
    pub fn layer<M: Module>(
        &mut self,
        mut layer: M,
        forward: impl Fn(&M, &[Array]) -> Result<Vec<Array>>,
    ) {
        for (name, value) in layer.parameters() {
            self.compare(&format!("init/{name}"), &value);
        }
        let params = self.part("param");
        self.left
            .retain(|name| !name.starts_with("param/") && !name.starts_with("in/"));
        layer.update(&params).unwrap();
        let inputs: Vec<Array> = self.part("in").into_values().collect();
        self.passes(&mut layer, &inputs, "", &forward);
        layer.update(&params).unwrap();
        layer.set_dtype(DType::BF16).unwrap();
        let narrow = inputs.iter().map(|array| match array.dtype() {
            DType::F32 => array.astype(DType::BF16).unwrap(),
            _ => array.clone(),
        });
        let narrow: Vec<Array> = narrow.collect();
        self.passes(&mut layer, &narrow, "bf16/", &forward);
        assert_eq!(
            self.left,
            Vec::<String>::new(),
            "{}: not compared",
            self.name
        );
    }

    fn passes<M: Module>(
        &mut self,
        layer: &mut M,
        inputs: &[Array],
        prefix: &str,
        forward: &impl Fn(&M, &[Array]) -> Result<Vec<Array>>,
    ) {
        let params = layer.parameters();
        let run = |layer: &M, inputs: &[Array]| {
            random::seed(self.seed);
            let outputs = forward(layer, inputs)?;
            let mut all = vec![total(&outputs)?];
            all.extend(outputs);
            Ok(all)
        };
        let floats: Vec<usize> = (0..inputs.len())
            .filter(|&i| inputs[i].dtype().is_float())
            .collect();
        let (outputs, grads_in) = with_state(layer, |layer| {
            if floats.is_empty() {
                return Ok((run(layer, inputs)?, Vec::new()));
            }
            transforms::value_and_grad_with(|inputs| run(layer, inputs), inputs, &floats)
        })
        .unwrap_or_else(|error| panic!("{prefix}{}: {error}", self.name));
        let mut found: Vec<(String, Array)> = Vec::new();
        for (i, output) in outputs[1..].iter().enumerate() {
            found.push((format!("out/{i}"), output.clone()));
        }
        for (i, grad) in floats.iter().zip(grads_in) {
            found.push((format!("grad_in/{i}"), grad));
        }
        layer.update(&params).unwrap();
        if !layer.trainable_parameters().is_empty() {
            let (_, grads) = value_and_grad(layer, |layer| run(layer, inputs)).unwrap();
            found.extend(
                grads
                    .into_iter()
                    .map(|(name, grad)| (format!("grad/{name}"), grad)),
            );
        }
        if prefix.is_empty() {
            for (name, value) in layer.parameters() {
                let name = format!("state/{name}");
                if self.left.contains(&name) {
                    found.push((name, value));
                }
            }
        }
        for (name, array) in found {
            self.compare(&format!("{prefix}{name}"), &array);
        }
    }

    /// Compares a function without parameters.
    pub fn function(&mut self, function: impl Fn(&[Array]) -> Result<Array>) {
        self.layer((), |(), inputs| Ok(vec![function(inputs)?]));
    }
}

/// The sum of all outputs times cosines.
fn total(outputs: &[Array]) -> Result<Array> {
    let mut total = Array::scalar(0.0f32)?;
    for output in outputs {
        let waves = arange(0.0, output.size() as f64, 1.0, DType::F32)?.cos()?;
        let waves = waves.reshape(output.shape())?.astype(output.dtype())?;
        total = total.add(output.multiply(waves)?.sum(.., false)?.astype(DType::F32)?)?;
    }
    Ok(total)
}

#[test]
fn layers_compute_what_those_of_mlx_do() {
    let (index, golden) = (index(), arrays("layers"));
    let cases = names(&index, "layers");
    assert!(cases.len() > 150);
    let mut faults = Vec::new();
    for (seed, name) in cases.iter().enumerate() {
        let mut case = Case::new(&golden, name, seed as u64);
        random::seed(seed as u64);
        if !functions::run(name, &mut case).unwrap() {
            make::run(name, &mut case).unwrap();
        }
        if case.off.0 > 2e-5 || case.off_narrow.0 > 0.03 {
            faults.push(format!(
                "{name}: {:?}, in BF16 {:?}",
                case.off, case.off_narrow
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A layer with a wrong setting differs by more than the comparison allows.
#[test]
fn a_wrong_layer_shows() {
    let (index, golden) = (index(), arrays("layers"));
    let cases = names(&index, "layers");
    for (name, wrong) in make::wrong() {
        let seed = cases.iter().position(|case| case == name).unwrap() as u64;
        let mut case = Case::new(&golden, name, seed);
        random::seed(seed);
        wrong(&mut case);
        assert!(case.off.0 > 1e-4, "{name}: off by only {:?}", case.off);
    }
}

/// A network that Python has saved loads by the names of its parameters and buffers, and computes the same.
#[test]
fn a_network_that_python_saved_loads() {
    struct Encoder(TransformerEncoderLayer);
    impl Module for Encoder {
        fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
            self.0.visit(path, v)
        }
        fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
            self.0.visit_mut(path, v)
        }
    }
    impl Layer for Encoder {
        fn forward(&self, x: &Array) -> Result<Array> {
            self.0.forward(x, None)
        }
    }
    let config = TransformerConfig {
        mlp_dims: 6,
        ..TransformerConfig::new(4, 2)
    };
    let mut net = Sequential::new()
        .add(Conv2d::new(2, 4, 3).unwrap())
        .add(BatchNorm::new(4).unwrap())
        .add(Activation::Relu)
        .add(MaxPool2d::new(2))
        .add_fn(|y| y.reshape(&[y.dim(0)?, 4, 4]))
        .add(Encoder(
            TransformerEncoderLayer::with_config(&config).unwrap(),
        ));
    net.load(folder().join("saved/net.safetensors")).unwrap();
    net.train(false).unwrap();
    let golden = arrays("saved");
    let y = net.forward(&golden.array("x").unwrap()).unwrap();
    assert!(distance(&y, &golden.array("y").unwrap()) < 1e-5);
}
