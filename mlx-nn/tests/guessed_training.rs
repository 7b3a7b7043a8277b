//! Calls in the style of MLX's Python, with everything of both crates imported: layers, losses, optimisers, schedules, and
//! methods of modules.

#![allow(unused_qualifications, reason = "the calls stand word for word")]

use mlx_core::DType::*;
use mlx_core::*;
use mlx_nn::*;

fn input() -> Result<Array> {
    arange(0, 8, 1, F32)?.reshape((2, 4))? / 8.0
}

#[test]
fn activations_are_functions() -> Result<()> {
    let x = array![-1.0f32, 2.0];
    let floats = |array: Result<Array>| array.unwrap().to_vec::<f32>().unwrap();
    assert_eq!(floats(relu(&x)), [0.0, 2.0]);
    assert_eq!(floats(leaky_relu(&x)), [-0.01, 2.0]);
    assert_eq!(floats(silu(&x)), floats(x.silu()));
    assert_eq!(floats(sigmoid(&x)), floats(x.sigmoid()));
    assert_eq!(floats(gelu(&x)), floats(Activation::Gelu.forward(&x)));
    assert_eq!(floats(softmax(&x, -1)), floats(x.softmax(-1)));
    assert_eq!(
        floats(log_softmax(&x)?.exp()?.sum_all()).len(),
        1,
        "log_softmax keeps its axis"
    );
    Ok(())
}

#[test]
fn layers_take_python_s_arguments() -> Result<()> {
    let x = input()?;
    assert_eq!(Linear::new(4, 8, false)?.forward(&x)?.shape(), [2, 8]);
    assert_eq!(
        Embedding::new(100, 16)?.forward(&array![1, 2, 3])?.shape(),
        [3, 16]
    );
    assert_eq!(RmsNorm::new(4)?.forward(&x)?.shape(), [2, 4]);
    assert_eq!(GroupNorm::new(2, 4)?.forward(&x)?.shape(), [2, 4]);
    let image = ones((1, 8, 8, 3), F32)?;
    let conv = Conv2d::new(3, 8, 3)?.stride(2).padding(1);
    assert_eq!(conv.forward(&image)?.shape(), [1, 4, 4, 8]);
    assert_eq!(MaxPool2d::new(2).forward(&image)?.shape(), [1, 4, 4, 3]);
    assert_eq!(
        ConvTranspose2d::new(3, 8, 3)?.forward(&image)?.shape(),
        [1, 10, 10, 8]
    );
    let net = Sequential::new()
        .add(Linear::new(4, 8, true)?)
        .add(Activation::Relu)
        .add(Linear::new(8, 2, true)?);
    assert_eq!(net.forward(&x)?.shape(), [2, 2]);
    Ok(())
}

#[test]
fn a_module_has_python_s_methods() -> Result<()> {
    let x = input()?;
    let mut model = Sequential::new()
        .add(Linear::new(4, 4, true)?)
        .add(Dropout::new(0.5)?);
    assert!(model.is_training());
    model.eval()?;
    assert!(!model.is_training());
    let dense = model.forward(&x)?;
    assert!(model.forward(&x)?.array_equal(&dense)?.item::<bool>()?);
    model.train(true)?;
    assert_eq!(model.num_parameters(), 20);
    assert_eq!(model.trainable_parameters().len(), 2);
    model.set_dtype(F16)?;
    model.apply(|p| p.astype(F32))?;

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("w.npz");
    model.save(&path)?;
    model.load(&path)?;
    Ok(())
}

#[test]
fn a_training_loop_with_schedules_and_clipping() -> Result<()> {
    let x = input()?;
    let mut model = Linear::new(4, 1, true)?;
    let target = ones((2, 1), F32)?;
    let warm = join_schedules(
        &[linear_schedule(0.0, 0.1, 10), cosine_decay(0.1, 100)],
        &[10],
    )?;
    let mut opt = Adam::new(warm);
    let mut losses = Vec::new();
    for _ in 0..60 {
        let (loss, grads) = model.value_and_grad(|m| loss::mse(&m.forward(&x)?, &target))?;
        let (grads, norm) = clip_grad_norm(&grads, 1.0)?;
        assert!(norm.item::<f32>()? >= 0.0);
        opt.update(&mut model, &grads)?;
        losses.push(loss.item::<f32>()?);
    }
    assert!(losses[59] < 0.1 * losses[0], "{losses:?}");
    assert_eq!(opt.step(), 60);
    assert!(opt.learning_rate() < 0.1);
    opt.set_learning_rate(0.01);
    assert_eq!(opt.learning_rate(), 0.01);
    Ok(())
}

