//! Well-behaved and misbehaving endpoints. Each exchange ends by its deadline with the right failure, sent at most
//! once.

use std::{sync::Arc, time::Duration};

use crate::common::*;
use bytes::Bytes;
use http::HeaderValue;
use redrive_core::delivery::response::SendFailure;
use redrive_egress::{Client, Config};
use tokio::{
    sync::{Notify, mpsc},
    time::{sleep, timeout},
};

/// Long enough for a background task to react, short enough for a test.
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Asserts the failure caused by a server that responds with these bytes and then closes. Returns the status.
async fn fails_on(response: &'static [u8], failure: SendFailure) -> Option<u16> {
    let server = Server::responding_once(response).await;
    let exchange = post(&client(), outbound(&server.url(), LONG)).await;
    assert_eq!(server.requests(), 1);
    failed(exchange, failure).status
}

/// Sends `head`, then `more` repeatedly with `pause` in between, until the client closes, which the channel
/// reports.
async fn dripping(head: &'static [u8], more: Vec<u8>, pause: Duration) -> (Server, mpsc::Receiver<()>) {
    let (notify, notified) = mpsc::channel(1);
    let more = Arc::new(more);
    let server = Server::start(move |mut peer| {
        let (notify, more) = (notify.clone(), more.clone());
        async move {
            peer.read_request().await;
            let mut open = peer.send(head).await;
            while open {
                tokio::select! {
                    _ = peer.stream.readable(), if !pause.is_zero() => break,
                    () = sleep(pause) => open = peer.send(&more).await,
                }
            }
            let _ = notify.send(()).await;
        }
    })
    .await;
    (server, notified)
}

async fn assert_closed(mut notified: mpsc::Receiver<()>) {
    timeout(SHORT_TIMEOUT, notified.recv()).await.expect("the connection is still open");
}

