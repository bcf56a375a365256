//! What can't change in a running process: it needs a restart.

use super::file::{Config, Control, Service};
use super::span::{Diagnostics, Located};

/// Adds everything in which `new` differs from `running` although a running process can't change it. `room`: `connections`
/// of `[limits]` as it was at the start.
pub fn check(running: &Config, new: &Config, room: i64, out: &mut Diagnostics) {
    let (old_device, device) = (&running.device, &new.device);
    same("name", &old_device.name, &device.name, out);
    same("table", &old_device.table, &device.table, out);
    same("workers", &old_device.workers, &device.workers, out);
    same("placement", &old_device.placement, &device.placement, out);
    same("pin", &old_device.pin, &device.pin, out);
    same("vrf", &located(&old_device.vrf), &located(&device.vrf), out);
    let (old_offload, offload) = (&running.offload, &new.offload);
    same("enabled", &old_offload.enabled, &offload.enabled, out);
    same(
        "connections",
        &old_offload.connections,
        &offload.connections,
        out,
    );
    same("attach", &old_offload.attach, &offload.attach, out);
    same("mark", &old_offload.mark, &offload.mark, out);
    control(&running.control, &new.control, out);
    let connections = &new.limits.connections;
    if connections.value > room {
        out.error(
            connections.at,
            format!(
                "`connections` can't be larger than the {room} that it was when FlexCP started; restart FlexCP, or write {room} \
                 at most"
            ),
        );
    }
    for service in &new.services {
        let of_name = |old: &&Service| old.name.value == service.name.value;
        if let Some(old) = running.services.iter().find(of_name) {
            interfaces(old, service, out);
        }
    }
}

fn control(running: &Control, new: &Control, out: &mut Diagnostics) {
    same("socket", &running.socket, &new.socket, out);
    same("state_dir", &running.state_dir, &new.state_dir, out);
    let (old, rules) = (located(&running.rules_file), located(&new.rules_file));
    same("rules_file", &old, &rules, out);
    let (old, listen) = (located(&running.listen), located(&new.listen));
    same("listen", &old, &listen, out);
    let (old, token) = (located(&running.token_file), located(&new.token_file));
    same("token_file", &old, &token, out);
}

/// One that may be left out: at the file's beginning then.
fn located<T: Clone>(value: &Option<Located<T>>) -> Located<Option<T>> {
    let at = value.as_ref().map_or(0, |value| value.at);
    Located::new(value.as_ref().map(|value| value.value.clone()), at)
}

fn same<T: PartialEq>(key: &str, running: &Located<T>, new: &Located<T>, out: &mut Diagnostics) {
    if running.value != new.value {
        out.error(
            new.at,
            format!(
                "`{key}` can't change while FlexCP runs; restart FlexCP, or write what it started with"
            ),
        );
    }
}

/// Which connections came in by an interface nobody knows, so none can be drained.
fn interfaces(old: &Service, new: &Service, out: &mut Diagnostics) {
    if new.interfaces.is_empty() {
        return;
    }
    let at = new.interfaces.first().map_or(new.at, |first| first.at);
    let stays = |old: &Located<String>| new.interfaces.iter().any(|new| new.value == old.value);
    let gone = old.interfaces.iter().find(|old| !stays(old));
    let what = match gone {
        Some(gone) => format!("`interfaces` of a service can't lose {}", gone.value),
        None if old.interfaces.is_empty() => "`interfaces` of a service can't lose any".to_owned(),
        None => return,
    };
    out.error(
        at,
        format!(
            "{what} while FlexCP runs; restart FlexCP, or give the service another `name`, so that all of its connections are \
             drained"
        ),
    );
}
