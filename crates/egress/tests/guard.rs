//! What may be connected to. Judged by canaries that must see no connection, not by error texts alone.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::{net::SocketAddr, time::Duration};

use common::*;
use redrive_core::outcome::SendFailure;
use redrive_egress::{Client, Config};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};

/// Listens on loopback, on the same port of both families where the machine has both.
async fn canaries() -> (u16, Vec<TcpListener>) {
    let v4 = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = v4.local_addr().unwrap().port();
    let mut all = vec![v4];
    all.extend(TcpListener::bind(("::1", port)).await);
    (port, all)
}

async fn assert_silent(canaries: &[TcpListener]) {
    for canary in canaries {
        assert!(timeout(Duration::from_millis(30), canary.accept()).await.is_err(), "a connection came");
    }
}

#[tokio::test]
async fn loopback_is_refused_in_every_spelling() {
    let client = Client::new(strict()).unwrap();
    let (port, canaries) = canaries().await;
    let mut messages = Vec::new();
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "\u{ff11}\u{ff12}\u{ff17}.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "localhost",
        "LOCALHOST",
        "localhost.",
    ] {
        for scheme in ["http", "https"] {
            let exchange = post(&client, outbound(&format!("{scheme}://{host}:{port}/"), LONG)).await;
            messages.push(failed(exchange, SendFailure::BlockedAddress).message);
        }
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "refusals read differently: {messages:?}");
    assert_silent(&canaries).await;
}

#[tokio::test]
async fn our_own_listeners_are_refused_even_where_loopback_is_allowed() {
    let (port, canaries) = canaries().await;
    for own in ["127.0.0.1", "0.0.0.0", "::"] {
        let own = SocketAddr::new(own.parse().unwrap(), port);
        let client = Client::new(Config { own_listeners: vec![own], ..lenient() }).unwrap();
        let exchange = post(&client, outbound(&format!("http://127.0.0.1:{port}/"), LONG)).await;
        failed(exchange, SendFailure::BlockedAddress);
    }
    assert_silent(&canaries).await;
}

#[tokio::test]
async fn an_allowed_name_is_resolved_and_timed() {
    let server = Server::answering(OK).await;
    let url = format!("http://localhost:{}/", server.address.port());
    let exchange = post(&client(), outbound(&url, LONG)).await;
    assert!(exchange.timings.dns.is_some());
    assert_eq!(answered(exchange).status, 200);
}

#[tokio::test]
async fn a_name_without_an_address_is_a_dns_failure() {
    let exchange = post(&client(), outbound("http://nobody.invalid/", LONG)).await;
    assert!(exchange.timings.dns.is_some());
    assert_eq!(exchange.timings.connect, None);
    failed(exchange, SendFailure::Dns);
}

#[tokio::test]
async fn closed_and_silent_ports_read_the_same() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let silent = silent.listen(1).unwrap();
    let address = silent.local_addr().unwrap();
    // Once its queue is full the system drops whatever else wants to connect.
    let mut fillers = Vec::new();
    while let Ok(filler) = timeout(Duration::from_millis(100), TcpStream::connect(address)).await {
        fillers.push(filler.unwrap());
        assert!(fillers.len() < 64, "the queue never fills");
    }

    let client = Client::new(Config { connect_timeout: SHORT, ..lenient() }).unwrap();
    let mut messages = Vec::new();
    for address in [closed, address] {
        let exchange = post(&client, outbound(&format!("http://{address}/"), LONG)).await;
        assert!(exchange.timings.connect.is_some());
        messages.push(failed(exchange, SendFailure::Connect).message);
    }
    assert_eq!(messages[0], messages[1]);
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let (port, canaries) = canaries().await;
    let server = Server::start(move |mut peer| async move {
        peer.read_request().await;
        let location = format!("http://127.0.0.1:{port}/inside");
        peer.send(
            format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n").as_bytes(),
        )
        .await;
    })
    .await;
    let answer = answered(post(&client(), outbound(&server.url(), LONG)).await);
    assert_eq!(answer.status, 302);
    assert!(answer.headers["location"].to_str().unwrap().ends_with("/inside"));
    assert_eq!(server.requests(), 1);
    assert_silent(&canaries).await;
}
