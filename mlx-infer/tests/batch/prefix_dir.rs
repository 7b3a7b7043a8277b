//! Prefixes in files: they survive a restart, and nothing that is wrong with a file changes a token.

use std::fs;
use std::path::{Path, PathBuf};

use crate::checkpoint::{dir, load};
use crate::independence::{CASES, alone, greedy, prompt, same, sampled};
use mlx_core::{DType, QuantMode, Scheme};
use mlx_infer::{
    Choice, Engine, EngineLoad, EngineOptions, GenerateOptions, Limits, LoadOptions, LoadedModel,
    PrefixDirLimits, PrefixDirLoad, Request,
};
use mlx_nn::shard::Ranks;

const LONG: usize = 60;
const ROOM: u64 = 1 << 30;
/// As the other tests load models.
const PLAIN: LoadOptions = LoadOptions {
    dtype: Some(DType::F32),
    context_len: None,
    kv_quantization: None,
    allow_nan: false,
    max_draft: 0,
    expand: false,
    no_head: false,
    ranks: Ranks::ALONE,
};

fn limits(path: &Path, bytes: u64) -> Limits {
    Limits {
        prefix_dir: Some(PrefixDirLimits {
            path: path.to_owned(),
            bytes,
        }),
        ..Limits::default()
    }
}

fn start(case: &'static str, options: LoadOptions, limits: Limits) -> Engine {
    let engine = EngineOptions {
        limits,
        ..EngineOptions::default()
    };
    Engine::start(move || LoadedModel::load(dir(case), options), engine).unwrap()
}

fn engine(case: &'static str, path: &Path) -> Engine {
    start(case, PLAIN, limits(path, ROOM))
}

fn ask(engine: &Engine, prompt: &[u32], options: &GenerateOptions) -> (Vec<Choice>, usize) {
    let request = Request::new(prompt.to_vec(), options.clone());
    let result = engine.submit(request).unwrap().wait();
    assert!(result.error.is_none(), "{:?}", result.error);
    (result.tokens, result.metrics.cached_tokens)
}

/// Ends an engine, which writes what is left, and returns its last counters of files.
fn end(engine: Engine) -> PrefixDirLoad {
    end_with(engine).prefix_dir
}

/// Ends an engine, which writes what is left, and returns its last counters.
fn end_with(engine: Engine) -> EngineLoad {
    // The counters come a moment after the last event.
    let mut load = engine.load();
    loop {
        std::thread::sleep(std::time::Duration::from_millis(30));
        let now = engine.load();
        let is_done = now.waiting + now.prefilling + now.decoding == 0 && now.forwards > 0;
        if is_done && now.prefix_dir == load.prefix_dir && now.forwards == load.forwards {
            break;
        }
        load = now;
    }
    engine.finish().unwrap();
    load
}

/// All files below a folder.
fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

#[test]
fn conversations_go_on_after_a_restart() {
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let model = load(dir(case));
        let mut text = prompt(LONG, 3);
        let mut before = 0;
        for turn in 0..4 {
            // Each turn has an engine of its own, whose memory is empty.
            let engine = engine(case, folder.path());
            let options = sampled(9, turn);
            let (tokens, cached) = ask(&engine, &text, &options);
            assert!(
                same(&tokens, &alone(&model, &text, &options)),
                "{case}, turn {turn}"
            );
            assert_eq!(cached, before, "{case}, turn {turn}");
            let load = end(engine);
            assert_eq!(
                (load.hits, load.tokens),
                (usize::from(turn > 0), before),
                "{case}"
            );
            assert_eq!(load.errors, 0, "{case}");
            text.extend(tokens.iter().map(|choice| choice.id));
            before = text.len() - 1;
            text.extend(prompt(7, 50 + turn));
        }
        // A file has only what it adds: the tokens of all are about those of the conversation.
        let files = files(folder.path());
        assert!((4..=8).contains(&files.len()), "{case}: {files:?}");
    }
}

