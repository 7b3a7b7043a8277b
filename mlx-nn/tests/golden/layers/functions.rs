//! Activations and losses: the function of each case.

use mlx_core::{Array, Result};
use mlx_nn::Activation;
use mlx_nn::activation::*;
use mlx_nn::loss::*;

use super::Case;

/// Compares the function of a case. Returns whether there is such a function.
pub fn run(name: &str, case: &mut Case<'_>) -> Result<bool> {
    if let Some(name) = name.strip_prefix("activation_") {
        activation(name, case);
    } else if let Some(name) = name.strip_prefix("loss_") {
        classes(name, case);
    } else {
        return Ok(false);
    }
    Ok(true)
}

fn activation(name: &str, case: &mut Case<'_>) {
    let plain: Option<fn(&Array) -> Result<Array>> = match name {
        "celu" => Some(celu),
        "elu" => Some(elu),
        "gelu" => Some(gelu),
        "gelu_approx" => Some(gelu_approx),
        "gelu_fast_approx" => Some(gelu_fast_approx),
        "glu" => Some(glu),
        "hard_shrink" => Some(hard_shrink),
        "hard_tanh" => Some(hard_tanh),
        "hardswish" => Some(hardswish),
        "leaky_relu" => Some(leaky_relu),
        "log_sigmoid" => Some(log_sigmoid),
        "log_softmax" => Some(log_softmax),
        "mish" => Some(mish),
        "relu" => Some(relu),
        "relu2" => Some(relu2),
        "relu6" => Some(relu6),
        "selu" => Some(selu),
        "sigmoid" => Some(sigmoid),
        "silu" => Some(silu),
        "softmax" => Some(softmax),
        "softmin" => Some(softmin),
        "softplus" => Some(softplus),
        "softshrink" => Some(softshrink),
        "softsign" => Some(softsign),
        "step" => Some(step),
        "tanh" => Some(tanh),
        _ => None,
    };
    if let Some(plain) = plain {
        return case.function(|x| plain(&x[0]));
    }
    match name {
        "celu_with" => case.function(|x| celu_with(&x[0], 0.5)),
        "elu_with" => case.function(|x| Activation::Elu(0.5).forward(&x[0])),
        "glu_with" => case.function(|x| glu_with(&x[0], 0)),
        "hard_shrink_with" => case.function(|x| hard_shrink_with(&x[0], 1.5)),
        "hard_tanh_with" => case.function(|x| hard_tanh_with(&x[0], -0.5, 2.0)),
        "leaky_relu_with" => case.function(|x| leaky_relu_with(&x[0], 0.3)),
        "log_softmax_with" => case.function(|x| log_softmax_with(&x[0], 0)),
        "softmax_with" => case.function(|x| softmax_with(&x[0], 0)),
        "softmin_with" => case.function(|x| softmin_with(&x[0], 0)),
        "softshrink_with" => case.function(|x| softshrink_with(&x[0], 1.5)),
        "step_with" => case.function(|x| step_with(&x[0], 0.7)),
        "prelu" => case.function(|x| prelu(&x[0], &x[1])),
        _ => panic!("no activation for the case {name}"),
    }
}

