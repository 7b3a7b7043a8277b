//! Recurrent layers over ragged rows on every instruction set.

use mlx_core::Result;

use super::batch::{SLOTS, batches, layers};
use super::reference::bits;
use super::{TYPES, kernels_are_off};

#[test]
fn ragged_rows_are_those_alone() -> Result<()> {
    if kernels_are_off() {
        return Ok(());
    }
    let mut digest: u64 = 0xcbf2_9ce4_8422_2325;
    for dtype in TYPES {
        for (batch, tokens) in batches() {
            for (what, layer) in layers(tokens, dtype)? {
                let pool = layer.pool(SLOTS, 9)?;
                let found = batch.run(&layer, &pool)?;
                let expected = batch.expected(&layer, &pool)?;
                for (found, expected) in [(found.0, expected.0), (found.1, expected.1)] {
                    let found = bits(&found)?;
                    assert_eq!(
                        found,
                        bits(&expected)?,
                        "{what}, rows of {:?}",
                        batch.widths
                    );
                    for bits in found {
                        digest = (digest ^ u64::from(bits)).wrapping_mul(0x0100_0000_01b3);
                    }
                }
            }
        }
    }
    println!("digest {digest:016x}");
    Ok(())
}
