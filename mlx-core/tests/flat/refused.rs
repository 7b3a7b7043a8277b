//! What flat steps refuse: shapes before the evaluation, numbers in it.

use mlx_core::fast::{self, Pages, Seen};
use mlx_core::{Array, DType, Result};

use super::{SEES_ALL, Step, TOKENS, ints, is_plain, normal, options, rows_of};

/// Checks that each of these is refused before it is evaluated, with an error of this text.
fn refused<const N: usize>(cases: [(Result<Array>, &str); N]) {
    for (result, what) in cases {
        let text = result.expect_err(what).to_string();
        assert!(text.contains(what), "{text}, not {what}");
    }
}

/// Queries, a pool and a step that fit each other.
fn fitting() -> Result<(Array, Array, Step)> {
    let q = normal(1, &[1, 4, TOKENS, 64], DType::F32)?;
    Ok((q, normal(2, &[6, 2, 16, 64], DType::F32)?, Step::new()?))
}

fn attend(q: &Array, k: &Array, v: &Array, pages: &Pages<'_>, seen: Seen<'_>) -> Result<Array> {
    fast::paged_attention(q, k, v, None, pages, &options(seen))
}

#[test]
fn operands_that_do_not_fit() -> Result<()> {
    let (q, pool, step) = fitting()?;
    let pages = step.pages();
    let of = |shape: [i32; 4]| normal(3, &shape, DType::F32);
    let (long, odd) = (of([6, 2, 512, 64])?, of([6, 2, 24, 64])?);
    let (wide, other) = (of([6, 2, 16, 32])?, of([6, 1, 16, 64])?);
    let two = of([2, 4, TOKENS, 64])?;
    let half = pool.astype(DType::F16)?;
    let all = SEES_ALL;
    refused([
        (
            attend(&q, &long, &long, &pages, all),
            "pages have 16, 32, 64, 128 or 256 positions",
        ),
        (attend(&q, &odd, &odd, &pages, all), "[6, 2, 24, 64]"),
        (
            attend(&q, &wide, &wide, &pages, all),
            "keys of 32 elements do not fit queries of 64",
        ),
        (
            attend(&q, &pool, &other, &pages, all),
            "values [6, 1, 16, 64] do not fit keys [6, 2, 16, 64]",
        ),
        (
            attend(&two, &pool, &pool, &pages, all),
            "queries are [1, H, T, D]",
        ),
        (
            attend(&q, &half, &half, &pages, all),
            "need the queries' dtype",
        ),
        (
            fast::paged_latents(&q, &pool, 65, &pages, &options(all)),
            "1 to 64 features, given 65",
        ),
        (
            fast::paged_keep(&pool, &q, &pages, false),
            "do not fit each other",
        ),
        (
            fast::ragged_attention(&q, &pool, &pool, &rows_of(&step.starts), &options(all)),
            "do not fit queries",
        ),
    ]);
    Ok(())
}

#[test]
fn rows_that_do_not_fit() -> Result<()> {
    let (q, pool, step) = fitting()?;
    let pages = step.pages();
    let floats = Array::from_slice(&[0f32, 2.0, 2.0, 5.0], &[4])?;
    let (short, none) = (ints(&[15, 4])?, ints(&[0])?);
    let of = |pages: Pages<'_>| attend(&q, &pool, &pool, &pages, SEES_ALL);
    refused([
        (
            of(Pages {
                starts: &floats,
                ..pages
            }),
            "starts must be I32 [rows + 1], found",
        ),
        (
            of(Pages {
                starts: &none,
                ..pages
            }),
            "starts must be I32 [rows + 1]",
        ),
        (
            of(Pages {
                lens: &short,
                ..pages
            }),
            "lens must be I32 [3]",
        ),
        (
            of(Pages {
                tables: &short,
                ..pages
            }),
            "tables must be I32 [3, pages]",
        ),
    ]);
    Ok(())
}

