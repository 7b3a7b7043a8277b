//! The heads of a rank. Compressed vectors and the indexer are the same on every rank.

use std::ops::Range;

use mlx_core::Result;

use super::LatentAttention;
use crate::shard::{Cut, Heads, Ranks, Shard};

impl Shard for LatentAttention {
    fn heads(&self) -> Option<Heads> {
        Some(Heads {
            many: self.config.heads,
            few: self.config.heads,
            copies: false,
        })
    }

    fn shard(&mut self, ranks: Ranks, _unit: i32) -> Result<()> {
        let config = self.config;
        let own = ranks.share(config.heads);
        #[allow(
            clippy::single_range_in_vec_init,
            reason = "a list of ranges, of which there is one"
        )]
        let rows = |width: i32| -> [Range<i32>; 1] { [own.start * width..own.end * width] };
        for queries in self.q_proj.iter_mut().chain(&mut self.q_b_proj) {
            queries.keep_outputs(&rows(config.plain_dim + config.rope_dim))?;
        }
        if let Some(joint) = &mut self.kv_b_proj {
            joint
                .linear
                .keep_outputs(&rows(config.plain_dim + config.value_dim))?;
            joint.heads = own.end - own.start;
        }
        for stack in self.embed_q.iter_mut().chain(&mut self.unembed_out) {
            stack.keep(0, own.clone())?;
        }
        if let Some(gate) = &mut self.g_proj {
            let width = gate.weight().shape()[0] / config.heads;
            gate.keep_outputs(&rows(width))?;
        }
        if let Some(sinks) = &mut self.sinks {
            sinks.cut(Cut::new(sinks.shape(), 0, vec![own.clone()])?)?;
        }
        self.o_proj.keep_inputs(&rows(config.value_dim), ranks)?;
        self.config.heads = own.end - own.start;
        self.numbers = self
            .numbers
            .slice_axis(0, 0, self.config.heads)?
            .contiguous()?;
        Ok(())
    }
}
