//! Convolutions that transformers has written in three equal parts, although values have more channels than keys.

use mlx_core::Result;
use mlx_nn::Rule;

use crate::config::Source;

/// The channels of the three convolutions of published form in the files, where they are not those of queries, keys and
/// values. transformers divides its one convolution into equal parts when it writes the three, and joins them when it
/// reads them.
pub(super) fn found(source: &Source<'_>, own: [i32; 3]) -> Result<Option<[i32; 3]>> {
    let mut names = source.tensors.names();
    let Some(name) = names.find(|name| name.ends_with(".q_conv1d.weight")) else {
        return Ok(None);
    };
    let mut found = [0; 3];
    for (channels, part) in found.iter_mut().zip(["q", "k", "v"]) {
        let part = name.replace(".q_conv1d.", &format!(".{part}_conv1d."));
        match source.tensors.shape(&part)?.as_deref() {
            Some(&[own, 1, _]) if own > 0 => *channels = own,
            _ => return Ok(None),
        }
    }
    let sum = |parts: [i32; 3]| parts.iter().map(|&n| i64::from(n)).sum::<i64>();
    Ok((found != own && sum(found) == sum(own)).then_some(found))
}

/// The rules that divide the channels of convolutions in other places: in order, the tensors `names` have `from` channels,
/// and get `to` channels.
pub(super) fn divided_again(names: [&str; 3], from: [i32; 3], to: [i32; 3]) -> Vec<Rule> {
    let bounds = |sizes: [i32; 3]| {
        let mut start = 0;
        sizes.map(|size| {
            start += size;
            (start - size, start)
        })
    };
    // The channels that a tensor of the file and one of the model have in common.
    let (from, to) = (bounds(from), bounds(to));
    let piece = |at: usize, of: usize| {
        let size = from[at].1.min(to[of].1) - from[at].0.max(to[of].0);
        let name = names[at].replace(".weight", &format!("_{of}.weight"));
        (size > 0).then_some((name, size))
    };
    let cut = (0..3).map(|at| {
        let own: Vec<_> = (0..3).filter_map(|of| piece(at, of)).collect();
        Rule::split_channels(names[at], &slices(&own))
    });
    let joined = (0..3).map(|of| {
        let own: Vec<_> = (0..3).filter_map(|at| piece(at, of)).collect();
        Rule::concat_channels(&slices(&own), names[of])
    });
    cut.chain(joined).collect()
}

fn slices(pieces: &[(String, i32)]) -> Vec<(&str, i32)> {
    pieces.iter().map(|(name, size)| (&**name, *size)).collect()
}