#[test]
fn what_prompts_have_in_common_is_read_and_does_not_show() {
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let model = load(dir(case));
        let head = prompt(LONG, 9);
        let ends: Vec<Vec<u32>> = (0..5).map(|n| prompt(3 + 5 * n, 20 + n as u64)).collect();
        let texts: Vec<Vec<u32>> = ends.iter().map(|end| [&head[..], end].concat()).collect();
        let first = engine(case, folder.path());
        for text in &texts[..3] {
            ask(&first, text, &greedy(6));
        }
        end(first);
        // All at once: requests that wait for the same file, and rows that decode meanwhile.
        let engine = engine(case, folder.path());
        let handles: Vec<_> = texts
            .iter()
            .map(|text| {
                engine
                    .submit(Request::new(text.clone(), sampled(12, 4)))
                    .unwrap()
            })
            .collect();
        let mut cached = Vec::new();
        for (text, handle) in texts.iter().zip(handles) {
            let result = handle.wait();
            assert!(result.error.is_none(), "{case}: {:?}", result.error);
            assert!(
                same(&result.tokens, &alone(&model, text, &sampled(12, 4))),
                "{case}"
            );
            cached.push(result.metrics.cached_tokens);
        }
        assert!(cached.iter().all(|&n| n >= LONG - 15), "{case}: {cached:?}");
        let load = end(engine);
        assert!(load.hits > 0 && load.errors == 0, "{case}: {load:?}");
    }
}

type Damage = Box<dyn Fn(&Path)>;

/// Every way in which a file may be wrong, and the errors that are counted.
fn damages(case: &'static str) -> Vec<(&'static str, Damage, usize)> {
    let flip = |place: fn(usize) -> usize| {
        move |path: &Path| {
            let mut bytes = fs::read(path).unwrap();
            let at = place(bytes.len());
            bytes[at] ^= 4;
            fs::write(path, bytes).unwrap();
        }
    };
    let cut = |len: fn(usize) -> usize| {
        move |path: &Path| {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..len(bytes.len())]).unwrap();
        }
    };
    vec![
        ("a bit of the length", Box::new(flip(|_| 2)), 1),
        ("a bit of the header", Box::new(flip(|_| 40)), 1),
        ("a bit in the middle", Box::new(flip(|len| len / 2)), 1),
        ("the last bit", Box::new(flip(|len| len - 1)), 1),
        ("empty", Box::new(cut(|_| 0)), 1),
        ("half", Box::new(cut(|len| len / 2)), 1),
        ("without the last byte", Box::new(cut(|len| len - 1)), 1),
        (
            "longer",
            Box::new(|path| {
                let bytes = [fs::read(path).unwrap(), vec![0; 8]].concat();
                fs::write(path, bytes).unwrap();
            }),
            1,
        ),
        (
            "text",
            Box::new(|path| fs::write(path, "these are no states").unwrap()),
            1,
        ),
        (
            "another safetensors file",
            Box::new(move |path| {
                fs::copy(dir(case).join("model.safetensors"), path).unwrap();
            }),
            1,
        ),
        (
            "a folder",
            Box::new(|path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            }),
            0,
        ),
        ("gone", Box::new(|path| fs::remove_file(path).unwrap()), 0),
    ]
}

#[test]
fn a_damaged_file_is_a_miss_and_an_error() {
    let case = "gemma3_text";
    let model = load(dir(case));
    let (text, more) = (prompt(LONG, 3), prompt(9, 8));
    let whole = [&text[..], &more].concat();
    let expected = alone(&model, &whole, &greedy(8));
    for (what, damage, errors) in damages(case) {
        let folder = tempfile::tempdir().unwrap();
        let first = engine(case, folder.path());
        ask(&first, &text, &greedy(1));
        end(first);
        let [file] = &files(folder.path())[..] else {
            panic!("{:?}", files(folder.path()));
        };
        damage(file);
        let second = engine(case, folder.path());
        let (tokens, cached) = ask(&second, &whole, &greedy(8));
        assert!(same(&tokens, &expected), "{what}");
        assert_eq!(cached, 0, "{what}");
        let load = end(second);
        assert_eq!((load.hits, load.errors), (0, errors), "{what}");
        // What was computed is there again.
        let third = engine(case, folder.path());
        let (tokens, cached) = ask(&third, &whole, &greedy(8));
        assert!(same(&tokens, &expected), "{what}");
        assert_eq!(cached, whole.len() - 1, "{what}");
        end(third);
    }
}

/// Damage that comes while an engine runs: heads were read before.
#[test]
fn damage_after_the_start_is_noticed() {
    let case = "qwen3_5";
    let model = load(dir(case));
    let (text, more) = (prompt(LONG, 3), prompt(9, 8));
    let whole = [&text[..], &more].concat();
    let folder = tempfile::tempdir().unwrap();
    let first = engine(case, folder.path());
    ask(&first, &text, &greedy(20));
    end(first);
    let second = engine(case, folder.path());
    for file in files(folder.path()) {
        let mut bytes = fs::read(&file).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&file, bytes).unwrap();
    }
    let (tokens, cached) = ask(&second, &whole, &greedy(8));
    assert!(same(&tokens, &alone(&model, &whole, &greedy(8))));
    assert_eq!(cached, 0);
    let load = end(second);
    assert_eq!((load.hits, load.errors), (0, 1));
}

