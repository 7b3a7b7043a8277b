//! Steps of recurrent layers that are launched again. Their states are in slots that are written in
//! place.

use mlx_core::fast::{
    self, RaggedDelta, RaggedRows, RaggedScan, SlotsAfter, StatePool, StateSlots,
};
use mlx_core::{Array, DType, Replay, Result, inplace};

use super::{f32s, noise, on_gpu};

const ROWS: usize = 3;
/// Key and value heads, and the features of each.
const KEY_HEADS: i32 = 1;
const HEADS: i32 = 2;
const DIM: i32 = 32;
const CHANNELS: i32 = (2 * KEY_HEADS + HEADS) * DIM;
const TAPS: i32 = 4;
const VOCAB: i32 = 64;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    Delta,
    Scan,
}

/// The slots of a step.
struct Slots {
    /// The slot of the state before each row's tokens.
    from: Vec<i32>,
    /// The slots of the states after each row's last token, or after each token.
    to: Vec<i32>,
}

/// A convolution and a recurrence. The next token of a row follows from what it sees.
struct Model {
    rule: Rule,
    /// The tokens of each row in a step.
    width: i32,
    arrays: Vec<Array>,
    starts: Array,
    pools: Option<[Array; 2]>,
}

impl Model {
    fn new(rule: Rule, width: i32, slots: i32) -> Result<Self> {
        let bf16 = |seed, shape: &[i32]| noise(seed, shape, DType::BF16);
        let arrays = vec![
            bf16(1, &[VOCAB, CHANNELS])?,
            bf16(2, &[VOCAB, HEADS])?,
            bf16(3, &[TAPS, CHANNELS])?,
            bf16(4, &[VOCAB, HEADS * DIM])?,
            noise(5, &[HEADS], DType::F32)?.exp()?,
            noise(6, &[HEADS], DType::F32)?,
        ];
        let starts: Vec<i32> = (0..=ROWS as i32).map(|row| row * width).collect();
        let starts = Array::from_slice(&starts, &[starts.len() as i32])?;
        // Slots without a state are poisoned.
        let pools = [
            mlx_core::full([slots, TAPS - 1, CHANNELS], f32::NAN, DType::BF16)?,
            mlx_core::full([slots, HEADS, DIM, DIM], f32::NAN, DType::F32)?,
        ];
        mlx_core::eval(arrays.iter().chain(&pools))?;
        Ok(Self {
            rule,
            width,
            arrays,
            starts,
            pools: Some(pools),
        })
    }

    /// The graph of a step: the next tokens U32 `[T]`, and what the rows see, `[1, T, HEADS DIM]`.
    fn build(&mut self, tokens: &Array, [from, to]: [&Array; 2]) -> Result<[Array; 2]> {
        let [table, gates, taps, head, rate, bias] = &self.arrays[..] else {
            unreachable!("there are six")
        };
        let of_tokens = |table: &Array| table.take(tokens, 0)?.expand_dims(0);
        let (x, gates) = (of_tokens(table)?, of_tokens(gates)?);
        let [windows, states] = self.pools.take().expect("no step has failed");
        let rows = RaggedRows {
            starts: &self.starts,
            longest: self.width,
        };
        let slots = |pool| StateSlots {
            pool: StatePool::Own(pool),
            from,
            to: match self.width {
                1 => SlotsAfter::Rows(to),
                _ => SlotsAfter::Tokens(to),
            },
        };
        let (x, windows) = fast::ragged_conv(&x, taps, None, true, &rows, Some(slots(windows)))?;
        let (y, states) = match self.rule {
            Rule::Delta => {
                let of = RaggedDelta {
                    most: 1.0,
                    bound: None,
                    qkv: &x,
                    a: &gates,
                    b: &gates,
                    rate,
                    bias,
                    key_heads: KEY_HEADS,
                    key_dim: DIM,
                };
                fast::ragged_delta(&of, &rows, Some(slots(states)))?
            }
            Rule::Scan => {
                let of = RaggedScan {
                    x: &x,
                    dt: &gates,
                    rate,
                    bias,
                    skip: bias,
                    groups: KEY_HEADS,
                    key_dim: DIM,
                    limits: (0.01, 4.0),
                };
                fast::ragged_scan(&of, &rows, Some(slots(states)))?
            }
        };
        let there = "there is a pool";
        self.pools = Some([windows.expect(there), states.expect(there)]);
        let logits = fast::linear(&y.squeeze(0)?, head)?;
        Ok([fast::argmax(&logits)?, y.multiply(2.0f32)?])
    }

