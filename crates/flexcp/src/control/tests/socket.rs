//! The socket's file, and what a client makes of whoever listens there.

use super::*;

#[test]
fn socket_is_for_its_owner_only_and_goes_away() {
    let served = Served::by(vec![played()]);
    let path = served.path();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(served.file);
    assert!(!path.exists());
}

#[test]
fn second_daemon_on_the_same_socket_is_refused() {
    let served = Served::by(vec![played()]);
    let path = served.path();
    let error = Control::bind(&path, None).unwrap_err();
    assert!(matches!(error, BindError::Busy { .. }));
    assert_eq!(
        error.to_string(),
        format!(
            "another flexcp is running: it answers on the control socket {}; stop it, or give this \
             one a network namespace and a [control] section of its own",
            path.display()
        )
    );
    // The first one's is still there.
    ask(&path, target::STATS).unwrap();
}

#[test]
fn socket_that_a_crash_left_is_taken_over() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("flexcp.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    Control::bind(&path, None).unwrap();
}

#[test]
fn file_in_the_sockets_place_is_left_alone() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("flexcp.sock");
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(
        Control::bind(&path, None),
        Err(BindError::NotASocket { .. })
    ));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn daemon_that_is_not_there() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("flexcp.sock");
    let not_running = |path: &Path| {
        let error = ask(path, target::STATS).unwrap_err();
        assert!(matches!(error, ClientError::NotRunning { .. }), "{error}");
    };
    not_running(&path);
    drop(UnixListener::bind(&path).unwrap());
    not_running(&path);
}

#[test]
fn daemon_of_another_version() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("flexcp.sock");
    answering(&path, http("{\"version\":2}\n"));
    let error = ask(&path, target::STATS).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the running flexcp answers in version 2 of the API, and this is version 1; \
         use the same version of both"
    );
}

#[test]
fn daemon_that_speaks_no_http() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("flexcp.sock");
    answering(
        &path,
        "{\"version\":1,\"error\":\"not a request\"}\n".into(),
    );
    let error = ask(&path, target::STATS).unwrap_err();
    assert!(matches!(error, ClientError::Foreign { .. }), "{error}");
}
