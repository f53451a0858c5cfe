//! Receivers good and bad. Each exchange ends by its deadline, in the right class, sent at most once.

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

/// Long enough for a background task to notice something, short enough for a test.
const SOON: Duration = Duration::from_secs(1);

/// What comes of a server that answers with these bytes and then closes.
async fn fails_on(answer: &'static [u8], failure: SendFailure) -> Option<u16> {
    let server = Server::answering_once(answer).await;
    let exchange = post(&client(), outbound(&server.url(), LONG)).await;
    assert_eq!(server.requests(), 1);
    failed(exchange, failure).status
}

/// Sends `head`, then `more` again and again with `pause` between, until the client closes; tells when.
async fn dripping(head: &'static [u8], more: Vec<u8>, pause: Duration) -> (Server, mpsc::Receiver<()>) {
    let (tell, told) = mpsc::channel(1);
    let more = Arc::new(more);
    let server = Server::start(move |mut peer| {
        let (tell, more) = (tell.clone(), more.clone());
        async move {
            peer.read_request().await;
            let mut open = peer.send(head).await;
            while open {
                tokio::select! {
                    _ = peer.stream.readable(), if !pause.is_zero() => break,
                    () = sleep(pause) => open = peer.send(&more).await,
                }
            }
            let _ = tell.send(()).await;
        }
    })
    .await;
    (server, told)
}

async fn assert_closed(mut told: mpsc::Receiver<()>) {
    timeout(SOON, told.recv()).await.expect("the connection is still open");
}