#[test]
fn prefixes_of_other_models_are_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let (text, more) = (prompt(LONG, 3), prompt(9, 8));
    let whole = [&text[..], &more].concat();
    let case = "q_qwen3_mixed";
    let options = [
        PLAIN,
        LoadOptions {
            context_len: Some(64),
            ..PLAIN
        },
        LoadOptions {
            kv_quantization: Some(Scheme::new(32, 8, QuantMode::Affine).unwrap()),
            ..PLAIN
        },
        LoadOptions {
            max_draft: 4,
            ..PLAIN
        },
    ];
    for (n, &options) in options.iter().enumerate() {
        let model = LoadedModel::load(dir(case), options).unwrap();
        let expected = alone(&model, &whole, &greedy(8));
        for turn in 0..2 {
            let engine = start(case, options, limits(folder.path(), ROOM));
            let (tokens, cached) = ask(&engine, if turn == 0 { &text } else { &whole }, &greedy(8));
            assert_eq!(cached, turn * LONG, "options {n}");
            assert!(turn == 0 || same(&tokens, &expected), "options {n}");
            assert_eq!(end(engine).errors, 0, "options {n}");
        }
        let models = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(models, n + 1);
    }
    // A file of one model in the folder of another is foreign.
    let mut models: Vec<PathBuf> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    models.sort();
    let foreign = files(&models[0]);
    for model in &models[1..] {
        files(model)
            .iter()
            .for_each(|file| fs::remove_file(file).unwrap());
        for file in &foreign {
            fs::copy(file, model.join(file.file_name().unwrap())).unwrap();
        }
    }
    files(&models[0])
        .iter()
        .for_each(|file| fs::remove_file(file).unwrap());
    let mut errors = 0;
    for options in options {
        let model = LoadedModel::load(dir(case), options).unwrap();
        let engine = start(case, options, limits(folder.path(), ROOM));
        let (tokens, cached) = ask(&engine, &whole, &greedy(8));
        assert!(same(&tokens, &alone(&model, &whole, &greedy(8))));
        assert_eq!(cached, 0);
        errors += end(engine).errors;
    }
    assert_eq!(errors, 3 * foreign.len());
}

#[test]
fn the_folder_stays_within_its_bytes_and_two_engines_share_it() {
    let folder = tempfile::tempdir().unwrap();
    let case = "gemma3_text";
    let model = load(dir(case));
    let own = folder.path().join("notes.txt");
    fs::write(&own, [0; 5000]).unwrap();
    let size = {
        let first = engine(case, folder.path());
        ask(&first, &prompt(LONG, 1), &greedy(1));
        end(first);
        let files = files(folder.path());
        files
            .iter()
            .map(|file| fs::metadata(file).unwrap().len())
            .min()
            .unwrap()
    };
    let most = 7 * size;
    let bytes = || -> u64 {
        let files = files(folder.path()).into_iter().filter(|file| *file != own);
        files
            .filter_map(|file| Some(fs::metadata(file).ok()?.len()))
            .sum()
    };
    let [one, other] = [0, 1].map(|_| start(case, PLAIN, limits(folder.path(), most)));
    let check = |engine: &Engine, n: u64| {
        let text = prompt(LONG + n as usize % 7, 1 + n % 12);
        let (tokens, _) = ask(engine, &text, &greedy(3));
        assert!(same(&tokens, &alone(&model, &text, &greedy(3))), "{n}");
    };
    for n in 0..23u64 {
        check(if n % 2 == 0 { &one } else { &other }, n);
    }
    assert_eq!(end(one).errors, 0);
    check(&other, 23);
    assert_eq!(end(other).errors, 0);
    assert!(
        bytes() <= most && bytes() > most / 2,
        "{} of {most}",
        bytes()
    );
    assert!(own.exists());
    // The last text is there, the first is not.
    let again = start(case, PLAIN, limits(folder.path(), most));
    assert!(ask(&again, &prompt(LONG + 23 % 7, 12), &greedy(1)).1 >= LONG - 1);
    assert_eq!(end(again).hits, 1);
    // A prefix that is larger than the limit is not stored, which is no error.
    let small = start(case, PLAIN, limits(folder.path(), 100));
    ask(&small, &prompt(LONG, 77), &greedy(1));
    assert_eq!(end(small).errors, 0);
    assert!(bytes() <= 100);
}

