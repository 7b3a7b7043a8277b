//! Layers, losses and activations with shapes, dtypes and numbers that they cannot take return an
//! error that names the fault, and never panic.

use mlx_core::ops::create::zeros;
use mlx_core::{Array, DType, QuantMode, Result, Scheme};
use mlx_nn::training::with_state;
use mlx_nn::*;

fn layers() -> Result<Vec<(&'static str, Box<dyn Layer>)>> {
    let linear = |mode| Upsample::new(1.5).mode(mode);
    Ok(vec![
        ("conv1d", Box::new(Conv1d::new(3, 4, 3)?)),
        ("conv2d", Box::new(Conv2d::new(3, 4, 3)?.padding(1))),
        (
            "conv2d, stride 0",
            Box::new(Conv2d::new(3, 4, 3)?.stride(0)),
        ),
        (
            "conv2d, dilation -1",
            Box::new(Conv2d::new(3, 4, 3)?.dilation(-1)),
        ),
        (
            "conv2d, padding -5",
            Box::new(Conv2d::new(3, 4, 3)?.padding(-5)),
        ),
        ("conv3d", Box::new(Conv3d::new(3, 4, 2)?)),
        (
            "conv_transpose1d",
            Box::new(ConvTranspose1d::new(3, 4, 3)?.stride(2)),
        ),
        (
            "conv_transpose2d",
            Box::new(ConvTranspose2d::new(3, 4, 3)?.stride(0)),
        ),
        (
            "conv_transpose3d",
            Box::new(ConvTranspose3d::new(3, 4, 3)?.padding(3)),
        ),
        ("max_pool1d", Box::new(MaxPool1d::new(2).padding(1))),
        ("max_pool2d", Box::new(MaxPool2d::new(3).stride(1))),
        ("max_pool2d, window 0", Box::new(MaxPool2d::new(0))),
        (
            "max_pool2d, padding -1",
            Box::new(MaxPool2d::new(2).padding(-1)),
        ),
        ("avg_pool3d", Box::new(AvgPool3d::new(2))),
        ("batch_norm", Box::new(BatchNorm::new(3)?)),
        ("batch_norm, eps 0", Box::new(BatchNorm::new(3)?.eps(0.0))),
        ("group_norm", Box::new(GroupNorm::new(3, 3)?)),
        (
            "group_norm, neighbours",
            Box::new(GroupNorm::new(1, 3)?.pytorch_compatible(true)),
        ),
        ("instance_norm", Box::new(InstanceNorm::new(3)?)),
        ("layer_norm", Box::new(LayerNorm::new(3)?)),
        ("dropout", Box::new(Dropout::new(0.5)?)),
        ("dropout2d", Box::new(Dropout2d::new(0.5)?)),
        ("dropout3d", Box::new(Dropout3d::new(0.5)?)),
        ("rnn", Box::new(Rnn::new(3, 4)?)),
        ("gru", Box::new(Gru::new(3, 4)?)),
        ("linear", Box::new(Linear::new(3, 2, true)?)),
        ("embedding", Box::new(Embedding::new(5, 2)?)),
        ("positions", Box::new(SinusoidalPositionalEncoding::new(4)?)),
        ("nearest", Box::new(linear(Interpolation::Nearest))),
        ("linear", Box::new(linear(Interpolation::Linear))),
        (
            "cubic",
            Box::new(linear(Interpolation::Cubic).align_corners(true)),
        ),
        (
            "antialias",
            Box::new(
                Upsample::new(0.3)
                    .mode(Interpolation::Cubic)
                    .antialias(true),
            ),
        ),
        ("factor NaN", Box::new(Upsample::new(f64::NAN))),
        ("factor 1e300", Box::new(Upsample::new(1e300))),
        ("prelu", Box::new(PRelu::with(3, 0.1)?)),
        (
            "quantised",
            Box::new(QqLinear::new(32, 4, Scheme::new(16, 4, QuantMode::Nvfp4)?)?),
        ),
        ("glu", Box::new(Glu)),
        ("softmax", Box::new(Softmax)),
        ("log_softmax", Box::new(LogSoftmax)),
        ("elu", Box::new(Elu(1.0))),
        ("step", Box::new(Activation::Step(0.0))),
    ])
}

/// The layer's result, evaluated.
fn run(layer: &mut Box<dyn Layer>, x: &Array) -> Result<Array> {
    let y = with_state(layer, |layer| layer.forward(x))?;
    mlx_core::eval([&y])?;
    Ok(y)
}

