//! Every method compared with its reference, for 20 steps with given gradients.

use std::collections::BTreeMap;

use mlx_core::{Array, DType, Result};
use mlx_nn::trainable::{set_trainable, trainable};
use mlx_nn::{Module, Param, Path, Visit, VisitMut};
use mlx_train::{Gradients, Method, Optimizer, Schedule, clip};
use serde_json::Value;

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

impl Table {
    fn new(arrays: BTreeMap<String, Array>) -> Self {
        let params = arrays.into_iter();
        let mut table = Self(
            params
                .map(|(name, array)| (name, Param::new(array)))
                .collect(),
        );
        set_trainable(&mut table, |_| true).unwrap();
        table
    }
}

fn golden() -> Value {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../testdata/train/optimisers.json"
    );
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    let numbers = value.as_array().unwrap().iter();
    numbers.map(|x| x.as_f64().unwrap() as f32).collect()
}

fn arrays(golden: &Value, values: &Value, names: &Value) -> BTreeMap<String, Array> {
    names
        .as_object()
        .unwrap()
        .keys()
        .map(|name| {
            let shape: Vec<i32> = serde_json::from_value(golden["shapes"][name].clone()).unwrap();
            let array = Array::from_slice(&numbers(&values[name]), &shape).unwrap();
            (name.clone(), array)
        })
        .collect()
}

/// The largest distance of the parameters from the reference after any of the steps.
fn run(golden: &Value, case: &Value, method: Method) -> f32 {
    let names = &case["after"][0];
    let rate = case["rate"].as_f64().unwrap();
    let mut optimizer = Optimizer::new(method, Schedule::constant(rate)).unwrap();
    let mut table = Table::new(arrays(golden, &golden["start"], names));
    let mut worst = 0.0f32;
    for (step, after) in case["after"].as_array().unwrap().iter().enumerate() {
        let grads: Gradients = arrays(golden, &golden["grads"][step], names);
        optimizer.apply_lazily(&mut table, &grads).unwrap();
        for (name, param) in &table.0 {
            let found = param.value().to_vec::<f32>().unwrap();
            for (found, expected) in found.iter().zip(numbers(&after[name])) {
                worst = worst.max((found - expected).abs() / expected.abs().max(1.0));
            }
        }
    }
    assert_eq!(optimizer.step(), 20);
    worst
}

#[test]
fn methods_follow_their_references() {
    let golden = golden();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 10);
    for case in cases {
        let method: Method = serde_json::from_value(case["method"].clone()).unwrap();
        let off = run(&golden, case, method);
        assert!(off < 1e-5, "{}: off by {off}", case["case"]);
    }
}

