//! [`EncoderModel`]: embeddings, layers, a final norm, and a head that classifies texts.

use mlx_core::{Array, Error, ErrorKind, Result};
use mlx_nn::{Activation, Embedding, Head, Linear, Norm, Residual, Step, module};

use super::layer::EncoderLayer;
use super::plan::{EncoderPlan, HeadShape};
use crate::checkpoint::Names;
use crate::model::encoder::{Encoder, Texts};
use crate::model::{Geometry, LayerGeometry, Model, kv_heads};

#[derive(Clone)]
struct Embeddings {
    word_embeddings: Embedding,
    position_embeddings: Option<Embedding>,
    token_type_embeddings: Option<Embedding>,
    norm: Option<Norm>,
    scale: Option<f32>,
    padding: Option<u32>,
    types: i32,
}
module!(Embeddings { word_embeddings, position_embeddings, token_type_embeddings, norm }
        plain { scale, padding, types });

impl Embeddings {
    fn empty(plan: &EncoderPlan) -> Result<Self> {
        let table = |rows: i32| Embedding::empty(rows, plan.hidden);
        let norm = plan.embedding_norm.as_ref();
        Ok(Self {
            word_embeddings: table(plan.vocab)?,
            position_embeddings: plan.positions.map(table).transpose()?,
            token_type_embeddings: (plan.types > 0).then(|| table(plan.types)).transpose()?,
            norm: norm
                .map(|norm| Norm::empty(plan.hidden, norm))
                .transpose()?,
            scale: plan.embedding_scale,
            padding: plan.padding,
            types: plan.types,
        })
    }

    fn forward(&self, texts: &Texts) -> Result<Array> {
        let array = |ids: &[u32]| Array::from_slice(ids, &[ids.len() as i32]);
        let mut x = self.word_embeddings.forward(&array(texts.ids())?)?;
        if let Some(scale) = self.scale {
            x = x.multiply(scale)?;
        }
        if let Some(table) = &self.token_type_embeddings {
            // A table of one type is for tokens of any type.
            let last = self.types as u32 - 1;
            let types: Vec<u32> = texts.types().iter().map(|&kind| kind.min(last)).collect();
            x = x.add(table.forward(&array(&types)?)?)?;
        }
        if let Some(table) = &self.position_embeddings {
            x = x.add(table.forward(&array(&self.positions(texts))?)?)?;
        }
        self.norm
            .as_ref()
            .map_or(Ok(x.clone()), |norm| norm.forward(&x))
    }

    /// The row of each token in the table of positions.
    fn positions(&self, texts: &Texts) -> Vec<u32> {
        let mut positions = Vec::with_capacity(texts.tokens());
        for group in texts.groups() {
            let range = group.range();
            let ids = &texts.ids()[range.start as usize..range.end as usize];
            for text in ids.chunks(group.len as usize) {
                match self.padding {
                    None => positions.extend(0..text.len() as u32),
                    Some(padding) => {
                        let mut position = padding;
                        positions.extend(text.iter().map(|&id| {
                            position += u32::from(id != padding);
                            if id == padding { padding } else { position }
                        }));
                    }
                }
            }
        }
        positions
    }
}

/// The head that classifies texts.
#[derive(Clone)]
struct ClassificationHead {
    dense: Linear,
    norm: Option<Norm>,
    out_proj: Linear,
    activation: Activation,
    reads_mean: bool,
}
module!(ClassificationHead { dense, norm, out_proj } plain { activation, reads_mean });

impl ClassificationHead {
    fn empty(hidden: i32, shape: &HeadShape) -> Result<Self> {
        let norm = shape.norm.as_ref().map(|norm| Norm::empty(hidden, norm));
        Ok(Self {
            dense: Linear::empty(hidden, hidden, shape.bias)?,
            norm: norm.transpose()?,
            out_proj: Linear::empty(hidden, shape.classes, true)?,
            activation: shape.activation,
            reads_mean: shape.reads_mean,
        })
    }