fn classes(name: &str, case: &mut Case<'_>) {
    let cross_entropy_of = |case: &mut Case<'_>, options: CrossEntropy| {
        case.function(|x| cross_entropy_with(&x[0], &x[1], &options));
    };
    match name {
        "cross_entropy" => case.function(|x| cross_entropy(&x[0], &x[1])),
        "cross_entropy_smooth" => cross_entropy_of(
            case,
            CrossEntropy {
                label_smoothing: 0.2,
                reduction: Reduction::Mean,
                ..Default::default()
            },
        ),
        "cross_entropy_axis" => cross_entropy_of(
            case,
            CrossEntropy {
                axis: 1,
                reduction: Reduction::Sum,
                ..Default::default()
            },
        ),
        "cross_entropy_weights" => case.function(|x| {
            let options = CrossEntropy {
                weights: Some(x[2].clone()),
                ..Default::default()
            };
            cross_entropy_with(&x[0], &x[1], &options)
        }),
        "cross_entropy_class_weights" => case.function(|x| {
            let options = CrossEntropy {
                class_weights: Some(x[2].clone()),
                ..Default::default()
            };
            cross_entropy_with(&x[0], &x[1], &options)
        }),
        "cross_entropy_probabilities" => cross_entropy_of(
            case,
            CrossEntropy {
                label_smoothing: 0.1,
                ..Default::default()
            },
        ),
        "binary_cross_entropy" => case.function(|x| binary_cross_entropy(&x[0], &x[1])),
        "binary_cross_entropy_plain" => case.function(|x| {
            let options = BinaryCrossEntropy {
                weights: Some(x[2].clone()),
                with_logits: false,
                reduction: Reduction::None,
            };
            binary_cross_entropy_with(&x[0], &x[1], &options)
        }),
        "kl_div" => case.function(|x| kl_div(&x[0], &x[1])),
        "kl_div_axis" => case.function(|x| {
            let options = KlDiv {
                axis: 0,
                reduction: Reduction::Mean,
            };
            kl_div_with(&x[0], &x[1], &options)
        }),
        "nll" => case.function(|x| nll(&x[0], &x[1])),
        "nll_axis" => case.function(|x| {
            let options = Nll {
                axis: 0,
                reduction: Reduction::Mean,
            };
            nll_with(&x[0], &x[1], &options)
        }),
        _ => distances(name, case),
    }
}

fn distances(name: &str, case: &mut Case<'_>) {
    match name {
        "cosine_similarity" => case.function(|x| cosine_similarity(&x[0], &x[1])),
        "cosine_similarity_axis" => case.function(|x| {
            let options = CosineSimilarity {
                axis: 0,
                eps: 5.0,
                reduction: Reduction::Mean,
            };
            cosine_similarity_with(&x[0], &x[1], &options)
        }),
        "gaussian_nll" => case.function(|x| gaussian_nll(&x[0], &x[1], &x[2])),
        "gaussian_nll_full" => case.function(|x| {
            let options = GaussianNll {
                full: true,
                eps: 0.5,
                reduction: Reduction::Sum,
            };
            gaussian_nll_with(&x[0], &x[1], &x[2], &options)
        }),
        "hinge" => case.function(|x| hinge(&x[0], &x[1])),
        "hinge_mean" => case.function(|x| hinge_with(&x[0], &x[1], Reduction::Mean)),
        "huber" => case.function(|x| huber(&x[0], &x[1])),
        "huber_delta" => case.function(|x| {
            let options = Huber {
                delta: 0.4,
                reduction: Reduction::Sum,
            };
            huber_with(&x[0], &x[1], &options)
        }),
        "l1" => case.function(|x| l1(&x[0], &x[1])),
        "l1_none" => case.function(|x| l1_with(&x[0], &x[1], Reduction::None)),
        "log_cosh" => case.function(|x| log_cosh(&x[0], &x[1])),
        "log_cosh_mean" => case.function(|x| log_cosh_with(&x[0], &x[1], Reduction::Mean)),
        "margin_ranking" => case.function(|x| margin_ranking(&x[0], &x[1], &x[2])),
        "margin_ranking_margin" => case.function(|x| {
            let options = MarginRanking {
                margin: 0.7,
                reduction: Reduction::Mean,
            };
            margin_ranking_with(&x[0], &x[1], &x[2], &options)
        }),
        "mse" => case.function(|x| mse(&x[0], &x[1])),
        "mse_sum" => case.function(|x| mse_with(&x[0], &x[1], Reduction::Sum)),
        "smooth_l1" => case.function(|x| smooth_l1(&x[0], &x[1])),
        "smooth_l1_beta" => case.function(|x| {
            let options = SmoothL1 {
                beta: 0.4,
                reduction: Reduction::None,
            };
            smooth_l1_with(&x[0], &x[1], &options)
        }),
        "triplet" => case.function(|x| triplet(&x[0], &x[1], &x[2])),
        "triplet_all" => case.function(|x| {
            let options = Triplet {
                axis: 0,
                p: 3.0,
                margin: 0.3,
                eps: 0.01,
                reduction: Reduction::Sum,
            };
            triplet_with(&x[0], &x[1], &x[2], &options)
        }),
        _ => panic!("no loss for the case {name}"),
    }
}
