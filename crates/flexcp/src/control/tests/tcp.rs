//! Over TCP only who has the token is answered, and nobody from there is in the way of who asks over the socket.

use std::net::TcpStream;

use super::*;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// The status of the answer to a request with these lines in its head.
fn asked(address: SocketAddr, target: &str, lines: &str) -> (u16, String, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    let request = format!("GET {target} HTTP/1.1\r\n{lines}connection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    parted(&answer)
}

#[test]
fn nothing_is_answered_without_the_token_and_by_foreign_names() {
    let served = Served::with(vec![played()], Some(TOKEN));
    let address = served.tcp.unwrap();
    let with = format!("authorization: Bearer {TOKEN}\r\n");
    for target in [
        "/v1/status",
        "/v1/stats",
        "/v1/services",
        "/v1/accesses",
        "/v1/mar",
        "/v1/rules",
        "/v1/rules/video",
        "/v1/connections",
        "/v1/events",
        "/v1/config/schema",
        "/metrics",
        "/openapi.json",
        "/",
    ] {
        let (status, head, body) = asked(address, target, &format!("host: {address}\r\n"));
        assert_eq!(status, 401, "{target}");
        assert!(head.contains("www-authenticate: Bearer"), "{head}");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["error"]["where"], "header `Authorization`");
        let wrong = format!(
            "host: localhost\r\nauthorization: Bearer {}\r\n",
            TOKEN.replace('a', "b")
        );
        assert_eq!(asked(address, target, &wrong).0, 401, "{target}");
        let (status, _, body) = asked(address, target, &format!("host: flexcp.example\r\n{with}"));
        assert_eq!(status, 403, "{target}");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["error"]["where"], "header `Host`");
    }
    for host in ["localhost", "127.0.0.1:80", "[::1]"] {
        let (status, _, body) = asked(address, "/v1/stats", &format!("host: {host}\r\n{with}"));
        assert_eq!(status, 200, "{body}");
    }
    assert_eq!(
        asked(address, "/nothing", &format!("host: localhost\r\n{with}")).0,
        404
    );
    // The document says so.
    let lines = format!("host: localhost\r\n{with}");
    let (_, _, body) = asked(address, "/openapi.json", &lines);
    let document: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(document["security"], json!([{ "token": [] }]));
    let scheme = &document["components"]["securitySchemes"]["token"];
    assert_eq!(
        (&scheme["type"], &scheme["scheme"]),
        (&json!("http"), &json!("bearer"))
    );
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            for status in ["401", "403"] {
                let content = &operation["responses"][status]["content"]["application/json"];
                assert_eq!(content["schema"]["$ref"], "#/components/schemas/Refusal");
            }
        }
    }
    // The socket needs none of it.
    let (status, ..) = parted(&raw(
        &served.path(),
        b"GET /v1/stats HTTP/1.1\r\nhost: flexcp.example\r\nconnection: close\r\n\r\n",
    ));
    assert_eq!(status, 200);
}

#[test]
fn strangers_hold_no_place_of_the_sockets_clients() {
    let served = Served::with(vec![played()], Some(TOKEN));
    let address = served.tcp.unwrap();
    let idle: Vec<_> = (0..16)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    thread::sleep(Duration::from_millis(100));
    let (status, _, body) = asked(address, "/v1/stats", "host: localhost\r\n");
    assert_eq!(status, 503);
    assert!(
        body.contains("16 clients are being served already"),
        "{body}"
    );
    let began = Instant::now();
    ask(&served.path(), target::STATS).unwrap();
    assert!(began.elapsed() < Duration::from_millis(500));
    // They are cut off in time.
    for mut client in idle {
        client
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        assert_eq!(client.read(&mut [0; 100]).unwrap_or(0), 0);
    }
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn address_that_is_taken_and_a_token_that_is_none_are_told_before_anything_runs() {
    let served = Served::with(vec![], Some(TOKEN));
    let path = served.directory.path().join("other.sock");
    let token = served.directory.path().join("token");
    let bind = |listen| {
        Control::bind(&path, Some((listen, token.as_path())))
            .unwrap_err()
            .to_string()
    };
    let taken = served.tcp.unwrap();
    let said = bind(taken);
    assert!(
        said.starts_with(&format!(
            "can't listen on {taken} (`listen` in [control]): Address already in use"
        )),
        "{said}"
    );
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o604)).unwrap();
    assert!(bind(([127, 0, 0, 1], 0).into()).starts_with("everybody may read the token file "));
    assert!(!path.exists());
}

#[test]
fn port_is_free_again_when_the_proxy_has_stopped() {
    let served = Served::with(vec![], Some(TOKEN));
    let address = served.tcp.unwrap();
    drop(served.file);
    let began = Instant::now();
    while std::net::TcpListener::bind(address).is_err() {
        assert!(began.elapsed() < Duration::from_secs(5), "the port is held");
        thread::sleep(Duration::from_millis(10));
    }
}
