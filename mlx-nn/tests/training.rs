//! Training mode, and states that a forward pass changes.

use mlx_core::ops::create::{ones, zeros};
use mlx_core::{Array, DType, Result, random};
use mlx_nn::{
    Activation, AdamW, BatchNorm, Conv2d, Dropout, Linear, Mode, Module, Param, Path, VisitMut,
    loss, update_state, value_and_grad, with_state,
};

/// Divides by a running mean of absolute values, and drops inputs in training.
#[derive(Module)]
struct Scale {
    weight: Param,
    #[module(state)]
    mean: Array,
    mode: Mode,
}

impl Scale {
    fn new() -> Result<Self> {
        Ok(Self {
            weight: Param::new(Array::scalar(1.0f32)?),
            mean: Array::scalar(1.0f32)?,
            mode: Mode::default(),
        })
    }

    fn forward(&self, x: &Array) -> Result<Array> {
        if !self.mode.is_training() {
            return x.divide(&self.mean)?.multiply(self.weight.get()?);
        }
        let mean = x.abs()?.mean(.., false)?;
        update_state(&self.mean, |old| {
            old.multiply(0.5)?.add(mean.multiply(0.5)?)
        })?;
        let kept = random::bernoulli(None, 0.5, x.shape())?;
        kept.select(x.divide(mean.add(1.0)?)?, 0.0)?
            .multiply(self.weight.get()?)
    }
}

#[derive(Module)]
struct Net {
    layers: Vec<Scale>,
    head: Linear,
}

impl Net {
    fn new() -> Result<Self> {
        Ok(Self {
            layers: vec![Scale::new()?, Scale::new()?],
            head: Linear::new(4, 1, true)?,
        })
    }

    fn forward(&self, x: &Array) -> Result<Array> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        self.head.forward(&x)
    }
}

fn mean(layer: &Scale) -> f32 {
    layer.mean.item().unwrap()
}

#[test]
fn a_state_is_an_output_of_the_differentiated_function() -> Result<()> {
    random::seed(3);
    let mut net = Net::new()?;
    let x = Array::from_slice(&[1.0f32, -2.0, 3.0, -4.0], &[1, 4])?;
    let (loss, grads) = value_and_grad(&mut net, |net| net.forward(&x)?.square()?.sum(.., false))?;
    assert!(loss.item::<f32>()?.is_finite());
    assert!(grads.keys().eq([
        "head.bias",
        "head.weight",
        "layers.0.weight",
        "layers.1.weight"
    ]));
    assert_eq!(mean(&net.layers[0]), 0.5 + 0.5 * 2.5);
    let second = mean(&net.layers[1]);
    value_and_grad(&mut net, |net| net.forward(&x)?.square()?.sum(.., false))?;
    assert_eq!(mean(&net.layers[0]), 0.5 * 1.75 + 0.5 * 2.5);
    assert_ne!(mean(&net.layers[1]), second);

    net.train(false)?;
    assert!(!net.is_training());
    let y = net.layers[0].forward(&x)?.to_vec::<f32>()?;
    assert_eq!(y, [1.0 / 2.125, -2.0 / 2.125, 3.0 / 2.125, -4.0 / 2.125]);
    let before = mean(&net.layers[0]);
    value_and_grad(&mut net, |net| net.forward(&x)?.sum(.., false))?;
    assert_eq!(mean(&net.layers[0]), before);
    net.train(true)?;
    assert!(net.is_training());
    Ok(())
}

#[test]
fn dropout_draws_anew_each_step_and_repeats_with_the_seed() -> Result<()> {
    let x = ones(&[1, 4], DType::F32)?;
    let run = |seed| -> Result<Vec<f32>> {
        random::seed(seed);
        let mut net = Net::new()?;
        let losses = (0..16).map(|_| {
            let (loss, _) = value_and_grad(&mut net, |net| net.forward(&x)?.sum(.., false))?;
            loss.item()
        });
        losses.collect()
    };
    let losses = run(5)?;
    assert!(losses.iter().any(|loss| *loss != losses[0]));
    assert_eq!(run(5)?, losses);
    Ok(())
}

#[test]
fn a_layer_that_runs_twice_changes_its_state_twice() -> Result<()> {
    let mut layer = Scale::new()?;
    let x = ones(&[2], DType::F32)?.multiply(3.0)?;
    with_state(&mut layer, |layer| {
        layer.forward(&x)?;
        layer.forward(&x)
    })?;
    assert_eq!(mean(&layer), 0.25 + 0.25 * 3.0 + 0.5 * 3.0);
    Ok(())
}

