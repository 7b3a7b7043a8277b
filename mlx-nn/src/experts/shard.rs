//! The experts of a rank: some of the features inside each expert, or some of the experts.

use std::ops::Range;

use mlx_core::{Array, DType, Result};

use super::{ExpertsLinear, ExpertsMlp, StackedExperts};
use crate::shard::{Cut, Heads, Ranks, Shard};

impl ExpertsLinear {
    /// Leaves ranges of an axis of the stack, and of the biases if they have that axis.
    pub(crate) fn keep(&mut self, axis: usize, range: Range<i32>) -> Result<()> {
        let cut = Cut::new(&self.weight.shape(), axis, vec![range])?;
        self.weight.cut(&cut)?;
        match &mut self.bias {
            Some(bias) if axis < 2 => bias.cut(cut),
            _ => Ok(()),
        }
    }
}

impl Shard for StackedExperts {
    fn heads(&self) -> Option<Heads> {
        None
    }

    /// The features inside an expert are divided in blocks of `unit`. With fewer blocks than ranks, the experts are
    /// divided.
    fn shard(&mut self, ranks: Ranks, unit: i32) -> Result<()> {
        self.ranks = Some(ranks);
        let unit = self.clamp.map_or(unit, |clamp| clamp.unit(unit));
        let shape = self.down_proj.weight.shape();
        let (n_experts, inside) = (shape[0], shape[2]);
        let size = ranks.size() as i32;
        let by_expert = inside / unit < size || inside % unit != 0;
        let matrices = self.gate_proj.iter_mut().chain([&mut self.up_proj]);
        if by_expert && n_experts >= size {
            let share = ranks.share(n_experts);
            self.held = Some(share.clone());
            for matrix in matrices.chain([&mut self.down_proj]) {
                matrix.keep(0, share.clone())?;
            }
            return Ok(());
        }
        let share = ranks.share_of_blocks(inside, unit);
        if let Some(clamp) = self.clamp {
            clamp.check_share(&share, ranks)?;
        }
        for matrix in matrices {
            matrix.keep(1, share.clone())?;
        }
        // The biases of the outputs are added once.
        self.down_proj.is_biased = ranks.is_first();
        self.down_proj.keep(2, share)
    }
}

impl StackedExperts {
    /// The outputs of the experts that this rank holds, and zeros of the others.
    pub(super) fn of_held(
        &self,
        x: &Array,
        experts: &Array,
        held: &Range<i32>,
        weights: Option<&Array>,
    ) -> Result<Array> {
        let own = experts.astype(DType::I32)?.subtract(held.start)?;
        let n = held.end - held.start;
        let is_own = own.greater_equal(0)?.logical_and(own.less(n)?)?;
        let y = self.outputs(x, &is_own.select(&own, 0)?, weights)?;
        is_own.expand_dims(-1)?.select(&y, 0.0)
    }
}

impl Shard for ExpertsMlp {
    fn heads(&self) -> Option<Heads> {
        None
    }

    fn shard(&mut self, ranks: Ranks, unit: i32) -> Result<()> {
        self.switch_mlp.shard(ranks, unit)?;
        match &mut self.shared_expert {
            Some(shared) => shared.shard(ranks, unit),
            None => Ok(()),
        }
    }
}
