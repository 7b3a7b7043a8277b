//! The layer of each case.

use mlx_core::{Array, Result};
use mlx_nn::{
    Activation, AvgPool1d, AvgPool2d, AvgPool3d, BatchNorm, Bilinear, Conv1d, Conv2d, Conv3d,
    ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Dropout, Dropout2d, Dropout3d, Embedding,
    GroupNorm, Gru, Identity, InstanceNorm, Interpolation, Layer, LayerNorm, Linear, Lstm,
    MaxPool1d, MaxPool2d, MaxPool3d, Module, MultiHeadAttention, MultiHeadConfig, PRelu, RmsNorm,
    Rnn, Sequential, SinusoidalPositionalEncoding, Transformer, TransformerConfig,
    TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer,
    Upsample,
};

use super::Case;

/// Compares a layer from one array to one array.
fn one<L: Layer>(case: &mut Case<'_>, layer: L) {
    case.layer(layer, |layer, x| Ok(vec![layer.forward(&x[0])?]));
}

fn evaluated<M: Module>(mut layer: M) -> Result<M> {
    layer.train(false)?;
    Ok(layer)
}

fn small() -> TransformerConfig {
    TransformerConfig {
        mlp_dims: 6,
        ..TransformerConfig::new(8, 2)
    }
}

/// A transformer whose norms come after the sums.
fn last() -> TransformerConfig {
    TransformerConfig {
        norm_first: false,
        ..small()
    }
}

/// Makes the layer of a case, and compares it.
pub fn run(name: &str, case: &mut Case<'_>) -> Result<()> {
    match name.split('_').next().unwrap_or_default() {
        "conv1d" | "conv2d" | "conv3d" | "conv" | "max" | "avg" | "upsample" => {
            images(name, case)?;
        }
        "rnn" | "gru" | "lstm" => recurrent(name, case)?,
        "attention" | "encoder" | "decoder" | "transformer" => transformers(name, case)?,
        _ => others(name, case)?,
    }
    Ok(())
}

fn images(name: &str, case: &mut Case<'_>) -> Result<()> {
    match name {
        "conv1d" => one(case, Conv1d::new(3, 4, 3)?.stride(2).padding(1).dilation(2)),
        "conv1d_groups" => one(case, Conv1d::grouped(4, 6, 2, 2)?.without_bias()),
        "conv2d" => one(case, Conv2d::new(3, 4, 3)?),
        "conv2d_all" => {
            let conv = Conv2d::grouped(4, 6, (2, 3), 2)?;
            one(case, conv.stride((2, 1)).padding((1, 2)).dilation((1, 2)));
        }
        "conv3d" => one(
            case,
            Conv3d::new(2, 3, (2, 1, 2))?.stride(2).padding((0, 1, 1)),
        ),
        "conv_transpose1d" => {
            let conv = ConvTranspose1d::new(3, 4, 3)?
                .stride(2)
                .padding(1)
                .dilation(2);
            one(case, conv.output_padding(1));
        }
        "conv_transpose2d" => {
            let conv = ConvTranspose2d::new(3, 2, (2, 3))?;
            one(case, conv.stride((2, 1)).padding((0, 1)));
        }
        "conv_transpose3d" => one(
            case,
            ConvTranspose3d::new(2, 2, 2)?.stride(2).without_bias(),
        ),
        "max_pool1d" => one(case, MaxPool1d::new(3).stride(2).padding(1)),
        "max_pool2d" => one(case, MaxPool2d::new(2)),
        "max_pool2d_uneven" => one(case, MaxPool2d::new((2, 3)).stride((2, 1)).padding((1, 0))),
        "max_pool3d" => one(case, MaxPool3d::new(2).stride(1)),
        "avg_pool1d" => one(case, AvgPool1d::new(3)),
        "avg_pool2d" => one(case, AvgPool2d::new(3).stride(2).padding(1)),
        "avg_pool3d" => one(case, AvgPool3d::new((1, 2, 2))),
        _ => upsample(name, case),
    }
    Ok(())
}

fn upsample(name: &str, case: &mut Case<'_>) {
    let parts: Vec<&str> = name.split('_').skip(1).collect();
    let mode = parts
        .iter()
        .position(|part| part.parse::<f64>().is_err())
        .unwrap();
    let factors: Vec<f64> = parts[..mode]
        .iter()
        .map(|part| part.parse().unwrap())
        .collect();
    let layer = match factors[..] {
        [factor] => Upsample::new(factor),
        [a, b] => Upsample::new((a, b)),
        _ => panic!("no layer for the case {name}"),
    };
    let layer = match parts[mode] {
        "nearest" => layer,
        "linear" => layer.mode(Interpolation::Linear),
        "cubic" => layer.mode(Interpolation::Cubic),
        other => panic!("no mode {other}"),
    };
    match parts.get(mode + 1) {
        None => one(case, layer),
        Some(&"aligned") => one(case, layer.align_corners(true)),
        Some(&"smooth") => one(case, layer.antialias(true)),
        Some(other) => panic!("no option {other}"),
    }
}