/// A wrong setting shows in the comparison with the goldens.
#[test]
fn a_wrong_setting_shows() {
    let golden = golden();
    for (case, wrong) in [
        (
            "sgd_momentum",
            r#"{"name":"sgd","momentum":0.9,"weight_decay":0.01}"#,
        ),
        ("adam", r#"{"name":"adamw","weight_decay":0.02}"#),
        ("adam_uncorrected", r#"{"name":"adam"}"#),
        (
            "lion",
            r#"{"name":"lion","betas":[0.9,0.99],"weight_decay":0.1}"#,
        ),
        (
            "adafactor",
            r#"{"name":"adafactor","decay":-0.7,"weight_decay":0.05}"#,
        ),
        (
            "muon",
            r#"{"name":"muon","nesterov":false,"weight_decay":0.05}"#,
        ),
    ] {
        let cases = golden["cases"].as_array().unwrap().iter();
        let case = cases.clone().find(|entry| entry["case"] == case).unwrap();
        let off = run(&golden, case, serde_json::from_str(wrong).unwrap());
        assert!(off > 1e-3, "{}: off by only {off}", case["case"]);
    }
}

/// An optimiser that is stopped after 7 steps and restored from its saved state continues to the same bits.
#[test]
fn a_restored_optimiser_goes_on() {
    let golden = golden();
    for case in golden["cases"].as_array().unwrap() {
        let method: Method = serde_json::from_value(case["method"].clone()).unwrap();
        let schedule = Schedule::cosine(0.1, 0.0, 15).with_warmup(3, 0.0);
        let new = || Optimizer::new(method.clone(), schedule.clone()).unwrap();
        let names = &case["after"][0];
        let run = |stop: Option<usize>| {
            let mut optimizer = new();
            let mut table = Table::new(arrays(&golden, &golden["start"], names));
            for step in 0..20 {
                if Some(step) == stop {
                    let saved: Vec<(String, Array)> = optimizer
                        .arrays()
                        .unwrap()
                        .into_iter()
                        .map(|(name, array)| {
                            let copy = array.to_vec::<f32>().unwrap();
                            (name, Array::from_slice(&copy, array.shape()).unwrap())
                        })
                        .collect();
                    let mut other = new();
                    let params = trainable(&table).unwrap();
                    other.restore(optimizer.step(), &params, saved).unwrap();
                    optimizer = other;
                }
                let grads: Gradients = arrays(&golden, &golden["grads"][step], names);
                optimizer.apply_lazily(&mut table, &grads).unwrap();
            }
            let values = table.0.values();
            values
                .map(|param| param.value().to_vec::<f32>().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(run(None), run(Some(7)), "{}", case["case"]);
    }
}

/// Small parameters are computed as one array. Their bits are those of parameters with an optimiser each.
#[test]
fn a_parameter_does_not_depend_on_the_others() {
    let golden = golden();
    for case in golden["cases"].as_array().unwrap() {
        let method: Method = serde_json::from_value(case["method"].clone()).unwrap();
        let names = &case["after"][0];
        let run = |only: Option<&str>| {
            let kept = |mut arrays: BTreeMap<String, Array>| {
                arrays.retain(|name, _| only.is_none_or(|only| name == only));
                arrays
            };
            let mut optimizer = Optimizer::new(method.clone(), Schedule::constant(0.1)).unwrap();
            let mut table = Table::new(kept(arrays(&golden, &golden["start"], names)));
            for step in 0..4 {
                let grads = kept(arrays(&golden, &golden["grads"][step], names));
                optimizer.apply_lazily(&mut table, &grads).unwrap();
            }
            let params = table.0.into_iter();
            let bits = |param: &Param| param.value().to_vec::<f32>().unwrap();
            params
                .map(|(name, param)| (name, bits(&param)))
                .collect::<BTreeMap<_, _>>()
        };
        let all = run(None);
        for (name, bits) in &all {
            assert_eq!(&run(Some(name))[name], bits, "{} {name}", case["case"]);
        }
    }
}

/// Each step uses the schedule's rate, which plain SGD shows.
#[test]
fn the_schedule_reaches_the_optimiser() {
    let schedule = Schedule::linear(1.0, 0.25, 2).with_warmup(2, 0.5);
    let mut optimizer = Optimizer::new(Method::Sgd(Default::default()), schedule).unwrap();
    let one = || Array::scalar(1.0f32).unwrap();
    let mut table = Table::new(BTreeMap::from([("w".to_owned(), one())]));
    let mut value = 1.0;
    for rate in [0.5, 0.75, 1.0, 0.625, 0.25, 0.25] {
        assert_eq!(optimizer.rate(), rate);
        let grads = BTreeMap::from([("w".to_owned(), one())]);
        optimizer.apply_lazily(&mut table, &grads).unwrap();
        value -= rate as f32;
        assert_eq!(table.0["w"].value().item::<f32>().unwrap(), value);
    }
}

/// Parameters of 16 bits are updated in f32, and the optimiser's state is f32.
#[test]
fn state_is_wide() {
    let start = Array::from_slice(&[1.0f32, 2.0], &[2]).unwrap();
    let start = start.astype(DType::BF16).unwrap();
    let mut table = Table::new(BTreeMap::from([("w".to_owned(), start.clone())]));
    let method = Method::AdamW(Default::default());
    let mut optimizer = Optimizer::new(method, Schedule::constant(0.1)).unwrap();
    let grads = BTreeMap::from([("w".to_owned(), start)]);
    optimizer.apply_lazily(&mut table, &grads).unwrap();
    assert_eq!(table.0["w"].value().dtype(), DType::BF16);
    let states = optimizer.arrays().unwrap();
    assert_eq!(states.len(), 2);
    assert!(states.iter().all(|(_, array)| array.dtype() == DType::F32));
}

#[test]
fn clipping_shortens_to_the_norm_and_no_more() {
    let grads = |scale: f32| -> Gradients {
        let array = |x: f32| Array::from_slice(&[x * scale], &[1]).unwrap();
        BTreeMap::from([("a".to_owned(), array(3.0)), ("b".to_owned(), array(4.0))])
    };
    let mut long = grads(2.0);
    assert_eq!(
        clip::clip(&mut long, 5.0).unwrap().item::<f32>().unwrap(),
        10.0
    );
    assert!((long["a"].item::<f32>().unwrap() - 3.0).abs() < 1e-5);
    assert!((long["b"].item::<f32>().unwrap() - 4.0).abs() < 1e-5);
    let mut short = grads(1.0);
    clip::clip(&mut short, 100.0).unwrap();
    assert_eq!(short["a"].item::<f32>().unwrap(), 3.0);
    assert!(clip::clip(&mut short, 0.0).is_err());
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let refused = |json: &str, rate: f64| {
        let method: Method = serde_json::from_str(json).unwrap();
        let made = Optimizer::new(method, Schedule::constant(rate));
        made.unwrap_err().to_string()
    };
    let error = refused(r#"{"name":"adamw","betas":[0.9,1.0]}"#, 0.1);
    assert_eq!(error, "betas[1] must be in [0, 1), given 1");
    let error = refused(r#"{"name":"sgd"}"#, f64::NAN);
    assert_eq!(
        error,
        "a learning rate must be a number of at least 0, given NaN"
    );
    let unknown = serde_json::from_str::<Method>(r#"{"name":"sgd","momentun":0.9}"#);
    assert!(unknown.unwrap_err().to_string().contains("momentun"));
}
