//! Builds adapters from tensors: `q_proj.lora_a`, `q_proj.lora_b` and `q_proj.m` become the adapter
//! of `q_proj`.

use std::collections::BTreeMap;

use mlx_core::{Array, Result};
use mlx_nn::lora::adapt::is_adapter;
use mlx_nn::{Adaptable, AdaptableLayer, Layout, Lora, Module, Param, Path, Visit, VisitMut};

use super::{AdapterKind, Found, LayerLoras, not_empty, report};

/// One adapter's arrays.
#[derive(Default)]
struct Parts {
    a: Option<Array>,
    b: Option<Array>,
    m: Option<Array>,
}

/// The adapters of the layers that the tensors name. `scale` computes an adapter's factor from its rank.
pub(super) fn made(
    label: &str,
    module: &dyn Module,
    tensors: BTreeMap<String, Array>,
    scale: &dyn Fn(i32) -> f32,
    dropout: f32,
    kind: AdapterKind,
) -> Result<Found> {
    not_empty(label, &tensors)?;
    let names: Vec<String> = tensors.keys().cloned().collect();
    let mut faults = Vec::new();
    let mut layers: BTreeMap<String, Parts> = BTreeMap::new();
    for (name, array) in tensors {
        match name.rsplit_once('.') {
            Some((layer, part))
                if is_adapter(&name) && (part != "m" || kind == AdapterKind::Dora) =>
            {
                let parts = layers.entry(layer.to_owned()).or_default();
                let slot = match part {
                    "lora_a" => &mut parts.a,
                    "lora_b" => &mut parts.b,
                    _ => &mut parts.m,
                };
                *slot = Some(array);
            }
            _ => faults.push(format!("{name}: no array of a {} adapter", kind.name())),
        }
    }
    struct Make<'a> {
        layers: BTreeMap<String, Parts>,
        made: BTreeMap<String, Lora>,
        faults: Vec<String>,
        scale: &'a dyn Fn(i32) -> f32,
        dropout: f32,
        dora: bool,
    }
    impl Visit for Make<'_> {
        fn adaptable(&mut self, path: &Path, layer: AdaptableLayer<'_>) -> Result<()> {
            let Some(parts) = self.layers.remove(path.as_str()) else {
                return Ok(());
            };
            let parts = parts
                .held(&layer)
                .map_err(|error| error.context(path.as_str()))?;
            match parts.lora(&layer, self.dora) {
                Ok((mut lora, rank)) => {
                    lora.scale = (self.scale)(rank);
                    lora.dropout = self.dropout;
                    self.made.insert(path.as_str().to_owned(), lora);
                }
                Err(fault) => self.faults.push(format!("{}: {fault}", path.as_str())),
            }
            Ok(())
        }
    }
    let mut visitor = Make {
        layers,
        made: BTreeMap::new(),
        faults,
        scale,
        dropout,
        dora: kind == AdapterKind::Dora,
    };
    module.visit(&mut Path::default(), &mut visitor)?;
    let Make {
        layers,
        made,
        mut faults,
        ..
    } = visitor;
    let strangers = layers.into_keys();
    faults.extend(strangers.map(|layer| format!("{layer}: no layer of the model has this name")));
    report(label, "tensors of the adapter", &faults)?;
    Ok(Found::Layers(LayerLoras {
        kind,
        names,
        dropout,
        layers: made,
    }))
}

/// Attaches the adapters after all of them have been checked, so that an error leaves the model unchanged.
pub(super) fn set(module: &mut dyn Module, made: BTreeMap<String, Lora>) -> Result<()> {
    struct Set(BTreeMap<String, Lora>);
    impl VisitMut for Set {
        fn adaptable(&mut self, path: &Path, layer: Adaptable<'_>) -> Result<()> {
            if let Some(lora) = self.0.remove(path.as_str()) {
                *layer.lora = Some(Box::new(lora));
            }
            Ok(())
        }
    }
    module.visit_mut(&mut Path::default(), &mut Set(made))
}

impl Parts {
    /// The parts that belong to this rank's part of the layer.
    fn held(self, layer: &AdaptableLayer<'_>) -> Result<Self> {
        let held = |part: &str, array: Option<Array>| {
            let array = array.map(|array| layer.layout.part(layer.weight, part, array));
            array.transpose()
        };
        Ok(Self {
            a: held("lora_a", self.a)?,
            b: held("lora_b", self.b)?,
            m: held("m", self.m)?,
        })
    }

    /// The adapter, if its arrays fit the layer, and its rank. The caller sets scale and dropout.
    fn lora(self, layer: &AdaptableLayer<'_>, dora: bool) -> Result<(Lora, i32), String> {
        let (Some(a), Some(b)) = (self.a, self.b) else {
            return Err("lora_a or lora_b is missing".to_owned());
        };
        let shape = layer.weight.shape();
        let rank = layer.layout.rank(a.shape()).filter(|&rank| rank >= 1);
        let expected = rank.and_then(|rank| Some((rank, layer.layout.shapes(&shape, rank)?)));
        let Some((rank, [_, _, of_m])) =
            expected.filter(|(_, [of_a, of_b, _])| a.shape() == of_a && b.shape() == of_b)
        else {
            let what = match layer.layout {
                Layout::Linear => "a matrix",
                Layout::Embedding => "an embedding",
                Layout::Experts => "experts",
            };
            return Err(format!(
                "lora_a {:?} and lora_b {:?} do not fit {what} {shape:?}",
                a.shape(),
                b.shape()
            ));
        };
        if self.m.is_some() != dora || self.m.as_ref().is_some_and(|m| m.shape() != of_m) {
            let found = self.m.as_ref().map(Array::shape);
            return Err(format!("expected m of {of_m:?}, found {found:?}"));
        }
        if [Some(&a), Some(&b), self.m.as_ref()]
            .into_iter()
            .flatten()
            .any(|array| !array.dtype().is_float())
        {
            return Err("its arrays are not floating point".to_owned());
        }
        let param = |array| {
            let mut param = Param::fixed(array);
            param.trainable = true;
            param
        };
        let lora = Lora {
            layout: layer.layout,
            lora_a: param(a),
            lora_b: param(b),
            m: self.m.map(param),
            scale: 1.0,
            dropout: 0.0,
            key: None,
        };
        Ok((lora, rank))
    }
}