#[tokio::test]
async fn a_good_receiver_is_reached_and_its_connection_reused() {
    let server = Server::answering(OK).await;
    let client = client();

    let first = post(&client, outbound(&server.url(), LONG)).await;
    let timings = first.timings;
    assert!(timings.connect.is_some() && timings.ttfb.is_some());
    assert_eq!((timings.dns, timings.tls), (None, None));
    assert!(timings.connect <= timings.ttfb && timings.ttfb <= Some(timings.total));
    let answer = answered(first);
    assert_eq!((answer.status, &answer.body_sample[..]), (200, &b"ok"[..]));
    assert_eq!(answer.headers["content-length"], "2");

    let second = post(&client, outbound(&server.url(), LONG)).await;
    assert_eq!((second.timings.dns, second.timings.connect), (None, None));
    assert!(second.timings.ttfb.is_some());
    answered(second);
    assert_eq!((server.connections(), server.requests()), (1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exchanges_that_share_connections_leave_each_other_alone() {
    let server = Server::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let client = client();
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (client, request) = (client.clone(), outbound(&server.url(), LONG));
        senders.spawn(async move {
            for _ in 0..500 {
                answered(client.post(request.clone()).await);
            }
        });
    }
    senders.join_all().await;
    assert_eq!(server.requests(), 8 * 500);
    assert!(server.connections() <= 16, "{} connections", server.connections());
}

#[tokio::test]
async fn the_request_is_framed_by_us_and_the_rest_is_the_callers() {
    let (tell, mut told) = mpsc::channel(1);
    let server = Server::start(move |mut peer| {
        let tell = tell.clone();
        async move {
            tell.send(peer.read_request().await.unwrap()).await.unwrap();
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
    answered(post(&client(), request).await);

    let seen = told.recv().await.unwrap();
    assert!(seen.starts_with("POST /hook?x=1 HTTP/1.1\r\n"), "{seen}");
    assert!(seen.ends_with("\r\n\r\n{\"a\":1}"), "{seen}");
    assert!(seen.contains(&format!("host: {}\r\n", server.address)), "{seen}");
    assert!(seen.contains("content-length: 7\r\n") && seen.contains("x-custom: kept\r\n"), "{seen}");
    for absent in ["evil", "chunked", "upgrade", "expect"] {
        assert!(!seen.contains(absent), "{seen}");
    }
}

#[test]
fn a_line_break_cannot_become_a_header_value() {
    for value in ["a\r\nx: y", "a\nb", "a\rb", "a\0b"] {
        assert!(HeaderValue::from_str(value).is_err());
    }
}

#[tokio::test]
async fn every_status_is_an_answer() {
    for (answer, status) in [
        (&b"HTTP/1.1 204 No Content\r\n\r\n"[..], 204),
        (b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n", 410),
        (b"HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n", 503),
        (b"HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n", 999),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", 200),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200),
        (b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", 101),
    ] {
        let server = Server::answering_once(answer).await;
        assert_eq!(answered(post(&client(), outbound(&server.url(), LONG)).await).status, status);
    }
}

#[tokio::test]
async fn slow_headers_time_out_and_the_connection_goes() {
    let (server, told) = dripping(b"HTTP/1.1 200 OK\r\n", b"x".to_vec(), Duration::from_millis(20)).await;
    let exchange = post(&client(), outbound(&server.url(), SHORT)).await;
    assert!(exchange.timings.total >= SHORT);
    assert_eq!(failed(exchange, SendFailure::Timeout).status, None);
    assert_closed(told).await;
}

#[tokio::test]
async fn a_slow_body_times_out_with_its_status() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n";
    let (server, told) = dripping(head, b"x".to_vec(), Duration::from_millis(20)).await;
    let exchange = post(&client(), outbound(&server.url(), SHORT)).await;
    assert!(exchange.timings.ttfb.is_some());
    assert_eq!(failed(exchange, SendFailure::Timeout).status, Some(200));
    assert_closed(told).await;
}

#[tokio::test]
async fn an_endless_or_huge_body_is_dropped_at_the_cap_and_its_status_counts() {
    for head in [
        &b"HTTP/1.1 200 OK\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\ncontent-length: 100000000000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3b9aca00\r\n",
    ] {
        let (server, told) = dripping(head, vec![b'x'; 64 * 1024], Duration::ZERO).await;
        let answer = answered(post(&client(), outbound(&server.url(), LONG)).await);
        assert_eq!((answer.status, answer.body_sample.len()), (200, 1024));
        assert_closed(told).await;
    }
}

#[tokio::test]
async fn a_packed_body_is_left_as_it_is() {
    let answer = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 12\r\n\r\n\
        \x1f\x8b\x08\0\0\0\0\0\0\x03\xed\xc1";
    let server = Server::answering(answer).await;
    let answer = answered(post(&client(), outbound(&server.url(), LONG)).await);
    assert_eq!(&answer.body_sample[..], b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xed\xc1");
}

#[tokio::test]
async fn a_body_that_ends_early_is_cut_off() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort"[..],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
    ] {
        assert_eq!(fails_on(answer, SendFailure::CutOff).await, Some(200));
    }
}

#[tokio::test]
async fn a_reset_midway_is_cut_off_and_before_the_answer_a_reset() {
    for (head, failure, status) in [
        (&b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort"[..], SendFailure::CutOff, Some(200)),
        (b"", SendFailure::Reset, None),
        (b"HTTP/1.1 200", SendFailure::Reset, None),
    ] {
        let server = Server::start(move |mut peer| async move {
            peer.read_request().await;
            peer.send(head).await;
            // The bytes must be read before the reset throws them away.
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
async fn a_close_before_the_answer_is_a_reset() {
    assert_eq!(fails_on(b"", SendFailure::Reset).await, None);
}

#[tokio::test]
async fn garbage_is_a_protocol_failure() {
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
        let (server, told) = dripping(b"HTTP/1.1 200 OK\r\n", flood, Duration::ZERO).await;
        let exchange = post(&client(), outbound(&server.url(), LONG)).await;
        assert_eq!(failed(exchange, SendFailure::Protocol).status, None);
        assert_closed(told).await;
    }
}

#[tokio::test]
async fn a_flood_of_interim_answers_is_cut_short() {
    let flood = b"HTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\n".repeat(100);
    let (server, told) = dripping(b"", flood, Duration::ZERO).await;
    // Long before the deadline: reading on would cost everybody else's time.
    let exchange = post(&client(), outbound(&server.url(), LONG)).await;
    assert_eq!(failed(exchange, SendFailure::Protocol).status, None);
    assert_closed(told).await;
}

#[tokio::test]
async fn bytes_behind_an_answer_are_not_the_next_answer() {
    let server =
        Server::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 500 Smuggled\r\n\r\n")
            .await;
    let client = client();
    for _ in 0..5 {
        let answer = answered(post(&client, outbound(&server.url(), LONG)).await);
        assert_eq!((answer.status, &answer.body_sample[..]), (200, &b"ok"[..]));
    }
    assert_eq!(server.requests(), 5);
}

#[tokio::test]
async fn a_connection_closed_under_our_feet_sends_nothing_twice() {
    let server = Server::start(|mut peer| async move {
        peer.read_request().await;
        peer.send(OK).await;
        // The second request is read and never answered.
        peer.read_request().await;
    })
    .await;
    let client = client();
    answered(post(&client, outbound(&server.url(), LONG)).await);
    let second = post(&client, outbound(&server.url(), LONG)).await;
    assert_eq!(second.timings.connect, None);
    failed(second, SendFailure::Reset);
    assert_eq!((server.connections(), server.requests()), (1, 2));
}

#[tokio::test]
async fn a_connection_closed_while_idle_is_replaced() {
    let server = Server::answering_once(OK).await;
    let client = client();
    for sent in 1..=3 {
        let exchange = post(&client, outbound(&server.url(), LONG)).await;
        assert!(exchange.timings.connect.is_some());
        answered(exchange);
        assert_eq!((server.connections(), server.requests()), (sent, sent));
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn an_idle_connection_is_not_kept_beyond_its_time() {
    let (tell, told) = mpsc::channel(1);
    let server = Server::start(move |mut peer| {
        let tell = tell.clone();
        async move {
            peer.read_request().await;
            peer.send(OK).await;
            peer.closed().await;
            let _ = tell.send(()).await;
        }
    })
    .await;
    let client = Client::new(Config { idle_timeout: Duration::from_millis(100), ..lenient() }).unwrap();
    answered(post(&client, outbound(&server.url(), LONG)).await);
    assert_closed(told).await;
}

/// More than the system's buffers take for a peer that does not read.
fn big_body() -> Bytes {
    vec![b'x'; 32 * 1024 * 1024].into()
}

/// A server that never reads, sends `answer`, and once `over` counts what it had still been sent.
async fn deaf(answer: &'static [u8], over: Arc<Notify>) -> (Server, mpsc::Receiver<usize>) {
    let (tell, told) = mpsc::channel(1);
    let server = Server::start(move |mut peer| {
        let (tell, over) = (tell.clone(), over.clone());
        async move {
            peer.stream.peek(&mut [0]).await.unwrap();
            peer.send(answer).await;
            over.notified().await;
            // The client's background task gets its chance to go on writing.
            sleep(Duration::from_millis(100)).await;
            let _ = tell.send(peer.closed().await).await;
        }
    })
    .await;
    (server, told)
}

#[tokio::test]
async fn an_answer_before_the_request_was_read_counts_and_frees_the_rest() {
    let over = Arc::new(Notify::new());
    let (server, mut told) = deaf(OK, over.clone()).await;
    let mut request = outbound(&server.url(), LONG);
    request.body = big_body();
    assert_eq!(answered(post(&client(), request).await).status, 200);
    over.notify_one();
    let sent = timeout(SOON, told.recv()).await.unwrap().unwrap();
    assert!(sent < big_body().len(), "the whole request was sent after the exchange was over");
}

#[tokio::test]
async fn a_receiver_that_neither_reads_nor_answers_times_out_and_is_left() {
    let over = Arc::new(Notify::new());
    for answer in [&b""[..], b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"] {
        let (server, mut told) = deaf(answer, over.clone()).await;
        let mut request = outbound(&server.url(), SHORT);
        request.body = big_body();
        failed(post(&client(), request).await, SendFailure::Timeout);
        over.notify_one();
        let sent = timeout(SOON, told.recv()).await.unwrap().unwrap();
        assert!(sent < big_body().len(), "the whole request was sent after the exchange was over");
    }
}

#[tokio::test]
async fn an_exchange_that_is_given_up_leaves_no_connection() {
    let (server, told) = dripping(b"", b"".to_vec(), Duration::from_millis(20)).await;
    let client = client();
    assert!(timeout(Duration::from_millis(100), client.post(outbound(&server.url(), LONG))).await.is_err());
    assert_eq!(server.requests(), 1);
    assert_closed(told).await;
}
