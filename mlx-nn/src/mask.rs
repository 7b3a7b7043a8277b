//! The keys that a query sees, as functions on positions. Tests use them.
//!
//! Kernels of attention compute the same from positions, so that no mask array is made.

/// Whether a query at position `q` sees the key at position `k`. It sees its own position and those
/// before it, and with a window only the last `window` of these.
pub fn visible(q: i64, k: i64, window: Option<usize>) -> bool {
    0 <= k && k <= q && window.is_none_or(|window| q - k < window as i64)
}

/// The position in slot `slot` of a ring of `cap` slots after `len` positions were written, each at `position % cap`.
/// It is negative if the slot was never written.
pub fn position(slot: usize, len: usize, cap: usize) -> i64 {
    let (slot, len, cap) = (slot as i64, len as i64, cap as i64);
    slot + cap * (len - 1 - slot).div_euclid(cap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_the_last_position_written_to_it() {
        for cap in 1..9 {
            let mut slots = vec![-1i64; cap];
            for len in 0..40usize {
                for (slot, &held) in slots.iter().enumerate() {
                    let found = position(slot, len, cap);
                    assert!(
                        found == held || (found < 0 && held < 0),
                        "slot {slot}, len {len}, cap {cap}"
                    );
                }
                slots[len % cap] = len as i64;
            }
        }
    }

    #[test]
    fn a_window_counts_the_query_itself() {
        assert!(visible(7, 7, Some(1)) && !visible(7, 6, Some(1)));
        assert!(visible(7, 4, Some(4)) && !visible(7, 3, Some(4)));
        assert!(visible(7, 0, None) && !visible(7, 8, None) && !visible(7, -1, None));
    }
}
