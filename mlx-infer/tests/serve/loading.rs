//! A model that loads does not hold up the steps of another one.

use std::io::BufRead;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use mlx_core::kernel::{self, CpuKernel, Spec, View, ViewMut};
use mlx_core::{Array, DType, Device, DeviceKind, ones};
use mlx_infer::serve::{PoolOptions, PooledModel};
use mlx_infer::{LoadOptions, LoadedModel, default_model_files};
use serde_json::{Value, json};

use crate::client::{TestServer, at_first_event};

const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];
/// The tensors of the model that loads.
const TENSORS: usize = 400;
const TOKENS: usize = 400;

/// The tensors of a model, of which each is computed by a kernel.
#[derive(Default)]
struct Tensors {
    /// Whether they are computed. Before, the first of them waits.
    is_open: Mutex<bool>,
    opened: Condvar,
    computed: AtomicUsize,
    has_begun: AtomicBool,
}

struct Tensor(Arc<Tensors>);

impl CpuKernel for Tensor {
    fn name(&self) -> &'static str {
        "tensor"
    }
    fn output(&self, _: &[Spec]) -> mlx_core::Result<Vec<Spec>> {
        Ok(vec![Spec::new(&[256, 1024], DType::F32)])
    }
    fn eval(&self, _: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        self.0.has_begun.store(true, Ordering::SeqCst);
        let is_open = self.0.is_open.lock().unwrap();
        drop(self.0.opened.wait_while(is_open, |open| !*open).unwrap());
        for (at, value) in outputs[0].as_mut_slice::<f32>()?.iter_mut().enumerate() {
            *value = (at as f32).sqrt();
        }
        self.0.computed.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

impl Tensors {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn read(self: &Arc<Self>) -> mlx_core::Result<()> {
        let one = ones(&[1], DType::F32)?;
        let tensors: mlx_core::Result<Vec<Array>> = (0..TENSORS)
            .map(|_| Ok(kernel::apply(Tensor(self.clone()), &[&one])?.remove(0)))
            .collect();
        mlx_core::eval(&tensors?)
    }
}

/// A server of two models. The second one has the tensors.
fn start() -> (TestServer, Arc<Tensors>) {
    let tensors = Arc::new(Tensors::default());
    let of_model = tensors.clone();
    let tiny = || {
        LoadedModel::load_files(
            default_model_files(),
            LoadOptions::default(),
            &mut |_, _| (),
        )
    };
    let models = vec![
        PooledModel::new(["runs"], move |_| tiny()),
        PooledModel::new(["loads"], move |_| {
            of_model.read()?;
            tiny()
        }),
    ];
    let server = TestServer::pool(models, PoolOptions::default(), |_| ());
    (server, tensors)
}

fn open(
    server: &TestServer,
    model: &str,
    max_tokens: usize,
) -> std::io::BufReader<std::net::TcpStream> {
    let body = json!({
        "model": model, "prompt": "The red fox", "max_tokens": max_tokens, "ignore_eos": true, "stream": true,
        "temperature": 0, "return_token_ids": true,
    });
    server.open("POST", "/v1/completions", &JSON, &body.to_string())
}

/// The tokens of the next event; `None` at the end of the stream.
fn next(stream: &mut impl BufRead) -> Option<usize> {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(
            stream.read_line(&mut line).unwrap() > 0,
            "the stream has no end"
        );
        match line.trim_end().strip_prefix("data: ") {
            Some("[DONE]") => return None,
            Some(event) => {
                let event: Value = serde_json::from_str(event).unwrap();
                let ids = event["choices"][0]["token_ids"].as_array();
                return Some(ids.map_or(0, Vec::len));
            }
            None => {}
        }
    }
}

/// While the first tensor is not there, and those after it are queued, another model streams an
/// answer to its end.
#[test]
fn a_model_streams_while_another_one_waits_for_its_files() {
    if Device::default_device().unwrap().kind != DeviceKind::Cpu {
        eprintln!("left out: the tasks of CPU streams beside a GPU are counted by MLX");
        return;
    }
    let (server, tensors) = start();
    let mut stream = at_first_event(open(&server, "runs", TOKENS));
    let loading = open(&server, "loads", 1);
    server.until(|| tensors.has_begun.load(Ordering::SeqCst));
    // Meanwhile the loader queues what may wait.
    thread::sleep(Duration::from_millis(300));
    let mut again = open(&server, "runs", TOKENS);
    for stream in [&mut stream, &mut again] {
        let mut tokens = 0;
        while let Some(count) = next(stream) {
            tokens += count;
        }
        assert!(tokens >= TOKENS - 1, "{tokens}");
    }
    assert_eq!(tensors.computed.load(Ordering::SeqCst), 0);
    assert_eq!(server.get("/v1/models/loads").json()["state"], "loading");
    tensors.open();
    let mut loading = loading;
    while next(&mut loading).is_some() {}
    assert_eq!(tensors.computed.load(Ordering::SeqCst), TENSORS);
}

/// While tensors are computed, tokens of another model come between them. The time of a step and of
/// a tensor depends on the machine, so the test counts tensors between two events.
#[test]
fn tokens_come_between_the_tensors_of_another_model() {
    let (server, tensors) = start();
    let mut stream = at_first_event(open(&server, "runs", TOKENS));
    let mut loading = open(&server, "loads", 1);
    server.until(|| tensors.has_begun.load(Ordering::SeqCst));
    tensors.open();
    let mut places = vec![tensors.computed.load(Ordering::SeqCst)];
    while next(&mut stream).is_some() {
        places.push(tensors.computed.load(Ordering::SeqCst));
    }
    let gaps = places.windows(2).map(|pair| pair[1] - pair[0]);
    let largest = gaps.max().unwrap();
    assert!(
        largest < TENSORS / 4,
        "{largest} tensors between two events: {places:?}"
    );
    while next(&mut loading).is_some() {}
}