    /// Queues a step. Returns its results, and whether its graph was built.
    fn step(
        &mut self,
        replay: Option<&mut Replay>,
        tokens: &Array,
        slots: &Slots,
    ) -> Result<([Array; 2], bool)> {
        let ints = |numbers: &[i32]| Array::from_slice(numbers, &[numbers.len() as i32]);
        let (from, to) = (ints(&slots.from)?, ints(&slots.to)?);
        let inputs = [tokens, &from, &to];
        let Some(replay) = replay else {
            let outputs = self.build(tokens, [&from, &to])?;
            mlx_core::eval(&outputs)?;
            return Ok((outputs, true));
        };
        let written = self.pools.clone().expect("no step has failed");
        if let Some(outputs) = replay.relaunch(inputs, &written)? {
            let outputs = outputs.try_into().expect("two outputs");
            return Ok((outputs, false));
        }
        let outputs = self.build(tokens, [&from, &to])?;
        replay.async_eval(&outputs, inputs)?;
        Ok((outputs, true))
    }

    /// Writes the states of a slot in place, as a row that joins does.
    fn replace(&mut self, slot: i32) -> Result<()> {
        let put = |pool: Array, seed| {
            let (mut starts, mut stops) = (vec![0; pool.ndim()], pool.shape().to_vec());
            (starts[0], stops[0]) = (slot, slot + 1);
            let mut shape = pool.shape().to_vec();
            shape[0] = 1;
            let new = noise(seed, &shape, pool.dtype())?;
            inplace::slice_update_in_place(pool, &new, &starts, &stops)
        };
        let [windows, states] = self.pools.take().expect("no step has failed");
        let pools = [put(windows, 20)?, put(states, 21)?];
        mlx_core::async_eval(&pools)?;
        self.pools = Some(pools);
        Ok(())
    }

    /// Copies the states to pools of twice as many slots.
    fn grow(&mut self) -> Result<()> {
        let pools = self.pools.take().expect("no step has failed");
        let grown = |pool: &Array| mlx_core::ops::concat(&[pool.clone(), pool.clone()], 0);
        let pools = [grown(&pools[0])?, grown(&pools[1])?];
        mlx_core::eval(&pools)?;
        self.pools = Some(pools);
        Ok(())
    }

    /// All states.
    fn states(&self) -> Result<Vec<Vec<u32>>> {
        let pools = self.pools.iter().flatten();
        let bits = |pool: &Array| Ok(f32s(pool)?.iter().map(|x| x.to_bits()).collect());
        pools.map(bits).collect()
    }
}

/// The results of each step, the states at the end, and which steps were built.
type Found = (Vec<(Vec<u32>, Vec<f32>)>, Vec<Vec<u32>>, Vec<bool>);

