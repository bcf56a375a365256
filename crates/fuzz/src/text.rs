//! Targets `config` and `control`: text that a user writes.

use flexcp::config::{self, plan, span::Severity};
use flexcp::control::Wanted;
use flexcp_translator::Translator;

/// Words of a configuration.
pub const CONFIG_WORDS: &[&str] = &[
    "[[service]]\n",
    "[device]\n",
    "[control]\n",
    "[limits]\n",
    "[timeouts]\n",
    "name = \"a\"\n",
    "table = 7300\n",
    "mode = \"transparent\"\n",
    "mode = \"reverse\"\n",
    "destinations = [\"10.0.0.0/8\", \"2001:db8::/32\"]\n",
    "ports = [80, \"8000-8999\"]\n",
    "listen = [\"10.0.0.1:80\"]\n",
    "backends = [\"10.0.0.2:80\", \"[2001:db8::1]:80\"]\n",
    "source = [\"10.0.0.3\"]\n",
    "source_ports = \"61000-65534\"\n",
    "interfaces = [\"eth0\"]\n",
    "announce = [\"10.0.0.4\", \"[2001:db8::1]:444\"]\n",
    "end_to_end = true\n",
    "socket = \"/run/a\"\n",
    "state_dir = \"/run\"\n",
    "idle = \"2h5m\"\n",
    "silence = \"100ms\"\n",
    "linger = 10\n",
    "mappings = 4096\n",
    "subflows = 8\n",
    "\"",
    "'''",
    "18446744073709551616",
    "-1",
    "0x7fffffffffffffff",
    "1e400",
    "/33",
    "/129",
    "65536",
    "::",
    "\u{00e9}",
    "\r\n",
    "99999999999999999999h",
    "1979-05-27",
    "{a = 1}",
];

/// Words of a request.
pub const CONTROL_WORDS: &[&str] = &[
    "state=translating",
    "&state=",
    "service=",
    "&client=10.0.0.0/8",
    "server=:443",
    "access=",
    "%2C",
    "%ff",
    "+",
];

/// Target: any text as a configuration file. Every message names a place in the file; what has no error
/// is usable, and its summary can be printed.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (config, diagnostics) = config::parse("f", text);
    let lines = text.split('\n').count();
    for found in diagnostics.found() {
        assert!(
            (1..=lines).contains(&found.line),
            "{found:?} of {lines} lines"
        );
        let line = text.split('\n').nth(found.line - 1).unwrap_or("");
        assert!(
            (1..=line.chars().count() + 1).contains(&found.column),
            "{found:?} in {line:?}"
        );
        assert!(
            !found.message.is_empty() && !found.message.contains('\n'),
            "{found:?}"
        );
        let prefix = format!("f:{}:{}: ", found.line, found.column);
        assert!(diagnostics.render(found).starts_with(&prefix), "{found:?}");
    }
    let errors = diagnostics
        .found()
        .iter()
        .filter(|f| f.severity == Severity::Error)
        .count();
    assert_eq!(diagnostics.has_errors(), errors > 0);
    match config {
        None => assert!(errors > 0, "no configuration, and no reason why"),
        Some(config) if errors == 0 => {
            let _ = config::summary(&config);
            let sources = vec![Vec::new(); config.services.len()];
            let _ = Translator::new(
                plan::translator(&config, &sources, &plan::first_ids(&config), 0),
                [0; 32],
            );
            let _ = plan::kernel(&config, &sources, &[]);
        }
        Some(_) => {}
    }
}

/// Target: any bytes as the query of a request for connections. What is one can be written and read again.
pub fn control(data: &[u8]) {
    let query = String::from_utf8_lossy(data);
    if let Ok(wanted) = Wanted::from_query(&query) {
        let again = Wanted::from_query(&wanted.query()).expect("what was written");
        assert_eq!(again, wanted);
    }
}