fn recurrent(name: &str, case: &mut Case<'_>) -> Result<()> {
    match name {
        "rnn" => one(case, Rnn::new(3, 4)?),
        "rnn_from" => {
            let rnn = Rnn::new(3, 4)?.without_bias().activation(Activation::Relu);
            case.layer(rnn, |rnn, x| Ok(vec![rnn.forward_from(&x[0], &x[1])?]));
        }
        "gru" => one(case, Gru::new(3, 4)?),
        "gru_from" => {
            let gru = Gru::new(3, 4)?.without_bias();
            case.layer(gru, |gru, x| Ok(vec![gru.forward_from(&x[0], &x[1])?]));
        }
        "lstm" => case.layer(Lstm::new(3, 4)?, |lstm, x| {
            let (hidden, cells) = lstm.forward(&x[0])?;
            Ok(vec![hidden, cells])
        }),
        "lstm_from" => case.layer(Lstm::new(3, 4)?.without_bias(), |lstm, x| {
            let (hidden, cells) = lstm.forward_from(&x[0], &x[1], &x[2])?;
            Ok(vec![hidden, cells])
        }),
        _ => panic!("no layer for the case {name}"),
    }
    Ok(())
}

fn attend(attention: &MultiHeadAttention, x: &[Array]) -> Result<Vec<Array>> {
    Ok(vec![attention.forward(&x[0], &x[1], &x[2], x.get(3))?])
}

fn transformers(name: &str, case: &mut Case<'_>) -> Result<()> {
    match name {
        "attention" => case.layer(MultiHeadAttention::new(8, 2)?, attend),
        "attention_all" => {
            let config = MultiHeadConfig {
                query_inputs: 5,
                key_inputs: 6,
                value_inputs: 7,
                value_dims: 4,
                outputs: 3,
                bias: true,
                ..MultiHeadConfig::new(8, 2)
            };
            case.layer(MultiHeadAttention::with_config(&config)?, attend);
        }
        "encoder_layer" | "encoder_layer_last" => {
            let config = match name {
                "encoder_layer" => small(),
                _ => TransformerConfig {
                    activation: Activation::Gelu,
                    ..last()
                },
            };
            let layer = TransformerEncoderLayer::with_config(&config)?;
            case.layer(layer, |layer, x| {
                Ok(vec![layer.forward(&x[0], Some(&x[1]))?])
            });
        }
        "encoder" | "encoder_dropout" => {
            let (layers, dropout) = if name == "encoder" {
                (2, 0.0)
            } else {
                (1, 0.2)
            };
            let config = TransformerConfig { dropout, ..small() };
            let encoder = TransformerEncoder::with_config(layers, &config)?;
            case.layer(encoder, |encoder, x| {
                Ok(vec![encoder.forward(&x[0], Some(&x[1]))?])
            });
        }
        "decoder_layer" | "decoder_layer_last" => {
            let config = if name == "decoder_layer" {
                small()
            } else {
                last()
            };
            let layer = TransformerDecoderLayer::with_config(&config)?;
            case.layer(layer, |layer, x| {
                Ok(vec![layer.forward(
                    &x[0],
                    &x[1],
                    Some(&x[2]),
                    Some(&x[3]),
                )?])
            });
        }
        "decoder" => {
            let decoder = TransformerDecoder::with_config(2, &small())?;
            case.layer(decoder, |decoder, x| {
                Ok(vec![decoder.forward(
                    &x[0],
                    &x[1],
                    Some(&x[2]),
                    Some(&x[3]),
                )?])
            });
        }
        "transformer" => case.layer(Transformer::new(1, 1, &small())?, |transformer, x| {
            let masks = [2, 3, 4].map(|i| Some(&x[i]));
            let y = transformer.forward(&x[0], &x[1], masks[0], masks[1], masks[2])?;
            Ok(vec![y])
        }),
        _ => panic!("no layer for the case {name}"),
    }
    Ok(())
}

