//! Back ends with weights, and their checks.

use std::time::Duration;

use super::{REVERSE, parse, plan, reverse, said, summary};

#[test]
fn back_ends_that_are_none() {
    let weighed = |backend: &str, error: &str| {
        let text = REVERSE.replace("'10.0.0.12:443'", backend);
        said(&text, &[&format!("f:5:30: error: `backends`{error}")]);
    };
    weighed(
        "{ weight = 2 }",
        ": a back end has no `address`; write \"192.0.2.1:443\", or { address = \"192.0.2.1:443\", weight = 3 }",
    );
    weighed(
        "{ address = 1 }",
        ": `address` is no string; write one like \"192.0.2.1:443\"",
    );
    weighed(
        "{ address = '10.0.0.12' }",
        ": `10.0.0.12` has no port; write it like \"10.0.0.12:443\"",
    );
    weighed(
        "{ address = '10.0.0.12:443', weight = '2' }",
        ": `weight` is no number; write one from 0 to 256",
    );
    weighed(
        "{ address = '10.0.0.12:443', weight = 257 }",
        ": 257 is no weight; write a number from 0 to 256",
    );
    weighed(
        "{ address = '10.0.0.12:443', weight = -1 }",
        ": -1 is no weight; write a number from 0 to 256",
    );
    weighed(
        "{ address = '10.0.0.12:443', wieght = 2 }",
        ": unknown key `wieght` in a back end; did you mean `weight`?",
    );
    said(
        &REVERSE.replace(
            "'10.0.0.12:443'",
            "{ address = '10.0.0.11:443', weight = 2 }",
        ),
        &["f:5:30: error: 10.0.0.11:443 is listed twice; remove one"],
    );
    weighed(
        "7",
        " can't be an integer; write \"192.0.2.1:443\", or { address = \"192.0.2.1:443\", weight = 3 }",
    );
}

#[test]
fn weights_of_back_ends_are_told() {
    let text = REVERSE.replace(
        "'10.0.0.12:443'",
        "{ address = '10.0.0.12:443', weight = 256 }, { weight = 0, address = '10.0.0.13:443' }",
    );
    let (config, found) = parse("f", &text);
    assert!(!found.has_errors(), "{found}");
    let config = config.unwrap();
    let told = plan::translator(&config, &[vec![]], &plan::first_ids(&config), 0);
    let weights = told.services[0].intake.parts.iter().map(|part| part.weight);
    assert_eq!(weights.collect::<Vec<_>>(), [1, 256, 0]);
    let said = summary(&config).remove(0);
    assert!(
        said.contains("to 10.0.0.11:443, 10.0.0.12:443 (weight 256), 10.0.0.13:443 (weight 0) "),
        "{said}"
    );
}

#[test]
fn back_ends_hear_of_their_clients_if_the_file_says_so() {
    let header = |line: &str| {
        let text = format!("{REVERSE}{line}\n");
        let (config, found) = parse("f", &text);
        assert!(!found.has_errors(), "{found}");
        let config = config.unwrap();
        let told = plan::translator(&config, &[vec![]], &plan::first_ids(&config), 0);
        let said = summary(&config).remove(0);
        assert_eq!(
            said.contains(" with PROXY headers "),
            told.services[0].intake.proxy_header
        );
        told.services[0].intake.proxy_header
    };
    assert!(!header(""));
    assert!(!header("proxy_protocol = 'off'"));
    assert!(header("proxy_protocol = 'v2'"));
    let error =
        "f:6:18: error: `proxy_protocol`: there is no PROXY protocol `v1`; write \"v2\" or \"off\"";
    reverse("proxy_protocol = 'v1'", error);
}

#[test]
fn checks_of_back_ends() {
    let check = |line: &str| {
        let text = format!("{REVERSE}check = {line}\n");
        let (config, found) = parse("f", &text);
        assert!(!found.has_errors(), "{found}");
        let config = config.unwrap();
        let told = plan::translator(&config, &[vec![]], &plan::first_ids(&config), 0);
        let check = told.services[0].intake.check.unwrap();
        (check.every, check.timeout, check.fall, check.rise)
    };
    let (millis, second) = (Duration::from_millis, Duration::from_secs(1));
    assert_eq!(check("{}"), (2 * second, second, 3, 2));
    let all = "{ every = '500ms', timeout = '20ms', fall = 100, rise = 1 }";
    assert_eq!(check(all), (millis(500), millis(20), 100, 1));
    assert_eq!(
        check("{ every = '300ms' }"),
        (millis(300), millis(300), 3, 2)
    );
    let wrong = |line: &str, error: &str| {
        reverse(
            &format!("check = {line}"),
            &format!("f:6:9: error: `check`{error}"),
        );
    };
    let every = ": `every` has to be between 100ms and 1h; write one like \"2s\"";
    wrong("{ every = '99ms' }", every);
    wrong("{ every = '2h' }", every);
    let timeout = ": `timeout` has to be between 10ms and `every`; write one like \"1s\"";
    wrong("{ timeout = '9ms' }", timeout);
    wrong("{ every = '1s', timeout = '1001ms' }", timeout);
    wrong(
        "{ fall = 0 }",
        ": `fall` is no number from 1 to 100; write one like 3",
    );
    wrong(
        "{ rise = '2' }",
        ": `rise` is no number from 1 to 100; write one like 2",
    );
    wrong(
        "{ evry = '2s' }",
        ": unknown key `evry` in a check; did you mean `every`?",
    );
    wrong(
        "{ every = true }",
        ": `every` is no time; write seconds, or a duration like \"30s\"",
    );
    wrong(
        "'2s'",
        " can't be a string; write { every = \"2s\", timeout = \"1s\", fall = 3, rise = 2 }",
    );
}