    fn forward(&self, features: &Array, texts: &Texts) -> Result<Array> {
        let x = match self.reads_mean {
            true => texts.reduce(features, |text| text.mean(1, false))?,
            false => texts.pick(features, |_| 0)?,
        };
        let mut x = self.activation.forward(&self.dense.forward(&x)?)?;
        if let Some(norm) = &self.norm {
            x = norm.forward(&x)?;
        }
        self.out_proj.forward(&x)
    }
}

/// An encoder: texts in, features out.
#[derive(Clone)]
pub struct EncoderModel {
    embeddings: Embeddings,
    layers: Vec<EncoderLayer>,
    final_norm: Option<Norm>,
    head: Option<ClassificationHead>,
    geometry: Geometry,
    classes: usize,
    names: Names,
}
module!(EncoderModel { embeddings, layers, final_norm, head } plain { geometry, classes, names });

impl EncoderModel {
    /// The encoder of a plan. Its parameters have no values.
    ///
    /// # Errors
    /// Sizes do not fit each other, or a rope is of a kind that depends on the length of a text.
    pub fn new(plan: &EncoderPlan) -> Result<Self> {
        let layers = plan.layers.iter();
        let layers = layers.map(|layer| EncoderLayer::empty(plan, layer));
        let head = plan.head.as_ref();
        let size = LayerGeometry {
            heads: plan.heads,
            kv: Some(kv_heads(plan.kv_heads, plan.head_dim)),
            ..LayerGeometry::stateless()
        };
        let sizes = vec![size; plan.layers.len()];
        Ok(Self {
            embeddings: Embeddings::empty(plan)?,
            layers: layers.collect::<Result<_>>()?,
            final_norm: match plan.final_norm {
                true => Some(Norm::empty(plan.hidden, &plan.norm)?),
                false => None,
            },
            head: head
                .map(|head| ClassificationHead::empty(plan.hidden, head))
                .transpose()?,
            geometry: Geometry::new(plan.vocab, plan.hidden, sizes)
                .with_positions(Some(plan.max_positions), None),
            classes: head.map_or(0, |head| head.classes as usize),
            names: Names::none(),
        })
    }
}

impl Encoder for EncoderModel {
    fn encode(&self, texts: &Texts) -> Result<Array> {
        let (longest, most) = (texts.longest(), self.geometry.max_positions);
        if most.is_some_and(|most| longest as usize > most) {
            let most = most.unwrap_or_default();
            let message = format!("a text of {longest} tokens exceeds the encoder's {most}");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let mut x = self.embeddings.forward(texts)?;
        for layer in &self.layers {
            x = layer.forward(&x, texts)?;
        }
        match &self.final_norm {
            Some(norm) => norm.forward(&x),
            None => Ok(x),
        }
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn classify(&self, features: &Array, texts: &Texts) -> Result<Array> {
        match &self.head {
            Some(head) => head.forward(features, texts),
            None => {
                let message = "the encoder has no head that classifies texts";
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }
}

fn no_text<T>() -> Result<T> {
    let message = "the model is an encoder: it computes features of texts and generates none";
    Err(Error::new(ErrorKind::Unsupported, message))
}

impl Model for EncoderModel {
    fn encoder(&self) -> Option<&dyn Encoder> {
        Some(self)
    }

    fn embed(&self, _tokens: &Array) -> Result<Array> {
        no_text()
    }

    fn layer(&self, _index: usize, _x: Residual, _step: &mut Step<'_>) -> Result<Residual> {
        no_text()
    }

    fn norm(&self, _x: Residual) -> Result<[Array; 2]> {
        no_text()
    }

    fn logits(&self, _hidden: &Array) -> Result<Array> {
        no_text()
    }

    /// The embedding. No encoder computes the logits of a next token.
    fn head(&self) -> Head<'_> {
        Head::of(None, &self.embeddings.word_embeddings, None)
    }

    fn duplicate(&self) -> Result<Box<dyn Model>> {
        Ok(Box::new(self.clone()))
    }

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn names(&self) -> &Names {
        &self.names
    }

    fn set_names(&mut self, names: Names) {
        self.names = names;
    }
}
