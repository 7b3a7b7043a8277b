//! SentencePiece's model file: a protocol buffers message.

/// A field's value.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Four bytes.
    Fixed(u32),
}

/// The part of a model file that is read.
pub(super) struct Model {
    pub(super) pieces: Vec<Piece>,
    /// The kind of model: 1 is Unigram, 2 is BPE.
    pub(super) kind: u64,
    pub(super) byte_fallback: bool,
    pub(super) unk_id: u64,
    /// The texts of the unknown token, of the one that begins a text and of the one that ends it;
    /// `None` without such a token.
    pub(super) unk: Option<String>,
    pub(super) bos: Option<String>,
    pub(super) eos: Option<String>,
    /// The normaliser's table.
    pub(super) charsmap: Vec<u8>,
}

pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: PieceKind,
}

/// The purpose of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceKind {
    Control,
    UserDefined,
    /// An ordinary piece, a byte, or the unknown token.
    Other,
}

impl Model {
    /// Reads a model file.
    ///
    /// # Errors
    /// It is not such a message.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut model = Self {
            pieces: Vec::new(),
            kind: 1,
            byte_fallback: false,
            unk_id: 0,
            unk: None,
            bos: None,
            eos: None,
            charsmap: Vec::new(),
        };
        // The format's defaults.
        let mut ids = [0, 1, 2];
        let mut texts = ["<unk>", "<s>", "</s>"].map(str::to_owned);
        each(bytes, "the model", |field, value| {
            match (field, value) {
                (1, Value::Bytes(piece)) => model.pieces.push(Piece::parse(piece)?),
                (2, Value::Bytes(trainer)) => each(trainer, "trainer_spec", |field, value| {
                    match (field, value) {
                        (3, Value::Number(kind)) => model.kind = kind,
                        (35, Value::Number(flag)) => model.byte_fallback = flag != 0,
                        (40..=42, Value::Number(id)) => ids[field as usize - 40] = id as i32,
                        (45..=47, Value::Bytes(text)) => texts[field as usize - 45] = utf8(text)?,
                        _ => {}
                    }
                    Ok(())
                })?,
                (3, Value::Bytes(normalizer)) => {
                    each(normalizer, "normalizer_spec", |field, value| {
                        if let (2, Value::Bytes(table)) = (field, value) {
                            model.charsmap = table.to_vec();
                        }
                        Ok(())
                    })?
                }
                _ => {}
            }
            Ok(())
        })?;
        if model.pieces.is_empty() {
            return Err("not a SentencePiece model: it has no pieces".to_owned());
        }
        let [unk, bos, eos] = texts;
        model.unk_id = u64::try_from(ids[0]).unwrap_or_default();
        let named = |text, id: i32| (id >= 0).then_some(text);
        (model.unk, model.bos, model.eos) =
            (named(unk, ids[0]), named(bos, ids[1]), named(eos, ids[2]));
        Ok(model)
    }
}

impl Piece {
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut piece = Self {
            text: String::new(),
            score: 0.0,
            kind: PieceKind::Other,
        };
        each(bytes, "a piece", |field, value| {
            match (field, value) {
                (1, Value::Bytes(text)) => piece.text = utf8(text)?,
                (2, Value::Fixed(bits)) => piece.score = f32::from_bits(bits),
                (3, Value::Number(3)) => piece.kind = PieceKind::Control,
                (3, Value::Number(4)) => piece.kind = PieceKind::UserDefined,
                _ => {}
            }
            Ok(())
        })?;
        Ok(piece)
    }
}

fn utf8(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec())
        .map_err(|_| "not a SentencePiece model: a text is not utf-8".to_owned())
}

/// Calls `take` with every field of a message. `what` names it in errors.
fn each<'a>(
    mut bytes: &'a [u8],
    what: &str,
    mut take: impl FnMut(u64, Value<'a>) -> Result<(), String>,
) -> Result<(), String> {
    let cut = || format!("not a SentencePiece model: {what} is cut short");
    while !bytes.is_empty() {
        let key = varint(&mut bytes).ok_or_else(cut)?;
        let value = match key & 7 {
            0 => Value::Number(varint(&mut bytes).ok_or_else(cut)?),
            1 => {
                bytes = bytes.get(8..).ok_or_else(cut)?;
                continue;
            }
            2 => {
                let length = varint(&mut bytes).and_then(|length| usize::try_from(length).ok());
                let (content, rest) = length
                    .and_then(|length| bytes.split_at_checked(length))
                    .ok_or_else(cut)?;
                bytes = rest;
                Value::Bytes(content)
            }
            5 => {
                let (content, rest) = bytes.split_first_chunk::<4>().ok_or_else(cut)?;
                bytes = rest;
                Value::Fixed(u32::from_le_bytes(*content))
            }
            kind => {
                return Err(format!(
                    "not a SentencePiece model: {what} has a field of kind {kind}"
                ));
            }
        };
        take(key >> 3, value)?;
    }
    Ok(())
}

/// The next number: seven bits a byte, the lowest first.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}
