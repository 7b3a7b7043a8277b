//! The default keys of a thread: [`seed`] and [`next_key`], as `mx.random.seed` and the draws without a key of MLX's
//! Python.
//!
//! The state is two numbers and no array, so that it holds no graph, can be read while a function is traced, and costs
//! no evaluation.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use super::Key;
use crate::array::Array;
use crate::error::Result;

thread_local! {
    static STATE: Cell<[u32; 2]> = Cell::new(words(since_the_epoch()));
}

/// Sets the thread's default keys: the same seed gives the same [`next_key`]s, which are those of MLX's Python. A
/// thread that sets no seed starts at the time of its first draw.
///
/// ```
/// use mlx_core::{DType, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// random::seed(7);
/// let first = random::next_key()?.as_array().to_vec::<u32>()?;
/// random::seed(7);
/// assert_eq!(random::next_key()?.as_array().to_vec::<u32>()?, first);
/// assert_ne!(random::next_key()?.as_array().to_vec::<u32>()?, first);
/// # Ok(())
/// # }
/// ```
pub fn seed(seed: u64) {
    STATE.set(words(seed));
}

/// The next default key of this thread. Threads do not share keys.
///
/// In a function that is traced ([`crate::transforms`]), the key is a constant of the graph.
///
/// # Errors
/// No memory.
pub fn next_key() -> Result<Key> {
    let (state, key) = split(STATE.get());
    STATE.set(state);
    Ok(Key(Array::from_slice(&key, &[2])?))
}

/// The state that the thread's next keys follow from.
pub(crate) fn state() -> [u32; 2] {
    STATE.get()
}

/// Runs `f` with the keys that follow from `state`; the thread's own continue after it.
pub(crate) fn with_state<R>(state: [u32; 2], f: impl FnOnce() -> R) -> R {
    struct Restore([u32; 2]);
    impl Drop for Restore {
        fn drop(&mut self) {
            STATE.set(self.0);
        }
    }
    let _restore = Restore(STATE.replace(state));
    f()
}

/// The key of a seed: its upper and lower half.
fn words(seed: u64) -> [u32; 2] {
    [(seed >> 32) as u32, seed as u32]
}

/// Milliseconds since 1970: the seed that MLX starts with.
fn since_the_epoch() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_millis() as u64)
}

/// The two keys that [`Key::split`] gives.
fn split(key: [u32; 2]) -> ([u32; 2], [u32; 2]) {
    let [first, second] = [threefry(key, [0, 2]), threefry(key, [1, 3])];
    ([first[0], second[0]], [first[1], second[1]])
}

/// Threefry 2x32 with 20 rounds (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3").
fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    const PARITY: u32 = 0x1BD1_1BDA;
    let keys = [key[0], key[1], key[0] ^ key[1] ^ PARITY];
    let mut x = [
        counter[0].wrapping_add(keys[0]),
        counter[1].wrapping_add(keys[1]),
    ];
    for group in 0..5 {
        for rotation in ROTATIONS[group % 2] {
            x[0] = x[0].wrapping_add(x[1]);
            x[1] = x[1].rotate_left(rotation) ^ x[0];
        }
        x[0] = x[0].wrapping_add(keys[(group + 1) % 3]);
        x[1] = x[1]
            .wrapping_add(keys[(group + 2) % 3])
            .wrapping_add(group as u32 + 1);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_keys_are_those_of_a_chain_of_splits() -> Result<()> {
        for start in [0, 7, u64::MAX, 0x0123_4567_89AB_CDEF] {
            seed(start);
            let mut state = Key::new(start)?;
            for draw in 0..5 {
                let [next, key] = state.split()?;
                state = next;
                assert_eq!(
                    next_key()?.as_array().to_vec::<u32>()?,
                    key.as_array().to_vec::<u32>()?,
                    "draw {draw} of seed {start}"
                );
            }
        }
        Ok(())
    }

    #[test]
    fn a_thread_has_keys_of_its_own() -> Result<()> {
        seed(1);
        let here = next_key()?.as_array().to_vec::<u32>()?;
        seed(1);
        std::thread::spawn(|| {
            seed(2);
            next_key().map(|_| ())
        })
        .join()
        .expect("the thread draws")?;
        assert_eq!(next_key()?.as_array().to_vec::<u32>()?, here);
        Ok(())
    }
}
