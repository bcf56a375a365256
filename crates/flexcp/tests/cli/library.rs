//! A program of its own that runs a proxy by the handle on it.

use std::time::Duration;

use flexcp::config::{self, Diagnostics, file::Mode};
use flexcp::proxy::{Proxy, ReloadError};

use crate::program::{BOTH, Namespace, Place};

/// Set in the process that is the program.
const PROGRAM: &str = "FLEXCP_TEST_PROGRAM";

/// The test is a process in a namespace of its own, so it starts itself anew there.
#[test]
fn program_starts_changes_reads_and_stops_a_proxy() {
    if let Some(file) = std::env::var_os(PROGRAM) {
        return program(file.as_ref());
    }
    let namespace = Namespace::new();
    let place = Place::new(BOTH);
    let before = namespace.state();
    let this = std::env::current_exe().unwrap();
    let mut command = namespace.command(this.to_str().unwrap());
    command.args([
        "--exact",
        "library::program_starts_changes_reads_and_stops_a_proxy",
    ]);
    let output = command.env(PROGRAM, place.config()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
    namespace.is_as(&before);
}

fn program(file: &std::path::Path) {
    let (config, mut found) = config::load(file).unwrap();
    let mut proxy = Proxy::start(config.unwrap(), &mut found).unwrap();
    assert_eq!(proxy.status().unwrap().generation, 1);
    let number = proxy.change(
        |config| {
            config.services.remove(0);
            if let Mode::Reverse { backends, .. } = &mut config.services[0].mode {
                let another: std::net::SocketAddr = "10.99.0.12:443".parse().unwrap();
                backends.push(config::span::Located::new(another.into(), backends[0].at));
            }
        },
        &mut found,
    );
    assert_eq!(number.unwrap(), 2);
    let status = proxy.status().unwrap();
    assert_eq!(
        (status.generation, status.drained),
        (2, vec!["web".to_owned()])
    );
    assert_eq!(status.services.len(), 1);
    let rules = || {
        let output = std::process::Command::new("ip")
            .arg("rule")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(
        rules().contains("from 10.99.0.12 to 10.99.0.1"),
        "{}",
        rules()
    );
    // What does not fit is said at its place in the file, and changes nothing.
    let twice = |config: &mut config::Config| {
        let again = config.services[0].clone();
        config.services.push(again);
    };
    let refused = proxy.change(twice, &mut found).unwrap_err();
    assert!(matches!(refused, ReloadError::Invalid { .. }), "{refused}");
    let line = |found: &Diagnostics| found.found()[0].line;
    assert!(found.has_errors() && line(&found) > 4, "{found}");
    assert_eq!(proxy.config().services.len(), 1);
    assert_eq!(proxy.stats().unwrap().connections, 0);
    assert!(proxy.connections().unwrap().connections.is_empty());
    assert_eq!(proxy.workers().len(), 1);
    proxy
        .stop(&mut |wait: Duration| {
            std::thread::sleep(wait);
            false
        })
        .unwrap();
    assert!(!rules().contains("7300"), "{}", rules());
}
