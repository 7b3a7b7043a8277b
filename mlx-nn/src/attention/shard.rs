//! The heads of a rank.

use mlx_core::Result;

use super::{Attention, QkPlace};
use crate::cache::LayerKind;
use crate::shard::{Heads, Ranks, Shard, Spread};

impl Attention {
    pub(super) fn query_heads(&self) -> i32 {
        let queries = if self.output_gate { 2 } else { 1 };
        self.q_proj.weight().shape()[0] / (self.head_dim * queries)
    }

    /// The heads of keys and values. An attention over those of an earlier layer follows that layer.
    pub(super) fn kv_heads(&self) -> i32 {
        match &self.k_proj {
            Some(keys) => keys.weight().shape()[0] / self.head_dim,
            None => self.query_heads(),
        }
    }
}

impl Shard for Attention {
    fn heads(&self) -> Option<Heads> {
        Some(Heads {
            many: self.query_heads(),
            few: self.kv_heads(),
            copies: true,
        })
    }

    fn state(&self) -> Option<LayerKind> {
        self.kv_taps.as_ref().map(|taps| taps.kind())
    }

    fn shard(&mut self, ranks: Ranks, _unit: i32) -> Result<()> {
        let (heads, kv_heads) = (self.query_heads(), self.kv_heads());
        let (own, shared) = (ranks.share(heads), ranks.share_of_few(kv_heads));
        #[allow(
            clippy::single_range_in_vec_init,
            reason = "a list of ranges, of which there is one"
        )]
        let rows = |of: &std::ops::Range<i32>, width: i32| [of.start * width..of.end * width];
        let width = self.q_proj.weight().shape()[0] / heads;
        self.q_proj.keep_outputs(&rows(&own, width))?;
        if let Some(keys) = &mut self.k_proj {
            keys.keep_outputs(&rows(&shared, self.head_dim))?;
        }
        if let Some(values) = &mut self.v_proj {
            values.keep_outputs(&rows(&shared, self.value_dim))?;
        }
        if let Some(gate) = &mut self.g_proj {
            let width = gate.weight().shape()[0] / heads;
            gate.keep_outputs(&rows(&own, width))?;
        }
        self.o_proj
            .keep_inputs(&rows(&own, self.value_dim), ranks)?;
        let spread = |heads: i32, copies: i32| Spread {
            ranks,
            whole: heads * self.head_dim,
            copies,
        };
        let is_spread = self.norm_place == QkPlace::Projection;
        let queries = is_spread.then(|| spread(heads, 1));
        let keys = is_spread.then(|| spread(kv_heads, ranks.copies_of_few(kv_heads)));
        if let Some(taps) = &mut self.kv_taps {
            taps.keep(&shared)?;
        }
        if let Some(norm) = &mut self.q_norm {
            norm.keep(own.clone(), self.head_dim, queries)?;
        }
        if let Some(norm) = &mut self.k_norm {
            norm.keep(shared, self.head_dim, keys)?;
        }
        if let Some(norm) = &mut self.attn_sub_norm {
            let [range] = rows(&own, self.value_dim);
            let whole = norm.size();
            norm.keep(
                range,
                Some(Spread {
                    ranks,
                    whole,
                    copies: 1,
                }),
            )?;
        }
        if let Some(sinks) = &mut self.sinks {
            let cut = crate::shard::Cut::new(sinks.shape(), 0, vec![own.clone()])?;
            sinks.cut(cut)?;
        }
        if let Some(chooser) = &mut self.chooser {
            chooser.keep(&own)?;
        }
        if let Some(pattern) = &mut self.pattern {
            pattern.keep(&own)?;
        }
        match &mut self.alibi {
            Some(alibi) => alibi.keep(own),
            None => Ok(()),
        }
    }
}
