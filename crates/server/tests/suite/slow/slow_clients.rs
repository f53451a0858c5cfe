//! Clients that dawdle, take too much room, or send too much: each is given up in bounded time, and nobody else
//! suffers.

use std::time::Duration;

use redrive_testkit::{Api, PATIENCE, Redrive, Setup};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// A server with little patience for one thing, and more than a test takes for all others.
async fn impatient(setting: &str) -> Redrive {
    let setup = ["HEAD", "BODY", "WRITE", "IDLE"].iter().fold(Setup::new(), |setup, what| {
        let span = if *what == setting { "1s" } else { "1h" };
        setup.env(format!("REDRIVE_SERVER_{what}_TIMEOUT"), span)
    });
    Redrive::start_with(setup).await
}

async fn connect(redrive: &Redrive) -> TcpStream {
    TcpStream::connect(redrive.address()).await.unwrap()
}

/// All that comes until the server ends the connection, which it must.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let ended = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    // A reset is an end as well.
    let _ = ended.expect("the server still waits");
    String::from_utf8_lossy(&bytes).into_owned()
}

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";

async fn one_answer(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    while !text.ends_with("ok\n") {
        let mut bytes = [0; 1024];
        let count = timeout(PATIENCE, stream.read(&mut bytes)).await.expect("no answer").unwrap();
        assert!(count > 0, "ended after {text:?}");
        text += &String::from_utf8_lossy(&bytes[..count]);
    }
    text
}

#[tokio::test]
async fn a_client_that_says_nothing_is_given_up() {
    let redrive = impatient("HEAD").await;
    assert_eq!(rest(&mut connect(&redrive).await).await, "");
}