fn others(name: &str, case: &mut Case<'_>) -> Result<()> {
    match name {
        "linear" => one(case, Linear::new(4, 3, true)?),
        "linear_no_bias" => one(case, Linear::new(4, 3, false)?),
        "bilinear" => case.layer(Bilinear::new(3, 4, 5)?, |layer, x| {
            Ok(vec![layer.forward(&x[0], &x[1])?])
        }),
        "bilinear_no_bias" => case.layer(Bilinear::new(3, 4, 5)?.without_bias(), |layer, x| {
            Ok(vec![layer.forward(&x[0], &x[1])?])
        }),
        "embedding" => one(case, Embedding::new(7, 4)?),
        "identity" => one(case, Identity),
        "layer_norm" => one(case, LayerNorm::new(5)?),
        "layer_norm_plain" => one(case, LayerNorm::new(5)?.eps(0.1).without_affine()),
        "layer_norm_no_bias" => one(case, LayerNorm::new(5)?.without_bias()),
        "rms_norm" => one(case, RmsNorm::new(5)?),
        "group_norm" => one(case, GroupNorm::new(2, 6)?),
        "group_norm_pytorch" => one(
            case,
            GroupNorm::new(3, 6)?.eps(0.1).pytorch_compatible(true),
        ),
        "group_norm_plain" => one(case, GroupNorm::new(2, 6)?.without_affine()),
        "instance_norm" => one(case, InstanceNorm::new(4)?),
        "instance_norm_affine" => one(case, InstanceNorm::new(4)?.eps(0.1).affine()?),
        "batch_norm" => one(case, BatchNorm::new(4)?),
        "batch_norm_image" => one(case, BatchNorm::new(3)?.eps(0.1).momentum(0.4)),
        "batch_norm_eval" => one(case, evaluated(BatchNorm::new(4)?)?),
        "batch_norm_plain" => {
            one(
                case,
                BatchNorm::new(4)?.without_affine().without_running_stats(),
            );
        }
        "dropout" => one(case, Dropout::new(0.3)?),
        "dropout2d" => one(case, Dropout2d::new(0.4)?),
        "dropout3d" => one(case, Dropout3d::new(0.4)?),
        "dropout_eval" => one(case, evaluated(Dropout::new(0.3)?)?),
        "sinusoidal" => one(case, SinusoidalPositionalEncoding::new(6)?),
        "sinusoidal_all" => {
            let encoding = SinusoidalPositionalEncoding::new(4)?.frequencies(0.01, 0.5)?;
            one(case, encoding.scale(1.0).cos_first(true).full_turns(true));
        }
        "sinusoidal_two" => one(case, SinusoidalPositionalEncoding::new(2)?),
        "prelu" => one(case, PRelu::new()?),
        "prelu_features" => one(case, PRelu::with(4, 0.1)?),
        "sequential" => {
            let conv = Conv1d::new(2, 3, 2)?;
            let chain = Sequential::new()
                .add(conv)
                .add(Activation::Relu)
                .add(MaxPool1d::new(2))
                .add_fn(|x| x.sum(1, false))
                .add(Linear::new(3, 2, true)?);
            one(case, chain);
        }
        _ => panic!("no layer for the case {name}"),
    }
    Ok(())
}

type Wrong = fn(&mut Case<'_>);

/// Layers with the parameters of a case and a wrong setting.
pub fn wrong() -> Vec<(&'static str, Wrong)> {
    vec![
        ("layer_norm", |case| {
            one(case, LayerNorm::new(5).unwrap().eps(1e-4))
        }),
        ("rms_norm", |case| {
            one(case, RmsNorm::new(5).unwrap().eps(1e-4))
        }),
        ("group_norm", |case| {
            one(case, GroupNorm::new(2, 6).unwrap().eps(1e-4))
        }),
        ("group_norm", |case| {
            one(case, GroupNorm::new(2, 6).unwrap().pytorch_compatible(true));
        }),
        ("instance_norm", |case| {
            one(case, InstanceNorm::new(4).unwrap().eps(1e-4))
        }),
        ("batch_norm", |case| {
            one(case, BatchNorm::new(4).unwrap().eps(1e-4))
        }),
        ("batch_norm", |case| {
            one(case, BatchNorm::new(4).unwrap().momentum(0.2))
        }),
        ("dropout", |case| one(case, Dropout::new(0.31).unwrap())),
        ("max_pool1d", |case| {
            one(case, AvgPool1d::new(3).stride(2).padding(1))
        }),
        ("rnn_from", |case| {
            let rnn = Rnn::new(3, 4).unwrap().without_bias();
            case.layer(rnn, |rnn, x| Ok(vec![rnn.forward_from(&x[0], &x[1])?]));
        }),
        ("lstm", |case| {
            case.layer(Lstm::new(3, 4).unwrap(), |lstm, x| {
                let (hidden, cells) = lstm.forward(&x[0])?;
                Ok(vec![cells, hidden])
            });
        }),
        ("attention_all", |case| {
            let config = MultiHeadConfig {
                query_inputs: 5,
                key_inputs: 6,
                value_inputs: 7,
                value_dims: 4,
                outputs: 3,
                bias: true,
                ..MultiHeadConfig::new(8, 2)
            };
            let attention = MultiHeadAttention::with_config(&config).unwrap();
            // Without the mask.
            case.layer(attention, |attention, x| {
                let more = x[3].multiply(0.0)?;
                let y = attention.forward(&x[0], &x[1], &x[2], Some(&more))?;
                Ok(vec![y])
            });
        }),
        ("encoder_layer", |case| {
            let layer = TransformerEncoderLayer::with_config(&last()).unwrap();
            case.layer(layer, |layer, x| {
                Ok(vec![layer.forward(&x[0], Some(&x[1]))?])
            });
        }),
        ("sinusoidal", |case| {
            one(
                case,
                SinusoidalPositionalEncoding::new(6)
                    .unwrap()
                    .cos_first(true),
            );
        }),
        ("upsample_1.7_cubic", |case| {
            one(
                case,
                Upsample::new(1.7)
                    .mode(Interpolation::Cubic)
                    .align_corners(true),
            );
        }),
        ("upsample_0.6_linear_smooth", |case| {
            one(case, Upsample::new(0.6).mode(Interpolation::Linear));
        }),
    ]
}