#[test]
fn schedules_have_python_s_names_and_values() -> Result<()> {
    assert_eq!(exponential_decay(0.5, 0.5).rate(2), 0.125);
    assert_eq!(step_decay(0.5, 0.5, 10).rate(19), 0.25);
    assert!((cosine_decay(0.1, 1000).rate(5) - 0.0999938).abs() < 1e-7);
    let parts = [Schedule::constant(1.0), 2.0.into(), 3.0.into()];
    let joined = join_schedules(&parts, &[2, 5])?;
    let rates: Vec<f64> = (0..7).map(|step| joined.rate(step)).collect();
    assert_eq!(rates, [1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0]);
    for (count, boundaries) in [(0, &[][..]), (3, &[2]), (3, &[5, 2])] {
        assert!(
            join_schedules(&parts[..count], boundaries).is_err(),
            "{count} schedules, {boundaries:?}"
        );
    }
    Ok(())
}

#[test]
fn names_and_forms_of_arguments() -> Result<()> {
    let (x, y) = (input()?, ones((2, 4), F32)?);
    let floats = |array: Result<Array>| array.unwrap().to_vec::<f32>().unwrap();
    for (python, ours) in [
        (losses::mse_loss(&x, &y), loss::mse(&x, &y)),
        (loss::l1_loss(&x, &y), loss::l1(&x, &y)),
        (loss::smooth_l1_loss(&x, &y), loss::smooth_l1(&x, &y)),
        (loss::huber_loss(&x, &y), loss::huber(&x, &y)),
        (loss::hinge_loss(&x, &y), loss::hinge(&x, &y)),
        (loss::kl_div_loss(&x, &y), loss::kl_div(&x, &y)),
        (loss::log_cosh_loss(&x, &y), loss::log_cosh(&x, &y)),
        (
            loss::cosine_similarity_loss(&x, &y),
            loss::cosine_similarity(&x, &y),
        ),
    ] {
        assert_eq!(floats(python), floats(ours));
    }

    let l = Linear::new(4, 4, true)?;
    assert_eq!(l.bias().map(|bias| bias.shape().to_vec()), Some(vec![4]));
    let dense = l.forward(&x)?;
    let net = Sequential::new()
        .add(l)
        .add(Relu)
        .add(tanh)
        .add(|x: &Array| x.square());
    let expected = dense.relu()?.tanh()?.square();
    assert_eq!(floats(net.forward(&x)), floats(expected));
    assert_eq!(floats(Gelu.forward(&x)), floats(x.gelu()));
    assert_eq!(floats(LeakyRelu(0.1).forward(&x)), floats(Ok(x.clone())));

    let mut model = Linear::new(4, 1, true)?;
    let mut opt = AdamW::new(1e-3).betas((0.9, 0.95)).eps(1e-8);
    let (_, grads) = model.value_and_grad(|m| m.forward(&x)?.square()?.sum_all())?;
    let (clipped, _) = clip_grad_norm(grads.clone(), 1.0)?;
    opt.update(&mut model, clipped)?;
    opt.set_learning_rate(0.5f32);
    assert_eq!(opt.learning_rate(), 0.5);
    opt.update(&mut model, &grads)?;
    eval(&model.parameters())?;
    assert!(
        join_schedules(
            vec![cosine_decay(0.1, 10), linear_schedule(0.1, 0.0, 5)],
            [10]
        )
        .is_ok()
    );

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("w.safetensors");
    model.save_weights(&path)?;
    let mut other = Linear::empty(4, 1, true)?;
    other.load_weights(&path)?;
    assert_eq!(floats(other.forward(&x)), floats(model.forward(&x)));
    Ok(())
}
