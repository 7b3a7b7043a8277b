//! The key of a row's noise, computed from seed and position, so that it does not depend on the rest of the batch.

/// Neighbouring seeds and positions get unrelated keys.
pub(super) fn key(seed: u64, position: usize) -> [u32; 2] {
    let mixed = mix(mix(seed).wrapping_add(position as u64));
    [(mixed >> 32) as u32, mixed as u32]
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
