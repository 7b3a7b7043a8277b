//! Texts of different lengths in one pass of an encoder: each has the features that it has alone, and the number of
//! operations does not depend on the number of lengths.

use mlx_core::{Array, Result, fast, graph_size};
use mlx_models::{Encoder, Loaded, Texts};
use serde_json::{Value, json};

/// Encoders with learned positions, with ropes and windows on both sides, with grouped heads and norms of heads.
fn encoders() -> Vec<Loaded> {
    let sizes = json!({
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "vocab_size": 64, "max_position_embeddings": 512, "initializer_range": 0.4, "pad_token_id": 0,
    });
    let of = |model_type: &str, more: Value| {
        let mut config = sizes.clone();
        let all = config.as_object_mut().unwrap();
        all.extend(more.as_object().unwrap().clone());
        all.insert("model_type".to_owned(), model_type.into());
        mlx_models::initialised("test", config, 3).unwrap()
    };
    vec![
        of("bert", json!({"type_vocab_size": 2})),
        of("roberta", json!({"pad_token_id": 1})),
        of(
            "modernbert",
            json!({"local_attention": 16, "global_attn_every_n_layers": 3}),
        ),
        of(
            "gemma3_text",
            json!({
                "use_bidirectional_attention": true, "sliding_window": 16, "head_dim": 16,
                "num_key_value_heads": 2, "query_pre_attn_scalar": 16, "sliding_window_pattern": 2,
            }),
        ),
        of(
            "nomic_bert",
            json!({
                "n_embd": 32, "n_head": 4, "n_inner": 48, "n_layer": 3, "n_positions": 512,
                "rotary_emb_fraction": 1.0, "activation_function": "swiglu", "type_vocab_size": 2,
                "qkv_proj_bias": false, "mlp_fc1_bias": false, "mlp_fc2_bias": false, "prenorm": false,
            }),
        ),
    ]
}

fn encoder(loaded: &Loaded) -> &dyn Encoder {
    loaded.model.encoder().expect("it is an encoder")
}

fn ids(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32)
        .map(|at| 2 + (at * 7 + seed * 13 + at * at) % 60)
        .collect()
}

fn texts(lens: &[usize]) -> Vec<Vec<u32>> {
    (0..).zip(lens).map(|(seed, &len)| ids(len, seed)).collect()
}

fn features(loaded: &Loaded, texts: &[Vec<u32>]) -> Result<Array> {
    let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    encoder(loaded).encode(&Texts::new(&texts)?)
}

#[test]
fn a_text_beside_others_is_that_text_alone() -> Result<()> {
    let lens = [5, 1, 40, 3, 40, 300, 1, 17, 64, 2];
    // Products of a GPU are rounded to 10 bits, in an order that depends on the number of tokens.
    let (is_exact, most) = match fast::form(fast::Op::Attention)? {
        fast::Form::Cpu => (true, 0.0),
        fast::Form::Plain => (false, 2e-4),
        fast::Form::Cuda => (false, 5e-2),
    };
    for loaded in encoders() {
        let all = texts(&lens);
        let together = features(&loaded, &all)?;
        let mut first = 0;
        for text in &all {
            let len = text.len() as i32;
            let own = together.slice_axis(0, first, first + len)?;
            first += len;
            let alone = features(&loaded, std::slice::from_ref(text))?;
            let what = format!("{}: a text of {len} tokens", loaded.info.model_type);
            let (own, alone) = (own.to_vec::<f32>()?, alone.to_vec::<f32>()?);
            assert!(alone.iter().any(|x| x.abs() > 1e-3), "{what}");
            let far = own.iter().zip(&alone).map(|(a, b)| (a - b).abs());
            let far = far.fold(0.0, f32::max);
            assert!(
                if is_exact { own == alone } else { far < most },
                "{what}: {far}"
            );
        }
    }
    Ok(())
}

#[test]
fn the_number_of_lengths_adds_no_operations() -> Result<()> {
    for loaded in encoders() {
        let equal = graph_size([&features(&loaded, &texts(&[40; 12]))?])?;
        let lens: Vec<usize> = (29..=40).collect();
        let mixed = graph_size([&features(&loaded, &texts(&lens))?])?;
        assert_eq!(equal, mixed, "{}", loaded.info.model_type);
    }
    Ok(())
}

#[test]
fn rows_and_places_are_those_of_the_texts() -> Result<()> {
    let all = texts(&[1, 40, 7]);
    let texts = Texts::new(&all.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    assert_eq!(
        (texts.longest(), texts.tokens(), texts.count()),
        (40, 48, 3)
    );
    let places: Vec<i32> = (0..1).chain(0..40).chain(0..7).collect();
    assert_eq!(texts.positions().shape(), [1, 48]);
    assert_eq!(texts.positions().to_vec::<i32>()?, places);
    let rows = texts.rows();
    assert_eq!(
        (rows.starts.to_vec::<i32>()?, rows.longest),
        (vec![0, 1, 41, 48], 40)
    );
    Ok(())
}
