//! Clients that are slow, hold too many connections or send too much: each is disconnected in bounded time,
//! without affecting other clients.

use std::time::Duration;

use redrive_testkit::{Api, Redrive, Setup, WAIT_TIMEOUT};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Starts a server with a short timeout for one phase and timeouts longer than any test for the others.
async fn impatient(setting: &str) -> Redrive {
    let setup = ["HEADER", "BODY", "WRITE", "IDLE"].iter().fold(Setup::new(), |setup, what| {
        let span = if *what == setting { "1s" } else { "1h" };
        setup.env(format!("REDRIVE_SERVER_{what}_TIMEOUT"), span)
    });
    Redrive::start_with(setup).await
}

async fn connect(redrive: &Redrive) -> TcpStream {
    TcpStream::connect(redrive.address()).await.unwrap()
}

/// Reads until the server closes the connection; fails if it does not.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let ended = timeout(WAIT_TIMEOUT, stream.read_to_end(&mut bytes)).await;
    // A connection reset counts as closed.
    let _ = ended.expect("the server still waits");
    String::from_utf8_lossy(&bytes).into_owned()
}

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";

async fn one_answer(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    while !text.ends_with("ok\n") {
        let mut bytes = [0; 1024];
        let count = timeout(WAIT_TIMEOUT, stream.read(&mut bytes)).await.expect("no response").unwrap();
        assert!(count > 0, "ended after {text:?}");
        text += &String::from_utf8_lossy(&bytes[..count]);
    }
    text
}

#[tokio::test]
async fn silent_client_is_disconnected() {
    let redrive = impatient("HEADER").await;
    assert_eq!(rest(&mut connect(&redrive).await).await, "");
}