#[tokio::test]
async fn connection_to_healthy_endpoint_is_reused() {
    let server = Server::responding(OK).await;
    let client = client();

    let first = post(&client, outbound(&server.url(), LONG)).await;
    let timings = first.timings;
    assert!(timings.connect.is_some() && timings.ttfb.is_some());
    assert_eq!((timings.dns, timings.tls), (None, None));
    assert!(timings.connect <= timings.ttfb && timings.ttfb <= Some(timings.total));
    let response = expect_response(first);
    assert_eq!((response.status, &response.body_sample[..]), (200, &b"ok"[..]));
    assert_eq!(response.headers["content-length"], "2");

    let second = post(&client, outbound(&server.url(), LONG)).await;
    assert_eq!((second.timings.dns, second.timings.connect), (None, None));
    assert!(second.timings.ttfb.is_some());
    expect_response(second);
    assert_eq!((server.connections(), server.requests()), (1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exchanges_sharing_connections_do_not_interfere() {
    let server = Server::responding(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let client = client();
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (client, request) = (client.clone(), outbound(&server.url(), LONG));
        senders.spawn(async move {
            for _ in 0..500 {
                expect_response(client.post(request.clone()).await);
            }
        });
    }
    senders.join_all().await;
    assert_eq!(server.requests(), 8 * 500);
    assert!(server.connections() <= 16, "{} connections", server.connections());
}

#[tokio::test]
async fn client_overrides_framing_headers_and_keeps_others() {
    let (notify, mut notified) = mpsc::channel(1);
    let server = Server::start(move |mut peer| {
        let notify = notify.clone();
        async move {
            notify.send(peer.read_request().await.unwrap()).await.unwrap();
            peer.send(OK).await;
        }
    })
    .await;
    let mut request = outbound(&server.url(), LONG);
    for (name, value) in [
        ("host", "evil.example"),
        ("content-length", "1"),
        ("transfer-encoding", "chunked"),
        ("connection", "upgrade"),
        ("expect", "100-continue"),
        ("x-custom", "kept"),
    ] {
        request.headers.insert(name, HeaderValue::from_static(value));
    }
    expect_response(post(&client(), request).await);

    let seen = notified.recv().await.unwrap();
    assert!(seen.starts_with("POST /webhooks?x=1 HTTP/1.1\r\n"), "{seen}");
    assert!(seen.ends_with("\r\n\r\n{\"a\":1}"), "{seen}");
    assert!(seen.contains(&format!("host: {}\r\n", server.address)), "{seen}");
    assert!(seen.contains("content-length: 7\r\n") && seen.contains("x-custom: kept\r\n"), "{seen}");
    for absent in ["evil", "chunked", "upgrade", "expect"] {
        assert!(!seen.contains(absent), "{seen}");
    }
}

#[test]
fn header_value_with_line_break_is_refused() {
    for value in ["a\r\nx: y", "a\nb", "a\rb", "a\0b"] {
        assert!(HeaderValue::from_str(value).is_err());
    }
}

#[tokio::test]
async fn every_status_is_a_response() {
    for (response, status) in [
        (&b"HTTP/1.1 204 No Content\r\n\r\n"[..], 204),
        (b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n", 410),
        (b"HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n", 503),
        (b"HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n", 999),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", 200),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200),
        (b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", 101),
    ] {
        let server = Server::responding_once(response).await;
        assert_eq!(expect_response(post(&client(), outbound(&server.url(), LONG)).await).status, status);
    }
}

#[tokio::test]
async fn slow_headers_time_out_and_close_the_connection() {
    let (server, notified) = dripping(b"HTTP/1.1 200 OK\r\n", b"x".to_vec(), Duration::from_millis(20)).await;
    let exchange = post(&client(), outbound(&server.url(), SHORT)).await;
    assert!(exchange.timings.total >= SHORT);
    assert_eq!(failed(exchange, SendFailure::Timeout).status, None);
    assert_closed(notified).await;
}

#[tokio::test]
async fn slow_body_times_out_with_its_status() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n";
    let (server, notified) = dripping(head, b"x".to_vec(), Duration::from_millis(20)).await;
    let exchange = post(&client(), outbound(&server.url(), SHORT)).await;
    assert!(exchange.timings.ttfb.is_some());
    assert_eq!(failed(exchange, SendFailure::Timeout).status, Some(200));
    assert_closed(notified).await;
}

#[tokio::test]
async fn endless_body_is_dropped_at_the_limit_and_keeps_its_status() {
    for head in [
        &b"HTTP/1.1 200 OK\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\ncontent-length: 100000000000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3b9aca00\r\n",
    ] {
        let (server, notified) = dripping(head, vec![b'x'; 64 * 1024], Duration::ZERO).await;
        let response = expect_response(post(&client(), outbound(&server.url(), LONG)).await);
        assert_eq!((response.status, response.body_sample.len()), (200, 1024));
        assert_closed(notified).await;
    }
}

#[tokio::test]
async fn compressed_body_is_not_decompressed() {
    let response = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 12\r\n\r\n\
        \x1f\x8b\x08\0\0\0\0\0\0\x03\xed\xc1";
    let server = Server::responding(response).await;
    let response = expect_response(post(&client(), outbound(&server.url(), LONG)).await);
    assert_eq!(&response.body_sample[..], b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xed\xc1");
}

#[tokio::test]
async fn short_body_is_a_truncated_failure() {
    for response in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort"[..],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
    ] {
        assert_eq!(fails_on(response, SendFailure::Truncated).await, Some(200));
    }
}

#[tokio::test]
async fn reset_is_truncated_after_and_reset_before_the_headers() {
    for (head, failure, status) in [
        (&b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort"[..], SendFailure::Truncated, Some(200)),
        (b"", SendFailure::Reset, None),
        (b"HTTP/1.1 200", SendFailure::Reset, None),
    ] {
        let server = Server::start(move |mut peer| async move {
            peer.read_request().await;
            peer.send(head).await;
            // The client must read the bytes before the reset discards them.
            sleep(Duration::from_millis(50)).await;
            peer.reset();
        })
        .await;
        let exchange = post(&client(), outbound(&server.url(), LONG)).await;
        assert!(exchange.timings.connect.is_some());
        assert_eq!(failed(exchange, failure).status, status);
        assert_eq!((server.connections(), server.requests()), (1, 1));
    }
}

#[tokio::test]
async fn close_before_response_is_a_reset() {
    assert_eq!(fails_on(b"", SendFailure::Reset).await, None);
}

#[tokio::test]
async fn malformed_response_is_a_protocol_failure() {
    for garbage in [
        &b"220 mail.example ESMTP\r\n"[..],
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x64",
    ] {
        assert_eq!(fails_on(garbage, SendFailure::Protocol).await, None, "{garbage:?}");
    }
    let bad_chunk = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n";
    assert_eq!(fails_on(bad_chunk, SendFailure::Protocol).await, Some(200));
}

#[tokio::test]
async fn header_floods_are_a_protocol_failure() {
    let long_lines = [b"x: ".to_vec(), vec![b'y'; 8000], b"\r\n".to_vec()].concat();
    for flood in [b"x: y\r\n".repeat(1000), long_lines, vec![b'z'; 8000]] {
        let (server, notified) = dripping(b"HTTP/1.1 200 OK\r\n", flood, Duration::ZERO).await;
        let exchange = post(&client(), outbound(&server.url(), LONG)).await;
        assert_eq!(failed(exchange, SendFailure::Protocol).status, None);
        assert_closed(notified).await;
    }
}

#[tokio::test]
async fn flood_of_interim_responses_is_aborted() {
    let flood = b"HTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\n".repeat(100);
    let (server, notified) = dripping(b"", flood, Duration::ZERO).await;
    // The exchange must fail long before the deadline: reading on would consume CPU time of other exchanges.
    let exchange = post(&client(), outbound(&server.url(), LONG)).await;
    assert_eq!(failed(exchange, SendFailure::Protocol).status, None);
    assert_closed(notified).await;
}

#[tokio::test]
async fn bytes_after_a_response_are_not_the_next_response() {
    let server =
        Server::responding(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 500 Smuggled\r\n\r\n")
            .await;
    let client = client();
    for _ in 0..5 {
        let response = expect_response(post(&client, outbound(&server.url(), LONG)).await);
        assert_eq!((response.status, &response.body_sample[..]), (200, &b"ok"[..]));
    }
    assert_eq!(server.requests(), 5);
}

#[tokio::test]
async fn request_on_closing_connection_is_not_sent_twice() {
    let server = Server::start(|mut peer| async move {
        peer.read_request().await;
        peer.send(OK).await;
        // The second request is read but gets no response.
        peer.read_request().await;
    })
    .await;
    let client = client();
    expect_response(post(&client, outbound(&server.url(), LONG)).await);
    let second = post(&client, outbound(&server.url(), LONG)).await;
    assert_eq!(second.timings.connect, None);
    failed(second, SendFailure::Reset);
    assert_eq!((server.connections(), server.requests()), (1, 2));
}

#[tokio::test]
async fn connection_closed_while_idle_is_replaced() {
    let server = Server::responding_once(OK).await;
    let client = client();
    for sent in 1..=3 {
        let exchange = post(&client, outbound(&server.url(), LONG)).await;
        assert!(exchange.timings.connect.is_some());
        expect_response(exchange);
        assert_eq!((server.connections(), server.requests()), (sent, sent));
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn idle_connection_is_closed_after_idle_timeout() {
    let (notify, notified) = mpsc::channel(1);
    let server = Server::start(move |mut peer| {
        let notify = notify.clone();
        async move {
            peer.read_request().await;
            peer.send(OK).await;
            peer.closed().await;
            let _ = notify.send(()).await;
        }
    })
    .await;
    let client = Client::new(Config { idle_timeout: Duration::from_millis(100), ..lenient() }).unwrap();
    expect_response(post(&client, outbound(&server.url(), LONG)).await);
    assert_closed(notified).await;
}

/// Returns a body larger than the system's socket buffers, so that writing blocks if the peer does not read.
fn big_body() -> Bytes {
    vec![b'x'; 32 * 1024 * 1024].into()
}

/// Starts a server that responds without reading; after `over` it reports how many bytes it was sent.
async fn deaf(response: &'static [u8], over: Arc<Notify>) -> (Server, mpsc::Receiver<usize>) {
    let (notify, notified) = mpsc::channel(1);
    let server = Server::start(move |mut peer| {
        let (notify, over) = (notify.clone(), over.clone());
        async move {
            peer.stream.peek(&mut [0]).await.unwrap();
            peer.send(response).await;
            over.notified().await;
            // Gives the client's background task time to continue writing.
            sleep(Duration::from_millis(100)).await;
            let _ = notify.send(peer.closed().await).await;
        }
    })
    .await;
    (server, notified)
}

#[tokio::test]
async fn early_response_counts_and_aborts_the_request_body() {
    let over = Arc::new(Notify::new());
    let (server, mut notified) = deaf(OK, over.clone()).await;
    let mut request = outbound(&server.url(), LONG);
    request.body = big_body();
    assert_eq!(expect_response(post(&client(), request).await).status, 200);
    over.notify_one();
    let sent = timeout(SHORT_TIMEOUT, notified.recv()).await.unwrap().unwrap();
    assert!(sent < big_body().len(), "the whole request was sent after the exchange was over");
}

#[tokio::test]
async fn endpoint_that_never_reads_times_out_and_is_aborted() {
    let over = Arc::new(Notify::new());
    for response in [&b""[..], b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"] {
        let (server, mut notified) = deaf(response, over.clone()).await;
        let mut request = outbound(&server.url(), SHORT);
        request.body = big_body();
        failed(post(&client(), request).await, SendFailure::Timeout);
        over.notify_one();
        let sent = timeout(SHORT_TIMEOUT, notified.recv()).await.unwrap().unwrap();
        assert!(sent < big_body().len(), "the whole request was sent after the exchange was over");
    }
}

#[tokio::test]
async fn cancelled_exchange_closes_its_connection() {
    let (server, notified) = dripping(b"", b"".to_vec(), Duration::from_millis(20)).await;
    let client = client();
    assert!(timeout(Duration::from_millis(100), client.post(outbound(&server.url(), LONG))).await.is_err());
    assert_eq!(server.requests(), 1);
    assert_closed(notified).await;
}