/// Steps of one token a row. Row 1 leaves and comes back, row 2 is replaced, the pools grow, row 0
/// moves to another slot.
fn decoded(rule: Rule, mut replay: Option<Replay>) -> Result<Found> {
    let mut model = Model::new(rule, 1, 4)?;
    let mut tokens = Array::from_slice(&[5u32, 9, 33], &[ROWS as i32])?;
    let (mut results, mut built, mut own) = (Vec::new(), Vec::new(), 0);
    for step in 0..26 {
        match step {
            12 => model.replace(2)?,
            16 => model.grow()?,
            _ => {}
        }
        let mut slots = Slots {
            from: vec![own, 1, 2],
            to: vec![own, 1, 2],
        };
        match step {
            0 => slots.from = vec![-1; ROWS],
            6..9 => (slots.from[1], slots.to[1]) = (-1, -1),
            9 => slots.from[1] = -1,
            20 => {
                own = 3;
                slots.to[0] = own;
            }
            _ => {}
        }
        let (outputs, is_built) = model.step(replay.as_mut(), &tokens, &slots)?;
        built.push(is_built);
        tokens = outputs[0].clone();
        results.push((tokens.to_vec()?, f32s(&outputs[1])?));
    }
    Ok((results, model.states()?, built))
}

#[test]
fn decode_steps_are_those_of_evaluations() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for rule in [Rule::Delta, Rule::Scan] {
        let wanted = decoded(rule, None)?;
        let found = decoded(rule, Some(Replay::new()?))?;
        assert_eq!(found.0, wanted.0, "{rule:?}");
        assert_eq!(found.1, wanted.1, "{rule:?}: states");
        // Rows that leave, begin, are replaced or move need no graph. Larger pools need one.
        let built: Vec<usize> = (0..found.2.len()).filter(|&step| found.2[step]).collect();
        assert!(
            built
                .iter()
                .all(|&step| step < 4 || (16..19).contains(&step)),
            "{rule:?}: {built:?}"
        );
        assert!(built.contains(&16), "{rule:?}: {built:?}");
    }
    Ok(())
}

/// Steps of three tokens a row, of which rows keep different numbers. The states after all tokens are
/// kept in slots until then.
fn verified(rule: Rule, mut replay: Option<Replay>) -> Result<Found> {
    const WIDTH: i32 = 3;
    let rows = ROWS as i32;
    let mut model = Model::new(rule, WIDTH, rows * WIDTH)?;
    let mut tokens: Vec<u32> = (0..(rows * WIDTH) as u32).map(|i| 3 * i + 1).collect();
    let mut own: Vec<i32> = vec![-1; ROWS];
    let (mut results, mut built) = (Vec::new(), Vec::new());
    for step in 0..20 {
        // The last token of a row goes to the slot before the step.
        let to = (0..rows).flat_map(|row| {
            let first = row * WIDTH;
            let last = own[row as usize].max(first);
            let others = (first..first + WIDTH).filter(move |&slot| slot != last);
            others.chain([last])
        });
        let slots = Slots {
            from: own.clone(),
            to: to.collect(),
        };
        let input = Array::from_slice(&tokens, &[tokens.len() as i32])?;
        let (outputs, is_built) = model.step(replay.as_mut(), &input, &slots)?;
        built.push(is_built);
        let next: Vec<u32> = outputs[0].to_vec()?;
        for row in 0..ROWS {
            let kept = (step * (row + 2) + row) % WIDTH as usize;
            own[row] = slots.to[row * WIDTH as usize + kept];
            let first = next[row * WIDTH as usize + kept];
            for at in 0..WIDTH as usize {
                tokens[row * WIDTH as usize + at] = (first + 11 * at as u32) % VOCAB as u32;
            }
        }
        results.push((next, f32s(&outputs[1])?));
    }
    Ok((results, model.states()?, built))
}

#[test]
fn verify_steps_are_those_of_evaluations() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for rule in [Rule::Delta, Rule::Scan] {
        let wanted = verified(rule, None)?;
        let found = verified(rule, Some(Replay::new()?))?;
        assert_eq!(found.0, wanted.0, "{rule:?}");
        assert_eq!(found.1, wanted.1, "{rule:?}: states");
        let built = found.2.iter().filter(|&&is_built| is_built).count();
        assert!(built <= 4, "{rule:?}: {:?}", found.2);
    }
    Ok(())
}
