//! Optimisers and schedules.

use std::collections::BTreeMap;

use mlx_core::safetensors::Safetensors;
use mlx_core::{Array, DType, Result};
use mlx_nn::optim::{
    AdaDelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Lion, MultiOptimizer, Muon, Optimizer,
    RmsProp, Sgd,
};
use mlx_nn::trainable::set_trainable;
use mlx_nn::{Gradients, Module, Param, Path, Schedule, Visit, VisitMut};

use crate::{arrays, distance, index, names};

const RATE: f64 = 0.1;
const NAMES: [&str; 4] = ["wide", "tall", "vector", "kernel"];

/// Parameters by name.
struct Table(BTreeMap<String, Param>);

impl Module for Table {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        for (name, param) in &self.0 {
            path.scoped(name, |path| param.visit(path, v))?;
        }
        Ok(())
    }
    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        for (name, param) in &mut self.0 {
            path.scoped(name, |path| param.visit_mut(path, v))?;
        }
        Ok(())
    }
}

enum Any {
    One(Optimizer),
    Several(MultiOptimizer),
}

impl<O: Into<Optimizer>> From<O> for Any {
    fn from(optimizer: O) -> Self {
        Self::One(optimizer.into())
    }
}

fn make(case: &str) -> Any {
    match case {
        "sgd" => Sgd::new(RATE).into(),
        "sgd_momentum" => Sgd::new(RATE)
            .momentum(0.9)
            .weight_decay(0.02)
            .nesterov(true)
            .into(),
        "sgd_dampening" => Sgd::new(RATE).momentum(0.8).dampening(0.3).into(),
        "rmsprop" => RmsProp::new(RATE).alpha(0.9).eps(1e-3).into(),
        "adagrad" => Adagrad::new(RATE).eps(1e-3).into(),
        "adadelta" => AdaDelta::new(RATE).rho(0.8).eps(1e-3).into(),
        "adam" => Adam::new(RATE).into(),
        "adam_corrected" => Adam::new(RATE)
            .betas([0.8, 0.95])
            .eps(1e-3)
            .bias_correction(true)
            .into(),
        "adamw" => AdamW::new(RATE).into(),
        "adamw_corrected" => AdamW::new(RATE)
            .weight_decay(0.1)
            .eps(1e-3)
            .bias_correction(true)
            .into(),
        "adamax" => Adamax::new(RATE).betas([0.8, 0.9]).eps(1e-3).into(),
        "lion" => Lion::new(RATE).betas([0.8, 0.9]).weight_decay(0.05).into(),
        "adafactor" => Adafactor::new().into(),
        "adafactor_all" => {
            let mut optimizer = Adafactor::new()
                .eps([1e-5, 1e-2])
                .clip(0.7)
                .decay(-0.6)
                .beta1(0.8)
                .weight_decay(0.1)
                .scale_parameter(false)
                .relative_step(false);
            optimizer.set_schedule(RATE);
            optimizer.into()
        }
        "muon" => Muon::new(RATE).into(),
        "muon_plain" => Muon::new(RATE)
            .momentum(0.8)
            .weight_decay(0.1)
            .nesterov(false)
            .rounds(4)
            .into(),
        "scheduled" => AdamW::new(Schedule::step(RATE, 0.5, 4)).into(),
        "multi" => Any::Several(
            MultiOptimizer::new(Sgd::new(RATE))
                .with(Muon::new(0.02), |_, grad| grad.ndim() == 2)
                .with(Lion::new(0.01), |name, _| name == "vector"),
        ),
        other => panic!("no optimiser for the case {other}"),
    }
}

fn table(golden: &Safetensors, part: &str, dtype: DType) -> BTreeMap<String, Array> {
    let array = |name| golden.array(&format!("{part}/{name}"))?.astype(dtype);
    let all = NAMES.map(|name| (name.to_owned(), array(name).unwrap()));
    all.into_iter().collect()
}

/// The largest distance from the reference after any of its steps.
fn run(golden: &Safetensors, case: &str, dtype: DType, optimizer: &mut Any) -> f32 {
    let start = table(golden, "start", dtype).into_iter();
    let mut module = Table(
        start
            .map(|(name, array)| (name, Param::new(array)))
            .collect(),
    );
    set_trainable(&mut module, |_| true).unwrap();
    let suffix = if dtype == DType::F32 { "" } else { ".bf16" };
    let (mut worst, mut compared) = (0.0f32, 0);
    for step in 0..20 {
        let grads: Gradients = table(golden, &format!("grads/{step}"), dtype);
        match optimizer {
            Any::One(optimizer) => optimizer.update(&mut module, &grads).unwrap(),
            Any::Several(optimizer) => optimizer.update(&mut module, &grads).unwrap(),
        }
        let part = format!("after/{case}{suffix}/{}", step + 1);
        if !golden.contains(&format!("{part}/wide")) {
            continue;
        }
        compared += 1;
        for (name, expected) in table(golden, &part, dtype) {
            let value = module.0[&name].value();
            assert_eq!(value.dtype(), dtype);
            worst = worst.max(distance(value, &expected));
        }
    }
    assert_eq!(compared, if dtype == DType::F32 { 4 } else { 1 }, "{case}");
    worst
}

