//! The daemon: starts a proxy, reloads its configuration when it is told to, and stops it.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use flexcp_io::{Signal, Signals, monotonic_micros};
use sd_notify::NotifyState;
use tracing::{error, info, warn};

use crate::config::span::Severity;
use crate::config::{self, Diagnostics, ReadError};
use crate::proxy::{Proxy, ProxyError};
use crate::watchdog::Watchdog;

/// Runs FlexCP as the file `path` says, until a signal ends it. To be called before the process has
/// other threads, as signals are blocked first.
///
/// # Errors
/// When something does not work; whatever was changed in the kernel by then has been taken back.
pub fn run(path: &Path) -> Result<(), RunError> {
    let signals = Signals::block().map_err(RunError::Signals)?;
    info!(
        "flexcp {} starts with {}",
        env!("CARGO_PKG_VERSION"),
        path.display()
    );
    let mut proxy = start(path)?;
    let workers = proxy.workers().to_vec();
    let reason = until_ended(&signals, &mut proxy, Watchdog::new(&workers), path);
    notify(&[NotifyState::Stopping]);
    match reason {
        Ok(()) => {
            let ended = std::sync::Arc::clone(proxy.ended());
            proxy.stop(&mut |wait| is_hurried(&signals, &ended, wait))?;
        }
        Err(error) => {
            proxy.break_off()?;
            return Err(error);
        }
    }
    info!("everything taken back, ends");
    Ok(())
}

/// The proxy that the file asks for. Otherwise everything that is wrong has gone to standard error.
fn start(path: &Path) -> Result<Proxy, RunError> {
    let (config, mut found) = config::load(path)?;
    let Some(config) = config else {
        return Err(invalid(&found));
    };
    let started = Proxy::start(config, &mut found);
    if let Err(ProxyError::Invalid { .. }) = &started {
        return Err(invalid(&found));
    }
    tell_warnings(&found);
    Ok(started?)
}

fn invalid(found: &Diagnostics) -> RunError {
    for error in of(found, Severity::Error) {
        eprintln!("{error}");
    }
    RunError::Proxy(ProxyError::Invalid {
        file: found.file().into(),
        errors: found.errors(),
    })
}

fn tell_warnings(found: &Diagnostics) {
    of(found, Severity::Warning).for_each(|warning| warn!("{warning}"));
}

/// What was found, a line each.
fn of(found: &Diagnostics, severity: Severity) -> impl Iterator<Item = String> {
    let all = found.found().into_iter();
    all.filter(move |one| one.severity == severity)
        .map(|one| found.render(one))
}

/// Waits for a signal to end, or for the end of a worker or the watcher.
fn until_ended(
    signals: &Signals,
    proxy: &mut Proxy,
    mut watchdog: Watchdog<'_>,
    path: &Path,
) -> Result<(), RunError> {
    loop {
        watchdog.tend(|state| notify(&[state]));
        let timeout = watchdog.timeout();
        let ready = flexcp_io::wait(signals, proxy.ended(), timeout).map_err(RunError::Signals)?;
        while let Some(signal) = signals.next().map_err(RunError::Signals)? {
            match signal {
                Signal::Terminate => info!("SIGTERM, stops"),
                Signal::Interrupt => info!("SIGINT, stops"),
                Signal::Hangup => {
                    reload(proxy, path);
                    continue;
                }
            }
            return Ok(());
        }
        if ready.woken {
            // Why it has ended, stopping the proxy will tell.
            return Ok(());
        }
    }
}

/// Reads the file anew and puts it into force, or says what is wrong with it. The service manager hears when that begins
/// and when it is over.
fn reload(proxy: &mut Proxy, path: &Path) {
    info!("SIGHUP, reads {} anew", path.display());
    let began = Instant::now();
    // One that waits for an interface has never said that it is ready.
    let ready = proxy.is_ready();
    if ready {
        let now = i128::from(monotonic_micros());
        notify(&[NotifyState::Reloading, NotifyState::MonotonicUsec(now)]);
    }
    match reloaded(proxy, path) {
        Ok(number) => info!(
            "configuration {number} is in force, after {:?}",
            began.elapsed()
        ),
        Err(reason) => error!("{reason}; the configuration before stays in force"),
    }
    if ready {
        notify(&[NotifyState::Ready]);
    }
}

/// The number of the new configuration, or why the old one stays in force.
fn reloaded(proxy: &mut Proxy, path: &Path) -> Result<u64, String> {
    let (config, mut found) = config::load(path).map_err(|error| error.to_string())?;
    let reloaded = config.filter(|_| !found.has_errors()).map(|config| {
        let done = proxy.reload(config, &mut found);
        done.map_err(|error| error.to_string())
    });
    of(&found, Severity::Error).for_each(|line| error!("{line}"));
    tell_warnings(&found);
    let errors = found.errors();
    reloaded.unwrap_or_else(|| {
        let s = if errors == 1 { "" } else { "s" };
        Err(format!("{}: {errors} error{s}", found.file()))
    })
}

/// Whether somebody wants the end at once, after waiting at most so long.
fn is_hurried(signals: &Signals, ended: &flexcp_io::Waker, wait: Duration) -> bool {
    let ready = flexcp_io::wait(signals, ended, Some(wait));
    while let Ok(Some(signal)) = signals.next() {
        if signal != Signal::Hangup {
            info!("told to stop again, does not wait for connections");
            return true;
        }
    }
    // Without signals nobody could.
    ready.map_or(true, |ready| ready.woken)
}

/// Tells the service manager, if there is one.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!("can't notify the service manager: {error}");
    }
}

/// The daemon can't run, or can't go on.
#[derive(thiserror::Error, Debug)]
pub enum RunError {
    /// The proxy can't.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// The file can't be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Signals can't be read.
    #[error("signals can't be read: {0}")]
    Signals(io::Error),
}
