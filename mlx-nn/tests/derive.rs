//! `#[derive(Module)]`, and what every module can do with its parameters.

use std::collections::HashMap;
use std::fs;
use std::marker::PhantomData;

use mlx_core::ops::create::{full, ones};
use mlx_core::{Array, DType, QuantMode, Result, Scheme, random};
use mlx_nn::{Activation, Embedding, Linear, Mode, Module, Param, RmsNorm, init, module, quantize};

fn names(module: &impl Module) -> Vec<String> {
    module.parameters().into_keys().collect()
}

fn param(value: f32) -> Param {
    Param::new(Array::scalar(value).unwrap())
}

#[derive(Module)]
struct Unit;

#[derive(Module)]
struct Transparent(Linear);

#[derive(Module)]
struct Pair(Param, #[module(rename = "second")] Param);

#[derive(Module)]
enum Choice<M> {
    Nothing,
    One(M),
    Two(Param, Param),
    Named { r#type: Param, size: usize },
}

#[derive(Module)]
enum Never {}

#[derive(Module)]
struct Everything<'a, M, S, const N: usize> {
    boxed: Box<Linear>,
    missing: Option<Linear>,
    list: Vec<M>,
    array: [Param; N],
    tuple: (Param, Option<Param>, Vec<Param>),
    map: HashMap<String, M>,
    #[module(flat)]
    beside: Pair,
    #[module(rename = "other.name")]
    field: Param,
    #[module(state)]
    running: Array,
    #[module(state)]
    several: Vec<Array>,
    numbers: (i32, Option<f32>, [usize; 3]),
    text: &'a str,
    kind: PhantomData<S>,
    #[module(skip)]
    activation: Activation,
    mode: Mode,
}

fn everything() -> Everything<'static, Transparent, fn(), 2> {
    let linear = |n| Transparent(Linear::new(n, 2, false).unwrap());
    let keys = (0..20).map(|i| (format!("k{i:02}"), linear(i + 1)));
    Everything {
        boxed: Box::new(Linear::new(2, 3, true).unwrap()),
        missing: None,
        list: vec![linear(1), linear(2)],
        array: [param(1.0), param(2.0)],
        tuple: (param(3.0), None, vec![param(4.0)]),
        map: keys.collect(),
        beside: Pair(param(5.0), param(6.0)),
        field: param(7.0),
        running: Array::scalar(8.0f32).unwrap(),
        several: vec![Array::scalar(9i32).unwrap()],
        numbers: (1, None, [0; 3]),
        text: "",
        kind: PhantomData,
        activation: Activation::Silu,
        mode: Mode::default(),
    }
}

#[test]
fn names_follow_fields_indices_and_keys() {
    let module = everything();
    let mut expected = vec![
        "0",
        "array.0",
        "array.1",
        "boxed.bias",
        "boxed.weight",
        "list.0.weight",
        "list.1.weight",
        "other.name",
        "running",
        "second",
        "several.0",
        "tuple.0",
        "tuple.2.0",
    ];
    let keys: Vec<String> = (0..20).map(|i| format!("map.k{i:02}.weight")).collect();
    expected.extend(keys.iter().map(String::as_str));
    expected.sort_unstable();
    assert_eq!(names(&module), expected);

    // Every visit has the order of the fields and of the sorted keys.
    struct Order(Vec<String>);
    impl mlx_nn::Visit for Order {
        fn param(&mut self, path: &mlx_nn::Path, _param: &Param) -> Result<()> {
            self.0.push(path.as_str().to_owned());
            Ok(())
        }
    }
    let mut order = Order(Vec::new());
    module.visit(&mut Default::default(), &mut order).unwrap();
    let at = order.0.iter().position(|name| name == "map.k00.weight");
    let at = at.expect("the map is visited");
    assert_eq!(order.0[at..at + 20], keys);
    assert_eq!(order.0[..2], ["boxed.weight", "boxed.bias"]);
    let _ = (module.numbers, module.text, module.kind, module.activation);
}

#[test]
fn enums_add_no_name_for_one_unnamed_field() {
    let linear = Linear::new(1, 1, false).unwrap();
    assert_eq!(names(&Choice::One(linear)), ["weight"]);
    assert_eq!(names(&Choice::<Linear>::Nothing), [""; 0]);
    assert_eq!(
        names(&Choice::<Linear>::Two(param(1.0), param(2.0))),
        ["0", "1"]
    );
    let named = Choice::<Linear>::Named {
        r#type: param(1.0),
        size: 3,
    };
    assert_eq!(names(&named), ["type"]);
    let Choice::Named { size, .. } = named else {
        unreachable!()
    };
    assert_eq!(size, 3);
    assert_eq!(names(&Unit), [""; 0]);
    assert_eq!(names(&Vec::<Never>::new()), [""; 0]);
}