#[test]
fn a_state_without_a_pass_that_keeps_it_is_an_error() -> Result<()> {
    let mut layer = Scale::new()?;
    let x = ones(&[2], DType::F32)?;
    let error = layer.forward(&x).unwrap_err().to_string();
    assert!(
        error.contains("value_and_grad") && error.contains("train(false)"),
        "{error}"
    );

    // A layer outside of the module.
    let other = Scale::new()?;
    let error = with_state(&mut layer, |layer| {
        layer.forward(&x)?;
        other.forward(&x)
    });
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("2 states changed in the pass, and 1 of them are the module's"),
        "{error}"
    );
    assert_eq!(mean(&layer), 1.0);
    let error = value_and_grad(&mut layer, |layer| {
        other.forward(&layer.forward(&x)?)?.sum(.., false)
    });
    assert!(error.is_err());
    assert_eq!(mean(&layer), 1.0);
    assert_eq!(layer.weight.value().item::<f32>()?, 1.0);

    // A failed pass removes its scope.
    let failed: Result<()> = with_state(&mut layer, |layer| {
        layer.forward(&x)?;
        Err(mlx_core::Error::new(
            mlx_core::ErrorKind::Invalid,
            "stopped",
        ))
    });
    assert_eq!(failed.unwrap_err().to_string(), "stopped");
    assert_eq!(mean(&layer), 1.0);
    assert!(layer.forward(&x).is_err());

    let error = with_state(&mut layer, |layer| {
        update_state(&layer.mean, |_| zeros(&[3], DType::F32))
    });
    assert_eq!(
        error.unwrap_err().to_string(),
        "a state of shape [] cannot become one of shape [3]"
    );
    Ok(())
}

#[test]
fn the_old_values_come_back_after_an_error_and_modes_are_visited() -> Result<()> {
    let mut net = Net::new()?;
    let weight = net.head.parameters()["weight"].to_vec::<f32>()?;
    let failed = value_and_grad(&mut net, |_| -> Result<Array> {
        Err(mlx_core::Error::new(
            mlx_core::ErrorKind::Invalid,
            "stopped",
        ))
    });
    assert!(failed.is_err());
    assert_eq!(net.head.parameters()["weight"].to_vec::<f32>()?, weight);

    struct Modes(usize);
    impl VisitMut for Modes {
        fn mode(&mut self, path: &Path, mode: &mut Mode) -> Result<()> {
            assert_eq!(path.as_str(), format!("layers.{}.mode", self.0));
            assert!(mode.is_training());
            self.0 += 1;
            Ok(())
        }
    }
    let mut modes = Modes(0);
    net.visit_mut(&mut Path::default(), &mut modes)?;
    assert_eq!(modes.0, 2);
    net.freeze("*")?;
    let none = value_and_grad(&mut net, |net| net.forward(&ones(&[1, 4], DType::F32)?));
    let error = none.unwrap_err().to_string();
    assert_eq!(
        error,
        "no parameter is trainable, so that there is no gradient to take"
    );
    Ok(())
}

/// A convolutional net with batch norm and dropout: the program handles no statistics and no random
/// keys.
#[test]
fn a_net_with_statistics_and_dropout_learns() -> Result<()> {
    #[derive(Module)]
    struct Images {
        conv: Conv2d,
        norm: BatchNorm,
        dropout: Dropout,
        head: Linear,
    }
    impl Images {
        fn forward(&self, x: &Array) -> Result<Array> {
            let x = self.norm.forward(&self.conv.forward(x)?)?;
            let x = Activation::Relu.forward(&x)?.reshape(&[x.dim(0)?, -1])?;
            self.head.forward(&self.dropout.forward(&x)?)
        }
    }
    random::seed(1);
    let mut model = Images {
        conv: Conv2d::new(1, 4, 3)?,
        norm: BatchNorm::new(4)?,
        dropout: Dropout::new(0.25)?,
        head: Linear::new(4 * 4 * 4, 2, true)?,
    };
    // The upper or the lower half is bright.
    let noise = random::uniform(None, 0.0, 1.0, &[16, 6, 6, 1], DType::F32)?;
    let labels: Vec<i32> = (0..16).map(|i| i % 2).collect();
    let labels = Array::from_slice(&labels, &[16])?;
    let rows = Array::from_slice(&[1.0f32, 1.0, 1.0, -1.0, -1.0, -1.0], &[1, 6, 1, 1])?;
    let signs = labels.astype(DType::F32)?.multiply(2.0)?.subtract(1.0)?;
    let x = noise
        .add(rows.multiply(&signs.reshape(&[16, 1, 1, 1])?)?)?
        .add(3.0)?;

    let before = model.parameters();
    let mut optimizer = AdamW::new(0.01);
    let mut last = f32::INFINITY;
    for _ in 0..60 {
        let (loss, grads) = value_and_grad(&mut model, |model| {
            loss::cross_entropy(&model.forward(&x)?, &labels)?.mean(.., false)
        })?;
        optimizer.update(&mut model, &grads)?;
        last = loss.item()?;
    }
    assert!(last < 0.1, "{last}");
    let after = model.parameters();
    assert_eq!(before["norm.running_mean"].to_vec::<f32>()?, [0.0; 4]);
    assert_ne!(after["norm.running_mean"].to_vec::<f32>()?, [0.0; 4]);
    model.train(false)?;
    let found = model.forward(&x)?.argmax(-1, false)?.astype(DType::I32)?;
    assert_eq!(found.to_vec::<i32>()?, labels.to_vec::<i32>()?);
    let again = model.forward(&x)?.to_vec::<f32>()?;
    assert_eq!(again, model.forward(&x)?.to_vec::<f32>()?);
    Ok(())
}