#[test]
fn what_cannot_be_seen() -> Result<()> {
    let (q, pool, step) = fitting()?;
    let mask = normal(4, &[1, TOKENS, 49], DType::F32)?;
    let few = normal(4, &[4, 2, 48], DType::F32)?;
    let slopes = ints(&[1, 2, 3, 4])?;
    let of = |seen: Seen<'_>| attend(&q, &pool, &pool, &step.pages(), seen);
    let all = SEES_ALL;
    refused([
        (
            of(Seen {
                window: Some(0),
                ..all
            }),
            "a window must be at least 1",
        ),
        (
            of(Seen {
                chunk: Some(-3),
                ..all
            }),
            "a chunk must be at least 1",
        ),
        (
            of(Seen {
                mask: Some(&mask),
                ..all
            }),
            "positions of at most 48",
        ),
        (
            of(Seen {
                mask: Some(&few),
                ..all
            }),
            "a mask is [1 or 4, 1 or 6,",
        ),
        (
            of(Seen {
                slopes: Some(&slopes),
                ..all
            }),
            "slopes must be F32 [4]",
        ),
        (
            of(Seen { ahead: 1, ..all }),
            "with pages queries see no positions after their own",
        ),
    ]);
    let ragged =
        |seen: Seen<'_>| fast::ragged_attention(&q, &q, &q, &rows_of(&step.starts), &options(seen));
    let slopes = normal(4, &[4], DType::F32)?;
    refused([
        (
            ragged(Seen { ahead: -1, ..all }),
            "queries cannot see -1 positions after their own",
        ),
        (
            ragged(Seen {
                ahead: i32::MAX,
                chunk: Some(2),
                ..all
            }),
            "with chunks queries see no positions after their own",
        ),
        (
            ragged(Seen {
                ahead: 3,
                slopes: Some(&slopes),
                ..all
            }),
            "with slopes queries see no positions after their own",
        ),
    ]);
    Ok(())
}

#[test]
fn wrong_numbers_fail_the_evaluation() -> Result<()> {
    if is_plain()? {
        return Ok(());
    }
    let f32 = DType::F32;
    let (q, pool) = (
        normal(1, &[1, 4, TOKENS, 64], f32)?,
        normal(2, &[6, 2, 16, 64], f32)?,
    );
    let new = normal(1, &[1, 2, TOKENS, 64], f32)?;
    let right = Step::new()?;
    let case = |starts: &[i32], lens: &[i32], table: &[i32]| -> Result<Step> {
        Ok(Step {
            starts: ints(starts)?,
            lens: ints(lens)?,
            tables: Array::from_slice(table, &[3, table.len() as i32 / 3])?,
        })
    };
    let (lens, table) = (&[15, 4, 30][..], &[3, 0, -1, -1, -1, -1, 4, 5, 1][..]);
    for (step, what) in [
        (
            case(&[1, 2, 2, 5], lens, table)?,
            "must begin with 0, found 1",
        ),
        (
            case(&[0, 3, 2, 5], lens, table)?,
            "ascend to at most 6 tokens, found 3 and 2",
        ),
        (
            case(&[0, 2, 2, 7], lens, table)?,
            "ascend to at most 6 tokens, found 2 and 7",
        ),
        (
            case(&[0, 2, 2, 5], &[15, 4, -1], table)?,
            "row 2 cannot hold -1 positions",
        ),
        (
            case(&[0, 2, 2, 5], lens, &[3, 0, -1, -1, -1, -1, 4, 5, 6])?,
            "position 32 of row 2 is in page 6, the pool has 6",
        ),
        (
            case(&[0, 2, 2, 5], lens, &[3, -1, -1, -1, -1, -1, 4, 5, 1])?,
            "position 16 of row 0 is in page -1",
        ),
    ] {
        let attend = || {
            fast::paged_attention(&q, &pool, &pool, None, &step.pages(), &options(SEES_ALL))?.eval()
        };
        let store = || fast::paged_keep(&pool, &new, &step.pages(), false)?.eval();
        for result in [attend(), store()] {
            let text = result.expect_err(what).to_string();
            assert!(text.contains(what), "{text}, not {what}");
        }
        // The next step works.
        let y = fast::paged_attention(&q, &pool, &pool, None, &right.pages(), &options(SEES_ALL))?;
        assert!(
            y.slice_axis(2, 0, 5)?
                .to_vec::<f32>()?
                .iter()
                .all(|y| y.is_finite())
        );
    }
    // Too few pages for what queries see, and too few columns of a mask.
    let step = case(&[0, 2, 2, 5], lens, &[3, 0, -1, -1, 4, 5])?;
    let attend =
        |seen| fast::paged_attention(&q, &pool, &pool, None, &step.pages(), &options(seen))?.eval();
    let text = attend(SEES_ALL)
        .expect_err("three pages are seen")
        .to_string();
    assert!(
        text.contains("row 2 needs 3 pages of 16 positions, its table has 2"),
        "{text}"
    );
    attend(Seen {
        window: Some(5),
        ..SEES_ALL
    })?;
    let mask = normal(4, &[1, 1, 32], f32)?;
    let seen = Seen {
        mask: Some(&mask),
        ..SEES_ALL
    };
    let y = fast::paged_attention(&q, &pool, &pool, None, &right.pages(), &options(seen))?.eval();
    let text = y.expect_err("position 32 has no column").to_string();
    assert!(
        text.contains("row 2 has 33 positions, its mask has 32"),
        "{text}"
    );
    Ok(())
}