#[test]
fn children_are_modules_and_no_parameters() {
    let module = everything();
    let modules = module.named_modules();
    let names: Vec<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..4], ["", "boxed", "list.0", "list.1"]);
    assert_eq!(names[4], "map.k00");
    assert_eq!(names.len(), 4 + 20);
    assert!(modules[0].1.type_name().contains("Everything"));
    assert_eq!(modules[1].1.type_name(), std::any::type_name::<Linear>());
    let children: Vec<String> = module
        .children()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(children[..3], ["boxed", "list.0", "list.1"]);

    struct Listed {
        first: Linear,
        inner: Vec<Option<Transparent>>,
        scale: Param,
        parts: Outer,
    }
    module!(Listed { first, inner, scale } flat { parts });
    #[derive(Module)]
    struct Outer {
        last: Linear,
    }
    let linear = || Linear::new(1, 1, false).unwrap();
    let listed = Listed {
        first: linear(),
        inner: vec![None, Some(Transparent(linear()))],
        scale: param(0.0),
        parts: Outer { last: linear() },
    };
    let names: Vec<String> = listed
        .named_modules()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["", "first", "inner.1", "last"]);
}

#[derive(Module)]
struct Net {
    l1: Linear,
    norm: RmsNorm,
    l2: Linear,
    #[module(state)]
    seen: Array,
}

fn net() -> Net {
    Net {
        l1: Linear::new(32, 4, true).unwrap(),
        norm: RmsNorm::new(4).unwrap(),
        l2: Linear::new(4, 2, false).unwrap(),
        seen: Array::scalar(0.0f32).unwrap(),
    }
}

#[test]
fn parameters_are_counted_mapped_and_replaced() {
    let mut net = net();
    assert_eq!(net.num_parameters(), 32 * 4 + 4 + 4 + 8 + 1);
    assert_eq!(
        names(&net),
        ["l1.bias", "l1.weight", "l2.weight", "norm.weight", "seen"]
    );
    assert_eq!(net.trainable_parameters().len(), 4);
    let sizes = net.map(|_, array| Ok(array.size())).unwrap();
    assert_eq!(sizes["l1.weight"], 128);

    net.apply(|array| array.multiply(0.0)?.add(1.0)).unwrap();
    assert_eq!(
        net.parameters()["norm.weight"].to_vec::<f32>().unwrap(),
        [1.0; 4]
    );
    assert_eq!(net.seen.item::<f32>().unwrap(), 1.0);
    // A derived array follows its parameter.
    net.apply(|array| array.add(1.0)).unwrap();
    let y = net
        .norm
        .forward(&ones(&[1, 4], DType::F32).unwrap())
        .unwrap();
    assert!((y.to_vec::<f32>().unwrap()[0] - 2.0).abs() < 1e-4);

    let new = full(&[2, 4], 5.0, DType::F32).unwrap();
    let values = [("l2.weight".to_owned(), new)].into();
    net.update(&values).unwrap();
    assert_eq!(
        net.parameters()["l2.weight"].to_vec::<f32>().unwrap(),
        [5.0; 8]
    );
    let before = net.parameters();
    let wrong = full(&[3], 0.0, DType::F32).unwrap();
    let error = net
        .update(&[("l1.bias".to_owned(), wrong)].into())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "l1.bias has shape [4], the new value [3]"
    );
    let right = full(&[4], 0.0, DType::F32).unwrap();
    let values = [
        ("l1.bias".to_owned(), right.clone()),
        ("l3".to_owned(), right),
    ];
    let error = net.update(&values.into()).unwrap_err();
    assert_eq!(error.to_string(), "the module has no parameter l3");
    let (after, before) = (&net.parameters()["l1.bias"], &before["l1.bias"]);
    assert_eq!(
        after.to_vec::<f32>().unwrap(),
        before.to_vec::<f32>().unwrap()
    );

    let error = net
        .apply(|_| Err(mlx_core::Error::new(mlx_core::ErrorKind::Invalid, "no")))
        .unwrap_err();
    assert_eq!(error.to_string(), "l1.weight: no");
}