#[tokio::test]
async fn slowly_sent_header_times_out() {
    let redrive = impatient("HEADER").await;
    let mut stream = connect(&redrive).await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    let (mut from, mut to) = stream.split();
    let drip = async {
        // Each single byte arrives well within the timeout.
        while to.write_all(b"a").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let mut bytes = Vec::new();
    tokio::select! {
        ended = timeout(WAIT_TIMEOUT, from.read_to_end(&mut bytes)) => drop(ended.expect("the server still waits")),
        () = drip => {}
    }
    assert!(!bytes.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn incomplete_second_header_times_out() {
    let redrive = impatient("HEADER").await;
    let mut stream = connect(&redrive).await;
    stream.write_all(HEALTH).await.unwrap();
    one_answer(&mut stream).await;
    stream.write_all(b"GET /healthz HT").await.unwrap();
    assert_eq!(rest(&mut stream).await, "");
}

#[tokio::test]
async fn idle_connection_is_closed() {
    let redrive = impatient("IDLE").await;
    let mut stream = connect(&redrive).await;
    for _ in 0..5 {
        // Each pause is shorter than the idle timeout; all of them together are longer.
        tokio::time::sleep(Duration::from_millis(250)).await;
        stream.write_all(HEALTH).await.unwrap();
        one_answer(&mut stream).await;
    }
    assert_eq!(rest(&mut stream).await, "");
}

#[tokio::test]
async fn missing_body_returns_408() {
    let redrive = impatient("BODY").await;
    let mut stream = connect(&redrive).await;
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: 100\r\n\r\n{{",
        redrive.key()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let response = rest(&mut stream).await;
    assert!(response.starts_with("HTTP/1.1 408 ") && response.contains("body_timeout"), "{response}");
}

#[tokio::test]
async fn client_that_does_not_read_responses_frees_its_slot() {
    let setup = Setup::new()
        .env("REDRIVE_SERVER_MAX_CONNECTIONS", "1")
        .env("REDRIVE_SERVER_WRITE_TIMEOUT", "400ms")
        .env("REDRIVE_SERVER_IDLE_TIMEOUT", "1h");
    let redrive = Redrive::start_with(setup).await;
    let mut deaf = connect(&redrive).await;
    // More than fits into all the socket buffers on the path.
    let request = "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nhost: x\r\n\r\n".repeat(30);
    deaf.write_all(request.as_bytes()).await.unwrap();
    // The only connection slot is taken: the next client is served once the first has been disconnected.
    let mut next = connect(&redrive).await;
    next.write_all(HEALTH).await.unwrap();
    assert!(one_answer(&mut next).await.starts_with("HTTP/1.1 200"));
    let read = rest(&mut deaf).await;
    assert!(read.matches("HTTP/1.1 200").count() < 30, "it was cut off");
}

#[tokio::test]
async fn slow_reader_gets_the_whole_response() {
    let redrive = impatient("WRITE").await;
    let mut stream = connect(&redrive).await;
    let request = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        let count = stream.read(&mut chunk).await.unwrap();
        if count == 0 {
            break;
        }
        bytes.extend_from_slice(&chunk[..count]);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    assert_eq!(length.parse::<usize>().unwrap(), bytes.len() - head.len() - 4, "{}", body.len());
}

#[tokio::test]
async fn connections_per_address_are_limited() {
    let setup = |proxies: &str| {
        let setup = Setup::new().env("REDRIVE_SERVER_MAX_CONNECTIONS_PER_ADDRESS", "2");
        setup.env("REDRIVE_SERVER_TRUSTED_PROXIES", proxies)
    };
    let redrive = Redrive::start_with(setup("[]")).await;
    let mut kept = vec![connect(&redrive).await, connect(&redrive).await];
    for stream in &mut kept {
        stream.write_all(HEALTH).await.unwrap();
        one_answer(stream).await;
    }
    let refused = rest(&mut connect(&redrive).await).await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("too many connections"), "{refused}");
    drop(kept);
    // The slots are free once the server has seen both connections close.
    redrive.api().wait_until("a free place", "/openapi.json", |_| true).await;

    let redrive = Redrive::start_with(setup(r#"["127.0.0.0/8"]"#)).await;
    let mut streams = Vec::new();
    for _ in 0..5 {
        let mut stream = connect(&redrive).await;
        stream.write_all(HEALTH).await.unwrap();
        one_answer(&mut stream).await;
        streams.push(stream);
    }
}

#[tokio::test]
async fn header_size_and_count_are_limited() {
    let redrive = Redrive::start().await;
    let response = async |headers: &str| {
        let mut stream = connect(&redrive).await;
        let head = format!("GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
        // The server may respond before all is sent.
        let _ = stream.write_all(head.as_bytes()).await;
        rest(&mut stream).await
    };
    let fits = format!("x-large: {}\r\n", "x".repeat(32 * 1024));
    assert!(response(&fits).await.starts_with("HTTP/1.1 200 "));
    let many: String = (0..90).map(|number| format!("x-{number}: 1\r\n")).collect();
    assert!(response(&many).await.starts_with("HTTP/1.1 200 "));
    let too_many: String = (0..120).map(|number| format!("x-{number}: 1\r\n")).collect();
    assert!(response(&too_many).await.starts_with("HTTP/1.1 431 "));
    let too_large = format!("x-large: {}\r\n", "x".repeat(200 * 1024));
    let refused = response(&too_large).await;
    assert!(refused.is_empty() || refused.starts_with("HTTP/1.1 431 "), "{refused}");
    redrive.api().get("/healthz").await;
}

/// Returns every operation of the API document with ids of existing objects, every form, and the calls of pages.
async fn all_routes(api: &Api) -> Vec<(String, String, &'static str)> {
    let webhook = api.create_webhook("http://127.0.0.1:9009/", json!({})).await;
    let event = api.publish("order.created", json!({})).await;
    let of_event = format!("/v1/deliveries?event_id={}", event["id"].as_str().unwrap());
    let listed = api.wait_until("a delivery", &of_event, |page| page["data"][0].is_object()).await;
    let document = api.get("/openapi.json").await.expect(200);
    let filled = |path: &str| {
        let id = |of: &Value| of["id"].as_str().unwrap().to_owned();
        let id = match path.split('/').nth(2).unwrap_or_default() {
            "webhooks" => id(&webhook),
            "events" => id(&event),
            "deliveries" => id(&listed["data"][0]),
            "event-types" => "order.created".into(),
            _ => "default".into(),
        };
        path.replace("{id}", &id).replace("{name}", &id).replace("{tenant}", "default")
    };
    let mut routes = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            routes.push((method.to_uppercase(), filled(path), "application/json"));
        }
    }
    assert!(routes.len() > 50, "{}", routes.len());
    let form = "application/x-www-form-urlencoded";
    for path in ["/dashboard/login", "/dashboard/logout", "/unsubscribe/x"] {
        routes.push(("POST".into(), path.into(), form));
    }
    for path in ["/dashboard/login", "/dashboard/session", "/portal", "/dashboard/live", "/docs/", "/nowhere"]
    {
        routes.push(("GET".into(), path.into(), form));
    }
    routes.push(("POST".into(), "/dashboard/t/default/webhooks/check".into(), "application/json"));
    routes
}

#[tokio::test]
async fn stalled_body_closes_the_connection_on_every_route() {
    let redrive = impatient("BODY").await;
    let routes = all_routes(&redrive.api()).await;
    let mut waiting = tokio::task::JoinSet::new();
    for (method, path, content_type) in routes {
        for authorization in [format!("authorization: Bearer {}\r\n", redrive.key()), String::new()] {
            let head = format!(
                "{method} {path} HTTP/1.1\r\nhost: x\r\n{authorization}content-type: {content_type}\r\n\
                 content-length: 1000\r\n\r\n{{\"key"
            );
            let (mut stream, what) = (connect(&redrive).await, format!("{method} {path} {authorization}"));
            waiting.spawn(async move {
                stream.write_all(head.as_bytes()).await.unwrap();
                let mut bytes = Vec::new();
                let ended = timeout(WAIT_TIMEOUT, stream.read_to_end(&mut bytes)).await;
                assert!(ended.is_ok(), "the server still waits for the body of {what}");
                bytes.starts_with(b"HTTP/1.1 408 ")
            });
        }
    }
    let timed_out = waiting.join_all().await.into_iter().filter(|timed_out| *timed_out).count();
    assert!(timed_out >= 30, "only {timed_out} bodies were read");
}

#[tokio::test]
async fn oversized_form_is_rejected_before_it_is_read() {
    let redrive = impatient("BODY").await;
    for path in ["/dashboard/login", "/dashboard/logout"] {
        let mut stream = connect(&redrive).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-www-form-urlencoded\r\n\
             content-length: 2000000\r\n\r\nkey=x"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let response = rest(&mut stream).await;
        assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
        let body = format!("key={}", "x".repeat(9_000));
        let chunked = redrive.api().without_key();
        let form = [("content-type", "application/x-www-form-urlencoded")];
        assert_eq!(chunked.raw("POST", path, &form, body).await.status, 413);
    }
}

#[tokio::test]
async fn client_that_writes_its_whole_body_reads_why_it_was_rejected() {
    let redrive = Redrive::start().await;
    let key = format!("authorization: Bearer {}\r\n", redrive.key());
    for (authorization, expected) in [(key.as_str(), "HTTP/1.1 413 "), ("", "HTTP/1.1 401 ")] {
        let mut stream = connect(&redrive).await;
        let head = format!(
            "POST /v1/events HTTP/1.1\r\nhost: x\r\n{authorization}content-type: application/json\r\n\
             content-length: 4194304\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server responds to the header alone. A client that writes first must still be able to read it.
        for _ in 0..64 {
            stream.write_all(&[b'x'; 65_536]).await.expect("the server discards the rest of the body");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let response = rest(&mut stream).await;
        assert!(response.starts_with(expected), "{response}");
    }
}

#[tokio::test]
async fn client_that_never_stops_sending_a_rejected_body_is_disconnected() {
    let redrive = Redrive::start().await;
    let mut stream = connect(&redrive).await;
    let head =
        b"POST /dashboard/login HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-www-form-urlencoded\r\n\
                 content-length: 1000000000000\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let flood = async { while stream.write_all(&[b'x'; 65_536]).await.is_ok() {} };
    timeout(WAIT_TIMEOUT, flood).await.expect("the server still reads");
}

#[tokio::test]
async fn slowly_sent_login_form_times_out() {
    let redrive = impatient("BODY").await;
    let mut stream = connect(&redrive).await;
    let head = "POST /dashboard/login HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-www-form-urlencoded\r\n\
                content-length: 8000\r\n\r\nkey=";
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut from, mut to) = stream.split();
    let drip = async {
        while to.write_all(b"a").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let mut bytes = Vec::new();
    tokio::select! {
        ended = timeout(WAIT_TIMEOUT, from.read_to_end(&mut bytes)) => drop(ended.expect("the server still waits")),
        () = drip => {}
    }
}

#[tokio::test]
async fn small_objects_have_a_small_body_limit() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let large = json!({"name": "x".repeat(70_000)});
    assert_eq!(api.post("/v1/admin-keys", &large).await.problem(), "body_too_large");
    let schema = json!({"name": "a.b", "description": "x".repeat(70_000)});
    assert_eq!(api.post("/v1/event-types", &schema).await.problem(), "invalid_field");
    let payload = json!({"event_type": "a.b", "data": "x".repeat(200_000)});
    api.post("/v1/events", &payload).await.expect(202);
}

#[tokio::test]
async fn requests_per_client_behind_a_trusted_proxy_are_limited() {
    let setup = Setup::new()
        .env("REDRIVE_SERVER_MAX_CONNECTIONS_PER_ADDRESS", "2")
        .env("REDRIVE_SERVER_TRUSTED_PROXIES", r#"["127.0.0.0/8"]"#);
    let redrive = Redrive::start_with(setup).await;
    // The server sends 100 once it reads the body, so the request is counted by then. A request that is merely sent
    // could race with the requests below and be refused in their place.
    let half_sent = async |client: &str| {
        let mut stream = connect(&redrive).await;
        let head = format!(
            "POST /dashboard/login HTTP/1.1\r\nhost: x\r\nx-forwarded-for: {client}\r\nexpect: 100-continue\r\n\
             content-type: application/x-www-form-urlencoded\r\ncontent-length: 100\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut response = [0; 25];
        timeout(WAIT_TIMEOUT, stream.read_exact(&mut response)).await.expect("no response in time").unwrap();
        assert_eq!(response.as_slice(), b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(b"key=").await.unwrap();
        stream
    };
    let api = redrive.api().without_key();
    let status = async |client: &str| {
        api.raw("GET", "/dashboard/login", &[("x-forwarded-for", client)], "").await.status
    };
    let held = [half_sent("192.0.2.7").await, half_sent("192.0.2.7").await];
    assert_eq!(status("192.0.2.7").await, 503, "requests in progress are not counted");
    assert_eq!(status("192.0.2.8").await, 200, "another client of the same proxy");
    assert_eq!(status("2001:db8::1").await, 200);
    drop(held);
    let free = async { while status("192.0.2.7").await != 200 {} };
    timeout(WAIT_TIMEOUT, free).await.expect("the count never goes down");
}
