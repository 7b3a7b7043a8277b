//! A checksum of 64 bits against damage. It is no protection against forgery.

use rayon::prelude::*;

/// The state of a checksum: FNV-1a over words of 64 bits, with a rotation, so that high bits of a
/// word reach low bits of the result. Each step is a bijection of the word, so two contents of one
/// length that differ in one word have different checksums.
struct Sum(u64);

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;
/// Bytes that a thread sums at a time.
const PART: usize = 1 << 20;

impl Sum {
    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(PRIME).rotate_left(29);
    }
}

/// The checksum of these bytes, on the calling thread.
fn of_part(bytes: &[u8]) -> u64 {
    let mut sum = Sum(OFFSET);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        sum.add(u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    sum.add(u64::from_le_bytes(last));
    sum.add(bytes.len() as u64);
    sum.0
}

/// The checksum of these bytes. Long ones are summed on several threads.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = Sum(OFFSET);
    let parts: Vec<u64> = match bytes.len() <= PART {
        true => vec![of_part(bytes)],
        false => bytes.par_chunks(PART).map(of_part).collect(),
    };
    parts.into_iter().for_each(|part| sum.add(part));
    sum.add(bytes.len() as u64);
    sum.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_bit_and_length_shows() {
        for len in [0, 1, 7, 8, 9, 64, 3 * PART + 5] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 31 % 251) as u8).collect();
            let whole = checksum(&bytes);
            assert_ne!(checksum(&[&bytes[..], &[0]].concat()), whole);
            let places = [0, len / 2, len.saturating_sub(1)];
            for place in places.into_iter().filter(|&place| place < len) {
                for bit in 0..8 {
                    let mut other = bytes.clone();
                    other[place] ^= 1 << bit;
                    assert_ne!(checksum(&other), whole, "{len} bytes, byte {place}");
                }
                assert_ne!(checksum(&bytes[..place]), whole);
            }
        }
    }
}
