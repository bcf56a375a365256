//! `flexcp show services` and `flexcp show backends`.

use super::{age, align};
use crate::control::view::{BackendStatus, Drain, DrainState, Health, Service, Services};

/// A table with a line for each service.
#[must_use]
pub fn services(services: &Services) -> String {
    let header = SERVICES.map(String::from).to_vec();
    let rows = services.services.iter().map(service);
    table([header].into_iter().chain(rows))
}

/// A table with a line for each back end.
#[must_use]
pub fn backends(services: &Services) -> String {
    let header = BACKENDS.map(String::from).to_vec();
    let mut rows = vec![header];
    for service in &services.services {
        let each = service.backends.iter();
        rows.extend(each.map(|to| backend(&service.name, to)));
    }
    if rows.len() == 1 {
        return "no back ends\n".into();
    }
    table(rows.into_iter())
}

fn table(rows: impl Iterator<Item = Vec<String>>) -> String {
    let lines = align(&rows.collect::<Vec<_>>());
    lines.into_iter().map(|line| line + "\n").collect()
}

fn service(service: &Service) -> Vec<String> {
    let taking = service.backends.iter().filter(|to| takes(to)).count();
    let all = service.backends.len();
    let connections: u64 = service.backends.iter().map(|to| to.connections).sum();
    let of_backends = |text: String| if all == 0 { "-".into() } else { text };
    vec![
        service.name.clone(),
        service.mode.clone(),
        if service.passes { "yes" } else { "no" }.into(),
        service.drain.as_ref().map_or_else(|| "open".into(), drain),
        of_backends(format!("{taking}/{all}")),
        of_backends(connections.to_string()),
    ]
}

fn drain(drain: &Drain) -> String {
    match drain.state {
        DrainState::Draining => format!("draining, {} left", age(drain.left_us)),
        DrainState::Drained => "drained".into(),
    }
}

/// Whether it gets new connections while others are left.
const fn takes(backend: &BackendStatus) -> bool {
    matches!(backend.health, Health::Up) && backend.weight > 0 && !backend.maintenance
}

fn backend(service: &str, backend: &BackendStatus) -> Vec<String> {
    let set = if backend.weight_set { " (set)" } else { "" };
    let state = match (backend.maintenance, backend.health) {
        (false, Health::Up) => "up",
        (false, Health::Down) => "down",
        (true, Health::Up) => "maintenance",
        (true, Health::Down) => "maintenance, down",
    };
    let last = backend.last_down.as_ref();
    vec![
        service.into(),
        backend.address.to_string(),
        format!("{}{set}", backend.weight),
        state.into(),
        backend.connections.to_string(),
        last.map_or_else(
            || "-".into(),
            |last| format!("{} ago: {}", age(last.ago_us), last.reason),
        ),
    ]
}

const SERVICES: [&str; 6] = [
    "SERVICE",
    "MODE",
    "PASSES",
    "STATE",
    "BACKENDS",
    "CONNECTIONS",
];
const BACKENDS: [&str; 6] = [
    "SERVICE",
    "BACKEND",
    "WEIGHT",
    "STATE",
    "CONNECTIONS",
    "LAST DOWN",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::VERSION;
    use crate::control::view::LastDown;

    fn told() -> Services {
        let up = BackendStatus {
            address: "10.0.0.11:443".parse().unwrap(),
            weight: 1,
            weight_set: false,
            maintenance: false,
            health: Health::Up,
            down_workers: 0,
            last_down: None,
            connections: 1200,
        };
        let last_down = Some(LastDown {
            reason: "silent".into(),
            ago_us: 200_000_000,
        });
        let down = BackendStatus {
            address: "[2001:db8::1]:443".parse().unwrap(),
            weight: 3,
            weight_set: true,
            health: Health::Down,
            down_workers: 2,
            last_down,
            connections: 0,
            ..up.clone()
        };
        let away = BackendStatus {
            maintenance: true,
            connections: 7,
            ..up.clone()
        };
        let gone = BackendStatus {
            maintenance: true,
            ..down.clone()
        };
        let shop = Service {
            name: "shop".into(),
            mode: "reverse".into(),
            passes: true,
            interfaces: vec![],
            marked_backends: vec![],
            backends: vec![up, down, away, gone],
            drain: None,
        };
        let web = Service {
            name: "web".into(),
            mode: "transparent".into(),
            passes: false,
            backends: vec![],
            drain: Some(Drain {
                state: DrainState::Draining,
                left_us: 12_000_000,
            }),
            ..shop.clone()
        };
        let mail = Service {
            name: "mail".into(),
            drain: Some(Drain {
                state: DrainState::Drained,
                left_us: 0,
            }),
            ..web.clone()
        };
        Services {
            version: VERSION,
            generation: 1,
            services: vec![shop, web, mail],
        }
    }

    #[test]
    fn services_are_aligned() {
        assert_eq!(
            services(&told()),
            "\
SERVICE  MODE         PASSES  STATE               BACKENDS  CONNECTIONS
shop     reverse      yes     open                1/4       1207
web      transparent  no      draining, 12s left  -         -
mail     transparent  no      drained             -         -
"
        );
    }

    #[test]
    fn backends_are_aligned() {
        assert_eq!(
            backends(&told()),
            "\
SERVICE  BACKEND            WEIGHT   STATE              CONNECTIONS  LAST DOWN
shop     10.0.0.11:443      1        up                 1200         -
shop     [2001:db8::1]:443  3 (set)  down               0            3m20s ago: silent
shop     10.0.0.11:443      1        maintenance        7            -
shop     [2001:db8::1]:443  3 (set)  maintenance, down  0            3m20s ago: silent
"
        );
        let mut none = told();
        none.services.remove(0);
        assert_eq!(backends(&none), "no back ends\n");
    }
}