#[test]
fn patterns_freeze_parameters_and_modules() {
    let mut net = net();
    net.freeze("l1").unwrap();
    assert!(
        net.trainable_parameters()
            .keys()
            .eq(["l2.weight", "norm.weight"])
    );
    net.freeze("*.weight").unwrap();
    assert!(net.trainable_parameters().is_empty());
    let error = net.freeze("l").unwrap_err().to_string();
    assert_eq!(
        error,
        "no parameter, and no module with parameters, matches \"l\""
    );
    net.unfreeze().unwrap();
    assert_eq!(net.trainable_parameters().len(), 4);
    mlx_nn::trainable::set_trainable(&mut net, |_| true).unwrap();
    assert!(!net.trainable_parameters().contains_key("seen"));

    let scheme = Scheme::new(32, 4, QuantMode::Affine).unwrap();
    quantize::quantize(&mut net, |path, _| (path == "l1").then_some(scheme)).unwrap();
    net.unfreeze().unwrap();
    assert!(
        net.trainable_parameters()
            .keys()
            .eq(["l1.bias", "l2.weight", "norm.weight"])
    );
    assert_eq!(net.num_parameters(), 32 * 4 + 4 + 4 + 8 + 1);
    // A quantised matrix without a name around it.
    quantize::quantize(&mut net.l2, |_, _| None).unwrap();
    net.l1.unfreeze().unwrap();
    assert!(net.l1.trainable_parameters().keys().eq(["bias"]));
}

#[test]
fn dtypes_change_where_numbers_are_floating_point() {
    let mut net = net();
    net.set_dtype(DType::BF16).unwrap();
    assert!(
        net.parameters()
            .values()
            .all(|array| array.dtype() == DType::BF16)
    );
    let x = ones(&[1, 32], DType::BF16).unwrap();
    let y = net.norm.forward(&net.l1.forward(&x).unwrap()).unwrap();
    assert_eq!(y.dtype(), DType::BF16);
    let error = net.set_dtype(DType::I32).unwrap_err().to_string();
    assert_eq!(
        error,
        "the dtype of parameters must be floating point, given I32"
    );
    let mut kept = Param::new(Array::scalar(1.0f32).unwrap()).never_narrowed();
    kept.set_dtype(DType::F16).unwrap();
    assert_eq!(kept.value().dtype(), DType::F32);
}

#[test]
fn files_bring_back_parameters_and_buffers() {
    for name in ["net.safetensors", "net.npz"] {
        bring_back(name);
    }
}

fn bring_back(file: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file);
    let mut saved = net();
    saved.seen = Array::scalar(3.5f32).unwrap();
    saved.save(&path).unwrap();
    let mut loaded = net();
    loaded.freeze("l1").unwrap();
    loaded.load(&path).unwrap();
    for (name, array) in saved.parameters() {
        let found = loaded.parameters()[&name].to_vec::<f32>().unwrap();
        assert_eq!(found, array.to_vec::<f32>().unwrap(), "{name}");
    }
    assert!(!loaded.trainable_parameters().contains_key("l1.weight"));

    // A file that does not fit changes nothing, and the report names every tensor that does not
    // fit.
    #[derive(Module)]
    struct Other {
        l1: Linear,
        l3: Linear,
    }
    let mut other = Other {
        l1: Linear::new(3, 4, true).unwrap(),
        l3: Linear::new(4, 2, false).unwrap(),
    };
    let before = other.l1.parameters()["bias"].to_vec::<f32>().unwrap();
    let error = other.load(&path).unwrap_err().to_string();
    for part in [
        "do not match the module",
        "1 missing: l3.weight [2, 4]",
        "3 unexpected: l2.weight; norm.weight; seen",
        "1 misshapen: l1.weight: expected [4, 3], found [4, 32]",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(
        other.l1.parameters()["bias"].to_vec::<f32>().unwrap(),
        before
    );

    for other in ["net.npy", "net"] {
        let other = folder.path().join(other);
        for error in [saved.save(&other), saved.load(&other)] {
            let error = error.unwrap_err().to_string();
            assert!(
                error.ends_with("the parameters of a module are in a .safetensors or .npz file"),
                "{error}"
            );
        }
        assert!(!other.exists());
    }
    assert!(
        saved
            .load(folder.path().join(format!("none.{file}")))
            .is_err()
    );
    fs::write(folder.path().join(format!("bad.{file}")), b"PK and no more").unwrap();
    assert!(
        saved
            .load(folder.path().join(format!("bad.{file}")))
            .is_err()
    );

    let scheme = Scheme::new(32, 4, QuantMode::Affine).unwrap();
    quantize::quantize(&mut saved, |path, _| (path == "l1").then_some(scheme)).unwrap();
    saved.save(&path).unwrap();
    let error = loaded.load(&path).unwrap_err().to_string();
    assert!(
        error.contains("l1 is quantised, and the module's is dense"),
        "{error}"
    );
    quantize::quantize(&mut loaded, |path, _| (path == "l1").then_some(scheme)).unwrap();
    loaded.load(&path).unwrap();
    assert_eq!(names(&loaded), names(&saved));

    let mut halves = net();
    halves.set_dtype(DType::BF16).unwrap();
    halves.save(&path).unwrap();
    let mut loaded = net();
    loaded.load(&path).unwrap();
    let (found, expected) = (loaded.parameters(), halves.parameters());
    assert_eq!(found["l1.weight"].dtype(), DType::BF16);
    let wide = |array: &Array| array.astype(DType::F32).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(wide(&found["l1.weight"]), wide(&expected["l1.weight"]));
}

