//! Steps that are launched again without a graph.

use mlx_core::fast::{self, Attention, Buffers, KeySlots, Mask, Positions, Slots};
use mlx_core::{Array, DType, Replay, Result, inplace};

use super::{f32s, noise, on_gpu};

const ROWS: i32 = 2;
const WIDTH: i32 = 64;

/// Rows that attend to the features of their tokens so far. The next token of a row follows from what it sees.
struct Rows {
    table: Array,
    head: Array,
    cache: Option<(Array, Array)>,
    len: i32,
}

impl Rows {
    fn new() -> Result<Self> {
        let table = noise(3, &[WIDTH, WIDTH], DType::BF16)?;
        let head = noise(4, &[WIDTH, WIDTH], DType::BF16)?;
        mlx_core::eval([&table, &head])?;
        Ok(Self {
            table,
            head,
            cache: None,
            len: 0,
        })
    }

    fn first() -> Result<Array> {
        Array::from_slice(&[5u32, 9], &[ROWS])
    }

    fn offsets(&self) -> Result<Array> {
        Array::from_slice(&[self.len; ROWS as usize], &[ROWS])
    }

    /// The graph of a step: the next tokens U32 `[B]`, and what the rows see, `[B, WIDTH]`.
    fn build(&mut self, tokens: &Array, offsets: &Array) -> Result<[Array; 2]> {
        let x = self.table.take(tokens, 0)?.reshape(&[ROWS, 1, 1, WIDTH])?;
        let buffers = match self.cache.take() {
            Some((k, v)) => Buffers::Own(k, v),
            None => Buffers::New(64),
        };
        let slots = Slots {
            ring: false,
            scheme: None,
        };
        let (k, v) = fast::store(buffers, &x, &x, offsets, slots)?;
        let options = Attention {
            scale: 0.1,
            soft_cap: None,
            mask: Mask::Positions(Positions::new(offsets, None, KeySlots::Straight)),
            sinks: None,
        };
        let y = fast::attention(&x, &k, &v, &options)?.reshape(&[ROWS, WIDTH])?;
        self.cache = Some((k, v));
        // A number that the host makes for each step, and that is always the same.
        let seen = y.multiply(2.0f32)?;
        Ok([fast::argmax(&fast::linear(&seen, &self.head)?)?, seen])
    }

    /// Queues a step, and returns whether it was built.
    fn step(&mut self, replay: &mut Replay, tokens: &Array) -> Result<([Array; 2], bool)> {
        let inputs = [tokens.clone(), self.offsets()?];
        let (outputs, is_built) = match replay.relaunch(&inputs, self.written())? {
            Some(outputs) => {
                let outputs = outputs.try_into().expect("two outputs");
                (outputs, false)
            }
            None => {
                let outputs = self.build(tokens, &inputs[1])?;
                replay.async_eval(&outputs, &inputs)?;
                (outputs, true)
            }
        };
        self.len += 1;
        Ok((outputs, is_built))
    }

    /// The arrays that a step writes.
    fn written(&self) -> Vec<Array> {
        let cache = self.cache.iter();
        cache.flat_map(|(k, v)| [k.clone(), v.clone()]).collect()
    }

    /// Builds and evaluates a step.
    fn evaluated(&mut self, tokens: &Array) -> Result<[Array; 2]> {
        let offsets = self.offsets()?;
        let outputs = self.build(tokens, &offsets)?;
        mlx_core::eval(&outputs)?;
        self.len += 1;
        Ok(outputs)
    }

    /// Builds and queues a step.
    fn built(&mut self, replay: &mut Replay, tokens: &Array) -> Result<[Array; 2]> {
        let offsets = self.offsets()?;
        let outputs = self.build(tokens, &offsets)?;
        replay.async_eval(&outputs, [tokens, &offsets])?;
        self.len += 1;
        Ok(outputs)
    }

