//! Tests of TLS towards endpoints: which certificates are accepted, and the messages for the others.

use std::sync::Arc;

use crate::common::*;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use redrive_core::{delivery::response::SendFailure, security::egress_rules::EgressRules};
use redrive_egress::{CertificateDer, Client, Config, Roots};
use rustls::{ServerConfig, crypto::ring, pki_types::PrivatePkcs8KeyDer};
use tokio::{
    io::AsyncWriteExt,
    sync::{Notify, mpsc},
};
use tokio_rustls::TlsAcceptor;

struct Secure {
    server: Server,
    certificate: CertificateDer<'static>,
}

impl Secure {
    async fn start(params: CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        let acceptor = acceptor(certificate.clone(), &key);
        let server = Server::start(move |peer| {
            let acceptor = acceptor.clone();
            async move {
                let Ok(mut stream) = acceptor.accept(peer.stream).await else { return };
                while read_request(&mut stream).await.is_some() {
                    stream.write_all(OK).await.unwrap();
                    stream.flush().await.unwrap();
                }
            }
        })
        .await;
        Self { server, certificate }
    }

    async fn named(name: &str) -> Self {
        Self::start(CertificateParams::new(vec![name.into()]).unwrap()).await
    }

    fn url(&self) -> String {
        format!("https://localhost:{}/", self.server.address.port())
    }

    fn trusting_client(&self) -> Client {
        trusting(vec![self.certificate.clone()])
    }
}

fn acceptor(certificate: CertificateDer<'static>, key: &KeyPair) -> TlsAcceptor {
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config).into()
}

fn trusting(roots: Vec<CertificateDer<'static>>) -> Client {
    Client::new(Config { roots: Roots::WebPkiPlus(roots), connect_timeout: SHORT, ..lenient() }).unwrap()
}

async fn refused_as(client: &Client, url: &str, words: &str) {
    let exchange = post(client, outbound(url, LONG)).await;
    assert!(exchange.timings.connect.is_some() && exchange.timings.tls.is_some());
    let message = failed(exchange, SendFailure::Tls).message;
    assert!(message.contains(words), "{message}");
}

#[tokio::test]
async fn certificate_of_operator_authority_is_accepted_and_timed() {
    let secure = Secure::named("localhost").await;
    let client = secure.trusting_client();
    let first = post(&client, outbound(&secure.url(), LONG)).await;
    let timings = first.timings;
    assert!(timings.dns.is_some() && timings.connect.is_some() && timings.tls.is_some());
    assert_eq!(expect_response(first).status, 200);
    let second = post(&client, outbound(&secure.url(), LONG)).await;
    assert_eq!((second.timings.dns, second.timings.connect, second.timings.tls), (None, None, None));
    expect_response(second);
    assert_eq!(secure.server.connections(), 1);
}

#[tokio::test]
async fn certificate_for_an_ip_address_is_accepted() {
    let secure = Secure::named("127.0.0.1").await;
    let url = format!("https://127.1:{}/", secure.server.address.port());
    expect_response(post(&secure.trusting_client(), outbound(&url, LONG)).await);
}

#[tokio::test]
async fn self_signed_certificate_is_refused() {
    let secure = Secure::named("localhost").await;
    refused_as(&client(), &secure.url(), "not signed by a known authority").await;
}

#[tokio::test]
async fn certificate_for_another_name_is_refused() {
    let secure = Secure::named("other.example").await;
    refused_as(&secure.trusting_client(), &secure.url(), "not valid for the URL's host name").await;
}

#[tokio::test]
async fn expired_certificate_is_refused() {
    let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
    params.not_after = date_time_ymd(2020, 1, 1);
    let secure = Secure::start(params).await;
    refused_as(&secure.trusting_client(), &secure.url(), "has expired").await;
}

#[tokio::test]
async fn port_without_tls_is_reported_as_such() {
    let server = Server::start(|mut peer| async move {
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        peer.closed().await;
    })
    .await;
    refused_as(&client(), &format!("https://{}/", server.address), "does not speak TLS").await;
}

#[tokio::test]
async fn stalled_handshake_times_out() {
    let server = Server::start(|mut peer| async move {
        peer.closed().await;
    })
    .await;
    let url = format!("https://{}/", server.address);
    // Once by the timeout of the exchange, once by the connector's.
    failed(post(&client(), outbound(&url, SHORT)).await, SendFailure::Timeout);
    failed(post(&trusting(Vec::new()), outbound(&url, LONG)).await, SendFailure::Timeout);
}

#[tokio::test]
async fn close_during_handshake_is_a_reset() {
    let server = Server::start(|peer| async move {
        peer.stream.peek(&mut [0]).await.unwrap();
    })
    .await;
    let exchange = post(&client(), outbound(&format!("https://{}/", server.address), LONG)).await;
    failed(exchange, SendFailure::Reset);
}

#[test]
fn invalid_root_certificate_is_refused_at_setup() {
    let roots = Roots::WebPkiPlus(vec![CertificateDer::from(b"nonsense".to_vec())]);
    assert!(Client::new(Config { roots, ..strict() }).is_err());
}

#[tokio::test]
async fn connection_in_progress_is_rechecked_when_rules_change() {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key).unwrap();
    let acceptor = acceptor(certificate.der().clone(), &key);
    let (came, mut has_come) = mpsc::channel(2);
    let (notify, mut notified) = mpsc::channel(2);
    let go = Arc::new(Notify::new());
    let going = go.clone();
    let server = Server::start(move |peer| {
        let (acceptor, came, notify, go) = (acceptor.clone(), came.clone(), notify.clone(), going.clone());
        async move {
            came.send(()).await.unwrap();
            go.notified().await;
            let mut stream = acceptor.accept(peer.stream).await.unwrap();
            notify.send(read_request(&mut stream).await).await.unwrap();
            let _ = stream.write_all(OK).await;
        }
    })
    .await;
    let roots = Roots::WebPkiPlus(vec![certificate.der().clone()]);
    let client = Client::new(Config { roots, ..lenient() }).unwrap();
    let url = format!("https://localhost:{}/", server.address.port());
    for (rules, allowed) in [(EgressRules::default(), false), (loopback(), true)] {
        client.set_rules(loopback());
        let (sender, request) = (client.clone(), outbound(&url, LONG));
        let exchange_task = tokio::spawn(async move { sender.post(request).await });
        has_come.recv().await.unwrap();
        client.set_rules(rules);
        go.notify_one();
        let exchange = exchange_task.await.unwrap();
        match allowed {
            true => assert_eq!(expect_response(exchange).status, 200),
            false => {
                assert_eq!(
                    exchange.timings.connect, None,
                    "the message does not reveal that the name exists"
                );
                failed(exchange, SendFailure::Dns);
            }
        }
        assert_eq!(notified.recv().await.unwrap().is_some(), allowed, "the request that was sent");
    }
}