#[test]
fn a_folder_that_cannot_be_written_turns_itself_off() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "text").unwrap();
    let model = load(dir("qwen3"));
    let ask_both = |engine: &Engine| {
        for n in 0..3 {
            let text = prompt(LONG, n);
            let (tokens, _) = ask(engine, &text, &greedy(4));
            assert!(same(&tokens, &alone(&model, &text, &greedy(4))));
        }
    };
    // A file where the folder should be.
    let off = engine("qwen3", &file.join("prefixes"));
    ask_both(&off);
    let load = end(off);
    assert_eq!((load.errors, load.files, load.hits), (1, 0, 0));
    assert_eq!(fs::read(&file).unwrap(), b"text");
    // The model's folder becomes a file while the engine runs.
    let prefixes = folder.path().join("prefixes");
    let off = engine("qwen3", &prefixes);
    let own = fs::read_dir(&prefixes)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    fs::remove_dir_all(&own).unwrap();
    fs::write(&own, "text").unwrap();
    ask_both(&off);
    let load = off.load().prefix_dir;
    off.finish().unwrap();
    assert!(load.errors <= 1 && load.hits == 0);
    assert_eq!(fs::read(&own).unwrap(), b"text");
}

#[test]
fn bad_limits_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = load(dir("qwen3"));
    for (limits, expected) in [
        (
            Limits {
                prefix_bytes: 0,
                ..limits(folder.path(), ROOM)
            },
            "prefix_dir needs prefix_bytes above 0",
        ),
        (
            Limits {
                prefix_bytes: 0,
                prefix_host_bytes: 7,
                ..Limits::default()
            },
            "prefix_host_bytes needs prefix_bytes above 0",
        ),
        (limits(folder.path(), 0), "bytes above 0"),
        (limits(Path::new(""), 5), "needs a folder"),
    ] {
        let error = model.batch(&limits).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// A prefix that was evicted from pages comes back from the folder, or from the memory of the host, in the
/// same process.
#[test]
fn evicted_prefixes_come_back() {
    for (case, in_files) in [
        ("qwen3", true),
        ("gemma3_text", true),
        ("qwen3_5", true),
        ("qwen3", false),
        ("qwen3_5", false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let model = load(dir(case));
        let state = {
            let cache = model.prompt_cache(prompt(LONG, 0), &greedy(1)).unwrap();
            cache.nbytes()
        };
        let places = match in_files {
            true => limits(folder.path(), ROOM),
            false => Limits {
                prefix_host_bytes: ROOM as usize,
                ..Limits::default()
            },
        };
        let small = Limits {
            prefix_bytes: 5 * state / 2,
            ..places
        };
        let of_tier = |load: EngineLoad| match in_files {
            true => load.prefix_dir,
            false => load.prefix_host,
        };
        let engine = start(case, PLAIN, small);
        for n in 0..8 {
            ask(&engine, &prompt(LONG, n), &greedy(1));
        }
        // The files are written beside the requests.
        let start = std::time::Instant::now();
        while of_tier(engine.load()).files < 8 && start.elapsed().as_secs() < 100 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            ask(&engine, &prompt(3, 99), &greedy(1));
        }
        let load = of_tier(engine.load());
        assert_eq!((load.files, load.errors), (8, 0), "{case}: {load:?}");
        for n in 0..8 {
            let text = [prompt(LONG, n), prompt(4, 70)].concat();
            let (tokens, cached) = ask(&engine, &text, &greedy(7));
            assert!(same(&tokens, &alone(&model, &text, &greedy(7))), "{case}");
            assert_eq!(cached, LONG, "{case}, text {n}");
        }
        let load = of_tier(end_with(engine));
        assert!(load.hits >= 6 && load.errors == 0, "{case}: {load:?}");
    }
}

/// A prefix that memory serves is not the first that the folder loses.
#[test]
fn what_memory_serves_stays_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let case = "qwen3";
    let hot = prompt(LONG, 500);
    let probe = engine(case, folder.path());
    ask(&probe, &hot, &greedy(1));
    end(probe);
    let size = fs::metadata(&files(folder.path())[0]).unwrap().len();
    let engine_of = || start(case, PLAIN, limits(folder.path(), 4 * size + size / 2));
    let engine = engine_of();
    for n in 0..12 {
        ask(&engine, &prompt(LONG, n), &greedy(1));
        assert!(ask(&engine, &hot, &greedy(1)).1 >= LONG - 1);
    }
    assert_eq!(end(engine).errors, 0);
    let again = engine_of();
    assert_eq!(ask(&again, &hot, &greedy(1)).1, LONG - 1);
    assert_eq!(ask(&again, &prompt(LONG, 0), &greedy(1)).1, 0);
    end(again);
}
