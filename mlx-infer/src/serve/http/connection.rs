//! Connections: one task each, with limits on how long a client may take.
//!
//! A connection closes if the head of a request does not arrive in time (which also ends idle
//! connections), or if its client reads no byte of an answer for that long.
//! [`Fields`](crate::serve::http::fields::Fields) limits the time of a body.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};

use crate::serve::http::listener::{Duplex, Listener};
use crate::serve::http::tls::Certificate;
use crate::serve::server::is_set;

/// The pause after the system has refused a connection, as it does with too many open files.
const REFUSED: Duration = Duration::from_millis(100);

/// Serves connections until `closing` is set and the open connections have ended. With a
/// certificate they are encrypted.
pub(crate) async fn serve(
    listener: Listener,
    certificate: Option<Arc<Certificate>>,
    router: Router,
    limit: Duration,
    closing: watch::Receiver<bool>,
) {
    let mut open = JoinSet::new();
    let mut closed = pin!(is_set(closing.clone()));
    loop {
        tokio::select! {
            () = &mut closed => break,
            Some(_) = open.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    let stream = Bounded { stream, limit, stalled: None };
                    let (router, closing) = (router.clone(), closing.clone());
                    let Some(certificate) = &certificate else {
                        open.spawn(answer(stream, router, limit, closing));
                        continue;
                    };
                    let handshake = certificate.acceptor().accept(stream);
                    open.spawn(async move {
                        if let Ok(Ok(stream)) = timeout(limit, handshake).await {
                            answer(stream, router, limit, closing).await;
                        }
                    });
                }
                Err(_) => sleep(REFUSED).await,
            },
        }
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// Answers the requests of a connection. It ends when the client disconnects.
async fn answer(
    stream: impl Duplex,
    router: Router,
    limit: Duration,
    closing: watch::Receiver<bool>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limit)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => {}
        () = is_set(closing) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// A connection whose writes fail if its client reads no byte for too long.
struct Bounded {
    stream: Box<dyn Duplex>,
    limit: Duration,
    /// The timer of a write that waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Bounded {
    /// The result of a write, or an error if it has waited for too long.
    fn bounded<T>(
        &mut self,
        result: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        let is_over = stalled.as_mut().poll(context);
        is_over.map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(result, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.bounded(result, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