    /// Overwrites the first positions of a row in place, as a row that joins does.
    fn replace(&mut self) -> Result<()> {
        let (k, v) = self.cache.take().expect("a step was built");
        let new = noise(7, &[1, 1, 2, WIDTH], DType::BF16)?;
        let put =
            |buffer| inplace::slice_update_in_place(buffer, &new, &[1, 0, 0, 0], &[2, 1, 2, WIDTH]);
        let (k, v) = (put(k)?, put(v)?);
        mlx_core::async_eval([&k, &v])?;
        self.cache = Some((k, v));
        Ok(())
    }

    /// Copies keys and values to larger buffers.
    fn grow(&mut self) -> Result<()> {
        let (k, v) = self.cache.take().expect("a step was built");
        let grown = |buffer: &Array| {
            let larger = fast::blank(&[ROWS, 1, 128, WIDTH], DType::BF16)?;
            larger.slice_update(buffer, &[0; 4], &[ROWS, 1, 64, WIDTH])
        };
        let (k, v) = (grown(&k)?, grown(&v)?);
        mlx_core::eval([&k, &v])?;
        self.cache = Some((k, v));
        Ok(())
    }

    fn keys(&self) -> Result<Vec<f32>> {
        f32s(&self.cache.as_ref().expect("a step was built").0)
    }
}

/// The tokens and what rows see after each step, and the keys after the last.
type Results = (Vec<(Vec<u32>, Vec<f32>)>, Vec<f32>);

fn evaluated(steps: usize) -> Result<Results> {
    let (mut rows, mut tokens, mut results) = (Rows::new()?, Rows::first()?, Vec::new());
    for _ in 0..steps {
        let [next, seen] = rows.evaluated(&tokens)?;
        results.push((next.to_vec()?, f32s(&seen)?));
        tokens = next;
    }
    Ok((results, rows.keys()?))
}

/// Rows of which the next step can be launched again, and their tokens.
fn started(replay: &mut Replay) -> Result<(Rows, Array)> {
    let (mut rows, mut tokens) = (Rows::new()?, Rows::first()?);
    while !replay.repeats() {
        assert!(rows.len < 8, "no step was captured");
        [tokens, _] = rows.step(replay, &tokens)?.0;
    }
    Ok((rows, tokens))
}

#[test]
fn steps_without_a_graph_are_those_of_evaluations() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let wanted = evaluated(20)?;
    // Each step is read before the next is queued, then only after the next is queued, then only the last.
    for lag in [0, 1, 20] {
        let mut replay = Replay::new()?;
        let (mut rows, mut tokens) = (Rows::new()?, Rows::first()?);
        let (mut queued, mut built) = (Vec::new(), 0);
        for step in 0..20 {
            let (outputs, is_built) = rows.step(&mut replay, &tokens)?;
            built += usize::from(is_built);
            tokens = outputs[0].clone();
            queued.push(outputs);
            if step >= lag {
                let [next, seen] = &queued[step - lag];
                let found = (next.to_vec::<u32>()?, f32s(seen)?);
                assert_eq!(found, wanted.0[step - lag], "lag {lag}, step {step}");
            }
        }
        assert!(built <= 5, "{built} steps were built");
        // The handles of the last step that was built wait for the last step.
        assert_eq!(rows.keys()?, wanted.1, "lag {lag}");
        // A step that is built continues behind those that were not.
        let outputs = rows.built(&mut replay, &tokens)?;
        let longer = evaluated(21)?;
        assert_eq!(outputs[0].to_vec::<u32>()?, longer.0[20].0, "lag {lag}");
        assert_eq!(rows.keys()?, longer.1, "lag {lag}");
    }
    Ok(())
}

#[test]
fn a_step_is_launched_again_after_other_kernels_have_written_its_arrays() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let wanted = changed(Rows::evaluated)?;
    let (mut replay, mut built) = (Replay::new()?, Vec::new());
    let found = changed(|rows, tokens| {
        let (outputs, is_built) = rows.step(&mut replay, tokens)?;
        built.push(is_built);
        Ok(outputs)
    })?;
    assert_eq!(found, wanted);
    assert!(!built[8], "the row that was replaced: {built:?}");
    assert!(built[14], "larger buffers: {built:?}");
    Ok(())
}

