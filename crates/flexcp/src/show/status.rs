//! `flexcp show status`.

use std::fmt::Write as _;

use super::{age, align};
use crate::control::status::{InterfaceStatus, MarkedBackend, ServiceStatus, Status};

/// The state and what is wrong, what was put back, how the offload runs, and the services with their interfaces and the
/// back ends that are marked.
#[must_use]
pub fn status(view: &Status) -> String {
    let mut text = format!(
        "flexcp {}: {}, up {}, configuration {}\n",
        view.release,
        view.state.name(),
        age(view.uptime_us),
        view.generation
    );
    if !view.drained.is_empty() {
        let _ = writeln!(text, "gone, and drained: {}", view.drained.join(", "));
    }
    for problem in &view.problems {
        let _ = writeln!(text, "problem: {problem}");
    }
    if let Some(ago) = view.mended_ago_us {
        let counts = view.mended.0.iter().filter(|(_, count)| *count > 0);
        let counts: Vec<_> = counts
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        let _ = writeln!(
            text,
            "put back: {} time{}, last {} ago ({})",
            view.mended_times,
            if view.mended_times == 1 { "" } else { "s" },
            age(ago),
            counts.join(", ")
        );
    }
    if view.offload.is_empty() {
        text.push_str("offload: off\n");
    }
    for note in &view.offload {
        let _ = writeln!(text, "offload: {note}");
    }
    for end in &view.split_on {
        let _ = writeln!(text, "split: listens on {end}");
    }
    let mut rows = vec![HEADER.map(String::from).to_vec()];
    rows.extend(view.services.iter().map(row));
    text.push('\n');
    let lines = align(&rows);
    let _ = writeln!(text, "{}", lines[0]);
    for (service, line) in view.services.iter().zip(&lines[1..]) {
        let _ = writeln!(text, "{line}");
        for backend in &service.marked_backends {
            let _ = writeln!(text, "  {}", marked(backend));
        }
    }
    text
}

fn marked(backend: &MarkedBackend) -> String {
    let (address, reason) = (backend.address, &backend.reason);
    let ago = age(backend.marked_us);
    format!("back end {address} marked {ago} ago: {reason}")
}

fn row(service: &ServiceStatus) -> Vec<String> {
    let interfaces: Vec<_> = service.interfaces.iter().map(interface).collect();
    vec![
        service.name.clone(),
        service.mode.clone(),
        if service.passes { "yes" } else { "no" }.into(),
        if interfaces.is_empty() {
            "any".into()
        } else {
            interfaces.join(", ")
        },
    ]
}

fn interface(interface: &InterfaceStatus) -> String {
    let name = &interface.name;
    match (interface.present, interface.up) {
        (false, _) => format!("{name} (missing)"),
        (true, false) => format!("{name} (down)"),
        (true, true) => name.clone(),
    }
}

const HEADER: [&str; 4] = ["SERVICE", "MODE", "PASSES", "CLIENTS ON"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::VERSION;
    use crate::control::status::State;
    use crate::control::view::Numbers;

    fn on(name: &str, present: bool, up: bool) -> InterfaceStatus {
        InterfaceStatus {
            name: name.into(),
            present,
            up,
        }
    }

    fn service(name: &str, mode: &str, interfaces: Vec<InterfaceStatus>) -> ServiceStatus {
        ServiceStatus {
            name: name.into(),
            mode: mode.into(),
            passes: interfaces.is_empty() || interfaces.iter().any(|on| on.present),
            interfaces,
            marked_backends: vec![],
        }
    }

    fn healthy() -> Status {
        Status {
            version: VERSION,
            release: "0.1.0".into(),
            generation: 2,
            draining: 0,
            drained: vec![],
            split_on: vec![],
            uptime_us: 200_000_000,
            state: State::Ready,
            problems: vec![],
            mended_times: 0,
            mended_ago_us: None,
            mended: Numbers(vec![("rules".into(), 0)]),
            offload: vec![],
            services: vec![service("shop", "reverse", vec![])],
        }
    }

    #[test]
    fn healthy_is_short() {
        assert_eq!(
            status(&healthy()),
            "\
flexcp 0.1.0: ready, up 3m20s, configuration 2
offload: off

SERVICE  MODE     PASSES  CLIENTS ON
shop     reverse  yes     any
"
        );
    }

    #[test]
    fn relay_says_where_it_listens() {
        let mut view = healthy();
        view.split_on = vec![([10, 77, 0, 1], 443).into()];
        let text = status(&view);
        assert!(
            text.contains("\nsplit: listens on 10.77.0.1:443\n"),
            "{text}"
        );
    }

    #[test]
    fn services_that_are_gone_are_named_until_their_connections_are() {
        let mut view = healthy();
        view.drained = vec!["old".into(), "older".into()];
        let text = status(&view);
        assert!(text.contains("\ngone, and drained: old, older\n"), "{text}");
    }

    #[test]
    fn marked_back_ends_stand_below_their_service() {
        let backend = |address: &str, reason: &str, marked_us| MarkedBackend {
            address: address.parse().unwrap(),
            reason: reason.into(),
            marked_us,
            workers: 1,
        };
        let mut view = healthy();
        view.services[0].marked_backends = vec![
            backend("10.0.0.11:443", "silent", 12_000_000),
            backend("[2001:db8::1]:443", "refused", 300_000),
        ];
        view.services.push(service("web", "transparent", vec![]));
        assert_eq!(
            status(&view),
            "\
flexcp 0.1.0: ready, up 3m20s, configuration 2
offload: off

SERVICE  MODE         PASSES  CLIENTS ON
shop     reverse      yes     any
  back end 10.0.0.11:443 marked 12s ago: silent
  back end [2001:db8::1]:443 marked 300ms ago: refused
web      transparent  yes     any
"
        );
    }

    #[test]
    fn all_that_is_to_say() {
        let absent = on("x", false, false);
        let on = vec![
            on("wan0", true, true),
            on("wan1", true, false),
            on("lte0", false, false),
        ];
        let mended = [("rules", 9), ("routes", 0), ("device", 1)];
        let view = Status {
            state: State::Degraded,
            problems: vec!["interface lte0 is missing".into()],
            mended_times: 2,
            mended_ago_us: Some(4_000_000),
            mended: Numbers(mended.map(|(name, count)| (name.into(), count)).into()),
            offload: vec!["by tcx, on wan0, wan1".into()],
            services: vec![
                service("web", "transparent", on),
                service("far", "transparent", vec![absent]),
            ],
            ..healthy()
        };
        assert_eq!(
            status(&view),
            "\
flexcp 0.1.0: degraded, up 3m20s, configuration 2
problem: interface lte0 is missing
put back: 2 times, last 4s ago (rules 9, device 1)
offload: by tcx, on wan0, wan1

SERVICE  MODE         PASSES  CLIENTS ON
web      transparent  yes     wan0, wan1 (down), lte0 (missing)
far      transparent  no      x (missing)
"
        );
    }
}
