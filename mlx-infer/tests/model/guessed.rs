//! Calls that were written before the documentation was read, word for word.
//!
//! Six of ten compile. Two were refused because every call says whether special tokens are added or skipped, as in the
//! crate `tokenizers`: `tokenizer.encode("Hello")`, `tokenizer.decode(&[1, 2, 3])`. A model can be without a tokenizer, so
//! `loaded.tokenizer().encode("Hello")` needs a `?`, and a chat has options: `loaded.chat(&[Message::user("Hi")])`.

use mlx_infer::*;

#[test]
fn guessed_calls_compile_and_run() {
    let folder = tempfile::tempdir().unwrap();
    let (files, model) = (default_model_files(), folder.path().join("model"));
    std::fs::create_dir(&model).unwrap();
    for name in files.list().unwrap() {
        std::fs::write(model.join(&name), files.read(&name).unwrap().unwrap()).unwrap();
    }
    std::fs::copy(
        model.join("tokenizer.json"),
        folder.path().join("tokenizer.json"),
    )
    .unwrap();
    let before = std::env::current_dir().unwrap();
    std::env::set_current_dir(folder.path()).unwrap();
    let loaded = LoadedModel::load("model", LoadOptions::default());
    let tokenizer = Tokenizer::from_file("tokenizer.json");
    let (loaded, tokenizer) = (loaded.unwrap(), tokenizer.unwrap());
    let ids = tokenizer.encode("Hello", false).unwrap();
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "Hello");
    loaded
        .generate("Hello", &GenerateOptions::default())
        .unwrap();

    let options = GenerateOptions {
        max_tokens: 32,
        ..Default::default()
    };
    let params = SamplingParams {
        temperature: 0.7,
        top_p: 0.9,
        ..Default::default()
    };
    let options = GenerateOptions {
        sampling: params,
        ..options
    };
    let question = [Message::user("Hello")];
    let answer = loaded
        .chat(&question, &Default::default(), &options)
        .unwrap();
    assert!(!answer.text().unwrap().is_empty());
    assert_eq!(question, [Message::new("user", "Hello")]);
    assert_eq!(Message::assistant("Hi"), Message::new("assistant", "Hi"));
    assert_eq!(
        Message::system("Be short."),
        Message::new("system", "Be short.")
    );
    std::env::set_current_dir(before).unwrap();
}