#[test]
fn optimizers_do_what_those_of_mlx_do() {
    let (index, golden) = (index(), arrays("optimizers"));
    let cases = names(&index, "optimizers");
    assert_eq!(cases.len(), 18);
    for case in cases {
        let off = run(&golden, &case, DType::F32, &mut make(&case));
        assert!(off < 2e-5, "{case}: off by {off}");
        // A step in 16 bits rounds several times in MLX, and once here.
        let off = run(&golden, &case, DType::BF16, &mut make(&case));
        assert!(off < 0.03, "{case} in BF16: off by {off}");
    }
}

#[test]
fn a_wrong_setting_shows() {
    let golden = arrays("optimizers");
    for (case, wrong) in [
        ("sgd_dampening", Sgd::new(RATE).momentum(0.8).into()),
        ("rmsprop", RmsProp::new(RATE).alpha(0.9).into()),
        ("adagrad", Adagrad::new(RATE).into()),
        ("adadelta", AdaDelta::new(RATE).rho(0.8).into()),
        ("adam", Adam::new(RATE).bias_correction(true).into()),
        ("adamw", AdamW::new(RATE).weight_decay(0.0).into()),
        ("adamax", Any::from(Adamax::new(RATE).betas([0.8, 0.9]))),
        ("adafactor", Adafactor::new().scale_parameter(false).into()),
        ("muon", Muon::new(RATE).weight_decay(0.0).into()),
        ("multi", Muon::new(0.02).into()),
    ] {
        let mut wrong = wrong;
        let off = run(&golden, case, DType::F32, &mut wrong);
        assert!(off > 1e-4, "{case}: off by only {off}");
    }
}

#[test]
fn schedules_give_the_rates_of_mlx() {
    let index = index();
    let schedules = index["schedules"].as_object().unwrap();
    assert_eq!(schedules.len(), 5);
    for (name, rates) in schedules {
        let schedule = match name.as_str() {
            "exponential" => Schedule::exponential(0.1, 0.9),
            "step" => Schedule::step(0.1, 0.5, 4),
            "cosine" => Schedule::cosine(0.1, 0.01, 12),
            "linear" => Schedule::linear(0.0, 0.1, 7),
            "joined" => {
                Schedule::linear(0.0, 0.1, 5).then(5, Schedule::cosine(0.1, 0.0, 10).then(7, 0.03))
            }
            other => panic!("no schedule for the case {other}"),
        };
        schedule.check().unwrap();
        for (step, rate) in rates.as_array().unwrap().iter().enumerate() {
            let (found, rate) = (schedule.rate(step as u64), rate.as_f64().unwrap());
            assert!(
                (found - rate).abs() < 1e-7,
                "{name}, step {step}: {found}, not {rate}"
            );
        }
    }
}

#[test]
fn settings_out_of_range_are_errors_of_the_first_step() {
    let mut param = Param::new(Array::from_slice(&[1.0f32], &[1]).unwrap());
    set_trainable(&mut param, |_| true).unwrap();
    let grads = Gradients::from([(String::new(), Array::from_slice(&[1.0f32], &[1]).unwrap())]);
    for (optimizer, message) in [
        (
            Optimizer::from(Adam::new(0.1).betas([0.9, 1.0])),
            "betas[1] must be in [0, 1), given 1",
        ),
        (Adagrad::new(0.1).eps(-1.0).into(), "eps must be at least"),
        (
            AdamW::new(-0.1).into(),
            "a learning rate must be a number of at least 0, given -0.1",
        ),
        (
            AdamW::new(Schedule::exponential(0.1, -2.0)).into(),
            "a decay must be a number of at least 0, given -2",
        ),
        (
            AdamW::new(Schedule::step(0.1, 0.5, 0)).into(),
            "a schedule must have at least 1 step between its decays, given 0",
        ),
    ] {
        let mut optimizer = optimizer;
        let error = optimizer
            .update(&mut param, &grads)
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error}");
        assert_eq!(optimizer.step(), 0);
    }
}

/// The state of each method can be saved and restored: the names and shapes of all its arrays are
/// known.
#[test]
fn saved_states_are_restored() {
    let golden = arrays("optimizers");
    for case in names(&index(), "optimizers") {
        let (Any::One(mut first), Any::One(mut second)) = (make(&case), make(&case)) else {
            continue;
        };
        let start = || {
            let start = table(&golden, "start", DType::F32).into_iter();
            let mut module = Table(
                start
                    .map(|(name, array)| (name, Param::new(array)))
                    .collect(),
            );
            set_trainable(&mut module, |_| true).unwrap();
            module
        };
        let grads = |step| table(&golden, &format!("grads/{step}"), DType::F32);
        let mut module = start();
        first.update(&mut module, &grads(0)).unwrap();
        let params = mlx_nn::trainable::trainable(&module).unwrap();
        second.restore(1, &params, first.arrays().unwrap()).unwrap();
        let mut other = Table(module.0.clone());
        first.update(&mut module, &grads(1)).unwrap();
        second.update(&mut other, &grads(1)).unwrap();
        for (name, param) in &module.0 {
            assert_eq!(
                distance(other.0[name].value(), param.value()),
                0.0,
                "{case}: {name}"
            );
        }
    }
}