/// 20 steps. A row is replaced before the step at 8, and the buffers grow before the step at 14.
fn changed(
    mut queue: impl FnMut(&mut Rows, &Array) -> Result<[Array; 2]>,
) -> Result<(Vec<Vec<u32>>, Vec<f32>)> {
    let (mut rows, mut tokens, mut found) = (Rows::new()?, Rows::first()?, Vec::new());
    for step in 0..20 {
        match step {
            8 => rows.replace()?,
            14 => rows.grow()?,
            _ => {}
        }
        [tokens, _] = queue(&mut rows, &tokens)?;
        found.push(tokens.to_vec()?);
    }
    Ok((found, rows.keys()?))
}

#[test]
fn a_replaced_row_keeps_the_captured_step_and_larger_buffers_need_one_capture() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let wanted = changed(Rows::evaluated)?;
    let (mut replay, mut repeats) = (Replay::new()?, Vec::new());
    let found = changed(|rows, tokens| {
        let outputs = rows.built(&mut replay, tokens)?;
        repeats.push(replay.repeats());
        Ok(outputs)
    })?;
    assert_eq!(found, wanted);
    // A captured step can be repeated after its second launch, because a number of its graph is not declared.
    assert!(repeats[7], "{repeats:?}");
    assert!(repeats[8], "the row that was replaced: {repeats:?}");
    assert!(!repeats[14] && repeats[15], "larger buffers: {repeats:?}");
    Ok(())
}

#[test]
fn inputs_that_do_not_fit_are_refused() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let mut replay = Replay::new()?;
    let (rows, tokens) = started(&mut replay)?;
    let offsets = rows.offsets()?;
    let longer = Array::from_slice(&[1u32, 2, 3], &[3])?;
    let signed = Array::from_slice(&[1i32, 2], &[ROWS])?;
    let lazy = tokens.add(1)?;
    let written = rows.written();
    let mut refuses = |inputs: &[&Array], written: &[Array], why: &str| -> Result<()> {
        let launched = replay.relaunch(inputs.iter().copied(), written)?;
        assert!(launched.is_none(), "{why}");
        Ok(())
    };
    refuses(&[&longer, &offsets], &written, "another shape")?;
    refuses(&[&signed, &offsets], &written, "another type")?;
    refuses(&[&lazy, &offsets], &written, "not evaluated")?;
    refuses(&[&tokens], &written, "one is missing")?;
    refuses(
        &[&tokens, &offsets],
        &written[..1],
        "one of two that are written",
    )?;
    let other = vec![written[0].clone(), written[1].add(0)?];
    mlx_core::eval(&other)?;
    refuses(&[&tokens, &offsets], &other, "another buffer is written")?;
    assert!(replay.relaunch([&tokens, &offsets], &written)?.is_some());
    Ok(())
}

fn evaluated_part(part: Array) -> Result<Array> {
    mlx_core::eval([&part])?;
    Ok(part)
}