const SHAPES: [&[i32]; 20] = [
    &[],
    &[0],
    &[1],
    &[3],
    &[2, 3],
    &[0, 3],
    &[3, 0],
    &[1, 1],
    &[2, 4, 3],
    &[2, 0, 3],
    &[0, 4, 3],
    &[2, 4, 0],
    &[2, 4, 5],
    &[1, 4, 4, 3],
    &[0, 4, 4, 3],
    &[1, 0, 4, 3],
    &[1, 1, 1, 1],
    &[1, 4, 4, 4, 3],
    &[1, 4, 0, 4, 3],
    &[1, 1, 1, 1, 1, 3],
];

#[test]
fn no_shape_or_dtype_panics() {
    let mut errors = 0;
    for (name, mut layer) in layers().unwrap() {
        for shape in SHAPES {
            for dtype in [DType::F32, DType::BF16, DType::I32, DType::Bool, DType::C64] {
                let x = zeros(shape, dtype).unwrap();
                if let Err(error) = run(&mut layer, &x) {
                    assert!(!error.to_string().is_empty(), "{name}");
                    errors += 1;
                }
            }
        }
    }
    assert!(errors > 1000, "{errors}");
}

#[test]
fn errors_name_the_layer_and_the_shape() {
    let image = zeros(&[1, 4, 4, 3], DType::F32).unwrap();
    let line = zeros(&[4, 3], DType::F32).unwrap();
    let cases: [(Result<Array>, &str); 12] = [
        (
            MaxPool2d::new(5).forward(&image),
            "max pooling: a window of 5 does not fit into 4 of [1, 4, 4, 3]",
        ),
        (
            MaxPool1d::new(2).forward(&image),
            "max pooling: expected an input of 3 dimensions, found [1, 4, 4, 3]",
        ),
        (
            MaxPool2d::new(2)
                .padding(1)
                .forward(&image.astype(DType::I32).unwrap()),
            "max pooling with padding needs floating-point numbers, found I32",
        ),
        (
            AvgPool2d::new((2, 0)).forward(&image),
            "average pooling: sizes of windows must be at least 1, given 0",
        ),
        (
            BatchNorm::new(4).unwrap().forward(&image),
            "batch norm: expected an input [B, 4], [B, L, 4] or [B, H, W, 4], found [1, 4, 4, 3]",
        ),
        (
            BatchNorm::new(3)
                .unwrap()
                .forward(&zeros(&[1, 3], DType::F32).unwrap()),
            "batch norm: training needs more than one number for a channel, found [1, 3]",
        ),
        (
            GroupNorm::new(2, 4).unwrap().forward(&image),
            "group norm: expected an input [B, .., 4], found [1, 4, 4, 3]",
        ),
        (
            InstanceNorm::new(3).unwrap().forward(&line),
            "instance norm: expected an input [B, .., 3] of at least 3 dimensions, found [4, 3]",
        ),
        (
            Rnn::new(5, 2).unwrap().forward(&line),
            "rnn: expected an input [.., L, 5] with L above 0, found [4, 3]",
        ),
        (
            Dropout2d::new(0.5).unwrap().forward(&line),
            "dropout: expected an input of 3 or 4 dimensions, found [4, 3]",
        ),
        (
            Upsample::new((2.0, 2.0)).forward(&zeros(&[1, 4, 3], DType::F32).unwrap()),
            "upsample: expected an input with 2 spatial dimensions, one for each factor, found [1, 4, 3]",
        ),
        (
            Upsample::new(0.1).forward(&image),
            "upsample: 4 elements times 0.1 are 0, which no array has",
        ),
    ];
    for (result, message) in cases {
        assert_eq!(result.unwrap_err().to_string(), message);
    }
}