#[tokio::test]
async fn a_head_that_drips_in_is_given_up() {
    let redrive = impatient("HEAD").await;
    let mut stream = connect(&redrive).await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    let (mut from, mut to) = stream.split();
    let drip = async {
        // Each byte comes well in time.
        while to.write_all(b"a").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let mut bytes = Vec::new();
    tokio::select! {
        ended = timeout(PATIENCE, from.read_to_end(&mut bytes)) => drop(ended.expect("the server still waits")),
        () = drip => {}
    }
    assert!(!bytes.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn a_second_head_that_drips_in_is_given_up() {
    let redrive = impatient("HEAD").await;
    let mut stream = connect(&redrive).await;
    stream.write_all(HEALTH).await.unwrap();
    one_answer(&mut stream).await;
    stream.write_all(b"GET /healthz HT").await.unwrap();
    assert_eq!(rest(&mut stream).await, "");
}

#[tokio::test]
async fn a_connection_that_rests_is_closed_in_the_end() {
    let redrive = impatient("IDLE").await;
    let mut stream = connect(&redrive).await;
    for _ in 0..5 {
        // Together they take longer than it may rest, each of them does not.
        tokio::time::sleep(Duration::from_millis(250)).await;
        stream.write_all(HEALTH).await.unwrap();
        one_answer(&mut stream).await;
    }
    assert_eq!(rest(&mut stream).await, "");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_a_timeout() {
    let redrive = impatient("BODY").await;
    let mut stream = connect(&redrive).await;
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: 100\r\n\r\n{{",
        redrive.key()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("body_timeout"), "{answer}");
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_makes_room_for_others() {
    let setup = Setup::new()
        .env("REDRIVE_SERVER_MAX_CONNECTIONS", "1")
        .env("REDRIVE_SERVER_WRITE_TIMEOUT", "400ms")
        .env("REDRIVE_SERVER_IDLE_TIMEOUT", "1h");
    let redrive = Redrive::start_with(setup).await;
    let mut deaf = connect(&redrive).await;
    // More than fits into all the buffers on the way.
    let request = "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nhost: x\r\n\r\n".repeat(30);
    deaf.write_all(request.as_bytes()).await.unwrap();
    // The only place is taken: whoever comes next is served once the first has been given up.
    let mut next = connect(&redrive).await;
    next.write_all(HEALTH).await.unwrap();
    assert!(one_answer(&mut next).await.starts_with("HTTP/1.1 200"));
    let read = rest(&mut deaf).await;
    assert!(read.matches("HTTP/1.1 200").count() < 30, "it was cut off");
}

#[tokio::test]
async fn a_client_that_reads_slowly_gets_its_answer() {
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
async fn one_address_does_not_take_all_the_room() {
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
    // The places are free once the server has seen the ends of those two.
    redrive.api().eventually("a free place", "/openapi.json", |_| true).await;

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
async fn heads_are_bounded() {
    let redrive = Redrive::start().await;
    let answer = async |headers: &str| {
        let mut stream = connect(&redrive).await;
        let head = format!("GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
        // The server may have answered before all is sent.
        let _ = stream.write_all(head.as_bytes()).await;
        rest(&mut stream).await
    };
    let fits = format!("x-large: {}\r\n", "x".repeat(32 * 1024));
    assert!(answer(&fits).await.starts_with("HTTP/1.1 200 "));
    let many: String = (0..90).map(|number| format!("x-{number}: 1\r\n")).collect();
    assert!(answer(&many).await.starts_with("HTTP/1.1 200 "));
    let too_many: String = (0..120).map(|number| format!("x-{number}: 1\r\n")).collect();
    assert!(answer(&too_many).await.starts_with("HTTP/1.1 431 "));
    let too_large = format!("x-large: {}\r\n", "x".repeat(200 * 1024));
    let refused = answer(&too_large).await;
    assert!(refused.is_empty() || refused.starts_with("HTTP/1.1 431 "), "{refused}");
    redrive.api().get("/healthz").await;
}

/// Every operation of the API document with ids of things that exist, every form, and what pages call besides.
async fn all_routes(api: &Api) -> Vec<(String, String, &'static str)> {
    let webhook = api.create_webhook("http://127.0.0.1:9009/", json!({})).await;
    let event = api.publish("order.created", json!({})).await;
    let of_event = format!("/v1/deliveries?event_id={}", event["id"].as_str().unwrap());
    let listed = api.eventually("a delivery", &of_event, |page| page["data"][0].is_object()).await;
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
async fn body_that_stops_halfway_ends_the_connection_on_every_route() {
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
                let ended = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
                assert!(ended.is_ok(), "the server still waits for the body of {what}");
                bytes.starts_with(b"HTTP/1.1 408 ")
            });
        }
    }
    let timed_out = waiting.join_all().await.into_iter().filter(|timed_out| *timed_out).count();
    assert!(timed_out >= 30, "only {timed_out} bodies were read");
}

#[tokio::test]
async fn form_that_announces_too_much_is_refused_before_it_is_read() {
    let redrive = impatient("BODY").await;
    for path in ["/dashboard/login", "/dashboard/logout"] {
        let mut stream = connect(&redrive).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-www-form-urlencoded\r\n\
             content-length: 2000000\r\n\r\nkey=x"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        let body = format!("key={}", "x".repeat(9_000));
        let chunked = redrive.api().without_key();
        let form = [("content-type", "application/x-www-form-urlencoded")];
        assert_eq!(chunked.raw("POST", path, &form, body).await.status, 413);
    }
}

#[tokio::test]
async fn login_form_that_drips_in_is_cut_off() {
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
        ended = timeout(PATIENCE, from.read_to_end(&mut bytes)) => drop(ended.expect("the server still waits")),
        () = drip => {}
    }
}

#[tokio::test]
async fn small_objects_have_a_small_limit() {
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
async fn one_client_behind_a_trusted_proxy_does_not_take_all_the_room() {
    let setup = Setup::new()
        .env("REDRIVE_SERVER_MAX_CONNECTIONS_PER_ADDRESS", "2")
        .env("REDRIVE_SERVER_TRUSTED_PROXIES", r#"["127.0.0.0/8"]"#);
    let redrive = Redrive::start_with(setup).await;
    // The server answers 100 once it reads the body, so the request is counted by then. A request that is merely sent
    // could meet the requests below and be refused in their place.
    let half_sent = async |client: &str| {
        let mut stream = connect(&redrive).await;
        let head = format!(
            "POST /dashboard/login HTTP/1.1\r\nhost: x\r\nx-forwarded-for: {client}\r\nexpect: 100-continue\r\n\
             content-type: application/x-www-form-urlencoded\r\ncontent-length: 100\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 25];
        timeout(PATIENCE, stream.read_exact(&mut answer)).await.expect("no answer in time").unwrap();
        assert_eq!(answer.as_slice(), b"HTTP/1.1 100 Continue\r\n\r\n");
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
    timeout(PATIENCE, free).await.expect("the count never goes down");
}