#[test]
fn only_declared_inputs_may_differ() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    type Declare = fn(&Rows, &Array, &Array) -> Vec<Array>;
    let cases: [(&str, Declare, bool); 6] = [
        (
            "one that is not read",
            |_, tokens, offsets| {
                vec![
                    tokens.clone(),
                    offsets.clone(),
                    offsets
                        .slice_axis(0, 0, 1)
                        .and_then(evaluated_part)
                        .expect("a part"),
                ]
            },
            true,
        ),
        (
            "both",
            |_, tokens, offsets| vec![tokens.clone(), offsets.clone()],
            true,
        ),
        ("one", |_, tokens, _| vec![tokens.clone()], false),
        ("none", |_, _, _| Vec::new(), false),
        (
            "one twice",
            |_, tokens, offsets| vec![tokens.clone(), offsets.clone(), tokens.clone()],
            false,
        ),
        (
            "one that stays",
            |rows, tokens, offsets| vec![tokens.clone(), offsets.clone(), rows.head.clone()],
            true,
        ),
    ];
    for (what, declare, repeats) in cases {
        let mut replay = Replay::new()?;
        let (mut rows, mut tokens) = (Rows::new()?, Rows::first()?);
        for _ in 0..6 {
            let offsets = rows.offsets()?;
            let outputs = rows.build(&tokens, &offsets)?;
            replay.async_eval(&outputs, declare(&rows, &tokens, &offsets))?;
            rows.len += 1;
            [tokens, _] = outputs;
        }
        assert_eq!(replay.repeats(), repeats, "{what}");
        if what == "one that stays" {
            let (offsets, other) = (rows.offsets()?, noise(9, &[WIDTH, WIDTH], DType::BF16)?);
            mlx_core::eval([&other])?;
            let written = rows.written();
            let refused = replay.relaunch([&tokens, &offsets, &other], &written)?;
            assert!(refused.is_none());
            let launched = replay.relaunch([&tokens, &offsets, &rows.head], &written)?;
            assert!(launched.is_some());
        }
    }
    // A number that differs.
    let mut replay = Replay::new()?;
    let x = noise(1, &[ROWS, WIDTH], DType::BF16)?;
    mlx_core::eval([&x])?;
    for number in 0..8 {
        let y = x.multiply(number as f32)?;
        replay.async_eval([&y], [&x])?;
        assert!(!replay.repeats(), "step {number}");
    }
    Ok(())
}

#[test]
fn a_step_that_fails_poisons_what_it_wrote() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let wanted = evaluated(12)?;
    for _ in 0..2 {
        let mut replay = Replay::new()?;
        let (mut rows, tokens) = started(&mut replay)?;
        rows.keys()?;
        let outside = Array::from_slice(&[1u32, 1000], &[ROWS])?;
        let ([next, _], is_built) = rows.step(&mut replay, &outside)?;
        assert!(!is_built && next.to_vec::<u32>().is_err());
        assert!(rows.keys().is_err(), "the keys were written by that step");
        drop((rows, tokens));
        let mut replay = Replay::new()?;
        let (mut rows, mut tokens) = (Rows::new()?, Rows::first()?);
        for (next, _) in &wanted.0 {
            [tokens, _] = rows.step(&mut replay, &tokens)?.0;
            assert_eq!(&tokens.to_vec::<u32>()?, next);
        }
    }
    Ok(())
}

/// A large result of one computation is an input of another one, at an address that differs each time, and goes
/// through it. The other one also has a large result.
#[test]
fn large_inputs_that_are_declared_may_differ() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    const SHAPE: [i32; 2] = [97, 1031];
    let turned = |x: &Array, places: &Array| x.take(places, 0)?.multiply(0.5f32)?.cos();
    let places = |step: i32| {
        let places: Vec<i32> = (0..SHAPE[0]).map(|at| (at + step) % SHAPE[0]).collect();
        Array::from_slice(&places, &[SHAPE[0]])
    };
    let first = noise(11, &SHAPE, DType::F32)?;
    mlx_core::eval([&first])?;
    let (mut wanted, mut found) = (first.clone(), first);
    let mut replay = Replay::new()?;
    let mut built = 0;
    for step in 0..12 {
        let places = places(step)?;
        wanted = turned(&wanted, &places)?;
        mlx_core::eval([&wanted])?;
        found = match replay.relaunch([&found, &places], [&found; 0])? {
            Some(mut outputs) => outputs.remove(0),
            None => {
                built += 1;
                let next = turned(&found, &places)?;
                replay.async_eval([&next], [&found, &places])?;
                next
            }
        };
        assert_eq!(f32s(&found)?, f32s(&wanted)?, "step {step}");
    }
    assert!(built <= 4, "{built} of 12 steps were built");
    Ok(())
}
