//! The modules inside a module: a walk that changes them, questions for their types, their replacement.

use mlx_core::{Array, Error, ErrorKind, Result, array};
use mlx_nn::{
    Activation, BatchNorm, Conv2d, Dropout, Gru, Layer, LayerNorm, Linear, MaxPool2d, Module,
    MultiHeadAttention, Param, RmsNorm, Sequential, TransformerEncoder, module,
};

#[derive(Module)]
struct Inner {
    linear: Linear,
    scale: Param,
}

#[derive(Module)]
struct Only(Linear);

#[derive(Module)]
enum Choice {
    One(RmsNorm),
    Nothing,
}

#[derive(Module)]
struct Net<'a, M> {
    first: Linear,
    list: Vec<M>,
    boxed: Box<dyn Module>,
    missing: Option<Linear>,
    only: Only,
    choices: (Choice, Choice),
    #[module(flat)]
    beside: Inner,
    text: &'a str,
}

fn linear() -> Linear {
    Linear::new(2, 2, false).unwrap()
}

fn inner() -> Inner {
    let scale = Param::new(Array::scalar(1.0f32).unwrap());
    Inner {
        linear: linear(),
        scale,
    }
}

fn net() -> Net<'static, Inner> {
    Net {
        first: linear(),
        list: vec![inner(), inner()],
        boxed: Box::new(RmsNorm::new(2).unwrap()),
        missing: None,
        only: Only(linear()),
        choices: (Choice::One(RmsNorm::new(2).unwrap()), Choice::Nothing),
        beside: inner(),
        text: "",
    }
}

/// The names of the modules that a walk meets, in its order.
fn met(module: &mut impl Module) -> Vec<String> {
    let mut names = Vec::new();
    let walk = module.apply_to_modules(|name, _| {
        names.push(name.to_owned());
        Ok(())
    });
    walk.unwrap();
    names
}

#[test]
fn a_walk_meets_each_module_before_what_it_holds() {
    let mut net = net();
    let names = met(&mut net);
    let expected = [
        "",
        "first",
        "list.0",
        "list.0.linear",
        "list.1",
        "list.1.linear",
        "boxed",
        "only",
        "only",
        "choices.0",
        "choices.0",
        "choices.1",
        "",
        "linear",
    ];
    assert_eq!(names, expected);
    assert_eq!(net.text, "");
}

#[test]
fn a_walk_meets_what_the_list_of_modules_has() -> Result<()> {
    fn check(mut module: impl Module) {
        let listed = module.named_modules();
        let listed: Vec<String> = listed.into_iter().map(|(name, _)| name).collect();
        assert_eq!(met(&mut module), listed, "{}", module.type_name());
    }
    check(Linear::new(2, 3, true)?);
    check(LayerNorm::new(2)?);
    check(MultiHeadAttention::new(8, 2)?);
    check(TransformerEncoder::new(2, 8, 2)?);
    check(Gru::new(4, 8)?);
    check(
        Sequential::new()
            .add(Conv2d::new(1, 8, 3)?)
            .add(BatchNorm::new(8)?)
            .add(Activation::Relu)
            .add(MaxPool2d::new(2))
            .add(Dropout::new(0.5)?)
            .add_fn(|x| x.flatten()),
    );
    Ok(())
}

#[test]
fn types_are_found_behind_boxes_and_in_chains() -> Result<()> {
    let mut net = Sequential::new()
        .add(Linear::new(2, 2, false)?)
        .add(Box::new(Dropout::new(0.5)?))
        .add(MaxPool2d::new(2))
        .add(Linear::new(2, 2, false)?);
    let modules = net.named_modules();
    assert!(modules[0].1.is::<Sequential>());
    let linear: Vec<&str> = modules
        .iter()
        .filter(|(_, module)| module.is::<Linear>())
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(linear, ["layers.0", "layers.3"]);
    assert!(modules[2].1.is::<Dropout>() && modules[3].1.is::<MaxPool2d>());
    assert!(modules[2].1.downcast_ref::<Linear>().is_none());

    // What the walk changes is changed in the module.
    net.apply_to_modules(|name, module| match module.downcast_mut::<Linear>() {
        Some(linear) if name == "layers.3" => linear.apply(|weight| weight.multiply(0.0)),
        _ => Ok(()),
    })?;
    let output = net.layer_forward(&array![[1.0, 2.0]]);
    assert_eq!(output?.to_vec::<f32>()?, [0.0, 0.0]);

    // A type with lifetimes or types as parameters has no answer.
    struct Stack<L: Module> {
        layers: Vec<L>,
    }
    module!(Stack<L: Module> { layers });
    let stack = Stack {
        layers: vec![inner()],
    };
    let stack: &dyn Module = &stack;
    assert!(!stack.is::<Stack<Inner>>());
    assert!(stack.children()[0].1.is::<Inner>());
    Ok(())
}