#[test]
fn constructors_refuse_numbers_by_name() {
    fn refused<T>(result: Result<T>, message: &str) {
        let error = result.err().expect("an error").to_string();
        assert_eq!(error, message);
    }
    refused(
        Conv2d::new(0, 1, 3),
        "convolution: channels must be at least 1, given 0",
    );
    refused(
        Conv2d::new(1, 1, (3, -1)),
        "convolution: sizes of the kernel must be at least 1, given -1",
    );
    refused(
        Conv1d::grouped(3, 4, 1, 2),
        "convolution: 2 groups do not divide 3 inputs and 4 outputs",
    );
    refused(
        Conv1d::grouped(3, 4, 1, 0),
        "convolution: groups must be at least 1, given 0",
    );
    refused(
        GroupNorm::new(3, 4),
        "group norm: 3 groups do not divide 4 channels",
    );
    refused(Dropout::new(1.0), "dropout: p must be in [0, 1), given 1");
    refused(
        Dropout::new(f64::NAN),
        "dropout: p must be in [0, 1), given NaN",
    );
    refused(
        Lstm::new(4, 0),
        "lstm: features must be at least 1, given 0",
    );
    refused(
        Lstm::new(4, i32::MAX),
        "lstm: 4 times 2147483647 features are more than an array has",
    );
    refused(
        MultiHeadAttention::new(6, 4),
        "attention: 4 heads do not divide 6 features of queries and 6 of values",
    );
    refused(
        MultiHeadAttention::new(6, 0),
        "attention: heads must be at least 1, given 0",
    );
    refused(
        SinusoidalPositionalEncoding::new(3),
        "positional encoding: dims must be positive and even, given 3",
    );
    refused(
        QqLinear::new(30, 4, Scheme::new(16, 4, QuantMode::Nvfp4).unwrap()),
        "quantised linear: 30 inputs cannot be quantised with nvfp4, 4 bits in groups of 16: the mode must be nvfp4, mxfp8 or mxfp4, \
         and its group divide the inputs",
    );
    for number in [i32::MIN, -1, 0] {
        assert!(Bilinear::new(number, 2, 2).is_err());
        assert!(Rnn::new(2, number).is_err());
        assert!(Gru::new(number, 2).is_err());
        assert!(BatchNorm::new(number).is_err());
        assert!(InstanceNorm::new(number).is_err());
        assert!(ConvTranspose3d::new(2, 2, number).is_err());
        assert!(PRelu::with(number, 0.1).is_err());
        assert!(TransformerEncoder::new(1, number, 1).is_err());
        assert!(TransformerDecoder::new(1, 8, number).is_err());
    }
}

#[test]
fn losses_refuse_shapes_by_name() {
    let (a, b) = (
        zeros(&[2, 3], DType::F32).unwrap(),
        zeros(&[3], DType::F32).unwrap(),
    );
    let ids = zeros(&[2], DType::I32).unwrap();
    let classes = |axis| loss::CrossEntropy {
        axis,
        ..Default::default()
    };
    let cases: [(Result<Array>, &str); 7] = [
        (
            loss::mse(&a, &b),
            "mse: prediction [2, 3] and target [3] must have one shape",
        ),
        (
            loss::l1(&a, &b),
            "l1: prediction [2, 3] and target [3] must have one shape",
        ),
        (
            loss::margin_ranking(&a, &a, &b),
            "margin_ranking: inputs1 [2, 3] and inputs2 [2, 3] and targets [3] must have one shape",
        ),
        (
            loss::nll(&a, &b.astype(DType::I32).unwrap()),
            "nll: targets [3] do not fit inputs [2, 3]: expected [2]",
        ),
        (
            loss::cross_entropy_with(&a, &ids, &classes(0)),
            "cross entropy: targets [2] do not fit logits [2, 3]: expected [3]",
        ),
        (
            loss::cross_entropy_with(
                &a,
                &ids,
                &loss::CrossEntropy {
                    class_weights: Some(ids.clone()),
                    ..Default::default()
                },
            ),
            "cross entropy: class weights must be [3] and targets classes, found [2] and targets [2]",
        ),
        (
            loss::cross_entropy_with(
                &a,
                &ids,
                &loss::CrossEntropy {
                    label_smoothing: 1.0,
                    ..Default::default()
                },
            ),
            "cross entropy: label_smoothing must be in [0, 1), given 1",
        ),
    ];
    for (result, message) in cases {
        assert_eq!(result.unwrap_err().to_string(), message);
    }
    assert!(loss::cross_entropy_with(&a, &ids, &classes(2)).is_err());
    assert!(loss::cosine_similarity(&b, &b).is_err());
    assert!(loss::triplet(&a, &a, &zeros(&[4], DType::F32).unwrap()).is_err());
}

/// A chain visits its layers under their indices, and refuses what a layer refuses.
#[test]
fn a_chain_has_the_parameters_of_its_layers() {
    let mut chain = Sequential::new()
        .add(Linear::new(3, 4, true).unwrap())
        .add(Tanh)
        .add(BatchNorm::new(4).unwrap());
    assert_eq!(chain.len(), 3);
    let names: Vec<String> = chain.parameters().into_keys().collect();
    let expected = [
        "0.bias",
        "0.weight",
        "2.bias",
        "2.running_mean",
        "2.running_var",
        "2.weight",
    ];
    assert_eq!(names, expected.map(|name| format!("layers.{name}")));
    assert!(chain.is_training());
    chain.train(false).unwrap();
    assert!(!chain.is_training());
    let x = zeros(&[2, 5], DType::F32).unwrap();
    assert!(chain.forward(&x).is_err());
    let x = zeros(&[2, 3], DType::F32).unwrap();
    assert_eq!(chain.forward(&x).unwrap().shape(), [2, 4]);
}