#[test]
fn a_parameter_without_value_is_named() {
    #[derive(Module)]
    struct Empty {
        l1: Linear,
        table: Embedding,
        norm: RmsNorm,
    }
    let mut empty = Empty {
        l1: Linear::empty(2, 1, true).unwrap(),
        table: Embedding::empty(4, 2).unwrap(),
        norm: RmsNorm::empty(2, 1e-5).unwrap(),
    };
    let x = ones(&[1, 2], DType::F32).unwrap();
    let error = |result: Result<Array>| result.unwrap_err().to_string();
    let advice = "has no value: load it or initialise it";
    assert_eq!(
        error(empty.l1.forward(&x)),
        format!("weight [1, 2] {advice}")
    );
    // A visitor that changes the module gives each parameter its full name.
    empty.train(false).unwrap();
    assert_eq!(
        error(empty.l1.forward(&x)),
        format!("l1.weight [1, 2] {advice}")
    );
    let token = Array::scalar(1i32).unwrap();
    assert_eq!(
        error(empty.table.forward(&token)),
        format!("table.weight [4, 2] {advice}")
    );
    assert_eq!(
        error(empty.norm.forward(&x)),
        format!("norm.weight [2] {advice}")
    );
    let weight = [("l1.weight".to_owned(), ones(&[1, 2], DType::F32).unwrap())];
    empty.update(&weight.into()).unwrap();
    // With one output, a bias without a value must not be added as if it were a number.
    assert_eq!(error(empty.l1.forward(&x)), format!("l1.bias [1] {advice}"));
    assert_eq!(
        empty.save("never.safetensors").unwrap_err().to_string(),
        format!("l1.bias [1] {advice}")
    );
    assert_eq!(names(&empty), ["l1.weight"]);
    init::draw(&mut empty).unwrap();
    assert!(empty.l1.forward(&x).is_ok());
    assert_eq!(
        empty.l1.parameters()["weight"].to_vec::<f32>().unwrap(),
        [1.0; 2]
    );
}

#[test]
fn layers_draw_their_values_from_the_seed() {
    let values = |seed| {
        random::seed(seed);
        let layer = Linear::new(400, 300, true).unwrap();
        let table = Embedding::new(300, 400).unwrap();
        let all = [
            &layer.parameters()["weight"],
            &layer.parameters()["bias"],
            &table.parameters()["weight"],
        ];
        all.map(|array| array.to_vec::<f32>().unwrap())
    };
    let [weight, bias, table] = values(7);
    assert_eq!(values(7), [weight.clone(), bias.clone(), table.clone()]);
    assert_ne!(values(8)[0], weight);
    let bound = (1.0f32 / 400.0).sqrt();
    assert!(weight.iter().chain(&bias).all(|x| x.abs() <= bound));
    let variance =
        |all: &[f32]| all.iter().map(|x| f64::from(x * x)).sum::<f64>() / all.len() as f64;
    assert!((variance(&weight) * 1200.0 - 1.0).abs() < 0.02);
    assert!((variance(&bias) * 1200.0 - 1.0).abs() < 0.2);
    assert!((variance(&table) * 400.0 - 1.0).abs() < 0.02);
    let error = Linear::new(0, 3, false).unwrap_err().to_string();
    assert_eq!(error, "weight [3, 0]: an axis of 0");
}

mod elsewhere {
    pub mod inner {
        pub use mlx_nn as nn;
    }
}

#[derive(Module)]
#[module(crate = crate::elsewhere::inner::nn)]
struct Foreign {
    weight: Param,
    #[module(state)]
    steps: Option<Array>,
}

#[test]
fn the_crate_may_stand_elsewhere() {
    let mut foreign = Foreign {
        weight: param(1.0),
        steps: None,
    };
    assert_eq!(names(&foreign), ["weight"]);
    foreign.steps = Some(Array::scalar(1i32).unwrap());
    assert_eq!(names(&foreign), ["steps", "weight"]);
}

#[test]
fn trait_objects_are_modules() {
    let boxed: Vec<Box<dyn Module>> = vec![
        Box::new(Linear::new(2, 2, false).unwrap()),
        Box::new(everything()),
    ];
    assert!(boxed.parameters().contains_key("1.list.0.weight"));
    let names: Vec<String> = boxed
        .named_modules()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names[..5], ["", "0", "1", "1.boxed", "1.list.0"]);
    assert_eq!(boxed[0].type_name(), std::any::type_name::<Linear>());
    let mut linear = boxed.into_iter().next().unwrap();
    linear.apply(|array| array.multiply(0.0)).unwrap();
    assert_eq!(
        linear.parameters()["weight"].to_vec::<f32>().unwrap(),
        [0.0; 4]
    );
}