/// The first and last layer of the chain, without the pooling between them.
trait LayerForward {
    fn layer_forward(&self, x: &Array) -> Result<Array>;
}

impl LayerForward for Sequential {
    fn layer_forward(&self, x: &Array) -> Result<Array> {
        let modules = self.named_modules();
        let layers = [modules[1].1, modules[4].1];
        layers.into_iter().try_fold(x.clone(), |x, layer| {
            Layer::forward(layer.downcast_ref::<Linear>().unwrap(), &x)
        })
    }
}

#[test]
fn a_replaced_norm_computes_with_its_new_weight() -> Result<()> {
    // The norm's scale is an array that it derives from its weight, and so is what the norm of a parent derives.
    let mut net = net();
    let x = array![[3.0, 4.0]];
    let mut other = RmsNorm::new(2)?;
    other.apply(|weight| weight.multiply(2.0))?;
    let expected = other.forward(&x)?.to_vec::<f32>()?;
    net.update_modules([("boxed", other)])?;
    let norm = net.boxed.downcast_ref::<RmsNorm>().unwrap();
    assert_eq!(norm.forward(&x)?.to_vec::<f32>()?, expected);
    net.apply_to_modules(|name, module| match name {
        "boxed" => module.update(&[("weight".to_owned(), array![0.0, 0.0])].into()),
        _ => Ok(()),
    })?;
    let norm = net.boxed.downcast_ref::<RmsNorm>().unwrap();
    assert_eq!(norm.forward(&x)?.to_vec::<f32>()?, [0.0, 0.0]);
    Ok(())
}

#[test]
fn modules_are_replaced_by_name_and_type() -> Result<()> {
    let mut net = net();
    // `only` is an `Only` and the `Linear` in it.
    net.update_modules([
        ("first", Linear::new(2, 5, true)?),
        ("only", Linear::new(3, 4, false)?),
        ("list.1.linear", Linear::new(6, 7, false)?),
    ])?;
    let shape = |net: &Net<'_, Inner>, name: &str| net.parameters()[name].shape().to_vec();
    assert_eq!(shape(&net, "first.weight"), [5, 2]);
    assert_eq!(shape(&net, "first.bias"), [5]);
    assert_eq!(shape(&net, "only.weight"), [4, 3]);
    assert_eq!(shape(&net, "list.0.linear.weight"), [2, 2]);
    assert_eq!(shape(&net, "list.1.linear.weight"), [7, 6]);

    let wrong = |result: Result<()>, message: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.to_string(), message);
    };
    let change = || Linear::new(2, 9, false).unwrap();
    wrong(
        net.update_modules([("first", change()), ("second", change())]),
        "the module has no module \"second\"",
    );
    wrong(
        net.update_modules([("first", change()), ("boxed", change())]),
        "\"boxed\" is mlx_nn::norm::RmsNorm, the new module mlx_nn::linear::Linear: a module is replaced by one of its type",
    );
    wrong(
        net.update_modules([("first", change()), ("first", change())]),
        "two modules are given for \"first\"",
    );
    assert_eq!(shape(&net, "first.weight"), [5, 2]);

    let error = net.apply_to_modules(|name, _| match name {
        "list.1" => Err(Error::new(ErrorKind::Invalid, "no")),
        _ => Ok(()),
    });
    assert_eq!(error.unwrap_err().to_string(), "list.1: no");
    Ok(())
}

#[test]
fn parameters_are_filtered_and_mapped() -> Result<()> {
    let mut norm = BatchNorm::new(3)?;
    norm.freeze("bias")?;
    let sizes = |norm: &BatchNorm, filter: fn(&str, &Param) -> bool| -> Result<Vec<String>> {
        let sizes = norm.filter_and_map(filter, |_, array| Ok(array.size()))?;
        assert!(sizes.values().all(|size| *size == 3));
        Ok(sizes.into_keys().collect())
    };
    assert_eq!(sizes(&norm, |_, param| param.trainable)?, ["weight"]);
    assert_eq!(
        sizes(&norm, |_, param| !param.is_state())?,
        ["bias", "weight"]
    );
    assert_eq!(
        sizes(&norm, |_, param| param.is_state())?,
        ["running_mean", "running_var"]
    );
    assert_eq!(
        sizes(&norm, |name, _| name.ends_with("var"))?,
        ["running_var"]
    );
    Ok(())
}
